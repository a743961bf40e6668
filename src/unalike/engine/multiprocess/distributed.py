"""The executor of several processes: each trains its share of the clients and keeps their states; the leader combines updates.

With a linear method each process adds up its own updates, and the leader adds these sums in the order of ranks: the bits depend
on the number of processes alone. With other methods every update is sent to the leader.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapreplace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Broadcast, PartTrees, Tree
from unalike.engine.base import AcceptedRounds, ClientPool, Executor, client_costs
from unalike.engine.multiprocess.messages import (
    ClientsQuestion,
    Feed,
    Finetune,
    GetClientState,
    KeepClientStates,
)
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.training.client.client_states import ClientStateStore
from unalike.training.flat_update import flatten_update, restore_update
from unalike.training.server.kept_updates import UpdateBuffer
from unalike.training.server.server_round import SumWeights
from unalike.training.server.summed_updates import StreamingSum, SummedUpdates
from unalike.training.server.updates import UpdateSink

KEEPING: dict[str, Callable[[ClientStateStore, AcceptedRounds], None]] = {
    "pin": lambda client_states, accepted: client_states.pin_versions(accepted),
    "save": lambda client_states, accepted: client_states.save(accepted),
    "prune": lambda client_states, accepted: client_states.drop_other_versions(accepted),
    "adopt": lambda client_states, accepted: client_states.use_versions(accepted),
}
"""Word in a message -> what each process does with the client states that it keeps."""


@dataclass(frozen=True)
class Distributed(Executor):
    """Shares out the clients; `inner` trains those of this process. `group` is the place of its group in the stage."""

    inner: Executor
    worker_pool: WorkerPool
    group: int

    def feed(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink
    ) -> None:
        if self.worker_pool.closed:  # after the run, when a user asks for a client's model
            return self.inner.feed(broadcast, ids, accepted, sink)
        weights = _plain_weights(sink.weights) if isinstance(sink, StreamingSum) else None
        mine, others = self.ask(Feed, broadcast, ids, accepted, weights=weights)
        self.inner.feed(broadcast, mine, accepted, sink)
        # in the order of ranks, whoever is ready first: the bits of a sum depend on its order
        for rank in others:
            answer = to_pool_device(self.worker_pool.answer(rank), self.client_pool)
            if isinstance(sink, StreamingSum):
                sink.merge(_restored_sums(answer, sink.weights))
            else:
                sink.add(answer["ids"], restore_update(answer["updates"]))

    def finetune(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> Iterator[tuple[int, Tree]]:
        if self.worker_pool.closed:
            yield from self.inner.finetune(broadcast, ids, accepted)
            return
        # one by one: the caller may stop at any time, or ask something else in between
        for client in ids:
            mine, others = self.ask(Finetune, broadcast, [client], accepted)
            yield from self.inner.finetune(broadcast, mine, accepted)
            for rank in others:
                answer = self.worker_pool.answer(rank)
                yield client, to_pool_device(answer["model"], self.client_pool)

    def ask(
        self,
        question: type[ClientsQuestion],
        broadcast: Broadcast | None,
        ids: Sequence[int],
        accepted: AcceptedRounds,
        **values: Any,
    ) -> tuple[list[int], list[int]]:
        """The clients that this process has, and the ranks of the others that were asked about theirs.

        `values` are the fields that the kind of question has beside those of every one about clients.
        """
        mine, *others = self._by_process(ids)
        ranks = [rank for rank, clients in enumerate(others, start=1) if clients]
        if not ranks:
            return mine, ranks
        # the others keep versions of states, and only the leader knows which of them were accepted
        pairs = None
        if not self.client_pool.client_states.empty:
            known = [k for clients in others for k in clients if k in accepted]
            pairs = _pairs({client: accepted[client] for client in known})
        message = question(
            group=self.group,
            ids=others,
            broadcast=None if broadcast is None else broadcast._asdict(),
            accepted=pairs,
            **values,
        )
        self.worker_pool.send(message.as_dict(), ranks)
        return mine, ranks

    def _by_process(self, ids: Sequence[int]) -> list[list[int]]:
        """The clients of each process in the order of `ids`: where their states are, or by their costs."""
        pool, clients = self.client_pool, np.array(ids, np.int64)
        client_states = pool.client_states
        if isinstance(client_states, SharedClientStates) and not client_states.empty:
            owners = client_states.owners[clients]
        else:
            costs = client_costs(pool.method, pool.settings.work, pool.counts(ids))
            owners = assign_clients(costs, self.worker_pool.size)
        return [clients[owners == rank].tolist() for rank in range(self.worker_pool.size)]


class SharedClientStates:
    """The leader's view of all client states (a `ClientStateStore`): those of its own clients are here, the others are asked for.

    `place` names the stage and the group in messages; the stage may be over when a checkpoint is written.
    """

    def __init__(
        self,
        own: ClientStateStore,
        worker_pool: WorkerPool,
        place: dict[str, int],
        costs: np.ndarray,
    ):
        self._own = own
        self._worker_pool = worker_pool
        self._place = place
        self._costs = costs

    @property
    def empty(self) -> bool:
        return self._own.empty

    @property
    def device(self) -> torch.device:
        return self._own.device

    @cached_property
    def owners(self) -> np.ndarray:
        """The processes that keep the clients' states, [K]."""
        return assign_clients(self._costs, self._worker_pool.size)

    def get(self, client: int, accepted: int | None) -> PartTrees:
        is_here = self.empty or self._worker_pool.closed or not self.owners[client]
        if accepted is None or is_here:
            return self._own.get(client, accepted)
        owner = int(self.owners[client])
        question = GetClientState(**self._place, client=client, accepted=accepted)
        self._worker_pool.send(question.as_dict(), [owner])
        client_state: PartTrees = self._worker_pool.answer(owner)["client_state"]
        device = self.device
        return {name: tree.map(lambda t: t.to(device), t) for name, t in client_state.items()}

    def put(self, client: int, round: int, client_state: PartTrees, accepted: int | None) -> None:
        """Keep the state of a client that this process trains."""
        self._own.put(client, round, client_state, accepted)

    def stacked(self, clients: Sequence[int], accepted: Mapping[int, int]) -> PartTrees:
        """The stacked states of clients that this process trains."""
        return self._own.stacked(clients, accepted)

    def put_stacked(
        self,
        clients: Sequence[int],
        round: int,
        client_state: PartTrees,
        accepted: Mapping[int, int],
    ) -> None:
        self._own.put_stacked(clients, round, client_state, accepted)

    def pin_versions(self, accepted: AcceptedRounds) -> None:
        self._all("pin", accepted)

    def save(self, accepted: AcceptedRounds) -> None:
        self._all("save", accepted)

    def drop_other_versions(self, accepted: AcceptedRounds) -> None:
        self._all("prune", accepted)

    def use_versions(self, accepted: AcceptedRounds) -> None:
        self._all("adopt", accepted)

    def _all(self, action: str, accepted: AcceptedRounds) -> None:
        if self.empty:
            return
        others = () if self._worker_pool.closed else range(1, self._worker_pool.size)
        if others:
            question = KeepClientStates(**self._place, action=action, accepted=_pairs(accepted))
            self._worker_pool.send(question.as_dict(), others)
        KEEPING[action](self._own, accepted)
        for rank in others:
            self._worker_pool.answer(rank)


