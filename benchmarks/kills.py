"""Kill a comparison by `kill -9` at random moments and resume it; check that the results are the same, bit for bit.

    python benchmarks/kills.py --kills 20

Each trial starts a new `unalike compare`, kills it when a random number of rounds is on disk (plus a random fraction of a
second), and resumes it. Prints a Markdown row for each kill: the run during which it happened, the rounds of that run on disk,
and whether both tables, the last checkpoints and all models equal the undisturbed ones.
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

from unalike.metrics.columns import TIMES

METHODS = ["fedavg", "scaffold", "ditto(lam=0.1)", "fedavg + lws", "fedconcat"]
PROGRAM = """
import unalike.runtime.run_recorder, sys
unalike.runtime.run_recorder.CHECKPOINT_SECONDS = 0.2  # checkpoints also during short runs
from unalike.cli import main
main()
"""


def start(out: Path, rounds: int) -> subprocess.Popen[bytes]:
    methods = [word for method in METHODS for word in ("--method", method)]
    words = [
        "compare",
        *methods,
        "--rounds",
        rounds,
        "--seeds",
        2,
        "--participation",
        0.6,
        "--epochs",
        2,
        "--out",
        out,
    ]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def finished(out: Path, rounds: int) -> None:
    if start(out, rounds).wait():
        raise SystemExit(f"the comparison in {out} failed")


def on_disk(out: Path) -> list[tuple[str, int]]:
    """The runs of a comparison, oldest first, with the round of their last checkpoint."""
    runs = (
        sorted((out / "cells").glob("*"), key=lambda path: path.stat().st_mtime)
        if out.exists()
        else []
    )
    return [
        (
            run.name.rsplit("-", 1)[0],
            max((_round(f) for f in run.glob("checkpoints/round-*")), default=0),
        )
        for run in runs
    ]


def _round(checkpoint: Path) -> int:
    return int("0" + "".join(filter(str.isdigit, checkpoint.name)))


def differences(a: Path, b: Path) -> list[str]:
    """The tables, checkpoints and models in which two finished comparisons differ, without times."""
    found = []
    for name in ("rounds", "clients"):
        left, right = (
            pd.read_parquet(path / f"{name}.parquet").drop(columns=[*TIMES], errors="ignore")
            for path in (a, b)
        )
        if not left.equals(right):
            found.append(name)
    files = [{p.relative_to(path) for p in path.rglob("*.safetensors")} for path in (a, b)]
    models = {
        file
        for file in files[0]
        if file.parent.name != "checkpoints" and "states" not in file.parts
    }
    last = {
        max(own, key=str)
        for run in {f.parts[:2] for f in files[0]}
        if (own := _checkpoints(files[0], run))
    }
    found += [
        str(f)
        for f in sorted(models | last)
        if f not in files[1] or (a / f).read_bytes() != (b / f).read_bytes()
    ]
    return found


def _checkpoints(files: set[Path], run: tuple[str, ...]) -> list[Path]:
    return [f for f in files if f.parts[:2] == run and f.parent.name == "checkpoints"]


def main(kills: int = 20, rounds: int = 40, seed: int = 0) -> None:
    """Kill, resume, compare."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, same = Path(folder, "undisturbed"), 0
        finished(whole, rounds)
        total = rounds * len(METHODS) * 2
        print(
            f"{len(METHODS)} methods, 2 seeds, {rounds} rounds: {total} rounds in all.\n",
            flush=True,
        )
        print(
            "| kill | in the run | its rounds on disk | rounds done in all | after resuming |\n|---|---|---|---|---|",
            flush=True,
        )
        for number in range(1, kills + 1):
            out, wanted = Path(folder, str(number)), rng.randrange(total)
            process = start(out, rounds)
            while sum(done for _, done in on_disk(out)) < wanted and process.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
            process.wait()
            done = on_disk(out)
            name, last = done[-1] if done else ("none yet", 0)
            finished(out, rounds)
            found = differences(whole, out)
            same += not found
            said = "identical" if not found else "differs: " + ", ".join(found[:3])
            print(
                f"| {number} | {name} | {last} of {rounds} | {sum(d for _, d in done)} | {said} |",
                flush=True,
            )
        print(f"\n{same} of {kills} identical, bit for bit.")
        if same < kills:
            raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
