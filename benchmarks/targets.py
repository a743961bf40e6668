"""One command that prints the target table: our engine, the bare loop and the peers on the same work, side by side.

    python benchmarks/targets.py                    # everything, 5 repetitions
    python benchmarks/targets.py --quick            # one repetition: does everything run?
    python benchmarks/targets.py --only 2nn --only server

    python benchmarks/targets.py --render --docs docs/benchmarks.md

Contenders take turns, each in a process of its own; the table comes from the medians. A section measured again replaces itself in
the result file, which keeps the sections of every kind of processor and from which the page is written.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from contenders import CORES, HERE, contenders
from launch import Found, calm, contend, environment
from sections import PYTHON, SECTIONS
from table import Results, markdown, plain
from workloads import WORKLOADS

NAMES = [*WORKLOADS, *SECTIONS]
ENVIRONMENTS = Path(tempfile.gettempdir()) / "unalike-peers"


def workload(name: str, repeat: int, quick: bool, folder: Path, patience: float) -> Iterator[Found]:
    """All runs so far of all contenders on a workload, after each repetition."""
    runs: dict[str, list[Found]] = {}
    for turn in range(repeat):
        for who in contenders(name):
            done = runs.setdefault(who.name, [])
            if done and "round" not in done[0]:  # it could not be run the first time
                continue
            python, why = (PYTHON, "") if who.peer is None else environment(who.peer, folder)
            calm(patience)
            found = {"why": why} if why else contend(who, name, 2 if quick else who.rounds, python)
            done.append(found)
            shown = f"{1e3 * found['round']:.1f} ms" if "round" in found else found.get("skipped") or found.get("why")
            typer.echo(f"  {turn + 1}/{repeat} {name}: {who.name}: {shown}", err=True)
        yield runs


def main(
    quick: Annotated[bool, typer.Option(help="One repetition of two rounds.")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"A part of it: {', '.join(NAMES)}.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 5,
    out: Annotated[Path, typer.Option(help="The result file.")] = HERE / "results.json",
    docs: Annotated[Path | None, typer.Option(help="The page to write from it.")] = None,
    environments: Annotated[Path, typer.Option(help="Where the peers are installed.")] = ENVIRONMENTS,
    patience: Annotated[float, typer.Option(help="Seconds to wait for an idle machine before each process.")] = 0.0,
    note: Annotated[
        str | None, typer.Option(help="A remark on this machine that the page shows until another one is given.")
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Measure nothing; print and write what is there.")] = False,
) -> None:
    """Measure, print the table, write the result file and the page."""
    strange = sorted(set(only or []) - set(NAMES))
    if strange:
        raise typer.BadParameter(f"{', '.join(strange)}: expected {', '.join(NAMES)}")
    results: Results = json.loads(out.read_text()) if out.exists() else {}
    here = machine()
    mine = results.get(here["cpu"], {"sections": {}}) | {"machine": here}
    times = 1 if quick else repeat
    for name in [] if render else only or NAMES:
        typer.echo(f"{name} ...", err=True)
        about = {"when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "load_before": round(os.getloadavg()[0], 2)}
        turns = (
            workload(name, times, quick, environments, patience) if name in WORKLOADS else iter([SECTIONS[name](times)])
        )
        for turn, data in enumerate(turns, start=1):
            done = turn if name in WORKLOADS else times
            mine["sections"][name] = about | {"repeat": done, "data": data}
            results[here["cpu"]] = mine
            out.write_text(json.dumps(results, indent=1) + "\n")
    if note is not None:
        results[here["cpu"]] = mine | {"note": note}
        out.write_text(json.dumps(results, indent=1) + "\n")
    for name, measured in (results if render else {here["cpu"]: mine}).items():
        print(f"{name}\n{plain(measured)}")
    if docs is not None:
        docs.write_text(markdown(results))


def machine() -> dict[str, Any]:
    """What it was measured on."""
    import torch

    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {"cpu": model, "cores": CORES, "python": sys.version.split()[0], "torch": torch.__version__}


if __name__ == "__main__":
    typer.run(main)
