"""A worker process's answers to questions about a model group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from unalike.core.types import Broadcast
from unalike.core.views import ServerState
from unalike.engine.base import ClientPool
from unalike.engine.multiprocess.distributed import KEEPING, accepted_rounds, as_plain, to_pool_device
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.metrics.scoring import Predict
from unalike.runtime.model_group import ModelGroup
from unalike.runtime.stage_runner import StageRunner
from unalike.training.aggregation import StreamingSum, SumWeights, UpdateBuffer


def own_models(worker_pool: WorkerPool, runner: StageRunner, message: Message) -> Iterator[tuple[int, Predict]]:
    """The models of this process's clients, for `ModelGroup.divided` in the leading process."""
    group = group_of(runner, message)
    group.state, group.accepted = (
        ServerState(**to_pool_device(message["state"], group.client_pool)),
        accepted_rounds(message),
    )
    broadcast = message["broadcast"] and _broadcast(message["broadcast"], group.client_pool)
    return group.personal_models(message["ids"][worker_pool.rank - 1], broadcast)


def group_of(runner: StageRunner, message: Message) -> ModelGroup:
    """The model group that a message is about."""
    return list(runner.state.groups.values())[message["group"]]


def _feed(worker_pool: WorkerPool, group: ModelGroup, message: Message) -> Message:
    ids = message["ids"][worker_pool.rank - 1]
    broadcast, accepted = _broadcast(message["broadcast"], group.executor.client_pool), accepted_rounds(message)
    if message["shares"] is None:
        stack = UpdateBuffer(ids)
        group.executor.feed(broadcast, ids, accepted, stack)
        return {"taken": as_plain(stack.taken)}
    clients, weights, coefficients = message["shares"]
    total = StreamingSum(
        group.method, broadcast.params, SumWeights(tuple(clients), weights, coefficients), group.settings.buffers
    )
    group.executor.feed(broadcast, ids, accepted, total)
    sums = total.sums
    return {"sums": vars(sums) | {"taken": as_plain(sums.taken)}}


def _tune(worker_pool: WorkerPool, group: ModelGroup, message: Message) -> Message:
    ids = message["ids"][worker_pool.rank - 1]
    [(_, tuned)] = group.executor.tune(
        _broadcast(message["broadcast"], group.executor.client_pool), ids, accepted_rounds(message)
    )
    return {"tuned": tuned}


def _client_state(worker_pool: WorkerPool, group: ModelGroup, message: Message) -> Message:
    return {"client_state": group.client_states.get(message["client"], message["accepted"])}


def _keep(worker_pool: WorkerPool, group: ModelGroup, message: Message) -> Message:
    KEEPING[message["what"]](group.client_states, accepted_rounds(message))
    return {}


GROUP_HANDLERS: dict[str, Callable[[WorkerPool, ModelGroup, Message], Message]] = {
    "feed": _feed,
    "tune": _tune,
    "client_state": _client_state,
    "keep": _keep,
}


def states_in(nest: dict[str, Any]) -> dict[str, ServerState]:
    """States as they were sent."""
    return {name: ServerState(**state) for name, state in nest.items()}


def _broadcast(nest: dict[str, Any], client_pool: ClientPool) -> Broadcast:
    return Broadcast(**to_pool_device(nest, client_pool))
