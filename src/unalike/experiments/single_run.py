"""A single run as a comparison of one, so that it has the same report."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from unalike._utils.tensor_files import write_bytes
from unalike.experiments.compare import facts_of
from unalike.experiments.experiment import Cell
from unalike.runtime.run_recorder import Run


def keep_facts(run: Run, label: str, front: dict[str, Any]) -> None:
    """Write `comparison.json` beside the tables of a kept run; `front` are the flags that describe its data."""
    if run.out is not None:
        seed = run.run_config.options.seed
        cell = Cell(label, seed, run.run_config)
        facts = facts_of([cell], {label: label}, label, [seed], front)
        facts = replace(facts, ends=[cell.end(run)], notes=list(run.notes))
        write_bytes(run.out / "comparison.json", json.dumps(asdict(facts), indent=1).encode())
