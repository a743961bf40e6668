"""Time of a round by each executor beside that of the one that `auto` chooses, and beside plain torch.

    python benchmarks/auto.py [--networks LeNet ...] [--clients large ...] [--busy] [--json FILE]

`auto` decides short runs by a rule and measures long ones; its regret is computed in `table.py`. Executors and plain torch take
turns, and the fastest of their rounds counts: other programs only add to it. `--busy` keeps one core busy meanwhile. Plain torch
trains one client after the other; in one process with all threads, or with half of the clients in each of two of one thread.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from networks import OWN
from torch import nn

import unalike as ua
from unalike._utils.system.machine import cores
from unalike.engine import auto
from unalike.engine.threads import threads_for
from unalike.methods.plan import steps_of
from unalike.runtime.processes import launch
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import RunConfig, configure_run
from unalike.runtime.stages.local_backend import LocalBackend, LocalStage

SIZES = {
    "large": [200] * 10,
    "small": [20] * 100,
    "unequal": np.geomspace(10, 300, 20).astype(int).tolist(),
}
"""Training samples of the clients; of the heavy networks a quarter of them."""
HEAVY, BATCH = {"ResNet-20", "ResNet-18, 7x7 stem"}, 10
LONG, REST = 10**7, 0.2
POOL, ONE = "distributed(workers=2)", "loop, one thread"


def people(name: str, kind: str) -> list[ua.ClientData]:
    """Clients with random samples."""
    g, (_, shape, words) = torch.Generator().manual_seed(0), OWN[name]
    sizes = (
        [max(2, n // 4) for n in SIZES[kind]][:: 5 if kind == "small" else 1]
        if name in HEAVY
        else SIZES[kind]
    )
    draw = partial(torch.randint, words) if words else torch.randn
    return [
        ua.ClientData(train=(draw((n, *shape), generator=g), torch.arange(n) % 10)) for n in sizes
    ]


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return OWN[name][0]()


def config(name: str, clients: list[ua.ClientData], executor: str, rounds: int) -> RunConfig:
    work = ua.Work(batch_size=BATCH, lr=0.01)
    made = configure_run(
        "fedavg", clients, model=module_of(name), rounds=rounds, executor=executor, work=work
    )
    return made.here()


def plain(module: nn.Module, clients: list[ua.ClientData], threads: int) -> None:
    """The local training of FedAvg in plain torch, and the sum of the models."""
    torch.set_num_threads(threads)
    start = [p.detach().clone() for p in module.parameters()]
    total = [torch.zeros_like(p) for p in start]
    for client in clients:
        x, y = client.train
        with torch.no_grad():
            for p, w in zip(module.parameters(), start, strict=True):
                p.copy_(w)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            for t, p in zip(total, module.parameters(), strict=True):
                t += p
    with torch.no_grad():
        for p, w in zip(module.parameters(), start, strict=True):
            p.copy_(w)


def half(name: str, kind: str, place: int, pipe: Connection) -> None:
    """A process of plain torch with every second client."""
    module, clients = module_of(name), people(name, kind)[place::2]
    while pipe.recv():
        plain(module, clients, threads=1)
        pipe.send(True)


@contextmanager
def halves(name: str, kind: str) -> Iterator[Callable[[], None]]:
    """Plain torch in two processes."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    workers = [
        context.Process(target=half, args=(name, kind, i, pipe[1]), daemon=True)
        for i, pipe in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()

    def call() -> None:
        for ours, _ in pipes:
            ours.send(True)
        for ours, _ in pipes:
            ours.recv()

    try:
        yield call
    finally:
        for ours, _ in pipes:
            ours.send(False)
        for worker in workers:
            worker.join()


def chosen(name: str, clients: list[ua.ClientData], rounds: int, idle: int) -> str:
    """The executor that `auto` chooses for a run of so many rounds on so many idle cores."""
    run_config = config(name, clients, "auto", rounds)
    launch.idle_cores = lambda: idle
    processes = launch._processes(run_config)
    if processes not in (None, 1):
        return POOL
    stage = LocalStage(run_config, next(steps_of(run_config.plan, run_config.plan_inputs)))
    with threads_for(run_config.model, alone=processes is None):
        found = auto.decide(
            "auto", next(iter(stage.state.groups.values())).client_pool, len(clients), rounds
        ).executor
    return ONE if processes == 1 and found == "loop" else found


def ours(
    stack: ExitStack, name: str, clients: list[ua.ClientData], executor: str
) -> Callable[[], object]:
    """A round by an executor."""
    pooled = executor == POOL  # in a long run its processes measure whether to stack
    run_config = config(
        name, clients, "loop" if executor == ONE else executor, LONG if pooled else 1000
    )
    stage = next(steps_of(run_config.plan, run_config.plan_inputs))
    backend = (
        stack.enter_context(launch.backend_here(run_config)) if pooled else LocalBackend(run_config)
    )
    runner = backend.stage(stage, 0, None)
    runner.start()

    def call() -> None:
        torch.set_num_threads(1 if pooled else cores())
        with nullcontext() if pooled else threads_for(run_config.model, alone=executor != ONE):
            run_round(runner)

    return call


def measured(name: str, kind: str, repeats: int, patience: float, idle: int) -> dict[str, object]:
    """Seconds of the fastest round of each contender, and the executors that `auto` chooses."""
    clients = people(name, kind)
    choices = {
        how: chosen(name, clients, rounds, idle)
        for how, rounds in (("rule", 3), ("measured", LONG))
    }
    with ExitStack() as stack:
        calls: dict[str, Callable[[], object]] = {}
        for executor in dict.fromkeys((POOL, "batched", *choices.values(), "loop")):
            try:
                calls[executor] = ours(stack, name, clients, executor)
            except ua.UnalikeError:
                continue  # the model cannot be stacked
        calls["plain, 2 processes"] = stack.enter_context(halves(name, kind))
        calls["plain"] = partial(
            plain, module_of(name), clients, cores()
        )  # the last: its threads spin for a while
        best, spent = dict.fromkeys(calls, float("inf")), dict.fromkeys(calls, 0.0)
        for repeat in range(repeats + 1):
            time.sleep(REST)
            for label, call in calls.items():
                if spent[label] > patience:
                    continue
                started = time.perf_counter()
                call()
                took = time.perf_counter() - started
                if repeat:  # the first one warms up
                    best[label], spent[label] = min(best[label], took), spent[label] + took
    return {"network": name, "clients": kind, "seconds": best, "choices": choices}


def spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="*", default=[*OWN])
    parser.add_argument("--clients", nargs="*", default=[*SIZES])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds that one contender may take in all"
    )
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.busy:
        multiprocessing.get_context("spawn").Process(target=spin, daemon=True).start()
    rows = []
    for name in arguments.networks:
        for kind in arguments.clients:
            row = measured(
                name, kind, arguments.repeats, arguments.patience, cores() - arguments.busy
            ) | {"busy": arguments.busy}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