def to_pool_device(nest: Any, client_pool: ClientPool) -> Any:
    """A received nest, on the device of this process."""
    if isinstance(nest, dict):
        return {key: to_pool_device(value, client_pool) for key, value in nest.items()}
    if isinstance(nest, list):
        return [to_pool_device(value, client_pool) for value in nest]
    return nest.to(client_pool.source.y.device) if isinstance(nest, Tensor) else nest


def assign_clients(costs: np.ndarray, ranks: int) -> np.ndarray:
    """The rank that trains each client [K]: the most expensive client first, each to the rank with the least work so far."""
    owners = np.empty(len(costs), np.int16)
    # a heap: the rank with the least work comes first
    loads = [(0, rank) for rank in range(ranks)]
    for client in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        owners[client] = rank
        heapreplace(loads, (load + int(costs[client]), rank))
    return owners


def _pairs(accepted: AcceptedRounds) -> Tensor:
    return torch.tensor([*accepted.items()], dtype=torch.int64).reshape(-1, 2)


def accepted_rounds(pairs: Tensor | None) -> AcceptedRounds:
    """Client -> the newest round in which its update was accepted, of the pairs in a message."""
    return {} if pairs is None else dict(pairs.tolist())


def _plain_weights(weights: SumWeights) -> list[Any]:
    """The fields of the weights of a sum, as they are sent."""
    return [
        list(weights.ids),
        weights.weights.cpu(),
        weights.coefficients.cpu(),
        weights.importance.cpu(),
    ]


def restored_weights(nest: list[Any]) -> SumWeights:
    """The inverse of `_plain_weights`."""
    ids, weights, coefficients, importance = nest
    return SumWeights(tuple(ids), weights, coefficients, importance)


def plain_updates(buffer: UpdateBuffer) -> Message:
    """The updates in a buffer, as they are sent."""
    ids = buffer.arrived
    return {"ids": ids, "updates": flatten_update(buffer.stacked(ids))}


def plain_sums(sums: SummedUpdates) -> Message:
    """Sums, as they are sent: without the weights, which the leader has."""
    return {
        "ids": list(sums.ids),
        "numbers": flatten_update(sums.numbers),
        "update": sums.update,
        "buffers": sums.buffers,
        "folded": sums.folded,
        "refused": sums.refused,
        "bytes_each": sums.bytes_each,
        "norms": sums.norms,
    }


def _restored_sums(message: Message, weights: SumWeights) -> SummedUpdates:
    """The inverse of `plain_sums`."""
    return SummedUpdates(
        ids=tuple(message["ids"]),
        numbers=restore_update(message["numbers"]),
        update=message["update"],
        buffers=message["buffers"],
        folded=message["folded"],
        used_weights=weights,
        refused=message["refused"],
        bytes_each=message["bytes_each"],
        norms=message["norms"],
    )
