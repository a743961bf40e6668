"""Many processes: every one trains its share of the clients and keeps their memories; the leader puts together what they made.

A linear method's processes add up their own reports, and the leader adds their sums in the order of ranks, so that a number of
processes always gives the same bits. Of other methods every report is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import ServerState
from unalike.engine.base import AcceptedRounds, BaseExecutor, ClientPool, Executor, client_costs
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.training.aggregation import BufferedUpdates, StreamingSum, SumWeights, UpdateBuffer, UpdateSink, UpdateSums
from unalike.training.client_states import ClientStates

if TYPE_CHECKING:
    from unalike.metrics.scoring import Predict
    from unalike.runtime.model_group import ModelGroup
    from unalike.runtime.stage_runner import StageRunner


@dataclass(frozen=True)
class Distributed(BaseExecutor):
    """Shares out the clients; `inner` trains those of this process. `group` is the place of its group in the stage."""

    site: ClientPool
    inner: Executor
    team: WorkerPool
    group: int

    @property
    def remark(self) -> str:
        return self.inner.remark

    def feed(self, order: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink) -> None:
        if self.team.closed:  # the run is over, and somebody looks at a client
            return self.inner.feed(order, ids, accepted, sink)
        mine, others = self.ask(order, ids, accepted, {"do": "feed", "shares": _shares(sink)})
        self.inner.feed(order, mine, accepted, sink)
        for rank in others:
            found = _here(self.team.answer(rank), self.site)
            sink.merge(_sums(found["sums"]) if isinstance(sink, StreamingSum) else _taken(found["taken"]))

    def tune(self, order: Broadcast, ids: Sequence[int], accepted: AcceptedRounds) -> Iterator[tuple[int, Tree]]:
        if self.team.closed:
            yield from self.inner.tune(order, ids, accepted)
            return
        for client in ids:  # one by one: whoever looks may stop at any time, or ask for something else
            mine, others = self.ask(order, [client], accepted, {"do": "tune"})
            yield from self.inner.tune(order, mine, accepted)
            for rank in others:
                yield client, _here(self.team.answer(rank)["tuned"], self.site)

    def ask(
        self, order: Broadcast | None, ids: Sequence[int], accepted: AcceptedRounds, what: Message
    ) -> tuple[list[int], list[int]]:
        """The clients that this process has, and the ranks of the others that were asked to do `what` with theirs."""
        mine, *others = self._parted(ids)
        asked = [rank for rank, theirs in enumerate(others, start=1) if theirs]
        message: Message = {"group": self.group, "order": order and order._asdict(), "ids": others}
        if not self.site.memories.empty:
            known = [client for theirs in others for client in theirs if client in accepted]
            message["accepted"] = _pairs({client: accepted[client] for client in known})
        if asked:
            self.team.tell(message | what, asked)
        return mine, asked

    def _parted(self, ids: Sequence[int]) -> list[list[int]]:
        """The clients of each process in the order of `ids`: where their memories are, or by what they cost."""
        memories, clients = self.site.memories, np.array(ids, np.int64)
        if isinstance(memories, SharedClientStates) and not memories.empty:
            owners = memories.owners[clients]
        else:
            work = client_costs(self.site.method, self.site.setting.work, self.site.counts(ids))
            owners = assign_clients(work, self.team.size)
        return [clients[owners == rank].tolist() for rank in range(self.team.size)]


class SharedClientStates(ClientStates):
    """The leader's view of all memories: those of its own clients are here, the others are asked for.

    `place` names whose they are to the others: the stage, which may be over when a checkpoint is written, and the group.
    """

    def __init__(self, own: ClientStates, team: WorkerPool, place: Message, costs: np.ndarray):
        self._own, self._team, self._place, self._costs = own, team, place, costs

    @property
    def empty(self) -> bool:
        return self._own.empty

    def owner(self, client: int) -> int:
        """The process that keeps the client's memory."""
        return int(self.owners[client])

    @cached_property
    def owners(self) -> np.ndarray:
        """The processes that keep the clients' memories, [K]."""
        return assign_clients(self._costs, self._team.size)

    def get(self, client: int, accepted: int | None) -> PartTrees:
        if accepted is None or self.empty or self._team.closed or not self.owner(client):
            return self._own.get(client, accepted)
        owner = self.owner(client)
        self._team.tell(self._place | {"do": "memory", "client": client, "accepted": accepted}, [owner])
        device = self._own.device
        found: PartTrees = self._team.answer(owner)["memory"]
        return {name: {n: t.to(device) for n, t in drawer.items()} for name, drawer in found.items()}

    def stacked(self, clients: Sequence[int], accepted: Mapping[int, int]) -> PartTrees:
        """Those of clients that this process trains."""
        return self._own.stacked(clients, accepted)

    def put_stacked(self, clients: Sequence[int], round: int, memory: PartTrees, accepted: Mapping[int, int]) -> None:
        self._own.put_stacked(clients, round, memory, accepted)

    def pin(self, accepted: AcceptedRounds) -> None:
        self._all("pin", accepted)

    def save(self, accepted: AcceptedRounds) -> None:
        self._all("save", accepted)

    def prune(self, accepted: AcceptedRounds) -> None:
        self._all("prune", accepted)

    def adopt(self, accepted: AcceptedRounds) -> None:
        self._all("adopt", accepted)

    def _all(self, what: str, accepted: AcceptedRounds) -> None:
        if self.empty:
            return
        others = () if self._team.closed else range(1, self._team.size)
        if others:
            self._team.tell(self._place | {"do": "keep", "what": what, "accepted": _pairs(accepted)}, others)
        getattr(self._own, what)(accepted)
        for rank in others:
            self._team.answer(rank)


