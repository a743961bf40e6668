"""The record of a run while it goes: its log, history, checkpoints and trackers."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike._utils.tensor_files import write_bytes, write_tensors
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import ServerState
from unalike.data.ragged import NumberedNames
from unalike.methods.method import Method
from unalike.methods.plan import Answers
from unalike.runtime.records.history import History
from unalike.runtime.records.recording import RoundRecords
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.results.best_round import BestRound, best_round
from unalike.runtime.results.finished_run import Run
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.setup.stopping import ALL_DONE
from unalike.runtime.stages.backend import StageBackend
from unalike.runtime.stages.stage_state import Facts, RoundResult
from unalike.tracking.tracking import Trackers
from unalike.training.wire import Item

StateDict = tuple[Tree, list[Facts]]
"""The value of `StageBackend.state_dict`."""


class Checkpoints:
    """Reads the last checkpoint of a folder, takes in the state of stages as rounds are complete, and writes the next one.

    `saved` are tensors and facts of the checkpoint that the run goes on from; without a directory nothing is written.
    """

    def __init__(self, directory: RunDirectory | None, saved: tuple[Tree, Facts] | None):
        self._directory, self._saved = directory, saved
        self._stages: dict[int, tuple[StageBackend, StateDict]] = {}
        self._answers: dict[int, tuple[str, Answers]] = {}
        self._facts: Facts = {}
        self._is_written, self._written_at = True, time.monotonic()

    # what the last checkpoint holds

    def holds(self, index: int) -> bool:
        """Whether the checkpoint that the run goes on from holds the step."""
        return self._step(index) is not None

    def ends_in(self, index: int) -> bool:
        """Whether the last row of the history that was read back belongs to the step."""
        return self._saved is not None and index == len(self._saved[1]["stages"]) - 1

    def restore(self, index: int, clients: StageBackend, best: BestRound | None) -> None:
        state_dict, state = self._step(index), clients.state
        if state_dict is None:
            return
        clients.load_state_dict(*state_dict)
        if best is not None and best.stage == index:
            state.pin_client_states(best.groups)
        state.adopt_client_states()
        if state.done > state.stage.rounds or (self.holds(index + 1) and not state.over):
            raise UnalikeError(
                f"stage {state.stage.name!r} ended after {state.done} rounds in this folder and has {state.stage.rounds} when "
                "the rounds of this run are split over the stages; ask for as many as before, or choose another folder"
            )
        self._stages[index] = clients, clients.state_dict()

    def restore_answers(self, index: int, name: str) -> Answers | None:
        """The answers to the client query `name`, if the checkpoint holds them."""
        step = self._step(index)
        if step is None:
            return None
        answers = Answers(tuple(step[1][0]["clients"]), step[0])
        self.take_answers(index, name, answers)
        return answers

    def _step(self, index: int) -> StateDict | None:
        if self._saved is None or index >= len(self._saved[1]["stages"]):
            return None
        return tree.under(self._saved[0], f"{index}/"), self._saved[1]["stages"][index]

    # what the next one will hold

    @property
    def answers(self) -> dict[str, Answers]:
        """The answers to client queries so far, by the name of the step."""
        return dict(named for _, named in sorted(self._answers.items()))

    def take_answers(self, index: int, name: str, answers: Answers) -> None:
        """Add the answers to a client query; they are written with the next round."""
        self._answers[index] = name, answers

    def take_stage(self, index: int, clients: StageBackend, facts: Facts) -> None:
        """Add the current state of a stage, with `facts` about the run."""
        if self._directory is None:
            clients.state.prune_client_states()
            return
        self._stages[index] = clients, clients.state_dict()
        self._facts, self._is_written = facts, False

    @property
    def is_due(self) -> bool:
        """Whether there is something to write."""
        return self._directory is not None and not self._is_written

    @property
    def seconds_since_last(self) -> float:
        return time.monotonic() - self._written_at

    def save_client_states(self) -> None:
        """Write the client states that the next checkpoint names: they come first, so that it never names a missing file."""
        for clients, (_, groups) in self._stages.values():
            clients.state.save_client_states(groups)

    def write(self, best: BestRound | None) -> None:
        """Write the checkpoint, and delete client states that it does not need."""
        assert self._directory is not None
        steps: dict[int, StateDict] = {
            index: state_dict for index, (_, state_dict) in self._stages.items()
        }
        last = max(steps)  # a query after it is asked again: no round follows it yet
        steps |= {
            i: (a.tree, [{"clients": list(a.clients)}])
            for i, (_, a) in self._answers.items()
            if i < last
        }
        tensors = {
            f"{i}/{path}": t
            for i, (tensors, _) in sorted(steps.items())
            for path, t in tensors.items()
        }
        facts = self._facts | {"stages": [groups for _, (_, groups) in sorted(steps.items())]}
        if best is not None:
            tensors |= {f"best/{path}": t for path, t in best.tensors.items()}
            facts["best"] = best.facts
        self._directory.save_checkpoint(facts["round"], tensors, facts)
        for clients, (_, groups) in self._stages.values():
            clients.state.prune_client_states(groups)
        self._is_written, self._written_at = True, time.monotonic()


CHECKPOINT_SECONDS = 10.0
"""A run that is written to a folder checkpoints at most this often, and when it ends, is interrupted or fails."""
NOTHING_UNPAID = {"bytes_down": 0, "bytes_up": 0}


MOST_NAMED = 10
"""Clients in which something was wrong that notes name."""


class RunLog:
    """The events of a run, written to its folder, and its notes: warnings, which the finished run has, too."""

    def __init__(self, directory: RunDirectory | None):
        self._directory = directory
        self.notes: list[str] = []
        self._named: set[str] = set()
        """The clients that notes are about, or could have been."""

    def event(self, kind: str, **facts: Any) -> None:
        """Write an event, if the run has a folder."""
        if self._directory is not None:
            self._directory.event(kind, **facts)

    def note(self, text: str, **facts: Any) -> None:
        """Keep a warning, once; an empty one is none."""
        if text and text not in self.notes:
            self.notes.append(text)
            self.event("warning", text=text, **facts)

    def note_clients(self, number: int, names: Sequence[str], found: Mapping[int, str]) -> None:
        """Name the clients in which something was wrong in a round, each one once, up to `MOST_NAMED` of them."""
        for client in [k for k in sorted(found) if names[k] not in self._named]:
            self._named.add(names[client])
            text = f"round {number}: {names[client]}: {found[client]}"
            if len(self._named) > MOST_NAMED:
                text = "something was wrong in more clients: the table of clients says what, round by round"
            self.note(text, round=number, client=names[client])

    def resume(self, last: int) -> None:
        """Take over the notes of rounds up to `last`."""
        events = [] if self._directory is None else self._directory.events
        for event in (
            e for e in events if e["event"] == "warning" and e.get("round", last + 1) <= last
        ):
            self.notes = list(dict.fromkeys([*self.notes, event["text"]]))
            self._named.add(event["client"])


class RunRecorder:
    """Records a run while it goes: each part of the record by itself, and what a complete round changes in all of them."""

    def __init__(
        self,
        directory: RunDirectory | None,
        run_config: RunConfig,
        resume: bool,
        trackers: Trackers,
    ):
        self.directory, self.run_config = directory, run_config
        folder = None if directory is None else directory.path
        saved = None
        if directory is not None and directory.claim(run_config.record, resume):
            saved = directory.load_checkpoint()
            directory.write_config(run_config.record)  # a resumed run may change some options
        self.log = RunLog(directory)
        self.log.event("begun", method=run_config.asked)
        self.history = History(columns=run_config.columns)
        self.records = (
            None if run_config.recording is None else RoundRecords(run_config.recording, folder)
        )
        """The entries that `record=` asks for."""
        self.checkpoints = Checkpoints(directory, saved)
        self.tracking = trackers.follow(
            f"{run_config.asked} (seed {run_config.options.seed})", run_config.record, folder
        )
        self.ended = ""
        """The reason why the run ends before the last round of its plan; empty while it goes on."""
        self._best: BestRound | None = None
        self._unpaid = dict(NOTHING_UNPAID)
        """Bytes that crossed the wire outside a round; the next row includes them."""
        if directory is not None and saved is not None:
            self._resume(directory, *saved)
        if directory is not None:
            _write_population(directory, run_config, is_new=saved is None)

    def _resume(self, directory: RunDirectory, tensors: Tree, facts: dict[str, Any]) -> None:
        self.history = History.load(
            directory.path, self.run_config.columns.unprefixed_protocol, facts["round"]
        )
        self.history.columns = (
            self.run_config.columns
        )  # tables of older versions tell of the rounds until now alone
        if self.records is not None:
            self.records.load(facts.get("recorded", facts["round"]))
        self._best = BestRound.saved(tensors, facts)
        self._unpaid |= facts.get("owed", {})
        self.log.event("resumed", round=facts["round"])
        self.log.resume(facts["round"])

    def restore(self, index: int, clients: StageBackend) -> None:
        self.checkpoints.restore(index, clients, self._best)

    def charge(self, items: Iterable[Item], clients: int) -> None:
        """Count what crossed the wire outside a round."""
        for item in items:
            self._unpaid[f"bytes_{item.direction}"] += item.bytes * clients

    def listening(self) -> AbstractContextManager[None]:
        """Collects the notes of a round's server half, if they are recorded."""
        return nullcontext() if self.records is None else self.records.listen()

    def record(self, method: Method, result: RoundResult, after: dict[str, ServerState]) -> None:
        """Add the records of the round that was trained, if there are any; `after` are the groups' states after it."""
        if self.records is not None:
            self.records.round(self.next_round, method, result.cohorts, result.before, after)

    @property
    def next_round(self) -> int:
        """The number of the next row of the history; row 0 is the start of the run."""
        return self.history.last["round"] + 1 if len(self.history) else 0

    @profiled_function("bookkeeping")
    def add(
        self, index: int, clients: StageBackend, row: dict[str, Any], rows: list[dict[str, Any]]
    ) -> None:
        """Add a complete round; write a checkpoint if one is due."""
        staged = {"stage": index} if index else {}
        self.history.add(
            row | {way: row[way] + cost for way, cost in self._unpaid.items()} | staged, rows
        )
        self._unpaid = dict(NOTHING_UNPAID)
        if self.run_config.options.select == "best":
            self._best = best_round(self._best, index, clients, row, self.history.columns)
        self.tracking.log(self.history.rows)
        self.checkpoints.take_stage(index, clients, self._facts(recorded=row["round"]))
        if self.checkpoints.seconds_since_last > CHECKPOINT_SECONDS:
            self.checkpoint()

    def hold(self, index: int, clients: StageBackend) -> None:
        """Checkpoint a round before its row exists, because its evaluation sends it to other machines."""
        self.checkpoints.take_stage(index, clients, self._facts(recorded=self.next_round))
        self.checkpoint()

    def _facts(self, recorded: int) -> dict[str, Any]:
        """The facts of a checkpoint about the run; `recorded` is the last round with records, whose row may be missing."""
        facts = {"round": self.history.last["round"], "owed": dict(self._unpaid)}
        return facts if self.records is None else facts | {"recorded": recorded}

    def checkpoint(self) -> None:
        """Write what is complete: client states and history first, so that the checkpoint never names a missing file."""
        if self.directory is None or not self.checkpoints.is_due:
            return
        self.checkpoints.save_client_states()
        self.history.save(self.directory.path)
        if self.records is not None:
            self.records.save()
        self.checkpoints.write(self._best)

    def finish(self, clients: StageBackend) -> Run:
        """The run, with its last checkpoint, its model and the risks of its test samples written."""
        self.checkpoint()
        path = None if self.directory is None else self.directory.path
        if self._best is not None:
            self._best.restore(clients, self.history)
            if path is not None:
                self.history.save(path)
        ended, answers = self.ended or ALL_DONE, self.checkpoints.answers
        run = Run(
            self.run_config,
            clients,
            self.history,
            self.log.notes,
            path,
            ended,
            records=self.records,
            answers=answers,
        )
        if path is not None:
            for name, state in clients.state.states.items():
                file = (
                    "model.safetensors"
                    if len(clients.state.states) == 1
                    else f"model-{name}.safetensors"
                )
                write_tensors(path / file, run.model.state_dict(state.params | state.buffers))
            with suppress(UnalikeError):  # the samples are elsewhere, as those of a federation
                if (risks := run.risks) is not None:
                    write_bytes(path / "risks.parquet", risks.to_parquet(index=False))
            self.log.event("finished", round=self.history.last["round"], why=ended)
        self.tracking.finish([] if path is None else sorted(path.glob("model*.safetensors")))
        return run


def _write_population(directory: RunDirectory, run_config: RunConfig, is_new: bool) -> None:
    """Write the encoding of the clients' tables; for a new run also the partition, or without one the clients' names."""
    population = run_config.population
    if population.encoding is not None:
        population.encoding.save(directory.path / "encoding.json")
    if is_new and population.plan is not None:
        population.plan.save(directory.path / "plan.json")
    elif is_new and not isinstance(population.names, NumberedNames):
        directory.write_names(population.names)
