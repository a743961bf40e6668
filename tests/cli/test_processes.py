"""Tests that need a separate process: imports, signals, terminals, pipes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pandas as pd
import pytest
import torch

from unalike._utils.tensor_files import read_tensors
from unalike.metrics.columns import TIMES

SCRIPT = "from unalike.cli import main; main()"


def command(*words):
    return [sys.executable, "-c", SCRIPT, *map(str, words)]


def test_help_and_import_load_no_heavy_library():
    check = """
import sys, unalike
from importlib.metadata import requires
heavy = {"torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "plotly", "pydantic"}
heavy -= {"pydantic"} if any(line.startswith("pydantic") for line in requires("typer")) else set()  # Typer's own
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from unalike.cli import main
for words in (["--help"], ["--version"], ["compare", "--help"], ["run", "--help"], ["list", "--help"]):
    sys.argv = ["unalike", *words]
    try:
        main()
    except SystemExit as exit:
        assert not exit.code
    assert not heavy & set(sys.modules), (words, heavy & set(sys.modules))
"""
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_run_interrupted_and_resumed_gives_the_same_numbers(small, tmp_path, monkeypatch):
    """Ctrl-C gives status 130 and one line; the same command continues to the same numbers."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["run", *small[:-1], 150, "--method", "scaffold"]
    whole = subprocess.Popen(
        command(*words, "--out", tmp_path / "whole"),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    process = subprocess.Popen(
        command(*words, "--out", tmp_path / "cut"), stderr=subprocess.PIPE, text=True
    )
    first = process.stderr.readline()
    assert first.startswith("scaffold: 1/150 rounds")
    process.send_signal(signal.SIGINT)
    err = process.communicate()[1]
    assert process.returncode == 130 and "Traceback" not in err
    assert err.strip().splitlines()[-1] == (
        f"interrupted; the same command continues from what is kept in {tmp_path / 'cut'}"
    )
    assert (tmp_path / "cut" / "rounds.parquet").exists() and not (
        tmp_path / "cut" / "model.safetensors"
    ).exists()
    again = subprocess.run(
        command(*words, "--out", tmp_path / "cut"), capture_output=True, text=True
    )
    assert again.returncode == 0 and whole.wait() == 0
    tables = [
        pd.read_parquet(tmp_path / name / "rounds.parquet").drop(columns=[*TIMES])
        for name in ("cut", "whole")
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    models = [read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("cut", "whole")]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def test_invalid_input_in_a_process_prints_one_line(small):
    done = subprocess.run(
        command("run", *small, "--method", "fedpak"), capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: unknown method or part 'fedpak'; did you mean 'fedpake'")
    assert len(done.stderr.splitlines()) == 1


def test_run_on_a_terminal_shows_a_progress_bar(small):
    main, other = pty.openpty()
    process = subprocess.Popen(
        command("run", *small), stderr=other, stdout=subprocess.PIPE, text=True
    )
    os.close(other)
    seen = b""
    while True:
        try:
            data = os.read(main, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    os.close(main)
    out = process.communicate()[0]
    assert process.returncode == 0 and b"\x1b[" in seen and b"3/3" in seen
    assert "accuracy" in out and "\x1b" not in out


def test_closed_pipe_prints_no_traceback():
    process = subprocess.Popen(
        command("list", "methods"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    err = process.stderr.read()
    process.wait()
    assert "Traceback" not in err and "Error" not in err
