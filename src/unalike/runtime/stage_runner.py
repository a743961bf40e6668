"""One stage of a plan in progress on this machine: the states of its groups, its executors, its clients' memories."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils import seeds, spec
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.types import Broadcast, Context, Tree
from unalike.core.views import Cohort, ServerState, StageSettings
from unalike.data.population import Population
from unalike.engine.auto import Choice, decide
from unalike.engine.base import BatchTransform
from unalike.engine.multiprocess.worker_pool import WorkerPool
from unalike.methods.client_query import ClientQuery
from unalike.methods.plan import Stage
from unalike.metrics.scoring import Predict
from unalike.runtime.model_group import ModelGroup
from unalike.runtime.query_runner import ask_client, with_shared
from unalike.training.wire import stage_wire

Facts = dict[str, Any]


@dataclass(frozen=True)
class RoundResult:
    """What a round did: the states it began with and its cohorts by group (sound reports only), the refusals, the costs."""

    before: dict[str, ServerState]
    cohorts: dict[str, Cohort]
    refused: dict[int, str]
    seconds: float
    bytes_down: int
    bytes_up: int

    @property
    def participants(self) -> int:
        return sum(len(c.ids) for c in self.cohorts.values())

    @property
    def faults(self) -> dict[int, str]:
        """What went wrong with whom."""
        return {k: f"refused: {why}" for k, why in self.refused.items()}

    @property
    def trained(self) -> list[int]:
        """The clients whose reports counted."""
        return [k for c in self.cohorts.values() for k in c.ids]

    @cached_property
    def train_loss(self) -> float:
        """The mean task loss over the participants' steps, by training samples."""
        if not self.cohorts:
            return float("nan")
        sizes = np.concatenate([c.sizes.numpy(force=True) for c in self.cohorts.values()])
        losses = np.concatenate([c.stacked.loss.numpy(force=True) for c in self.cohorts.values()])
        return float((sizes * losses).sum() / sizes.sum())


