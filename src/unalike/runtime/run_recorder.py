"""The record of a run while it goes: its log, history, checkpoints and trackers."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike._utils.tensor_files import write_bytes, write_tensors
from unalike.client_devices.simulated_clock import Turn
from unalike.core import tree
from unalike.core.types import Tree
from unalike.data.ragged import NumberedNames
from unalike.methods.plan import Answers, QueryStep
from unalike.metrics.columns import TIMES
from unalike.runtime.records.history import DIVERGED, History, Row
from unalike.runtime.records.recording import RoundRecords
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.results.best_round import BestRound, best_round
from unalike.runtime.results.finished_run import Run
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.setup.stopping import ALL_DONE
from unalike.runtime.stages.backend import StageBackend
from unalike.runtime.stages.model_group import Diverged
from unalike.runtime.stages.stage_state import Facts, RoundResult
from unalike.tracking.tracking import Trackers
from unalike.training.wire import Item, begin_wire, query_wire

StateDict = tuple[Tree, list[Facts]]
"""The value of `StageBackend.state_dict`."""


class Checkpoints:
    """Reads the last checkpoint of a folder, takes in the state of stages as rounds are complete, and writes the next one.

    `saved` are tensors and facts of the checkpoint that the run goes on from; without a directory nothing is written.
    """

    def __init__(self, directory: RunDirectory | None, saved: tuple[Tree, Facts] | None):
        self._directory = directory
        self._saved = saved
        self._stages: dict[int, tuple[StageBackend, StateDict]] = {}
        self._answers: dict[int, tuple[str, Answers]] = {}
        self._facts: Facts = {}
        self._is_written = True
        self._written_at = time.monotonic()

    # what the last checkpoint holds

    def holds(self, index: int) -> bool:
        """Whether the checkpoint that the run goes on from holds the step."""
        return self._step(index) is not None

    def ends_in(self, index: int) -> bool:
        """Whether the last row of the history that was read back belongs to the step."""
        return self._saved is not None and index == len(self._saved[1]["stages"]) - 1

    def restore(self, index: int, clients: StageBackend, best: BestRound | None) -> None:
        """Bring a stage into the state that the checkpoint has of it, if it has one. Raises `UnalikeError` if it cannot go on."""
        state_dict = self._step(index)
        if state_dict is None:
            return
        tensors, facts = state_dict
        clients.load_state_dict(tensors, facts)
        state = clients.state
        # The best round is pinned before files of an earlier process are taken over, or they would be deleted as outdated.
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
        state_dict = self._step(index)
        if state_dict is None:
            return None
        tensors, [facts] = state_dict
        answers = Answers(tuple(facts["clients"]), tensors)
        self.take_answers(index, name, answers)
        return answers

    def _step(self, index: int) -> StateDict | None:
        """The part of the checkpoint about a step of the plan; None where it has none."""
        if self._saved is None:
            return None
        tensors, facts = self._saved
        if index >= len(facts["stages"]):
            return None
        return tree.under(tensors, f"{index}/"), facts["stages"][index]

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
        tensors: Tree = {}
        stages = []
        for index, (step_tensors, step_facts) in sorted(self._state_dicts().items()):
            tensors |= {f"{index}/{path}": t for path, t in step_tensors.items()}
            stages.append(step_facts)
        facts = self._facts | {"stages": stages}
        if best is not None:
            tensors |= {f"best/{path}": t for path, t in best.tensors.items()}
            facts["best"] = best.facts
        self._directory.save_checkpoint(facts["round"], tensors, facts)
        # Only now: until the new checkpoint is on disk, the one before may be the one to go on from.
        for clients, (_, groups) in self._stages.values():
            clients.state.prune_client_states(groups)
        self._is_written = True
        self._written_at = time.monotonic()

    def _state_dicts(self) -> dict[int, StateDict]:
        """The state of each step of the plan. A query after the last stage is asked again: no round follows it yet."""
        found = {index: state_dict for index, (_, state_dict) in self._stages.items()}
        last = max(found)
        for index, (_, answers) in self._answers.items():
            if index < last:
                found[index] = answers.tree, [{"clients": list(answers.clients)}]
        return found


CHECKPOINT_SECONDS = 10.0
"""A run that is written to a folder checkpoints at most this often, and when it ends, is interrupted or fails."""
NO_BYTES = {"bytes_down": 0, "bytes_up": 0}
NOTABLE_EVALUATION_SECONDS = 20.0
"""Seconds of evaluation in a run from which on they are compared with those of training."""
MAX_NAMED_CLIENTS = 10
"""Clients in which something was wrong that notes name."""


class RunLog:
    """The events of a run, written to its folder, and its notes: warnings, which the finished run has, too."""

    def __init__(self, directory: RunDirectory | None):
        self._directory = directory
        self.notes: list[str] = []
        self._named_clients: set[str] = set()
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

    def note_clients(self, number: int, names: Sequence[str], faults: Mapping[int, str]) -> None:
        """Name the clients in which something was wrong in a round, each one once, up to `MAX_NAMED_CLIENTS` of them."""
        for client in sorted(faults):
            name = names[client]
            if name in self._named_clients:
                continue
            self._named_clients.add(name)
            text = f"round {number}: {name}: {faults[client]}"
            if len(self._named_clients) > MAX_NAMED_CLIENTS:
                text = "something was wrong in more clients: the table of clients says what, round by round"
            self.note(text, round=number, client=name)

    def resume(self, last: int) -> None:
        """Take over the notes of rounds up to `last`."""
        events = [] if self._directory is None else self._directory.events
        for event in events:
            if event["event"] != "warning" or event.get("round", last + 1) > last:
                continue
            if event["text"] not in self.notes:
                self.notes.append(event["text"])
            self._named_clients.add(event["client"])


class RunRecorder:
    """Records a run while it goes, in the folder of the run, if it has one, and for its trackers.

    The round loop calls it at named points, in this order: begin, begin_stage, round_begins, round_trained, round_ends, add, end,
    end_stage, and finish or fail.
    """

    def __init__(
        self,
        directory: RunDirectory | None,
        run_config: RunConfig,
        resume: bool,
        trackers: Trackers,
    ):
        self.directory = directory
        self.run_config = run_config
        folder = None if directory is None else directory.path
        saved = None
        if directory is not None and directory.claim(run_config.description, resume):
            saved = directory.load_checkpoint()
            # a resumed run may change some options
            directory.write_config(run_config.description)
        self.log = RunLog(directory)
        self.log.event("begun", method=run_config.method_text)
        self.history = History(columns=run_config.columns)
        self.records = (
            None if run_config.recording is None else RoundRecords(run_config.recording, folder)
        )
        """The entries that `record=` asks for."""
        self.checkpoints = Checkpoints(directory, saved)
        self.tracking = trackers.follow(
            f"{run_config.method_text} (seed {run_config.options.seed})",
            run_config.description,
            folder,
        )
        self.ended = ""
        """The reason why the run ends before the last round of its plan; empty while it goes on."""
        self._best: BestRound | None = None
        self._unpaid_bytes = dict(NO_BYTES)
        """Bytes that crossed the wire outside a round; the next row includes them."""
        self._most_groups = 0
        """The largest number of groups with clients that a stage had."""
        if directory is not None and saved is not None:
            self._resume(directory, *saved)
        if directory is not None:
            _write_population(directory, run_config, is_new=saved is None)

    def _resume(self, directory: RunDirectory, tensors: Tree, facts: dict[str, Any]) -> None:
        self.history = History.load(directory.path, facts["round"])
        # those of this process: the stored ones lack the functions that compute the metrics
        self.history.columns = self.run_config.columns
        if self.records is not None:
            self.records.load(facts.get("recorded", facts["round"]))
        self._best = BestRound.saved(tensors, facts)
        self._unpaid_bytes |= facts["owed"]
        self.log.event("resumed", round=facts["round"])
        self.log.resume(facts["round"])

    # what the loop asks ------------------------------------------------------------------------------------------------

    @property
    def client_states(self) -> Path | None:
        """The folder of the clients' states; None: memory keeps them."""
        return None if self.directory is None else self.directory.client_states

    @property
    def next_round(self) -> int:
        """The number of the next row of the history; row 0 is the start of the run."""
        return self.history.last["round"] + 1 if len(self.history) else 0

    def resumed_in(self, index: int) -> bool:
        """Whether the run goes on after rounds of this step that an earlier process trained."""
        return len(self.history) > 1 and self.checkpoints.ends_in(index)

    # what happens in a run, in order -----------------------------------------------------------------------------------

    def begin(self, backend_notes: Iterable[str]) -> None:
        """Note what is known before the first stage: about the configuration, the data and the machine."""
        config = self.run_config
        for note in (*config.warnings, *config.data_notes, *backend_notes, config.sanity):
            self.log.note(note)

    def query_answered(self, step: QueryStep, index: int, answers: Answers) -> None:
        """Clients have answered a query between stages."""
        self.checkpoints.take_answers(index, step.name, answers)
        self.charge(query_wire(step, self.run_config.settings), len(answers.clients))
        self.log.event(
            "query", name=step.name, query=repr(step.query), clients=len(answers.clients)
        )

    def restore(self, index: int, clients: StageBackend) -> None:
        """Bring the clients of a stage into the state that the checkpoint has of them."""
        self.checkpoints.restore(index, clients, self._best)

    def begin_stage(self, index: int, clients: StageBackend) -> None:
        """A stage begins or goes on; its first row pays for what every client is sent once."""
        stage = clients.state
        self.log.event("stage", name=stage.stage.name, executor=clients.executor)
        if stage.done == 0 and not self.checkpoints.holds(index):
            self.charge(begin_wire(stage.stage, stage.settings.model), len(stage.eligible))

    def round_begins(self) -> AbstractContextManager[None]:
        """Collects the notes of a round's server half, if they are recorded."""
        return nullcontext() if self.records is None else self.records.listen()

    def round_trained(self, index: int, clients: StageBackend) -> None:
        """The groups' states contain the round `clients.state.pending`, which has no row yet."""
        stage = clients.state
        result = stage.pending
        assert result is not None
        if self.records is not None:
            self.records.round(
                self.next_round, stage.method, result.cohorts, result.before, stage.states
            )
        if clients.trains_ahead and stage.stage.trained:
            self.hold(index, clients)

    def hold(self, index: int, clients: StageBackend) -> None:
        """Checkpoint a round before its row exists, because its evaluation sends it to other machines."""
        self.checkpoints.take_stage(index, clients, self._facts(recorded=self.next_round))
        self.checkpoint()

    def round_ends(self, result: RoundResult | None) -> None:
        """A round is about to be evaluated: what was wrong with clients is noted, however the evaluation ends."""
        if result is None:
            return
        names = self.run_config.population.names
        for client, why in result.refused.items():
            self.log.event("refused", round=self.next_round, client=names[client], why=why)
        self.log.note_clients(self.next_round, names, result.faults)

    @profiled_function("bookkeeping")
    def add(
        self,
        index: int,
        clients: StageBackend,
        row: Row,
        client_rows: Sequence[Row],
        turns: Sequence[Turn],
    ) -> None:
        """Add a complete round; write a checkpoint if one is due."""
        number = row["round"]
        paid = {name: row[name] + count for name, count in self._unpaid_bytes.items()}
        self._unpaid_bytes = dict(NO_BYTES)
        staged = {"stage": index} if index else {}
        self.history.add(
            row | paid | staged,
            clients=[{"round": number} | one for one in client_rows],
            timeline=[{"round": number} | turn._asdict() for turn in turns],
        )
        if self.run_config.options.select == "best":
            self._best = best_round(self._best, index, clients, row, self.history.columns)
        self.tracking.log(self.history.rows)
        self.checkpoints.take_stage(index, clients, self._facts(recorded=number))
        if self.checkpoints.seconds_since_last > CHECKPOINT_SECONDS:
            self.checkpoint()
        self._note_evaluation()

    def end(self, why: str) -> None:
        """The run ends with its newest row for this reason; it goes on where there is none."""
        self.ended = why
        if why:
            self.log.event("stopped", round=self.history.last["round"], why=why)

    def end_stage(self, clients: StageBackend) -> None:
        """A stage has ended."""
        groups = [ids for ids in clients.state.members.values() if len(ids)]
        self._most_groups = max(self._most_groups, len(groups))

    def finish(self, clients: StageBackend) -> Run:
        """The run, with its last checkpoint, its model and the risks of its test samples written."""
        if self._most_groups == 1 and self.run_config.plan.divides:
            self.log.note(
                "all clients are in one group: one model was trained, as by the method without groups"
            )
        self.checkpoint()
        folder = None if self.directory is None else self.directory.path

        # The models of the best round replace those of the last one in the run, not in its checkpoint, which may go on.
        if self._best is not None:
            self._best.restore(clients, self.history)
            if folder is not None:
                self.history.save(folder)
        run = Run(
            self.run_config,
            clients,
            self.history,
            self.log.notes,
            folder,
            self.ended or ALL_DONE,
            records=self.records,
            answers=self.checkpoints.answers,
        )
        if folder is not None:
            _write_models(clients, folder)
            # the samples may be elsewhere, as those of a federation
            with suppress(UnalikeError):
                if run.risks is not None:
                    write_bytes(folder / "risks.parquet", run.risks.to_parquet(index=False))
            self.log.event("finished", round=self.history.last["round"], why=run.ended)
        self.tracking.finish([] if folder is None else sorted(folder.glob("model*.safetensors")))
        return run

    def fail(self, error: BaseException) -> None:
        """The run is interrupted or fails; its complete rounds are written."""
        if isinstance(error, Diverged):
            self.log.event(DIVERGED, round=self.next_round, why=str(error))
        with suppress(UnalikeError):
            self.checkpoint()
        self.tracking.fail()

    # parts of these ----------------------------------------------------------------------------------------------------

    def charge(self, items: Iterable[Item], clients: int) -> None:
        """Count what crossed the wire outside a round."""
        for item in items:
            self._unpaid_bytes[f"bytes_{item.direction}"] += item.bytes * clients

    def checkpoint(self) -> None:
        """Write what is complete: client states and history first, so that the checkpoint never names a missing file."""
        if self.directory is None or not self.checkpoints.is_due:
            return
        self.checkpoints.save_client_states()
        self.history.save(self.directory.path)
        if self.records is not None:
            self.records.save()
        self.checkpoints.write(self._best)

    def _facts(self, recorded: int) -> dict[str, Any]:
        """The facts of a checkpoint about the run; `recorded` is the last round with records, whose row may be missing."""
        facts = {"round": self.history.last["round"], "owed": dict(self._unpaid_bytes)}
        return facts if self.records is None else facts | {"recorded": recorded}

    def _note_evaluation(self) -> None:
        """Suggest fewer evaluations, once, where they take longer than training."""
        if self.run_config.options.evaluate_every != 1:
            return
        totals = []
        for name in TIMES:
            totals.append(sum(row.get(name, math.nan) for row in self.history.rows))
        training, evaluation = totals
        if evaluation > max(training, NOTABLE_EVALUATION_SECONDS):
            self.log.note(
                "evaluation takes longer than training: evaluate_every=5 (--evaluate-every 5) evaluates every fifth round alone"
            )


def _write_models(clients: StageBackend, folder: Path) -> None:
    """Write the model of each group."""
    groups = clients.state.groups
    for name, group in groups.items():
        file = "model.safetensors" if len(groups) == 1 else f"model-{name}.safetensors"
        write_tensors(folder / file, group.state_dict)


def _write_population(directory: RunDirectory, run_config: RunConfig, is_new: bool) -> None:
    """Write the encoding of the clients' tables; for a new run also the partition, or without one the clients' names."""
    population = run_config.population
    if population.encoding is not None:
        population.encoding.save(directory.path / "encoding.json")
    if is_new and population.plan is not None:
        population.plan.save(directory.path / "plan.json")
    elif is_new and not isinstance(population.names, NumberedNames):
        directory.write_names(population.names)
