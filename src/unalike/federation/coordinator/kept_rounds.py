"""Checkpoints of rounds that are kept beside those that a run needs, and the way back to one of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors, round_file, rounds_of, sweep, write_tensors, writing
from unalike.federation.protocol.roster import Roster, new_run
from unalike.runtime.records.run_directory import RunDirectory

KEPT = "kept"
"""The folder of kept checkpoints in a run directory; a file is named after the round whose models it holds."""


def keep_round(run: Path, round: int) -> None:
    """Keep the newest checkpoint, which holds the models after `round` of the run in the folder `run`."""
    newest, kept = max(rounds_of((run / "checkpoints").glob("round-*.safetensors"))), round_file(run / KEPT, round)
    with writing(kept):
        kept.parent.mkdir(exist_ok=True)
        kept.unlink(missing_ok=True)
        os.link(newest, kept)  # a checkpoint is never changed, only replaced


def roll_back(run: Path, to: int) -> None:
    """Go back to the models after round `to`, under the name of a new run, which the sites begin without client states.

    Sites answer no request of a round that is over, so the run that was cannot go on from an earlier round. Raises `UnalikeError`
    if no checkpoint of this round was kept.
    """
    files = {round: file for file, round in rounds_of((run / KEPT).glob("round-*.safetensors")).items()}
    roster = Roster.load(run / "roster.json")
    if to not in files or roster is None:
        found = ", ".join(map(str, sorted(files))) or "none"
        raise UnalikeError(f"no checkpoint of round {to} is kept in {run}; expected one of {found}")
    tensors, facts = read_tensors(files[to])
    for step in facts["stages"]:
        for group in step:
            group |= {name: [] for name in ("accepted", "holds") if name in group}
    sweep(run)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    write_tensors(round_file(run / "checkpoints", facts["round"]), tensors, facts)
    for round, file in files.items():
        if round > to:
            file.unlink()
    RunDirectory(run).event("rolled back", to=to, run=roster.run)
    Roster(new_run(), roster.sites).save(run / "roster.json")
