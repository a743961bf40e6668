"""Simulations run without what only Linux has, which these tests take away; what other systems do differently stays untested."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

WITHOUT_LINUX = """
import builtins, ctypes, importlib, io, json, os, signal, socket, sys, types, warnings
from contextlib import redirect_stderr, redirect_stdout

# libraries of others know the real system
import matplotlib.font_manager, matplotlib.backends.backend_agg, multiprocessing.connection, pandas, plotly.graph_objects, pyarrow
import psutil, rich.console, scipy.stats, sklearn.metrics, torch._dynamo, typer.testing
for name in ("numba", "llvmlite.binding"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass

platform = sys.argv.pop(1)
sys.platform = platform
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for name in ("fork", "forkpty", "sched_getaffinity", "sysconf", "killpg", "setsid", "getuid", "geteuid", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGCHLD"):
    delattr(signal, name)
del socket.AF_UNIX


def loaded_before_only(name, *arguments, **options):
    if name is None:
        raise TypeError("no C library of this process")
    return library(name, *arguments, **options)


def opened_outside_of_proc(path, *arguments, **options):
    if str(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(path)
    return io.open(path, *arguments, **options)


psutil._common.open = io.open
library, ctypes.CDLL, builtins.open = ctypes.CDLL, loaded_before_only, opened_outside_of_proc

if platform == "win32":
    held = {}

    def locking(handle, mode, size):
        place = os.fstat(handle).st_ino
        held.pop(handle, None)  # the number of a handle is given again only after it was closed
        for other, taken in list(held.items()):
            try:
                closed = os.fstat(other).st_ino != taken
            except OSError:
                closed = True
            if closed:
                del held[other]
        if place in held.values():
            raise PermissionError(13, "Permission denied")
        held[handle] = place

    psutil.Process.memory_info = lambda self: types.SimpleNamespace(peak_wset=5e8)  # Windows counts it, and Linux does not
    sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
else:
    del sys.modules["fcntl"], sys.modules["resource"]  # macOS has them

warnings.filterwarnings("error", category=EncodingWarning, module="unalike")

from unalike.cli import main

results = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["unalike", *words]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            results.append([end.code or 0, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_simulation_runs_without_what_only_linux_has(platform, small, tmp_path):
    compare = [
        "compare",
        *small,
        "--method",
        "fedavg",
        "--method",
        "scaffold",
        "--seeds",
        "2",
        "--out",
        "out",
    ]
    refused = [["run", *small, "--workers", "2"], ["federation", "status", "."]]
    commands = [[*compare, "--dry-run"], compare, compare, *refused]
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "warn_default_encoding",
            "-c",
            WITHOUT_LINUX,
            platform,
            json.dumps(commands),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    estimated, compared, read_back, *refusals = json.loads(done.stdout.splitlines()[-1])
    assert " MB of memory" in " ".join(estimated[1].split())
    assert [estimated[0], compared[0], read_back[0]] == [0, 0, 0], (estimated, compared, read_back)
    assert "scaffold" in compared[1] and "scaffold" in read_back[1]
    assert (tmp_path / "out" / "report.html").exists()
    assert [status for status, _, _ in refusals] == [2, 2]
    assert "Linux only" in refusals[0][2]
    assert "needs Linux" in refusals[1][2] or "unalike[flower]" in refusals[1][2]


def test_characters_that_the_terminal_lacks_are_replaced():
    command = [sys.executable, "-c", "from unalike.cli import main; main()", "list", "methods"]
    done = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0, done.stderr
    assert b"fedavg" in done.stdout
