"""Run the command line in this process: exit status, standard output and standard error."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from unalike.cli import main

SCRIPT = "from unalike.cli import main; main()"


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return (np.random.default_rng(9).normal(size=(4, 6))[y] * 2 + rng.normal(size=(n, 6))).astype(
        np.float32
    ), y


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    """A file of 120 samples of four classes."""
    file = tmp_path_factory.mktemp("data") / "blobs.npz"
    x, y = rows(120)
    np.savez(file, x=x, y=y)
    return file


@pytest.fixture
def small(samples):
    """Flags of a tiny run."""
    flags = {
        "data": samples,
        "partition": "dirichlet(alpha=0.5, min_size=2)",
        "clients": 3,
        "model": "linear",
        "rounds": 3,
    }
    return [word for key, value in flags.items() for word in (f"--{key}", str(value))]


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run a command: (exit status, standard output, standard error). A traceback fails the test."""
    monkeypatch.delenv("COLUMNS", raising=False)  # processes of pytest-xdist have it

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["unalike", *map(str, words)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as exit:
            main()
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return int(exit.value.code or 0), found.out, found.err

    return run
