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
from fnmatch import fnmatch
from http.client import HTTPConnection
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

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
    # private keys and samples lie outside the repository, from which the image is built
    for volume in service["volumes"]:
        assert volume.startswith("/srv/unalike/"), volume
    assert ("ports" in service) == (
        file.name == "compose.coordinator.yaml"
    )  # a site listens for nothing


def test_health_check_fails_where_no_coordinator_is_up(tmp_path):
    [service] = yaml.safe_load((DEPLOY / "compose.coordinator.yaml").read_text())[
        "services"
    ].values()
    kind, program, *words = service["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "unalike")
    check_words(words)
    in_folder = [str(tmp_path) if word == "hospitals" else word for word in words]
    assert CliRunner().invoke(app, in_folder).exit_code != 0


def allowed_in_image(name: str) -> bool:
    """Whether .dockerignore lets a path of the repository's root into the build context."""
    included = False
    for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            included = included or fnmatch(name, line[1:])
        elif line and not line.startswith("#") and fnmatch(name, line):
            included = False
    return included


def test_build_context_has_the_package_alone():
    needed = {"src", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert all(map(allowed_in_image, needed))
    kept_out = {
        "federation",
        "site",
        "samples",
        "north.zip",
        "north.keys",
        ".git",
        "tests",
        "studies",
    }
    assert not any(map(allowed_in_image, kept_out))


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
    assert "--constraint /src/constraints.txt" in text
    assert re.search(r"/src\[flower\b", text) and re.search(r"^USER unalike$", text, re.M)
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
    monkeypatch.setattr(monitor, "STATUS_SECONDS", 0)
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


def test_monitor_asks_once_for_many_requests_and_never_for_other_paths(
    monitor, tmp_path, monkeypatch
):
    asked = []

    def status(folder):
        asked.append(folder)
        return STATUS | {"sites": []}

    monkeypatch.setattr(monitor, "status", status)
    monkeypatch.setattr(monitor, "STATUS_SECONDS", 3600)
    with monitor.server(tmp_path, "127.0.0.1:0") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert get(server.server_port, "/favicon.ico")[0] == 404 and not asked
        for path in ("/health", "/metrics", "/health"):
            assert get(server.server_port, path)[0] == 200
        assert asked == [tmp_path]
        server.shutdown()


def test_monitor_runs_a_command_for_each_new_event_without_a_shell(
    monitor, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(monitor, "POLL_SECONDS", 0.05)
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
