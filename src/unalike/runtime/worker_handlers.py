"""What a worker process answers to the messages of the leading process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unalike.core.types import Broadcast
from unalike.core.views import ServerState
from unalike.engine.base import ClientPool
from unalike.engine.multiprocess.distributed import accepted_rounds, as_plain, to_pool_device
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.metrics.scoring import Predict
from unalike.runtime.model_group import ModelGroup
from unalike.runtime.stage_runner import StageRunner
from unalike.training.aggregation import StreamingSum, SumWeights, UpdateBuffer


def attend(worker_pool: WorkerPool, runner: StageRunner, message: Message) -> Message:
    """What a process that does not lead answers to a message about its stage."""
    group = _group(runner, message)
    return HANDLERS[message["do"]](worker_pool, group, message)


def own_models(worker_pool: WorkerPool, runner: StageRunner, message: Message) -> Iterator[tuple[int, Predict]]:
    """What the clients of this process's share predict with, where `ModelGroup.divided` asked."""
    group = _group(runner, message)
    group.state, group.accepted = (
        ServerState(**to_pool_device(message["state"], group.client_pool)),
        accepted_rounds(message),
    )
    broadcast = message["broadcast"] and _broadcast(message["broadcast"], group.client_pool)
    return group.personal_models(message["ids"][worker_pool.rank - 1], broadcast)


def _group(runner: StageRunner, message: Message) -> ModelGroup:
    return list(runner.groups.values())[message["group"]]


def _feed(worker_pool: WorkerPool, group: ModelGroup, message: Message) -> Message:
    ids = message["ids"][worker_pool.rank - 1]
    broadcast, accepted = _broadcast(message["broadcast"], group.executor.client_pool), accepted_rounds(message)
    if message["shares"] is None:
        stack = UpdateBuffer(ids)
        group.executor.feed(broadcast, ids, accepted, stack)
        return {"taken": as_plain(stack.taken)}
    clients, weights, coefficients = message["shares"]
    fold = StreamingSum(
        group.method, broadcast.params, SumWeights(tuple(clients), weights, coefficients), group.settings.buffers
    )
    group.executor.feed(broadcast, ids, accepted, fold)
    sums = fold.sums
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
    getattr(group.client_states, message["what"])(accepted_rounds(message))
    return {}


HANDLERS = {"feed": _feed, "tune": _tune, "client_state": _client_state, "keep": _keep}


def states_in(nest: dict[str, Any]) -> dict[str, ServerState]:
    """States as they were sent."""
    return {name: ServerState(**state) for name, state in nest.items()}


def _broadcast(nest: dict[str, Any], client_pool: ClientPool) -> Broadcast:
    return Broadcast(**to_pool_device(nest, client_pool))
