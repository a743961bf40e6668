"""The dashboard in a browser, while a federation runs, is killed and continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from dashboard_page import UNALIKE, Dashboard, get

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.dashboard.server import followed_folder
from unalike.dashboard.state import Followed

FOCUSED = (
    "document.activeElement.getAttribute('aria-labelledby') || document.activeElement.className"
)
UNNAMED = """[...document.querySelectorAll('[role=region], section, svg, progress')]
    .filter(e => !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')).length"""
HOSTILE = "<img src=x onerror=alert(1)>"
PATIENCE = 600.0
"""Seconds after which what must happen has failed to; on full cores a federation alone takes two minutes to start."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A finished simulation with a federation's events added to it."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    people = ua.partition(ua.load("digits"), "iid", clients=4, seed=0)
    ua.run("fedavg", people, model="linear", rounds=4, participation=0.5, out=folder)
    with open(folder / "events.jsonl", "a") as file:
        file.write(
            json.dumps(
                {"time": 1.0, "event": "refused", "round": 2, "client": HOSTILE, "why": HOSTILE}
            )
            + "\n"
        )
        file.write("{half a line")
    return folder


def until(page, condition, seconds):
    """Wait for a condition; the page's security policy forbids `wait_for_function`."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.2)


def test_dashboard_shows_a_simulation(kept, visit):
    server = Dashboard(kept)
    try:
        page = visit(server.url)
        page.get_by_text("4 of 4 rounds done").wait_for()
        assert page.locator("#kind").inner_text() == "simulation"
        assert page.locator("#method").inner_text() == "fedavg: task_loss() + by_size() + mean()"
        assert page.locator("figure svg").count() >= 2
        assert page.locator("#sites tr").count() == 4
        cells = page.locator("#table tbody td")
        assert (
            cells.count() == 4 * 5 and page.locator("#table .trained").count() == 4 * 2
        )  # half of four, four rounds
        refused = page.locator("#refused tr")
        assert (
            refused.count() == 1 and HOSTILE in refused.inner_text()
        )  # as text: no dialog, no element
        assert page.locator("#refused img").count() == 0
    finally:
        server.close()


def test_dashboard_works_by_keyboard_and_on_a_small_screen(kept, visit):
    server = Dashboard(kept)
    try:
        page = visit(server.url, width=360)
        page.get_by_text("4 of 4 rounds done").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        reached = []
        for _ in range(8):
            page.keyboard.press("Tab")
            reached.append(page.evaluate(FOCUSED))
        assert reached[0] == "skip" and {
            "sites-head",
            "table-head",
            "refused-head",
            "log-head",
        } <= set(reached)
        assert page.evaluate(UNNAMED) == 0
    finally:
        server.close()


def test_dashboard_is_read_only_and_needs_the_token(kept):
    server = Dashboard(kept, "--token", "secret")
    try:
        assert "token=secret" in server.said
        for path in ("", "state", "stream", "dashboard.js"):
            assert get(server.url + path)[0] == 401
        assert get(server.url + "?token=wrong")[0] == 401
        assert get(server.url + "?token=%C3%A9")[0] == 401
        assert get(server.url + "state", Cookie="unalike-dashboard=\xe9")[0] == 401
        cookie = {"Cookie": "unalike-dashboard=secret"}
        status, headers, _ = get(server.url, **cookie)
        assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
        assert json.loads(get(server.url + "state", **cookie)[2])["done"] == 4
        assert get(server.url + "../../etc/passwd", **cookie)[0] == 404
        assert (
            get(server.url, Host="evil.example.org", **cookie)[0] == 400
        )  # a name that was rebound to this machine
        post = urllib.request.Request(server.url + "state", data=b"x", headers=cookie)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(post, timeout=20)
    finally:
        server.close()


def test_followed_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UnalikeError, match="neither a run nor a federation"):
        Followed(tmp_path)
    (tmp_path / "results" / "cells").mkdir(parents=True)
    with pytest.raises(UnalikeError, match="holds no comparison that has begun"):
        followed_folder(tmp_path / "results")
    with pytest.raises(UnalikeError, match="is not a folder"):
        Followed(tmp_path / "nothing")


