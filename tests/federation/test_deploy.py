"""The files for operation under `deploy/`: they parse, and name flags and commands that exist."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest
from typer.main import get_command

from unalike._utils.journal import Journal
from unalike.cli import app

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS, COMPOSED = sorted(DEPLOY.glob("*.service")), sorted(DEPLOY.glob("*.yaml"))


def check_words(words):
    """Every command and flag in the words of a command line exists."""
    command = get_command(app)
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands"), words
    known = {flag for parameter in command.params for flag in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("file", COMPOSED, ids=lambda f: f.name)
def test_compose_file_starts_a_command_with_flags_that_exist(file):
    [service] = yaml.safe_load(file.read_text())["services"].values()
    check_words(service["command"])
    assert (file.parent / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
    if "healthcheck" in service:
        check_words(service["healthcheck"]["test"][2:])
    assert ("ports" in service) == (
        file.name == "compose.coordinator.yaml"
    )  # a site listens for nothing


@pytest.mark.parametrize("file", UNITS, ids=lambda f: f.name)
def test_unit_is_valid_and_starts_a_command_with_flags_that_exist(file, tmp_path):
    [command] = re.findall(r"^ExecStart=/opt/unalike/bin/unalike (.*)$", file.read_text(), re.M)
    check_words(command.split())
    if shutil.which("systemd-analyze"):
        text = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", file.read_text(), flags=re.M)
        unit = tmp_path / file.name
        unit.write_text(re.sub(r"^(User|Group)=.*\n", "", text, flags=re.M))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True
        )
        assert done.returncode == 0 and file.name not in done.stderr, done.stderr


def test_image_has_the_extra_and_no_root():
    text = (DEPLOY / "Dockerfile").read_text()
    assert "/src[flower]" in text and re.search(r"^USER unalike$", text, re.M)
    assert len(UNITS) == len(COMPOSED) == 2


@pytest.fixture
def monitor(monkeypatch):
    monkeypatch.syspath_prepend(str(DEPLOY))
    return importlib.import_module("monitor")


STATUS = {"state": "running", "why": "", "round": 3, "rounds": 9, "method": "fedavg", "seed": 0}
SITE = {
    "name": "north",
    "connected": True,
    "samples": 100,
    "revoked": False,
    "in_run": None,
    "last_answer": 5.5,
    "late": 2,
}


def get(port, path):
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_monitor_serves_health_and_metrics(monitor, tmp_path, monkeypatch):
    assert monitor.status(tmp_path) == {
        "state": "down",
        "sites": [],
    }  # by the program itself: nothing is up there
    found = STATUS | {"sites": [SITE]}
    monkeypatch.setattr(monitor, "status", lambda folder: found)
    with monitor.server(tmp_path, "127.0.0.1:0") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert get(server.server_port, "/health") == (200, "running\n")
        code, text = get(server.server_port, "/metrics")
        assert code == 200 and set(text.splitlines()) == {
            *(
                "unalike_up 1",
                "unalike_paused 0",
                "unalike_round 3",
                "unalike_rounds 9",
                "unalike_seed 0",
            ),
            *(
                f'unalike_site_{name}{{site="north"}} {v}'
                for name, v in (("connected", 1), ("samples", 100), ("revoked", 0))
            ),
            *('unalike_site_last_answer{site="north"} 5.5', 'unalike_site_late{site="north"} 2'),
        }
        assert get(server.server_port, "/state")[0] == 404
        found["state"] = "paused"
        assert get(server.server_port, "/health") == (503, "paused\n")
        assert "unalike_paused 1" in get(server.server_port, "/metrics")[1]
        server.shutdown()


def test_monitor_runs_a_command_for_each_new_event_without_a_shell(
    monitor, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(monitor, "POLL", 0.05)
    journal, heard = Journal(tmp_path / "audit.jsonl"), tmp_path / "heard"
    journal.add("started", user="old")
    command = shlex.join(
        [sys.executable, "-c", f"import sys; open({str(heard)!r}, 'a').write(sys.stdin.read())"]
    )
    for words in (command, "false; touch pwned"):
        thread = threading.Thread(target=monitor.run_at_events, args=(tmp_path, words), daemon=True)
        thread.start()
    time.sleep(0.3)
    journal.add("paused", why="$(touch pwned)")
    journal.add("finished", round=3)
    deadline = time.monotonic() + 20
    while not heard.exists() or heard.read_text().count("\n") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    events = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [e["event"] for e in events] == ["paused", "finished"] and events[0][
        "why"
    ] == "$(touch pwned)"
    assert not (tmp_path / "pwned").exists() and not Path("pwned").exists()
    assert "--on-event: " in capfd.readouterr().err