def attend(team: WorkerPool, simulation: StageRunner, message: Message) -> Message:
    """What a process that does not lead answers to a message about its stage."""
    group = _group(simulation, message)
    return HANDLERS[message["do"]](team, group, message)


def own_models(team: WorkerPool, simulation: StageRunner, message: Message) -> Iterator[tuple[int, Predict]]:
    """What the clients of this process's share predict with, where `ModelGroup.divided` asked."""
    group = _group(simulation, message)
    group.state, group.accepted = ServerState(**_here(message["state"], group.site)), _accepted(message)
    order = message["order"] and _order(message["order"], group.site)
    return group.personal_models(message["ids"][team.rank - 1], order)


def _group(simulation: StageRunner, message: Message) -> ModelGroup:
    return list(simulation.groups.values())[message["group"]]


def _feed(team: WorkerPool, group: ModelGroup, message: Message) -> Message:
    ids = message["ids"][team.rank - 1]
    order, accepted = _order(message["order"], group.executor.site), _accepted(message)
    if message["shares"] is None:
        stack = UpdateBuffer(ids)
        group.executor.feed(order, ids, accepted, stack)
        return {"taken": _sent(stack.taken)}
    clients, weights, coefficients = message["shares"]
    fold = StreamingSum(
        group.method, order.params, SumWeights(tuple(clients), weights, coefficients), group.setting.buffers
    )
    group.executor.feed(order, ids, accepted, fold)
    sums = fold.sums
    return {"sums": vars(sums) | {"taken": _sent(sums.taken)}}


def _tune(team: WorkerPool, group: ModelGroup, message: Message) -> Message:
    ids = message["ids"][team.rank - 1]
    [(_, tuned)] = group.executor.tune(_order(message["order"], group.executor.site), ids, _accepted(message))
    return {"tuned": tuned}


def _memory(team: WorkerPool, group: ModelGroup, message: Message) -> Message:
    return {"memory": group.memories.get(message["client"], message["accepted"])}


def _keep(team: WorkerPool, group: ModelGroup, message: Message) -> Message:
    getattr(group.memories, message["what"])(_accepted(message))
    return {}


HANDLERS = {"feed": _feed, "tune": _tune, "memory": _memory, "keep": _keep}


def states_in(nest: dict[str, Any]) -> dict[str, ServerState]:
    """States as they were sent."""
    return {name: ServerState(**state) for name, state in nest.items()}


def _order(nest: dict[str, Any], site: ClientPool) -> Broadcast:
    return Broadcast(**_here(nest, site))


def _here(nest: Any, site: ClientPool) -> Any:
    """A nest as it was sent, on the device of this process."""
    if isinstance(nest, dict):
        return {key: _here(value, site) for key, value in nest.items()}
    if isinstance(nest, list):
        return [_here(value, site) for value in nest]
    return nest.to(site.source.x.device) if isinstance(nest, Tensor) else nest


def assign_clients(costs: np.ndarray, ranks: int) -> np.ndarray:
    """A process for each of the clients that cost so much: the dearest first, each to the one that has least to do so far."""
    owners, loads = np.empty(len(costs), np.int16), [(0, rank) for rank in range(ranks)]
    for client in np.argsort(-costs, kind="stable").tolist():
        load, owners[client] = loads[0]
        heapreplace(loads, (load + int(costs[client]), int(owners[client])))
    return owners


def _pairs(accepted: AcceptedRounds) -> Tensor:
    return torch.tensor([*accepted.items()], dtype=torch.int64).reshape(-1, 2)


def _accepted(message: Message) -> AcceptedRounds:
    return dict(message["accepted"].tolist()) if "accepted" in message else {}


def _shares(sink: UpdateSink) -> list[Any] | None:
    """Whose shares, and the shares, as they are sent."""
    if not isinstance(sink, StreamingSum):
        return None
    given = sink.shares
    return [list(given.ids), given.weights.cpu(), given.coefficients.cpu()]


def _sent(taken: BufferedUpdates | None) -> Any:
    return taken and [taken.ids, taken.report._asdict()]


def _taken(nest: Any) -> BufferedUpdates | None:
    return nest and BufferedUpdates(nest[0], ClientUpdate(**nest[1]))


def _sums(nest: dict[str, Any]) -> UpdateSums:
    return UpdateSums(**nest | {"taken": _taken(nest["taken"])})
