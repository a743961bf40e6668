"""`unalike doctor` says what the machine has, and fails only if something that a default installation needs is broken."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from unalike.cli import doctor as checks


@pytest.fixture
def quick(monkeypatch):
    """No trial run, and no library is imported."""
    monkeypatch.setattr(
        checks, "_trial", lambda: {"training": "works", "seconds": 0.1, "compiled loops": "works"}
    )
    monkeypatch.setattr(checks, "_import_error", lambda module: "")


def test_doctor_of_a_working_installation_trains_and_succeeds(cli):
    status, out, err = cli("doctor")
    assert status == 0, out + err
    assert (
        "training            works" in out
        and "everything that a default installation needs works" in out
    )


def test_doctor_prints_facts_as_json(cli, quick):
    status, out, _ = cli("doctor", "--json")
    facts = json.loads(out)
    assert status == 0 and facts["broken"] == []
    assert facts["libraries"]["torch"] == metadata.version("torch")
    assert facts["machine"]["cores"] >= 1
    assert facts["extras"]["hub"]["install"] == "pip install 'unalike[hub]'"


def test_doctor_lists_the_data_files_that_can_be_read(cli, quick, samples, monkeypatch):
    monkeypatch.delenv("UNALIKE_DATA", raising=False)
    assert "set UNALIKE_DATA" in cli("doctor")[1]
    (samples.parent / "notes.odt").touch()
    found = cli("doctor", "--data-dir", samples.parent)[1]
    assert f"in {samples.parent}: blobs.npz" in found and "notes.odt" not in found


NETWORKS = """
import torch.nn.functional as F
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 5), nn.Linear(576, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.fc(x.view(x.size(0), -1))

class Normalized(Plain):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(self.conv, nn.BatchNorm2d(4))
"""


def test_doctor_says_what_trains_a_model_and_what_keeps_compiled_loops_from_it(
    cli, quick, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "networks_of_mine.py").write_text(NETWORKS)

    def told(name):
        _, out, err = cli("doctor", "--model", name)
        return " ".join((out + err).split())

    assert "model compiled loops train it" in told("networks_of_mine:Plain")
    assert "torch trains it, not the compiled loops: they have no BatchNorm2d(4" in told(
        "networks_of_mine:Normalized"
    )
    assert "compiled loops train it" in told("cnn")
    assert "has no attribute 'Missing'; expected a class of networks" in told(
        "networks_of_mine:Missing"
    )
    assert "No module named 'no_such_module'" in told("no_such_module:Net")


@pytest.mark.parametrize(
    "version, words",
    [
        (None, "broken              torch: not installed; pip install 'torch"),
        ("1.0", "torch: found 1.0, expected"),
    ],
)
def test_doctor_without_a_library_that_it_needs_fails(version, words, cli, quick, monkeypatch):
    real = checks._version
    monkeypatch.setattr(checks, "_version", lambda name: version if name == "torch" else real(name))
    status, out, _ = cli("doctor")
    assert status == 1 and words in out
    assert "training            not tried" in out


def test_doctor_with_broken_compiled_loops_fails_and_says_why(cli, quick, monkeypatch):
    monkeypatch.setattr(
        checks,
        "_trial",
        lambda: {"training": "works", "compiled loops": "RuntimeError: no locator"},
    )
    status, out, _ = cli("doctor")
    assert status == 1 and "broken              compiled loops: RuntimeError: no locator" in out


def test_doctor_where_numba_has_no_wheels_succeeds(cli, quick, monkeypatch):
    needed = [r for r in checks._requirements() if r.name not in ("numba", "llvmlite")]
    monkeypatch.setattr(checks, "_requirements", lambda extra="": [] if extra else needed)
    monkeypatch.setattr(checks, "_trial", lambda: {"training": "works"})
    status, out, _ = cli("doctor")
    assert status == 0 and "compiled loops      not available: numba is not installed" in out


def test_import_error_says_why_a_module_cannot_be_imported():
    assert checks._import_error("json") == ""
    assert "ModuleNotFoundError" in checks._import_error("unalike.nowhere")
