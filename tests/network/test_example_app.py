"""The example app in a plain Flower deployment, with Flower's own SuperLink and executor."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import unalike as ua
from unalike._utils.system.supervisor import Supervisor
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.flower import internals
from unalike.federation.flower.flower_processes import environment, free_port
from unalike.federation.operations.run_coordinator import write_site
from unalike.federation.protocol.federation_file import Schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
UNALIKE = [sys.executable, "-c", "from unalike.cli import main; main()"]


@pytest.mark.slow
def test_example_trains_in_flower_deployment(tmp_path, monkeypatch):
    people = ua.partition(ua.load("digits"), "iid", clients=2, seed=1)
    port, data = free_port(), Schema((1, 8, 8), tuple(people.classes))
    terms = {"name": "own", "method": "scaffold", "model": "linear", "rounds": 1, "data": data}
    sites = {"north": 1000, "south": 1000}
    folder = FederationFolder.create(tmp_path / "fed", sites, host="127.0.0.1", port=port, listen="127.0.0.1", **terms)
    env = environment(tmp_path)
    certificate = [
        f"--ssl-{k}file={folder.path / v}"
        for k, v in (("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem"))
    ]
    with Supervisor(tmp_path / "logs") as supervisor:
        link = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth", *certificate]
        supervisor.start("superlink", [*link, "--disable-runtime-dependency-installation"], env)
        control = internals.ControlClient(port, (folder.path / "ca.pem").read_bytes())
        supervisor.wait_until(control.ready, "SuperLink", 60)
        for name, person in zip(folder.bundles, people):
            home = tmp_path / name
            write_site(home / "data.npz", person, people.classes)
            control.register(name, folder.nodes[name])
            words = ["join", folder.bundles[name], "--data", home / "data.npz", "--folder", home]
            supervisor.start(name, [*UNALIKE, *map(str, words)], env)
        files = {
            str(f.relative_to(EXAMPLE)): f.read_bytes()
            for f in EXAMPLE.rglob("*")
            if f.is_file() and "__pycache__" not in str(f)
        }
        config = files["pyproject.toml"].replace(b'folder = ""', f'folder = "{folder.path}"'.encode())
        monkeypatch.setattr(internals, "APP_FILES", files | {"pyproject.toml": config})
        control.start()
        deadline = time.monotonic() + 240
        while not (folder.path / "report.html").exists():
            supervisor.check()
            log = (tmp_path / "logs" / "superlink.log").read_text()
            assert time.monotonic() < deadline, log[-3000:]
            time.sleep(0.5)
    assert (folder.run / "model.safetensors").exists()
