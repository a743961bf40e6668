"""The backend of one process: it simulates all clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike.client_devices.simulated_clock import (
    ClientNumbers,
    Devices,
    NoDevices,
    RoundWork,
    Turn,
    simulated_devices,
)
from unalike.core.options import cohort_size
from unalike.core.types import Broadcast, Tree
from unalike.core.views import StageSettings
from unalike.data.population import Population
from unalike.data.transforms import TransformChain
from unalike.engine.auto import Choice, build, decide
from unalike.engine.base import Executor, trained_samples
from unalike.engine.batch_schedule import distinct
from unalike.methods.notes import notes_about
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults
from unalike.methods.return_checks import untouched
from unalike.metrics.scoring import Predict
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.backend import Clock, Replies, RoundUpdates, machine_clock
from unalike.runtime.stages.evaluation import Evaluator
from unalike.runtime.stages.model_group import ModelGroup
from unalike.runtime.stages.query_runner import ask_client, ask_clients
from unalike.runtime.stages.stage_state import Facts, RoundResult, StageState, wire_bytes
from unalike.training.client.client_states import ClientStates, ClientStateStore, group_folder
from unalike.training.client.client_update import initial_client_state
from unalike.training.server.updates import Updates

UNDECIDED = Choice("loop", "nothing is left to train")
"""The executor of a stage whose rounds are all done."""


class LocalBackend:
    """Runs a plan in this process; `clock` counts its seconds."""

    notes = ()

    def __init__(self, run_config: RunConfig, clock: Clock = machine_clock):
        self.run_config = run_config
        self.clock = clock
        self.devices = simulated_devices(
            run_config.options.device_model, len(run_config.population), run_config.options.seed
        )
        """The clients' devices, whose time goes on from stage to stage."""

    def stage(self, stage: Stage, index: int, folder: Path | None) -> LocalStage:
        return LocalStage(self.run_config, stage, index, folder, self.clock, self.devices)

    def query(self, step: QueryStep, index: int) -> Answers:
        run_config = self.run_config
        return ask_clients(
            step, run_config.settings, run_config.population, run_config.options.chain
        )

    def end_step(self, outcome: Answers | StageResults) -> None:
        """The next stage has other clients to wait for."""
        self.devices.end_stage()


