"""The record of a run: its history, checkpoints and events while it goes, and the finished run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike._utils.tensor_files import write_tensors
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import ServerState
from unalike.data.ragged import NumberedNames
from unalike.methods.method import Method
from unalike.methods.plan import Answers
from unalike.metrics.columns import VALIDATION
from unalike.runtime.backend import StageBackend
from unalike.runtime.finished_run import Run
from unalike.runtime.records.history import History
from unalike.runtime.records.recording import RoundRecords
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stage_state import RoundResult
from unalike.runtime.stopping import ALL_DONE, best_row
from unalike.tracking.tracking import Trackers
from unalike.training.wire import Item

CHECKPOINT_SECONDS = 10.0
"""A run that is written to a folder checkpoints at most this often, and when it ends, is interrupted or fails."""


@dataclass(frozen=True)
class BestRound:
    """The best rounds of a stage by the validation samples.

    `rows` holds the round and score of the best one by each column of the history; the frozen stage is that of `main`, the column
    that decides which models the run gives.
    """

    stage: int
    rows: dict[str, dict[str, Any]]
    main: str
    tensors: Tree
    groups: list[dict[str, Any]]

    @property
    def facts(self) -> dict[str, Any]:
        return {"stage": self.stage, "rows": self.rows, "main": self.main, "groups": self.groups}

    @classmethod
    def found(cls, tensors: Tree, facts: dict[str, Any]) -> BestRound | None:
        """The one in a checkpoint."""
        return cls(**facts["best"], tensors=tree.under(tensors, "best/")) if "best" in facts else None


class RunRecorder:
    """Records a run while it goes: its history and notes, and in a folder its checkpoints and events."""

    def __init__(self, directory: RunDirectory | None, run_config: RunConfig, resume: bool, trackers: Trackers):
        self.directory = directory
        self.run_config = run_config
        self.notes: list[str] = []
        self.history = History(columns=run_config.columns)
        self.ended = ""
        """The reason why the run ends before the last round of its plan; empty while it goes on."""
        self.saved: tuple[Tree, dict[str, Any]] | None = None
        folder = None if directory is None else directory.path
        self.records = None if run_config.recording is None else RoundRecords(run_config.recording, folder)
        """The entries that `record=` asks for."""
        self._stages: dict[int, tuple[StageBackend, tuple[Tree, list[dict[str, Any]]]]] = {}
        self._answers: dict[int, Answers] = {}
        self._names: dict[int, str] = {}
        self._best: BestRound | None = None
        self._unpaid = {"bytes_down": 0, "bytes_up": 0}
        self._owed = dict(self._unpaid)  # the part that a checkpoint holds: its round has no row yet
        self._round, self._written, self._time = 0, -1, time.monotonic()
        self._recorded = 0
        """The last round with records that belong to the next checkpoint; its row in the history may be missing."""
        if directory is not None and directory.claim(run_config.record, resume):
            self.saved = directory.load_checkpoint()
            directory.write_config(run_config.record)  # a resumed run may change some options
        self.event("begun", method=run_config.asked)
        name = f"{run_config.asked} (seed {run_config.options.seed})"
        self.tracking = trackers.follow(name, run_config.record, None if directory is None else directory.path)
        if directory is not None and run_config.population.encoding is not None:
            run_config.population.encoding.save(directory.path / "encoding.json")
        if self.saved is not None and directory is not None:
            self._round = self._written = self.saved[1]["round"]
            self.history = History.load(directory.path, run_config.columns.plain, self._round)
            if self.records is not None:
                self.records.load(self.saved[1].get("recorded", self._round))
            self._best = BestRound.found(*self.saved)
            self._unpaid |= self.saved[1].get("owed", {})
            directory.event("resumed", round=self._round)
        elif directory is not None and run_config.population.plan is not None:
            run_config.population.plan.save(directory.path / "plan.json")
        elif directory is not None and not isinstance(run_config.population.names, NumberedNames):
            directory.write_names(run_config.population.names)

    def restore(self, index: int, clients: StageBackend) -> None:
        """Bring a stage to where the checkpoint has it."""
        found = self._found(index)
        if found is None:
            return
        clients.load_state_dict(*found)
        if self._best is not None and self._best.stage == index:
            clients.state.pin_client_states(self._best.groups)
        clients.state.adopt_client_states()
        over, total = index + 1 < len(self.saved[1]["stages"]) if self.saved else False, clients.state.stage.rounds
        if clients.state.done > total or (over and not clients.state.over):
            raise UnalikeError(
                f"stage {clients.state.stage.name!r} ended after {clients.state.done} rounds in this folder and has {total} "
                f"when {self.run_config.options.rounds} rounds are split over the stages; ask for as many as before, or choose "
                "another folder"
            )
        self._stages[index] = clients, clients.state_dict()

    def restored(self, index: int) -> bool:
        """Whether the checkpoint holds the step."""
        return self._found(index) is not None

    def newest(self, index: int) -> bool:
        """Whether the last row of the history that was read back belongs to the stage."""
        return self.saved is not None and index == len(self.saved[1]["stages"]) - 1

    def answers(self, index: int, name: str) -> Answers | None:
        """The answers to the client query of a step that the checkpoint holds."""
        self._names[index] = name
        found = self._found(index)
        if found is None:
            return None
        self._answers[index] = Answers(tuple(found[1][0]["clients"]), found[0])
        return self._answers[index]

    def keep(self, index: int, answers: Answers) -> None:
        """Take in the answers to a client query; they are written with the next round."""
        self._answers[index] = answers

    def charge(self, items: Iterable[Item], clients: int) -> None:
        """Count what crossed the wire outside a round; the next row includes it."""
        for item in items:
            self._unpaid[f"bytes_{item.direction}"] += item.bytes * clients

    def _found(self, index: int) -> tuple[Tree, list[dict[str, Any]]] | None:
        if self.saved is None or index >= len(self.saved[1]["stages"]):
            return None
        return tree.under(self.saved[0], f"{index}/"), self.saved[1]["stages"][index]

    def listening(self) -> AbstractContextManager[None]:
        """Collects the notes of a round's server half, if they are recorded."""
        return nullcontext() if self.records is None else self.records.listen()

    def record(self, number: int, method: Method, result: RoundResult, after: dict[str, ServerState]) -> None:
        """Take in what is recorded of a round that was trained, if anything is; `after` are the groups' states after it."""
        if self.records is not None:
            self.records.round(number, method, result.cohorts, result.before, after)

    def note(self, text: str) -> None:
        """Keep a warning, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.event("warning", text=text)

    def event(self, kind: str, **facts: Any) -> None:
        if self.directory is not None:
            self.directory.event(kind, **facts)

    @profiled_function("bookkeeping")
    def add(self, index: int, clients: StageBackend, row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Take in a round that is complete; checkpoint when it is time."""
        staged = {"stage": index} if index else {}
        self.history.add(row | {way: row[way] + cost for way, cost in self._unpaid.items()} | staged, rows)
        self._unpaid, self._owed = dict.fromkeys(self._unpaid, 0), dict.fromkeys(self._unpaid, 0)
        self._round = self._recorded = row["round"]
        self._choose(index, clients, row)
        self.tracking.log(self.history.rows)
        if self.directory is None:
            clients.state.prune_client_states()
            return
        self._stages[index] = clients, clients.state_dict()
        if time.monotonic() - self._time > CHECKPOINT_SECONDS:
            self.checkpoint()

    def _choose(self, index: int, clients: StageBackend, row: dict[str, Any]) -> None:
        """Keep the round if it is the best of its stage so far by the validation samples of some protocol.

        The models that are kept are those of the round that is best for the personal models, or without them for the shared one.
        """
        if self.run_config.options.select != "best":
            return
        columns = self.history.columns
        scored = [
            c for p in columns.protocols if (c := columns.get(p, split=VALIDATION)) and not math.isnan(c.value(row))
        ]
        best = self._best if self._best is not None and self._best.stage == index else None
        rows = dict(best.rows) if best else {}
        for column in scored:
            if best_row([*([rows[column.name]] if column.name in rows else []), row], column) is row:
                rows[column.name] = {"round": row["round"], column.name: column.value(row)}
        personal = columns.get("personal", split=VALIDATION)
        main = max(rows, key=lambda name: personal is not None and name == personal.name, default=None)
        if main is None:
            return
        if best is not None and rows[main]["round"] != row["round"]:
            self._best = replace(best, rows=rows)
            return
        tensors, groups = clients.state_dict()
        clients.state.pin_client_states(groups)
        self._best = BestRound(index, rows, main, tensors, groups)

    def hold(self, index: int, clients: StageBackend) -> None:
        """Checkpoint a round before its row exists, because its evaluation sends it to other machines."""
        if self.directory is not None:
            self._stages[index] = clients, clients.state_dict()
            self._written, self._owed = -1, dict(self._unpaid)
            self._recorded = self._round + 1
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write the last complete round: client states and history first, so that the checkpoint never names a missing file."""
        if self.directory is None or self._round == self._written or not self._stages:
            return
        last = max(self._stages)  # a query after it is asked again: no round follows it yet
        kept = {i: (a.tree, [{"clients": list(a.clients)}]) for i, a in self._answers.items() if i < last}
        for index, (clients, frozen) in self._stages.items():
            clients.state.save_client_states(frozen[1])
            kept[index] = frozen
        tensors = {f"{i}/{path}": t for i, (frozen, _) in sorted(kept.items()) for path, t in frozen.items()}
        stages = [facts for _, (_, facts) in sorted(kept.items())]
        self.history.save(self.directory.path)
        if self.records is not None:
            self.records.save()
        facts: dict[str, Any] = {"round": self._round, "stages": stages, "owed": self._owed}
        facts |= {"recorded": self._recorded} if self.records is not None else {}
        if self._best is not None:
            tensors |= {f"best/{path}": t for path, t in self._best.tensors.items()}
            facts["best"] = self._best.facts
        self.directory.save_checkpoint(self._round, tensors, facts)
        for clients, (_, groups) in self._stages.values():
            clients.state.prune_client_states(groups)
        self._written, self._time = self._round, time.monotonic()

    def finish(self, clients: StageBackend) -> Run:
        """The run, with its last checkpoint and its model written."""
        self.checkpoint()
        path = None if self.directory is None else self.directory.path
        if self._best is not None:
            self.history.select({column: row["round"] for column, row in self._best.rows.items()})
            clients.load_state_dict(self._best.tensors, self._best.groups)
            if path is not None:
                self.history.save(path)
        ended = self.ended or ALL_DONE
        found = {self._names[i]: answers for i, answers in sorted(self._answers.items())}
        run = Run(self.run_config, clients, self.history, self.notes, path, ended, records=self.records, answers=found)
        if path is not None:
            for name, state in clients.state.states.items():
                file = "model.safetensors" if len(clients.state.states) == 1 else f"model-{name}.safetensors"
                write_tensors(path / file, run.model.state_dict(state.params | state.buffers))
            self.event("finished", round=self._round, why=ended)
        self.tracking.finish([] if path is None else sorted(path.glob("model*.safetensors")))
        return run
