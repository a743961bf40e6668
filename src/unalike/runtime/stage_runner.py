"""The in-process backend of a stage: its clients are simulated in this process, or in worker processes as well."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from unalike._utils import spec
from unalike.core.types import Broadcast, Tree
from unalike.core.views import ServerState
from unalike.engine.auto import Choice, decide
from unalike.engine.multiprocess.worker_pool import WorkerPool
from unalike.methods.plan import Stage
from unalike.metrics.scoring import Predict
from unalike.runtime.model_group import GroupUpdates, ModelGroup
from unalike.runtime.query_runner import ask_client
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stage_state import Facts, RoundResult, StageState, wire_bytes


class StageRunner:
    """Trains the clients of a stage here (a `StageBackend`).

    Args:
        run_config: the run.
        stage: the stage of the plan.
        index: its number among the steps of the plan.
        folder: keeps the clients' states of the run; None: memory does.
        worker_pool: the processes that share the work.
    """

    holds_results = False

    def __init__(
        self,
        run_config: RunConfig,
        stage: Stage,
        index: int = 0,
        folder: Path | None = None,
        worker_pool: WorkerPool | None = None,
    ):
        self.run_config, self.worker_pool = run_config, worker_pool
        recorded = run_config.recording is not None and run_config.recording.needs_updates
        self.single = (
            "local" in run_config.options.protocols or recorded
        )  # each client's update is kept after the round
        self._choice: Choice | None = None
        # no circle of references: clients' samples are freed with the run, without garbage collection
        me = weakref.proxy(self)
        self.state = StageState(
            run_config, stage, index, folder=folder, executor=lambda: me.choice.executor, worker_pool=worker_pool
        )
        self.state.choose = lambda client: me._choose(client)
        context = next(iter(self.state.groups.values())).client_pool.some_context
        self._bytes = wire_bytes(stage, self.state.settings, context)

    # a round ------------------------------------------------------------------------------------------------------------

    def begin_round(self, cohort: list[int], result: RoundResult) -> dict[str, list[int]]:
        """The cohort by group; pooled clients train as one."""
        return {name: [0] for name in self.state.groups} if self.state.stage.pooled else self.state.by_group(cohort)

    def train(self, name: str, ids: Sequence[int], result: RoundResult) -> GroupUpdates:
        """Broadcast a group's model to its clients `ids`, train them, and refuse unusable updates."""
        group, population = self.state.groups[name], self.state.size_of(name)
        broadcast, sink = group.broadcast(ids, population), group.open_sink(ids, population, self.single)
        group.executor.feed(broadcast, ids, group.accepted, sink)
        updates = group.collect(sink, ids, population, self.single)
        result.refused |= updates.refused
        if not self.state.stage.pooled:
            result.bytes_up += len(ids) * (self._bytes["up"] + updates.sent)
        return updates._replace(again=partial(self._train_again, name, result))

    def _train_again(self, name: str, result: RoundResult, ids: Sequence[int]) -> GroupUpdates:
        """The same updates once more, without those that were refused; the round's traffic is counted once."""
        again = RoundResult()
        updates = self.train(name, ids, again)
        result.refused |= again.refused
        return updates

    def end_round(self, result: RoundResult) -> None:
        result.faults = {k: f"refused: {why}" for k, why in result.refused.items()}
        result.bytes_down = (len(result.trained) + len(result.refused)) * self._bytes["down"]

    def _choose(self, client: int) -> str:
        """The group with the model that gives the smallest answer to the stage's query on the client's samples."""
        query, state, chain = self.state.stage.chooses, self.state, self.run_config.options.chain
        assert query is not None

        def answer(of: ServerState) -> float:
            [number] = ask_client(query, state.settings, of, state.population, client, chain).values()
            return float(number)

        return min(state.groups, key=lambda name: answer(state.groups[name].state))

    # the executor -------------------------------------------------------------------------------------------------------

    @property
    def choice(self) -> Choice:
        """The executor of all groups, decided when it is first needed; a resumed run keeps the one it had."""
        if self._choice is None:
            state = self.state
            largest = max(state.all_members, key=lambda name: len(state.all_members[name]))
            share = round(self.run_config.options.participation * len(state.all_members[largest]))
            count = 1 if state.stage.pooled else max(1, share)
            each = -(-count // self.worker_pool.size) if self.worker_pool is not None else count
            rounds = state.stage.rounds - state.done
            self._choice = decide(self._wanted, state.groups[largest].client_pool, each, rounds)
        return self._choice

    @choice.setter
    def choice(self, choice: Choice) -> None:
        self._choice = choice

    @property
    def _wanted(self) -> str:
        """The executor that the user asked for in each process."""
        text = self.run_config.options.executor
        call = spec.parse_one(text)
        return str(call.parameters.get("inner", "auto")) if call.name == "distributed" else text

    @property
    def why(self) -> str:
        """The executor, and the reason for the choice."""
        choice = self._choice or (Choice("none", "nothing is left to train") if self.state.over else self.choice)
        text = f"{choice.executor}: {choice.why}"
        if self.worker_pool is None:
            return text
        return f"distributed: {self.worker_pool.size} processes, in each of them {text}"

    def start(self) -> None:
        """Tell the worker processes which executor trains the stage's clients in each of them."""
        if self.worker_pool is not None and not self.state.over:
            self.worker_pool.tell({"do": "executor", "executor": self.choice.executor})

    # models ---------------------------------------------------------------------------------------------------------------

    def shared_model(self, client: int) -> Predict:
        """The shared model as the client uses it."""
        return self.state.group(client).shared_model(client)

    def personal_models(self, clients: Sequence[int]) -> Iterator[tuple[int, Predict]]:
        """Each client's model: a personal or fine-tuned one, or the shared one where the method has neither."""
        for group, ids, broadcast in self.parted(clients):
            yield from group.personal_models(ids, broadcast)

    def parted(self, clients: Sequence[int]) -> Iterator[tuple[ModelGroup, list[int], Broadcast | None]]:
        """The clients by group, with the broadcast that they are fine-tuned from where the method does that."""
        for name, ids in self.state.by_group([*clients]).items():
            yield self.state.groups[name], ids, self._tuning_broadcast(name, ids)

    def _tuning_broadcast(self, name: str, ids: Sequence[int]) -> Broadcast | None:
        if self.state.method.tuning is None:
            return None
        return self.state.groups[name].broadcast(ids, self.state.size_of(name))

    def local_model(self, result: RoundResult, client: int) -> Predict:
        """The client's model after its local training in the round of `result`."""
        name = next(name for name, cohort in result.cohorts.items() if client in cohort.ids)  # where it trained
        group, cohort = self.state.groups[name], result.cohorts[name]
        return group.local_model(client, result.before[name], cohort.one(client))

    def personal(self, client: int) -> Tree:
        """The parameters and buffers of the client's model, in state-dict order."""
        broadcast = self._tuning_broadcast(self.state.group_of(client) or "", [client])
        return self.state.group(client).personal(client, broadcast)

    # checkpoints ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        """Tensors and facts from which `load_state_dict` restores the stage."""
        tensors, facts = self.state.state_dict()
        if self._choice is not None:
            facts = [fact | {"executor": [self._choice.executor, self._choice.why]} for fact in facts]
        return tensors, facts

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Go back to where `state_dict` was called. Raises `UnalikeError` if the tensors are not those of this stage."""
        self.state.load_state_dict(tensors, facts)
        if "executor" in facts[0] and spec.parse_one(self._wanted).name == "auto":
            # a new measurement might choose another executor, with results that differ in the last bits
            self._choice = Choice(*facts[0]["executor"])

    def collect_client_states(self) -> None:
        """Before the worker processes leave: bring the states of all clients to where this process finds them."""
        for group in self.state.groups.values() if self.worker_pool is not None else ():
            if not group.client_states.empty:
                group.client_states.save(group.accepted)
                group.client_states.adopt(group.accepted)
