"""`kill -9` at random moments of a comparison, then the same command again: are the final tables the same, bit for bit?

    python benchmarks/kills.py --kills 20

Each trial starts a fresh `unalike compare` in a process of its own, kills it at a moment drawn uniformly over the time that an
undisturbed one takes, and resumes it. Prints one row per kill (Markdown): when, in which run, how many rounds were on disk, and
whether both tables, every checkpoint and every model equal the undisturbed ones.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import typer

METHODS = ["fedavg", "scaffold", "ditto(lam=0.1)", "fedavg + lws", "fedconcat"]
PROGRAM = """
import unalike.record, sys
unalike.record.CHECKPOINT_SECONDS = 0.2  # in the middle of runs as well, however short they are
from unalike.cli import main
main()
"""


def start(out: Path, rounds: int) -> subprocess.Popen[bytes]:
    methods = [word for method in METHODS for word in ("--method", method)]
    words = ["compare", *methods, "--rounds", rounds, "--seeds", 2, "--participation", 0.6, "--epochs", 2, "--out", out]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def finished(out: Path, rounds: int) -> None:
    if start(out, rounds).wait():
        raise SystemExit(f"the comparison in {out} failed")


def on_disk(out: Path) -> tuple[str, int]:
    """The newest run of a comparison and the round of its last checkpoint."""
    runs = sorted((out / "cells").glob("*"), key=lambda path: path.stat().st_mtime) if out.exists() else []
    if not runs:
        return "none yet", 0
    kept = [int(file.stem.removeprefix("round-")) for file in runs[-1].glob("checkpoints/round-*.safetensors")]
    return runs[-1].name.rsplit("-", 1)[0], max(kept, default=0)


def differences(a: Path, b: Path) -> list[str]:
    """The tables, checkpoints and models in which two finished comparisons differ; times aside."""
    found = []
    for name in ("rounds", "clients"):
        left, right = (
            pd.read_parquet(path / f"{name}.parquet").drop(columns="seconds", errors="ignore") for path in (a, b)
        )
        if not left.equals(right):
            found.append(name)
    files = [{p.relative_to(path) for p in path.rglob("*.safetensors")} for path in (a, b)]
    models = {file for file in files[0] if file.parent.name != "checkpoints" and "memory" not in file.parts}
    last = {max(own, key=str) for run in {f.parts[:2] for f in files[0]} if (own := _checkpoints(files[0], run))}
    found += [
        str(f) for f in sorted(models | last) if f not in files[1] or (a / f).read_bytes() != (b / f).read_bytes()
    ]
    return found


def _checkpoints(files: set[Path], run: tuple[str, ...]) -> list[Path]:
    return [f for f in files if f.parts[:2] == run and f.parent.name == "checkpoints"]


def main(kills: int = 20, rounds: int = 40, seed: int = 0) -> None:
    """Kill, resume, compare."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, same = Path(folder, "undisturbed"), 0
        began = time.monotonic()
        finished(whole, rounds)
        takes = time.monotonic() - began
        print(f"Undisturbed: {takes:.0f} s, {len(METHODS)} methods, 2 seeds, {rounds} rounds.\n", flush=True)
        print("| kill | after | run | rounds on disk | after resuming |\n|---|---|---|---|---|", flush=True)
        for number in range(1, kills + 1):
            out, moment = Path(folder, str(number)), rng.uniform(0.1, 1) * takes
            process = start(out, rounds)
            try:
                process.wait(timeout=moment)
                where = ("finished before", rounds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                where = on_disk(out)
            finished(out, rounds)
            found = differences(whole, out)
            same += not found
            said = "identical" if not found else "differs: " + ", ".join(found[:3])
            print(f"| {number} | {moment:.1f} s | {where[0]} | {where[1]} | {said} |", flush=True)
        print(f"\n{same} of {kills} identical, bit for bit.")
        if same < kills:
            raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
