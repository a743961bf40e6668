"""Aggregation of ResNet-18 updates, and server memory: `python server.py aggregate`, and `python server.py memory K`."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable

import torch
from clock import Clock
from networks import resnet18

import unalike as ua
from unalike.core.model import Model
from unalike.core.nests import map_tensors
from unalike.core.views import Cohort, ServerState
from unalike.engine.threads import threads_for
from unalike.loops import crew as compiled_loops
from unalike.methods.plan import steps_of
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalStage
from unalike.training.server.kept_updates import KeptUpdates
from unalike.training.server.server_round import ServerRound
from unalike.training.server.server_update import advance, initial_server_state, make_broadcast
from unalike.training.server.summed_updates import StreamingSum

CLIENTS, TIMES, LONG = 20, 5, 5.0
METHODS = ("fedavg", "fedlws", "fedpake")


def clients(count: int, shape: tuple[int, ...]) -> list[ua.ClientData]:
    """Clients with two samples each."""
    g = torch.Generator().manual_seed(0)
    return [
        ua.ClientData(train=(torch.randn(2, *shape, generator=g), torch.arange(2)))
        for _ in range(count)
    ]


def stacked(method: str) -> Callable[[], object]:
    """`advance` on the stacked client updates of a round."""
    runner, state, cohort = trained(method)
    updates = KeptUpdates.in_memory(cohort.ids, cohort.stacked)
    stage = runner.state
    return lambda: advance(stage.method, stage.settings, state, updates, cohort.members)


def folded(spec: str) -> Callable[[], object]:
    """The same for a linear method, with client updates added up as they arrive."""
    runner, state, cohort = trained(spec)
    method, settings = runner.state.method, runner.state.settings
    server = ServerRound(method, settings, state, cohort.members.clients)
    client_updates = [map_tensors(lambda t, k=k: t[k : k + 1], cohort.stacked) for k in cohort.ids]

    def call() -> object:
        total = StreamingSum(method, state, server.sum_weights(cohort))
        for client, client_update in zip(cohort.ids, client_updates):
            total.add([client], client_update)
        return advance(method, settings, state, total.updates, cohort.members)

    return call


def trained(method: str) -> tuple[LocalStage, ServerState, Cohort]:
    """A stage, its initial server state, and the client updates of a round."""
    run_config = configure_run(
        method,
        clients(CLIENTS, (3, 8, 8)),
        model=resnet18(),
        rounds=1,
        work=ua.Work(batch_size=2, lr=0.01),
        executor="loop",
    )
    stage = next(steps_of(run_config.plan, run_config.plan_inputs))
    runner = LocalStage(run_config, stage)
    runner.start()
    [group] = runner.state.groups.values()
    state, ids = initial_server_state(stage.method, runner.state.settings), list(range(CLIENTS))
    broadcast = make_broadcast(stage.method, runner.state.settings, state, CLIENTS, ids)
    return runner, state, Cohort(tuple(ids), group.executor.run(broadcast, ids, {}), group.members)


def seconds(call: Callable[[], object]) -> float:
    """Median seconds of a few calls after the first; of one call if it is slow."""
    times: list[float] = []
    while len(times) < 2 or (len(times) <= TIMES and sum(times) < LONG):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def aggregate() -> None:
    """Measure each method's `advance`, and a sum over the stacked updates (the read limit)."""
    size = sum(p.numel() for p in resnet18().parameters())
    stack = torch.ones(CLIENTS, size)
    found = {"read": seconds(stack.sum)}
    del stack
    found["folded"] = seconds(folded("fedavg"))
    for method in METHODS:
        found[method] = seconds(stacked(method))
    Clock().report(seconds=found)


def memory(count: int) -> None:
    """Measure the MB that two rounds of FedAvg with `count` clients add to the process, and those of the model."""
    model = torch.nn.Sequential(
        torch.nn.Linear(1000, 4000), torch.nn.ReLU(), torch.nn.Linear(4000, 10)
    )
    data = clients(count, (1000,))
    compiled_loops.loops(
        "unalike.loops.shuffle_loops"
    )  # a run with many clients loads numba (120 MB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ua.run(
        "fedavg",
        data,
        model=model,
        rounds=2,
        executor="loop",
        evaluate_every=2,
        progress=lambda row, what="": None,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(4 * p.numel() for p in model.parameters())
    Clock().report(mb=(peak - before) / 1024, model_mb=size / 2**20)


if __name__ == "__main__":
    if sys.argv[1] == "aggregate":
        with threads_for(Model(resnet18())):  # as in every run
            aggregate()
    else:
        memory(int(sys.argv[2]))
