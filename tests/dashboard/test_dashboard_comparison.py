"""The dashboard of a comparison: its standings while it runs, when it is interrupted and at its end."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from dashboard_page import UNALIKE, Dashboard, get

import unalike as ua
from unalike.comparison.standings import planned
from unalike.dashboard.server import followed_folder

pytestmark = pytest.mark.slow

METHODS = ["fedavg", "fedadam"]


@pytest.fixture(scope="module")
def clients():
    return ua.partition(ua.load("digits"), "dirichlet(alpha=0.3)", clients=4)


def compare(clients, out, **options):
    return ua.compare(METHODS, clients, model="linear", rounds=3, seeds=2, out=out, **options)


@pytest.fixture(scope="module")
def results(clients, tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "results"
    compare(clients, out, progress=False)
    return out


def test_state_of_a_finished_comparison_ranks_its_methods(results):
    state = followed_folder(results).state()
    table = ua.open_comparison(results).summary.set_index("method")
    assert (state["kind"], state["state"], state["done"], state["rounds"]) == (
        "comparison",
        "finished",
        12,
        12,
    )
    assert state["left"] == 0 and state["baseline"] == "fedavg" and state["model"] == "linear"
    assert [row["method"] for row in state["standings"]] == table["accuracy"].sort_values(
        ascending=False
    ).index.tolist()
    for row in state["standings"]:
        assert (row["seeds_done"], row["seeds"], row["metric"]) == (2, 2, "accuracy")
        assert row["score"] == pytest.approx(table.loc[row["method"], "accuracy"])
    assert [c["name"] for c in state["curves"]] == ["accuracy of fedavg", "accuracy of fedadam"]
    assert all([r for r, _ in c["points"]] == [0, 1, 2, 3] for c in state["curves"])
    assert len({(c["color"], c["strokes"]) for c in state["curves"]}) == 2
    json.dumps(state, allow_nan=False)


def test_state_of_a_comparison_tells_running_from_interrupted(clients, tmp_path):
    seen = []

    def watch(row):
        seen.append(followed_folder(tmp_path).state())
        if row["run"] == "fedadam (seed 0)":
            raise KeyboardInterrupt

    stamp = None
    with pytest.raises(KeyboardInterrupt):
        compare(clients, tmp_path, progress=watch)
    assert {state["state"] for state in seen} == {"running"}
    followed = followed_folder(tmp_path)
    state, stamp = followed.state(), followed.stamp
    assert state["state"] == "not finished, and no process continues it"
    first, second = state["standings"]
    assert (first["method"], first["seeds_done"], second["method"], second["score"]) == (
        "fedavg",
        1,
        "fedadam",
        None,
    )
    compare(clients, tmp_path, progress=False)
    assert followed.stamp != stamp and followed.state()["state"] == "finished"


def test_dashboard_shows_the_standings_of_a_comparison(results, visit):
    server = Dashboard(results)
    try:
        assert json.loads(get(server.url + "state")[2])["kind"] == "comparison"
        page = visit(server.url, width=390)
        page.get_by_text("Every planned run has ended.").wait_for()
        rows = page.locator("#standings tr")
        assert (
            rows.count() == 2
            and "2 of 2" in rows.first.inner_text()
            and "baseline" in rows.last.inner_text()
        )
        assert page.locator("figure").count() == 1  # all methods in one chart, with a legend
        assert (
            page.locator("figure > svg polyline").count()
            == page.locator("figcaption svg.swatch").count()
            == 2
        )
        colors = page.locator("figure > svg polyline").evaluate_all(
            "lines => lines.map((l) => getComputedStyle(l).stroke)"
        )
        assert len(set(colors)) == 2
        assert page.locator("#sites").is_hidden() and page.locator("#log").is_hidden()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        server.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dashboard_shows_epsilon_where_a_method_is_private(results, clients, tmp_path, visit):
    pytest.importorskip("dp_accounting")
    private = "client_dp(noise_multiplier=2)"
    ua.compare(
        ["fedavg", private],
        clients,
        model="linear",
        rounds=2,
        seeds=1,
        out=tmp_path,
        progress=False,
    )
    for folder, cells in ((tmp_path, 2), (results, 0)):
        server = Dashboard(folder)
        try:
            page = visit(server.url)
            page.get_by_text("Every planned run has ended.").wait_for()
            assert page.locator("#epsilon").is_visible() == bool(cells)
            rows = [row.split("\t") for row in page.locator("#standings tr").all_inner_texts()]
            assert {len(row) for row in rows} == {7 if cells else 6}
            if cells:
                assert {row[0]: row[5] == "–" for row in rows} == {"fedavg": True, private: False}
        finally:
            server.close()
    cell = next(tmp_path / cell.folder for cell in planned(tmp_path)[1] if cell.method == private)
    server = Dashboard(cell)
    try:
        page = visit(server.url)
        page.get_by_text("2 of 2 rounds done, epsilon ").wait_for()
    finally:
        server.close()


@pytest.mark.parametrize("folder", ["nothing", "empty", "results"])
def test_dashboard_of_another_folder_refuses_in_one_line(folder, tmp_path):
    for name in ("empty", "results/cells"):
        (tmp_path / name).mkdir(parents=True)
    done = subprocess.run(
        [*UNALIKE, "dashboard", str(tmp_path / folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_dashboard_of_a_taken_port_refuses_in_one_line(results):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*UNALIKE, "dashboard", str(results), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: cannot listen at 127.0.0.1:{port}: Address already in use; choose another --port or --host\n"
    )
