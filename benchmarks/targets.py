"""Print the target table: our engine, a plain PyTorch loop and the peers on the same work.

    python benchmarks/targets.py                    # everything, 5 repetitions
    python benchmarks/targets.py --quick            # one repetition, to see that everything runs
    python benchmarks/targets.py --only 2nn --only server

    python benchmarks/targets.py --render --docs docs/benchmarks.md

Contenders take turns, each in a process of its own; the table shows medians. The result file keeps the newest measurement of each
section for each kind of processor, and the page is generated from it.
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
    """Measure all contenders of a workload; yield all runs so far after each repetition."""
    runs: dict[str, list[Found]] = {}
    for turn in range(repeat):
        for contender in contenders(name):
            done = runs.setdefault(contender.name, [])
            if done and "round" not in done[0]:  # the first attempt failed
                continue
            python, why = (
                (PYTHON, "") if contender.peer is None else environment(contender.peer, folder)
            )
            calm(patience)
            found = (
                {"why": why}
                if why
                else contend(contender, name, 2 if quick else contender.rounds, python)
            )
            done.append(found)
            shown = (
                f"{1e3 * found['round']:.1f} ms"
                if "round" in found
                else found.get("skipped") or found.get("why")
            )
            typer.echo(f"  {turn + 1}/{repeat} {name}: {contender.name}: {shown}", err=True)
        yield runs


def main(
    quick: Annotated[bool, typer.Option(help="One repetition of two rounds.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Measure only these sections: {', '.join(NAMES)}.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 5,
    out: Annotated[Path, typer.Option(help="The result file.")] = HERE / "results.json",
    docs: Annotated[Path | None, typer.Option(help="The page to write from it.")] = None,
    environments: Annotated[
        Path, typer.Option(help="The folder of the peers' virtual environments.")
    ] = ENVIRONMENTS,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for an idle machine before each process.")
    ] = 0.0,
    note: Annotated[
        str | None,
        typer.Option(help="A remark on this machine, shown on the page until it is replaced."),
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Only print the table and write the page.")
    ] = False,
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
        about = {
            "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "load_before": round(os.getloadavg()[0], 2),
        }
        turns = (
            workload(name, times, quick, environments, patience)
            if name in WORKLOADS
            else iter([SECTIONS[name](times)])
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
    """Processor, cores and versions of this machine."""
    import torch

    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": CORES,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    typer.run(main)