class LocalStage:
    """Trains the clients of a stage in this process (a `StageBackend`).

    `folder` keeps the clients' states of the run; None: memory does. `devices` are those that the run simulates, if it does.
    """

    trains_ahead = False

    def __init__(
        self,
        run_config: RunConfig,
        stage: Stage,
        index: int = 0,
        folder: Path | None = None,
        clock: Clock = machine_clock,
        devices: Devices | None = None,
    ):
        self.run_config = run_config
        self.clock = clock
        recorded = run_config.recording is not None and run_config.recording.needs_updates
        evaluates_local_models = "local" in run_config.options.protocols
        self.choice = UNDECIDED
        self.evaluator = self._evaluator()
        # pooled samples are at the server, which has no device of a client
        self._devices = NoDevices() if devices is None or stage.pooled else devices
        chain = run_config.options.chain
        self.state = StageState(
            run_config,
            stage,
            index,
            make_states=partial(self._client_states, folder),
            choose=partial(least_answer, transform=chain),
            keeps_updates=evaluates_local_models or recorded,
            devices=self._devices,
            round_work=self._round_work,
        )

    @cached_property
    def _bytes(self) -> dict[str, dict[str, int]]:
        """Group -> bytes that a client of it receives and sends in a round, and of these the bytes of its update."""
        by_group = {}
        for name, group in self.state.groups.items():
            context = group.client_pool.some_context
            by_group[name] = wire_bytes(
                self.state.stage, group.settings, context, group.members.clients
            )
        return by_group

    def _evaluator(self) -> Evaluator:
        return Evaluator(self.run_config)

    def _client_states(
        self, folder: Path | None, stage: Stage, settings: StageSettings, source: Population
    ) -> ClientStateStore:
        """The client states of a group of the stage."""
        place = None if folder is None else group_folder(folder, settings.stage, settings.group)
        return ClientStates(initial_client_state(stage.method, settings), place)

    # the executor -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Choose the executor of all groups. A resumed run keeps the one it had: another one might change the last bits."""
        is_needed = not self.state.over or self.state.method.finetuning_phase is not None
        is_kept = self.choice is not UNDECIDED and spec.parse_one(self._wanted).name == "auto"
        self.build_executors(self._decide() if is_needed and not is_kept else self.choice)

    def build_executors(self, choice: Choice) -> None:
        """Train and fine-tune with this executor from now on."""
        self.choice = choice
        for group in self.state.groups.values():
            group.executor = self._executor(group)

    @property
    def executor(self) -> str:
        """The executor, and the reason for its choice."""
        return str(self.choice)

    def _decide(self) -> Choice:
        state = self.state
        largest = max(state.all_members, key=lambda name: len(state.all_members[name]))
        participation = self.run_config.options.participation
        clients = cohort_size(participation, len(state.all_members[largest]))
        if state.stage.pooled:
            clients = 1
        return decide(
            self._wanted,
            state.groups[largest].client_pool,
            self._clients_of_a_process(clients),
            state.stage.rounds - state.done,
        )

    def _clients_of_a_process(self, count: int) -> int:
        return count

    def _executor(self, group: ModelGroup) -> Executor:
        return build(self.choice.executor, group.client_pool)

    @property
    def _wanted(self) -> str:
        """The executor that the user asked for in each process."""
        text = self.run_config.options.executor
        call = spec.parse_one(text)
        if call.name == "distributed":
            return str(call.parameters.get("inner", "auto"))
        return text

    # a round ------------------------------------------------------------------------------------------------------------

    def exchange(self, *, train: Sequence[int] = (), evaluate: bool = False) -> Replies:
        """Evaluate the current models here; then broadcast them to the clients `train`, group by group, and train these."""
        begun = self.clock()
        metrics = self.evaluator(self, self.state.pending) if evaluate else None
        started = self.clock()
        evaluation_seconds = started - begun
        # without an evaluation, nobody asked means that the server waits for clients under way
        if evaluate and not train:
            return Replies(metrics, None, evaluation_seconds)

        # Simulated devices tell beforehand whose updates arrive in this round. The other clients do not train now: those that are
        # under way will when their update comes, and those that are lost never do.
        state = self.state
        asked = self._cohorts(train)
        client_seconds: dict[int, float] = {}
        if state.observes_rounds:
            client_seconds = self._devices.seconds_of(state.round, asked, self._round_work)
        arrivals = self._devices.train(
            state.round, asked, self._round_work, state.method.updates_awaited
        )
        started_from = {}
        if state.updates_may_be_late:
            started_from = state.keep_versions(arrivals.rounds)
        groups: dict[str, Updates] = {}
        for name, ids in self._cohorts([*arrivals.rounds]).items():
            group = state.groups[name]
            values = group.state.params | group.state.buffers
            with notes_about(name), untouched(group.method, values, group.state.round):
                groups[name] = group.train(ids, started_from)
        updates = self._with_costs(asked, groups, arrivals.lost, self.clock() - started)
        turns = [self._with_bytes(turn, groups) for turn in arrivals.turns]
        updates = replace(updates, client_seconds=client_seconds, turns=turns)
        return Replies(metrics, updates, evaluation_seconds)

    def _round_work(self, name: str, ids: ClientNumbers) -> RoundWork:
        """The work of clients of a group in a round, by which their devices need time."""
        pool = self.state.groups[name].client_pool
        sizes = pool.counts(ids)
        sent = self._bytes[name]
        distinct_sizes, which = distinct(sizes)
        return RoundWork(
            steps=np.array([pool.steps(size) for size in distinct_sizes])[which],
            samples=trained_samples(pool.method, pool.settings.work, sizes),
            shares=self.state.choice.shares_of(ids),
            bytes_down=sent["down"],
            bytes_up=sent["up"] + sent["update"],
        )

    def _cohorts(self, clients: Sequence[int]) -> dict[str, list[int]]:
        """The clients by group, without groups that have none; pooled clients train as one."""
        if self.state.stage.pooled:
            return {name: [0] for name in self.state.groups if clients}
        by_group = self.state.by_group([*clients])
        return {name: ids for name, ids in by_group.items() if ids}

    def _with_costs(
        self,
        asked: dict[str, list[int]],
        groups: dict[str, Updates],
        lost: dict[int, str],
        seconds: float,
    ) -> RoundUpdates:
        """The updates with what crossed the wire; pooled clients send nothing, and what a lost client sent does not count."""
        bytes_down = sum(len(ids) * self._bytes[name]["down"] for name, ids in asked.items())
        bytes_up = 0
        for name, updates in groups.items():
            if self.state.stage.pooled:
                continue
            # refused updates were sent, too
            clients = len(updates.ids) + len(updates.refused)
            bytes_up += clients * (self._bytes[name]["up"] + updates.bytes_each)
        return RoundUpdates(groups, seconds, bytes_down=bytes_down, bytes_up=bytes_up, lost=lost)

    def _with_bytes(self, turn: Turn, groups: Mapping[str, Updates]) -> Turn:
        """The row of the timeline with what the client was sent, and what it sent."""
        name = self.state.group_of(turn.client)
        assert name is not None, "who was asked has a group"
        bytes_up = self._bytes[name]["up"] + groups[name].bytes_each if turn.counts else 0
        return turn._replace(bytes_down=self._bytes[name]["down"], bytes_up=bytes_up)

    # models ---------------------------------------------------------------------------------------------------------------

    def shared_model(self, client: int) -> Predict:
        return self.state.group(client).shared_model(client)

    def personal_models(self, clients: Sequence[int]) -> Iterator[tuple[int, Predict]]:
        for group, ids, broadcast in self.by_group(clients):
            yield from group.personal_models(ids, broadcast)

    def by_group(
        self, clients: Sequence[int]
    ) -> Iterator[tuple[ModelGroup, list[int], Broadcast | None]]:
        """The clients by the group that they are tested with, and the broadcast that their models are made of, if they are."""
        for name, ids in self.state.tested_by_group([*clients]).items():
            yield self.state.groups[name], ids, self._evaluated_broadcast(name, ids)

    def _evaluated_broadcast(self, name: str, ids: Sequence[int]) -> Broadcast | None:
        if not self.state.method.evaluates_broadcast:
            return None
        return self.state.groups[name].broadcast(ids)

    def local_model(self, result: RoundResult, client: int) -> Predict:
        # the group where it trained, which it may have left
        name = next(name for name, cohort in result.cohorts.items() if client in cohort.ids)
        client_update = result.cohorts[name].one(client)
        return self.state.groups[name].local_model(client, result.before[name], client_update)

    def personal(self, client: int) -> Tree:
        """The parameters and buffers of the client's model, in state-dict order."""
        broadcast = self._evaluated_broadcast(self.state.tested_group(client) or "", [client])
        return self.state.group(client).personal(client, broadcast)

    # checkpoints ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        tensors, facts = self.state.state_dict()
        if self.choice is not UNDECIDED:
            facts = [fact | {"executor": [self.choice.executor, self.choice.why]} for fact in facts]
        return tensors, facts

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Restore the state that `state_dict` returned. Raises `UnalikeError` if the tensors are not those of this stage."""
        self.state.load_state_dict(tensors, facts)
        if "executor" in facts[0]:
            self.choice = Choice(*facts[0]["executor"])


def least_answer(state: StageState, client: int, transform: TransformChain | None) -> str:
    """The group with the model that gives the smallest answer to the stage's query on the client's samples.

    Raises `UnalikeError` where the samples are not here, as in a run that was opened from its folder.
    """
    query = state.stage.chooses
    assert query is not None
    if not state.population.is_here:
        raise UnalikeError(
            f"client {state.population.names[client]!r} chooses one of {len(state.groups)} models by its training samples, which "
            "are not kept with a run: ask the run that trained, in Python run.personal(client), for the client's model"
        )

    def number_for(name: str) -> float:
        group = state.groups[name]
        answer = ask_client(query, group.settings, group.state, state.population, client, transform)
        [number] = answer.values()
        return float(number)

    return min(state.groups, key=number_for)
