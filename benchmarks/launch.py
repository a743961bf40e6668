"""Environments for the peers, and processes measured from outside: rounds, start-up, peak memory."""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from clock import MARK
from contenders import HERE, Contender

Found = dict[str, Any]
LIMIT = 180.0
"""Time limit of a process in seconds, unless a section gives another."""
CALM = 0.2
"""A machine with fewer busy cores counts as idle."""
EVERY = 0.25
"""Seconds between two measurements of memory."""


def environment(peer: str, folder: Path) -> tuple[Path, str]:
    """The interpreter of a peer's virtual environment, created if it is missing; and the reason if that failed, else ""."""
    home, wanted = folder / peer, HERE / "peers" / f"{peer}.txt"
    python, marker = home / "bin" / "python", home / "installed.txt"
    if marker.exists() and marker.read_text() == wanted.read_text():
        return python, ""
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
        wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return python, f"pip cannot install it: {errors[-1] if errors else done.stderr[-200:]}"
    marker.write_text(wanted.read_text())
    return python, ""


def contend(contender: Contender, workload: str, rounds: int, python: Path) -> Found:
    """Run a contender once: median seconds of the rounds after the first, seconds of start-up with the first round, and MB."""
    command: list[Any] = [python, "-P", contender.script, workload, rounds, *contender.arguments]
    found = watched([str(word) for word in command], contender)
    if "why" in found or "skipped" in found:
        return found
    laps = found.pop("laps")
    if not found["moved"] or not math.isfinite(found["moved"]):
        return {"why": f"the model moved by {found['moved']}: it was not trained"}
    if len(laps) < 2:
        return {"why": f"it reported {len(laps)} rounds"}
    seconds = [b - a for a, b in pairwise(laps)]
    return {"round": statistics.median(seconds), "start": laps[0] - found.pop("began")} | found


def watched(command: list[str], contender: Contender | None = None, limit: float = LIMIT) -> Found:
    """A process's own measurements, with its start time `began`, the `peak_mb` of it and its descendants, and the number of
    cores that were busy with other programs (`foreign`); or `why` there are none."""
    paths = [str(HERE), *([] if contender and contender.peer else [str(HERE.parent / "src")])]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    env |= {
        "PYTHONHASHSEED": "0"
    }  # what the allocator keeps of freed memory differs with the order of sets
    cores = (
        sorted(os.sched_getaffinity(0))[: contender.cores]
        if contender and contender.cores
        else None
    )
    began, before = time.time(), _busy() - _children()
    process = subprocess.Popen(
        command,
        env=env | (contender.environment if contender else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
    )
    peak, over = [0.0], threading.Event()
    look = threading.Thread(target=_look, args=(process.pid, peak, over))
    look.start()
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _kill(process)
        return {"why": f"it took more than {limit:.0f} s"}
    except BaseException:  # do not leave the process behind after an interruption
        _kill(process)
        raise
    finally:
        over.set()
        look.join()
    reports = [line for line in output.splitlines() if line.startswith(MARK)]
    if not reports:
        last = [line.strip() for line in output.splitlines() if line.strip()]
        return {"why": f"exit code {process.returncode}: {last[-1][:200] if last else 'no output'}"}
    foreign = (_busy() - _children() - before) / (time.time() - began)
    return {"began": began, "peak_mb": peak[0], "foreign": foreign} | json.loads(
        reports[-1].removeprefix(MARK)
    )


def calm(patience: float) -> None:
    """Wait up to `patience` seconds until the machine is idle."""
    until = time.time() + patience
    while time.time() < until:
        before = _busy()
        time.sleep(1.0)
        if _busy() - before < CALM:
            return


@contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Run another program that keeps one core busy, if `wanted`."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    for member in _family(process.pid):
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.communicate()


def _busy() -> float:
    """Busy seconds of all cores since the machine started."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


def _children() -> float:
    """Busy seconds of the processes started here, after they ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _look(pid: int, peak: list[float], over: threading.Event) -> None:
    while not over.wait(EVERY):
        peak[0] = max(peak[0], sum(map(_proportional, _family(pid))))


def _proportional(process: psutil.Process) -> float:
    """Proportional set size of a process in MB: a page that k processes share counts 1/k (Linux)."""
    with suppress(psutil.Error):
        return process.memory_full_info().pss / 2**20
    return 0.0


def _family(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []
