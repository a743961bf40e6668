"""Measure the share of a round that is not forward, backward and step: `python overhead.py WORKLOAD ROUNDS`.

The loop executor is compared with the same steps in plain torch and nothing else: batches cut beforehand, channels-last
convolutions, pooling before ReLU, the fused optimizer, no copies between clients, no average. If compiled loops can train the
model, the time within the loops is also measured. Everything runs on one thread, alternating in one process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from clock import Clock, alternating
from networks import network
from torch import nn
from workloads import LR, MOMENTUM, WORKLOADS, arrays

import unalike as ua
from unalike.core.pooling_order import pools_first
from unalike.engine.batched import Batched
from unalike.engine.compiled.compiled_training import kernels
from unalike.engine.threads import keep_freed_memory
from unalike.methods.plan import steps_of
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalStage


def steps(name: str) -> Callable[[], None]:
    """The forward pass, backward pass and step of all batches of a round, in plain torch."""
    work, module = WORKLOADS[name], nn.Sequential(*pools_first([*network(name).children()]))
    x, y = (torch.from_numpy(a).flatten(0, 1) for a in arrays(name))
    if x.dim() == 4:
        module, x = (
            module.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )
    batches = list(zip(x.split(work.batch), y.split(work.batch)))
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, fused=True)

    def round_() -> None:
        for inputs, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), labels).backward()
            optimizer.step()

    return round_


def first_stage(name: str, executor: str) -> LocalStage:
    """FedAvg on the workload with an executor."""
    clients = [
        ua.ClientData(train=(torch.from_numpy(x), torch.from_numpy(y)))
        for x, y in zip(*arrays(name))
    ]
    work = ua.Work(batch_size=WORKLOADS[name].batch, lr=LR, momentum=MOMENTUM)
    run_config = configure_run(
        "fedavg", clients, model=network(name), rounds=1, work=work, executor=executor
    )
    stage = LocalStage(run_config, next(steps_of(run_config.plan, run_config.plan_inputs)))
    stage.start()
    return stage


def compiled(name: str, spent: list[float]) -> Callable[[], object] | None:
    """A round in compiled loops, or None if they cannot train the model; adds the seconds of each call to `spent`."""
    runner = first_stage(name, "batched")
    [group] = runner.state.groups.values()
    loops = kernels()
    if (
        loops is None
        or not isinstance(group.executor, Batched)
        or not group.executor.uses_compiled_loops
    ):
        return None
    train = loops.train

    def timed(*arguments: object) -> object:
        started = time.perf_counter()
        try:
            return train(*arguments)
        finally:
            spent.append(time.perf_counter() - started)

    loops.train = timed
    return partial(run_round, runner)


def main(name: str, rounds: int) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    calls = {"steps": steps(name), "ours": partial(run_round, first_stage(name, "loop"))}
    spent: list[float] = []
    if (inside := compiled(name, spent)) is not None:
        calls["compiled"] = inside
    found = alternating(calls, rounds)
    if spent:
        chunks = len(spent) // (rounds + 1)
        found["in_loops"] = statistics.median(
            sum(spent[i : i + chunks]) for i in range(chunks, len(spent), chunks)
        )
    Clock().report(**found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