def test_state_tells_interrupted_from_running(tmp_path):
    x, y = ua.load("digits").train
    people = [
        ua.ClientData(train=(x[k::3], y[k::3]), test=(x[:9], y[:9]), name=f"ward {k}")
        for k in range(3)
    ]
    seen = []

    def watch(row, what=""):
        seen.append(Followed(tmp_path).state()["state"])
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ua.run("fedavg", people, model="linear", rounds=4, out=tmp_path, progress=watch)
    assert set(seen[1:]) == {"running"}
    assert Followed(tmp_path).state()["state"] == "not finished, and no process continues it"
    ua.run("fedavg", people, model="linear", rounds=4, out=tmp_path)
    state = Followed(tmp_path).state()
    assert state["state"] == "finished" and state["table"]["rounds"] == [4, 3, 2, 1, 0]
    assert [site["name"] for site in state["sites"]] == ["ward 0", "ward 1", "ward 2"]


def test_state_shows_client_scores_of_later_protocols(tmp_path):
    """The columns without a prefix are those of the server's test set and have no client scores."""
    x, y = ua.load("digits").train
    people = [
        ua.ClientData(train=(x[k::3], y[k::3]), test=(x[: 9 + k], y[: 9 + k])) for k in range(3)
    ]
    for second in ("clients", "local"):
        out, protocol = tmp_path / second, ("server", second)
        run = ua.run(
            "fedavg",
            people,
            model="linear",
            rounds=2,
            protocol=protocol,
            test=(x[:9], y[:9]),
            out=out,
        )
        state, scored = (
            Followed(out).state(),
            run.history.clients.query("round == 2")[f"{second}_accuracy"],
        )
        assert state["metric"] == "accuracy" and state["table"]["metric"] == f"{second} accuracy"
        assert [row["cells"][0][0] for row in state["table"]["rows"]] == scored.tolist()


@pytest.mark.slow
@pytest.mark.network
def test_dashboard_follows_a_federation_through_restarts(visit, tmp_path):
    pytest.importorskip("flwr")
    out = tmp_path / "fed"
    rounds = (
        "100000"  # more than it can do before it is killed and stopped, however slow the browser is
    )
    words = [
        *UNALIKE,
        "federation",
        "up",
        "--local",
        "2",
        "--rounds",
        rounds,
        "--model",
        "linear",
        "--out",
        str(out),
    ]

    def up():
        with open(tmp_path / "up.log", "ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log)

    coordinator, server = up(), None
    try:
        deadline = time.monotonic() + PATIENCE
        while not (out / "control").exists():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        server = Dashboard(out)
        page = visit(server.url)
        until(page, "document.querySelectorAll('.state-connected').length == 2", PATIENCE)
        until(
            page,
            r"/^Round ([2-9]|\d\d)/.test(document.getElementById('running').textContent)",
            PATIENCE,
        )
        until(page, "document.querySelectorAll('#table tbody td').length >= 4", PATIENCE)

        page.screenshot(
            path=os.environ.get("UNALIKE_SCREENSHOT", str(tmp_path / "dashboard.png")),
            full_page=True,
        )
        coordinator.send_signal(signal.SIGKILL)
        coordinator.wait()
        page.get_by_text("down: not finished").wait_for(timeout=1000 * PATIENCE)
        seen = page.evaluate("parseInt(document.getElementById('done').textContent)")

        port = server.port
        server.close()
        page.get_by_text("connection lost, trying again").wait_for(timeout=1000 * PATIENCE)
        coordinator = up()
        server = Dashboard(out, port=port)
        page.locator("#link", has_text="following").wait_for(timeout=1000 * PATIENCE)
        until(page, f"parseInt(document.getElementById('done').textContent) > {seen}", PATIENCE)
    finally:
        coordinator.send_signal(signal.SIGTERM)
        coordinator.wait(PATIENCE)
        if server is not None:
            server.close()
    assert Path(out / "run").is_dir()
