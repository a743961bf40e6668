"""Measurements other than workloads: each section is a function from the number of repetitions to a JSON value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contenders import HERE, WORKERS, ours
from launch import Found, busy, contend, watched
from workloads import WORKLOADS

PYTHON = Path(sys.executable)
SCALES = (
    ("fedavg", 50, 100),
    ("scaffold", 50, 100),
    ("fedavg", 1000, 2000),
    ("scaffold", 1000, 2000),
)
MILLION = 10**6
FEDERATION = {
    "3 sites": ("processes", "3"),
    "3 sites, Flower's deployment": ("flower", "3"),
    "10 sites": ("processes", "10"),
    "10 sites, Flower's deployment": ("flower", "10"),
    "30 sites": ("processes", "30"),
    "3 sites, round trip 0 ms": ("latency", "0"),
    "3 sites, round trip 40 ms": ("latency", "40"),
}
"""Settings of `federation.py`."""


def server(repeat: int) -> Found:
    """Seconds of `advance` by method, and of reading the stacked updates once."""
    return {"runs": [_child("server.py", "aggregate") for _ in range(min(repeat, 3))]}


def memory(repeat: int) -> Found:
    """MB that a run adds to its process, with 10 and with 100 clients."""
    return {
        str(count): [_child("server.py", "memory", str(count)) for _ in range(repeat)]
        for count in (10, 100)
    }


def overhead(repeat: int) -> Found:
    """Seconds of our loop and of its steps alone, by workload; twice the repetitions, as processes differ more than rounds."""
    return _by_workload("overhead.py", 4, 2 * repeat)


def evaluation(repeat: int) -> Found:
    """Seconds to evaluate one model, ours and plain torch, by workload."""
    return _by_workload("evaluation.py", 9, repeat)


def pair(repeat: int) -> Found:
    """Seconds of a round of the SimpleCNN in plain torch: one process alone, and two independent ones at once."""
    return {"runs": [_child("pair.py", "cnn", "3") for _ in range(repeat)]}


def foreign(repeat: int) -> Found:
    """Rounds of the 2NN with and without another busy process, alternating."""
    runs: dict[str, list[Found]] = {"alone": [], "beside": []}
    for _ in range(repeat):
        for name, found in runs.items():
            with busy(name == "beside"):
                found.append(contend(ours(WORKERS, 6), "2nn", 6, PYTHON))
    return runs


def scale(repeat: int) -> Found:
    """Rounds per second and MB of a small population and of a million, by method and cohort."""
    script, env = HERE / "scale.py", os.environ | {"PYTHONPATH": str(HERE.parent / "src")}
    if not script.exists():
        return {"why": "benchmarks/scale.py is missing"}
    found: dict[str, dict[str, list[Any]]] = {}
    for method, cohort, small in SCALES[: 2 if repeat == 1 else None]:
        sides: dict[str, list[Any]] = {"small": [], "million": []}
        for _ in range(min(repeat, 3)):
            for side, clients in (("small", small), ("million", MILLION)):
                command = [sys.executable, script, method, str(clients), str(cohort)]
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    env=env,
                )
                if done.returncode:
                    return {"why": done.stderr.strip().splitlines()[-1]}
                sides[side].append(json.loads(done.stdout))
        found[f"{method}, cohort {cohort}"] = sides
    return found


def auto(repeat: int) -> list[Found]:
    """Seconds of a round by each executor and by plain torch, and the choices of `auto`, idle and with one busy core."""
    rows: list[Found] = []
    for flags in ([], ["--busy"]):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            command = [
                str(PYTHON),
                str(HERE / "auto.py"),
                "--repeats",
                str(repeat),
                "--json",
                str(file),
                *flags,
            ]
            subprocess.run(
                command, check=True, env=os.environ | {"PYTHONPATH": str(HERE.parent / "src")}
            )
            rows += json.loads(file.read_text())
    return rows


def federation(repeat: int) -> Found:
    """Seconds of a round over real processes, sockets and certificates, and MB of a site; ours and Flower's in turns."""
    script, runs = str(HERE / "federation.py"), {name: [] for name in FEDERATION}
    for _ in range(repeat):
        for name, words in FEDERATION.items():
            runs[name].append(watched([str(PYTHON), "-P", script, *words], limit=1200.0))
    return runs


SECTIONS: dict[str, Callable[[int], Found]] = {
    "server": server,
    "memory": memory,
    "overhead": overhead,
    "evaluation": evaluation,
    "pair": pair,
    "foreign": foreign,
    "scale": scale,
    "auto": auto,
    "federation": federation,
}


def _by_workload(script: str, times: int, repeat: int) -> Found:
    """Run a script on each workload that is large enough for it."""
    return {
        name: [_child(script, name, str(times)) for _ in range(repeat)]
        for name in WORKLOADS
        if name != "logistic"
    }


def _child(script: str, *arguments: str) -> Found:
    return watched([str(PYTHON), "-P", str(HERE / script), *arguments])