class StageRunner:
    """All groups of a stage. `participation` is the share of clients that takes part in a round, at least one of them.

    `settings` is that of the run; a stage may bring another model. `single`: what each client sent is looked at after a round.
    `worker_pool`: the processes that share the work.
    """

    def __init__(
        self,
        stage: Stage,
        settings: StageSettings,
        population: Population,
        *,
        executor: str = "auto",
        participation: float = 1.0,
        folder: Path | None = None,
        transform: BatchTransform | None = None,
        single: bool = False,
        worker_pool: WorkerPool | None = None,
    ):
        self.stage = stage
        self.worker_pool = worker_pool
        self.single = single
        self.method = stage.method
        model = (stage.model or settings.model).at(settings.model.precision)
        buffers = "average" if stage.pooled else settings.buffers  # those of one client are everybody's
        self.settings = replace(settings, model=model, work=stage.method.local_work(settings.work), buffers=buffers)
        self.method.require(settings.proxy)
        self.population = population
        self.participation = participation
        self.done = 0
        self.eligible: Sequence[int] = with_samples(population.sizes)
        if not len(self.eligible):
            raise UnalikeError(f"none of the {len(population)} clients has a training sample")
        if stage.pooled and self.is_conditioned:
            raise UnalikeError(
                f"stage {stage.name!r} pools the clients' data and {stage.method!r} describes each client; train one or the other"
            )
        self._everybody = stage.members(len(population))
        # very many clients are in one group, which needs no table
        self._group_of = {k: name for name, ids in self._everybody.items() for k in ids} if stage.groups else {}
        self._filled = {
            name: len(self.eligible) if len(ids) == len(population) else int((population.sizes[list(ids)] > 0).sum())
            for name, ids in self._everybody.items()
        }
        self._choices: dict[int, str] = {}
        self._transform = transform
        self.groups = {
            name: ModelGroup(
                stage,
                replace(self.settings, group=i),
                self._source(ids),
                lambda: self.choice.executor,
                None if folder is None else folder / f"group-{i:04d}",
                transform,
                None if stage.start is None else stage.start[name],
                worker_pool,
                i,
            )
            for i, (name, ids) in enumerate(self._everybody.items())
        }
        self._wanted = executor
        self._choice: Choice | None = None
        context = self._some_context()
        # updates are weighed as they are: an upload may leave something out in some rounds
        items = [i for i in stage_wire(stage, model, context) if not i.once and i.what != "update"]
        self._bytes = {way: sum(i.bytes for i in items if i.direction == way) for way in ("down", "up")}

    def _some_context(self) -> Context:
        return next(iter(self.groups.values())).client_pool.some_context

    def group_of(self, client: int) -> str | None:
        """The group of a client; where clients choose, the one that it would choose now."""
        if self.stage.groups is None:
            return next(iter(self._everybody))
        if self.stage.chooses is None:
            return self._group_of.get(client)
        if client not in self._choices:
            self._choices[client] = self._choose(self.stage.chooses, client)
        return self._choices[client]

    def _by_group(self, clients: list[int]) -> dict[str, list[int]]:
        """Some clients by their groups."""
        if self.stage.groups is None:
            return dict.fromkeys(self.groups, clients)  # there is one
        places = [(k, self.group_of(k)) for k in clients]
        return {name: [k for k, mine in places if mine == name] for name in self.groups}

    def _choose(self, query: ClientQuery, client: int) -> str:
        def answer(state: ServerState) -> float:
            [number] = ask_client(query, self.settings, state, self.population, client, self._transform).values()
            return float(number)

        return min(self.groups, key=lambda name: answer(self.groups[name].state))

    @property
    def members(self) -> Mapping[str, Sequence[int]]:
        """The clients of each group."""
        if self.stage.chooses is None:
            return self._everybody
        everybody = [(k, self.group_of(k)) for k in range(len(self.population))]
        return {name: tuple(k for k, mine in everybody if mine == name) for name in self.groups}

    def _group(self, client: int) -> ModelGroup:
        name = self.group_of(client)
        if name is None:
            raise UnalikeError(
                f"client {self.population.names[client]!r} is in no group of stage {self.stage.name!r} and has no model there"
            )
        return self.groups[name]

    def _source(self, ids: Sequence[int]) -> Population:
        if self.stage.shared is not None:
            return with_shared(self.population, self.stage.shared)
        if not self.stage.pooled:
            return self.population
        everybody = len(ids) == len(self.population)
        return (self.population if everybody else Population.of([self.population[k] for k in ids])).pooled()

    @property
    def choice(self) -> Choice:
        """The executor of all groups, decided when it is first needed; a run that goes on keeps the one it had."""
        if self._choice is None:
            largest = max(self._everybody, key=lambda name: len(self._everybody[name]))
            count = 1 if self.stage.pooled else max(1, round(self.participation * len(self._everybody[largest])))
            each = -(-count // self.worker_pool.size) if self.worker_pool is not None else count
            self._choice = decide(self._wanted, self.groups[largest].client_pool, each, self.stage.rounds - self.done)
        return self._choice

    @choice.setter
    def choice(self, choice: Choice) -> None:
        self._choice = choice

    @property
    def why(self) -> str:
        """Which executor runs, why, and what is to be said of how it went so far."""
        choice = self._choice or (Choice("none", "nothing is left to train") if self.over else self.choice)
        text = "; ".join([f"{choice.executor}: {choice.why}", *self.remarks])
        return (
            text
            if self.worker_pool is None
            else f"distributed: {self.worker_pool.size} processes, in each of them {text}"
        )

    @property
    def remarks(self) -> list[str]:
        """What the groups' executors say of how it went."""
        return sorted({group.remark for group in self.groups.values()} - {""})

    def draw(self, number: int) -> list[int]:
        """The clients that take part in a round, counted from 0: the same for every method of the same seed."""
        count = self.cohort_size
        if count == len(self.eligible):
            return [*self.eligible]
        rng = seeds.generator(self.settings.seed, "cohort", number)
        places = np.sort(rng.choice(len(self.eligible), count, replace=False)).tolist()
        return places if isinstance(self.eligible, range) else [self.eligible[i] for i in places]

    @property
    def cohort_size(self) -> int:
        """Clients in a round."""
        return max(1, int(self.participation * len(self.eligible) + 0.5))

    def round(self) -> RoundResult:
        """Run the next round. Raises `Diverged` when no report of a group can be used."""
        if not self.stage.trained:
            self.done += 1
            return RoundResult(self.states, {}, {}, 0.0, 0, 0)
        started = time.perf_counter()
        before, drawn = self.states, self.draw(self.done)
        cohorts: dict[str, Cohort] = {}
        refused: dict[int, str] = {}
        sent = 0
        parted = self._by_group(drawn)  # chosen by all before any group has moved
        for name, group in self.groups.items():
            ids = [0] if self.stage.pooled else parted[name]
            if ids:
                trained = group.round(ids, self._population(name), self.single)
                cohorts[name], refused = trained.cohort, refused | trained.refused
                sent += 0 if self.stage.pooled else len(ids) * (self._bytes["up"] + trained.sent)
            else:
                group.wait()
        self.done += 1
        self._choices = {}
        seconds = time.perf_counter() - started
        asked = sum(len(c.ids) for c in cohorts.values()) + len(refused)
        return RoundResult(before, cohorts, refused, seconds, asked * self._bytes["down"], sent)

    @property
    def over(self) -> bool:
        """Whether the stage has come to its end."""
        return self.done >= self.stage.rounds or (self.done > 0 and self.stage.until(self.states))

    def _population(self, name: str) -> int:
        """Clients of a group that can take part at all."""
        return 1 if self.stage.pooled else self._filled[name]

    @property
    def has_shared_model(self) -> bool:
        """Whether clients share a model at all."""
        return self.method.has_shared_model(self.settings.model)

    @property
    def is_personal(self) -> bool:
        """Whether clients are evaluated with something of their own."""
        return self.method.is_personal(self.settings.model)

    @property
    def is_conditioned(self) -> bool:
        """Whether the shared model is fed facts of the client it predicts for."""
        return self.settings.model.takes_context and bool(self.method.conditioners)

    @property
    def is_everybodys(self) -> bool:
        """Whether the shared model is the same whoever uses it: fed no client's facts, and no client's buffers."""
        return not self.is_conditioned and not (self.settings.buffers == "local" and self.settings.model.buffers)

    def shared_model(self, client: int) -> Predict:
        """The shared model as the client uses it."""
        return self._group(client).shared_model(client)

    def personal_models(self, clients: Sequence[int]) -> Iterator[tuple[int, Predict]]:
        """Clients with what they predict with: a personal or fine-tuned model, or the shared one where the method has neither."""
        for group, ids, broadcast in self.parted(clients):
            yield from group.personal_models(ids, broadcast)

    def parted(self, clients: Sequence[int]) -> Iterator[tuple[ModelGroup, list[int], Broadcast | None]]:
        """The clients by group; with the order that they are fine-tuned with, where the method does that."""
        for name, ids in self._by_group([*clients]).items():
            group = self.groups[name]
            yield group, ids, None if self.method.tuning is None else group.broadcast(ids, self._population(name))

    def personal_model(self, client: int) -> Predict:
        """What one client predicts with."""
        [(_, predict)] = self.personal_models([client])
        return predict

    def local_model(self, done: RoundResult, client: int) -> Predict:
        """The participant's model after its local training in the round `done`."""
        name = next(name for name, cohort in done.cohorts.items() if client in cohort.ids)  # where it trained
        group, cohort = self.groups[name], done.cohorts[name]
        return group.local_model(client, done.before[name], cohort.one(client))

    def personal(self, client: int) -> Tree:
        """The parameters and buffers of that model, in state-dict order."""
        group, model = self._group(client), self.settings.model
        if self.method.tuning is not None:
            broadcast = group.broadcast([client], self._population(self.group_of(client) or ""))
            [(_, tuned)] = group.executor.tune(broadcast, [client], group.accepted)
            return model.state_dict(tuned)
        part, params = self.method.personalizer, group.state.params
        mine, _, own = group.belongings(client)
        return model.state_dict((params if part is None else part.personal(model, params, mine)) | own)

    @property
    def states(self) -> dict[str, ServerState]:
        """The states of the groups."""
        return {name: group.state for name, group in self.groups.items()}

    def save_client_states(self, facts: list[Facts]) -> None:
        """Bring the memories that stood when `facts` were frozen to disk."""
        for group, fact in zip(self.groups.values(), facts, strict=True):
            group.client_states.save(dict(fact["accepted"]))

    def prune_client_states(self, facts: list[Facts] | None = None) -> None:
        """Delete the files of memories that no longer stand, or did not when `facts` were frozen."""
        for i, group in enumerate(self.groups.values()):
            group.client_states.prune(group.accepted if facts is None else dict(facts[i]["accepted"]))

    def collect_client_states(self) -> None:
        """Before the team is let go: bring the memories of all clients to where this process finds them."""
        for group in self.groups.values() if self.worker_pool is not None else ():
            if not group.client_states.empty:
                group.client_states.save(group.accepted)
                group.client_states.adopt(group.accepted)

    def pin_client_states(self, facts: list[Facts]) -> None:
        """Keep the memories that stood when `facts` were frozen, whatever comes."""
        for group, fact in zip(self.groups.values(), facts, strict=True):
            group.client_states.pin(dict(fact["accepted"]))

    def adopt_client_states(self) -> None:
        """Take over the files of an earlier process, where they belong to memories that stand."""
        for group in self.groups.values():
            group.client_states.adopt(group.accepted)

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        """Tensors and facts from which `load_state_dict` restores the groups."""
        tensors: Tree = {}
        facts: list[Facts] = []
        for i, group in enumerate(self.groups.values()):
            sections = {
                "params": group.state.params,
                "buffers": group.state.buffers,
                "part_states": tree.pack(group.state.part_states),
            }
            tensors |= {f"{i}/{path}": t for path, t in tree.pack(sections).items()}
            facts.append({"done": self.done, "round": group.state.round, "accepted": list(group.accepted.items())})
            if self._choice is not None:
                facts[-1]["executor"] = [self._choice.executor, self._choice.why]
        return tensors, facts

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Go back to where `state_dict` was called. Raises `UnalikeError` if the tensors are not those of this stage."""
        for i, group in enumerate(self.groups.values()):
            device = self.population.x.device
            found = tree.unpack({n: t.to(device) for n, t in tree.under(tensors, f"{i}/").items()})
            params, buffers = found.get("params", {}), found.get("buffers", {})
            if set(params) != set(group.state.params):
                raise UnalikeError("the checkpoint holds another model's parameters; start in another folder")
            group.state = ServerState(
                facts[i]["round"],
                {n: params[n] for n in group.state.params},
                {n: buffers[n] for n in group.state.buffers},
                tree.unpack(found.get("part_states", {})),
            )
            group.accepted = {int(k): int(r) for k, r in facts[i]["accepted"]}
            self.done = facts[i]["done"]
        if (
            "executor" in facts[0] and spec.parse_one(self._wanted).name == "auto"
        ):  # measured anew it might differ in last bits
            self._choice = Choice(*facts[0]["executor"])
        self._choices = {}


def with_samples(sizes: np.ndarray) -> Sequence[int]:
    """The clients that have any; where all have, a million of them take no memory."""
    filled = np.flatnonzero(sizes)
    return range(len(sizes)) if len(filled) == len(sizes) else array("i", filled.astype(np.int32).tobytes())
