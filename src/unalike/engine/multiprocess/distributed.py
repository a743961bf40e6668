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
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.training.client.client_states import ClientStates
from unalike.training.flat_update import flatten_update, restore_update
from unalike.training.server.kept_updates import UpdateBuffer
from unalike.training.server.server_round import SumWeights
from unalike.training.server.summed_updates import StreamingSum, SummedUpdates
from unalike.training.server.updates import UpdateSink

KEEPING: dict[str, Callable[[ClientStates, AcceptedRounds], None]] = {
    "pin": ClientStates.pin_versions,
    "save": ClientStates.save,
    "prune": ClientStates.drop_other_versions,
    "adopt": ClientStates.use_versions,
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
        question = {"do": "feed", "weights": weights}
        mine, others = self.ask(broadcast, ids, accepted, question)
        self.inner.feed(broadcast, mine, accepted, sink)
        # in the order of ranks, whoever is ready first: the bits of a sum depend on its order
        for rank in others:
            answer = to_pool_device(self.worker_pool.answer(rank), self.client_pool)
            if isinstance(sink, StreamingSum):
                sink.merge(_restored_sums(answer, sink.weights))
            else:
                sink.add(answer["ids"], restore_update(answer["updates"]))

    def tune(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> Iterator[tuple[int, Tree]]:
        if self.worker_pool.closed:
            yield from self.inner.tune(broadcast, ids, accepted)
            return
        for (
            client
        ) in ids:  # one by one: the caller may stop at any time, or ask something else in between
            mine, others = self.ask(broadcast, [client], accepted, {"do": "tune"})
            yield from self.inner.tune(broadcast, mine, accepted)
            for rank in others:
                yield (
                    client,
                    to_pool_device(self.worker_pool.answer(rank)["tuned"], self.client_pool),
                )

    def ask(
        self,
        broadcast: Broadcast | None,
        ids: Sequence[int],
        accepted: AcceptedRounds,
        what: Message,
    ) -> tuple[list[int], list[int]]:
        """The clients that this process has, and the ranks of the others that were asked to do `what` with theirs."""
        mine, *others = self._parted(ids)
        asked = [rank for rank, theirs in enumerate(others, start=1) if theirs]
        message: Message = {
            "group": self.group,
            "broadcast": broadcast and broadcast._asdict(),
            "ids": others,
        }
        if not self.client_pool.client_states.empty:
            known = [client for theirs in others for client in theirs if client in accepted]
            message["accepted"] = _pairs({client: accepted[client] for client in known})
        if asked:
            self.worker_pool.tell(message | what, asked)
        return mine, asked

    def _parted(self, ids: Sequence[int]) -> list[list[int]]:
        """The clients of each process in the order of `ids`: where their states are, or by their costs."""
        client_states, clients = self.client_pool.client_states, np.array(ids, np.int64)
        if isinstance(client_states, SharedClientStates) and not client_states.empty:
            owners = client_states.owners[clients]
        else:
            work = client_costs(
                self.client_pool.method,
                self.client_pool.settings.work,
                self.client_pool.counts(ids),
            )
            owners = assign_clients(work, self.worker_pool.size)
        return [clients[owners == rank].tolist() for rank in range(self.worker_pool.size)]


class SharedClientStates(ClientStates):
    """The leader's view of all client states: those of its own clients are here, the others are asked for.

    `place` names the stage and the group in messages; the stage may be over when a checkpoint is written.
    """

    def __init__(
        self, own: ClientStates, worker_pool: WorkerPool, place: Message, costs: np.ndarray
    ):
        self._own, self._worker_pool, self._place, self._costs = own, worker_pool, place, costs

    @property
    def empty(self) -> bool:
        return self._own.empty

    @cached_property
    def owners(self) -> np.ndarray:
        """The processes that keep the clients' states, [K]."""
        return assign_clients(self._costs, self._worker_pool.size)

    def get(self, client: int, accepted: int | None) -> PartTrees:
        if accepted is None or self.empty or self._worker_pool.closed or not self.owners[client]:
            return self._own.get(client, accepted)
        owner = int(self.owners[client])
        self._worker_pool.tell(
            self._place | {"do": "client_state", "client": client, "accepted": accepted}, [owner]
        )
        device = self._own.device
        client_state: PartTrees = self._worker_pool.answer(owner)["client_state"]
        return {name: tree.map(lambda t: t.to(device), held) for name, held in client_state.items()}

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

    def _all(self, what: str, accepted: AcceptedRounds) -> None:
        if self.empty:
            return
        others = () if self._worker_pool.closed else range(1, self._worker_pool.size)
        if others:
            self._worker_pool.tell(
                self._place | {"do": "keep", "what": what, "accepted": _pairs(accepted)}, others
            )
        KEEPING[what](self._own, accepted)
        for rank in others:
            self._worker_pool.answer(rank)


def to_pool_device(nest: Any, client_pool: ClientPool) -> Any:
    """A received nest, on the device of this process."""
    if isinstance(nest, dict):
        return {key: to_pool_device(value, client_pool) for key, value in nest.items()}
    if isinstance(nest, list):
        return [to_pool_device(value, client_pool) for value in nest]
    return nest.to(client_pool.source.x.device) if isinstance(nest, Tensor) else nest


def assign_clients(costs: np.ndarray, ranks: int) -> np.ndarray:
    """The rank that trains each client [K]: the most expensive client first, each to the rank with the least work so far."""
    owners, loads = np.empty(len(costs), np.int16), [(0, rank) for rank in range(ranks)]
    for client in np.argsort(-costs, kind="stable").tolist():
        load, owners[client] = loads[0]
        heapreplace(loads, (load + int(costs[client]), int(owners[client])))
    return owners


def _pairs(accepted: AcceptedRounds) -> Tensor:
    return torch.tensor([*accepted.items()], dtype=torch.int64).reshape(-1, 2)


def accepted_rounds(message: Message) -> AcceptedRounds:
    return dict(message["accepted"].tolist()) if "accepted" in message else {}


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
