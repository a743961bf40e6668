"""`unalike doctor`: what this machine has, and whether the installation works.

`checks.py` finds the facts, this file prints them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from unalike.cli import options as o
from unalike.cli.doctor.checks import examined

NAME = "doctor"

LISTED = 12
"""Names of data files that are listed."""


def command(
    data_dir: o.DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Say what this machine has, and whether the installation works.

    Cores, memory, GPUs, versions, compiled loops (by a run of one round), extras and how to install them, data files.

    \b
    unalike doctor
    unalike doctor --json

    The exit status is 1 if something that a default installation needs is missing or broken.
    """
    facts = examined(data_dir)
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        _print(facts)
    raise typer.Exit(1 if facts["broken"] else 0)


def _print(facts: dict[str, Any]) -> None:
    """Print the facts as lines of a name and what was found."""
    machine, trial, data = facts["machine"], facts["trial"], facts["data"]
    memory = machine.get("memory_mb")
    lines = [
        ("unalike", f"{facts['unalike']}, Python {facts['python']}, {facts['platform']}"),
        (
            "cores",
            f"{machine.get('cores', '?')}, torch uses {machine.get('threads', 'none')}, vectors {machine.get('vectors', '?')}",
        ),
        ("memory", "unknown" if memory is None else f"{memory / 1000:,.1f} GB"),
        ("GPU", ", ".join(machine.get("gpus", ())) or "none that torch can use"),
        ("libraries", ", ".join(f"{name} {version or 'MISSING'}" for name, version in facts["libraries"].items())),
        ("training", trial.get("training", "not tried") + (f" ({trial['seconds']} s)" if "seconds" in trial else "")),
        ("compiled loops", trial.get("compiled loops", "not available: numba is not installed")),
    ]
    for name, extra in facts["extras"].items():
        lacking = ", ".join(extra["missing"])
        lines.append((f"extra {name}", f"lacks {lacking}; {extra['install']}" if lacking else "installed"))
    lines += [("data", _where(data)), ("verdict", "everything that a default installation needs works")]
    if facts["broken"]:
        lines[-1:] = [("broken", what) for what in facts["broken"]]
    for name, found in lines:
        print(f"{name:<20}{found}")


def _where(data: dict[str, Any]) -> str:
    """The folder of data files, and its contents, as a line."""
    embedded = f"embedded: {', '.join(data['embedded'])}"
    if data["folder"] is None:
        return f"{embedded}; no folder of data files: set {data['variable']}, or use --data-dir"
    names = data["files"]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{embedded}; in {data['folder']}: {', '.join(names[:LISTED]) or 'nothing that can be read'}{more}"
