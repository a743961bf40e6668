"""Measure the executors against a bare PyTorch loop on the same work, interleaved in one process; one thread in every process.

    python benchmarks/executors.py [name of a workload ...] [--json FILE]

For whole rounds of training (no evaluation) it prints the median time, its factor over the bare loop's median with the spread, and
the factor between the fastest rounds, which is more reliable on a busy machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

import unalike as ua
from unalike.engine.threads import keep_freed_memory
from unalike.methods.plan import steps_of
from unalike.runtime.backend import LocalBackend
from unalike.runtime.round_loop import run_round
from unalike.runtime.run_config import prepare_run
from unalike.runtime.stage_runner import StageRunner
from unalike.runtime.worker_loop import worker_pool_for


@dataclass(frozen=True)
class Workload:
    """A number of clients with samples of one shape, a model, a batch size and the executors to compare."""

    clients: int
    samples: int
    shape: tuple[int, ...]
    model: str
    batch: int
    contenders: tuple[str, ...]

    def people(self) -> list[ua.ClientData]:
        g = torch.Generator().manual_seed(0)
        labels = torch.arange(self.samples) % 10
        return [
            ua.ClientData(train=(torch.randn(self.samples, *self.shape, generator=g), labels))
            for _ in range(self.clients)
        ]


DENSE = ("loop", "batched", "distributed(workers=2, inner='batched')")
IMAGES = ("loop", "loop bf16", "distributed(workers=2, inner='loop')", "distributed(workers=2, inner='loop') bf16")
WORKLOADS = {
    "logistic": Workload(300, 100, (64,), "linear", 10, DENSE),
    "mlp": Workload(100, 100, (64,), "mlp(hidden=(64,))", 10, DENSE),
    "2nn": Workload(100, 100, (784,), "mlp(hidden=(200, 200))", 10, DENSE),
    "cnn": Workload(4, 100, (3, 32, 32), "cnn", 50, IMAGES),
    "resnet20": Workload(4, 50, (3, 32, 32), "resnet20", 50, IMAGES),
}
REPEATS = 7


def bare(clients: list[ua.ClientData], module: nn.Module, batch: int) -> Callable[[], None]:
    """FedAvg without the library: copy the weights, train, average."""
    start = {n: p.detach().clone() for n, p in module.named_parameters()}

    def round_() -> None:
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for client in clients:
            x, y = client.train
            with torch.no_grad():
                for name, p in module.named_parameters():
                    p.copy_(start[name])
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
            for rows in torch.randperm(len(y)).split(batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
                optimizer.step()
            for name, p in module.named_parameters():
                total[name] += p.detach() / len(clients)

    return round_


def ours(stack: ExitStack, clients: list[ua.ClientData], load: Workload, contender: str) -> Callable[[], object]:
    """A round of FedAvg by an executor; its worker processes live as long as `stack`."""
    executor, _, precision = contender.partition(" bf16")
    executor, precision = executor, "bf16" if contender.endswith("bf16") else "float32"
    work = ua.Work(batch_size=load.batch, lr=0.01, momentum=0.9)
    run_config = prepare_run(
        "fedavg", clients, model=load.model, rounds=1000, executor=executor, work=work, precision=precision
    )
    stage = next(steps_of(run_config.plan, run_config.plan_inputs))
    if not executor.startswith("distributed"):
        return partial(run_round, StageRunner(run_config, stage))
    worker_pool = stack.enter_context(worker_pool_for(run_config))
    runner = LocalBackend(run_config, worker_pool).stage(stage, 0, None)
    runner.start()
    return partial(run_round, runner)


def measured(load: Workload) -> dict[str, list[float]]:
    """Seconds of each contender's rounds."""
    with ExitStack() as stack:
        clients = load.people()
        # worker processes start before this one computes anything
        rounds = {name: ours(stack, clients, load, name) for name in load.contenders}
        rounds = {"bare loop": bare(clients, ua.model(load.model, load.shape, 10), load.batch)} | rounds
        times: dict[str, list[float]] = {name: [] for name in rounds}
        for repeat in range(REPEATS + 2):
            for name, run in rounds.items():
                started = time.perf_counter()
                run()
                if repeat > 1:  # the first rounds warm up
                    times[name].append(time.perf_counter() - started)
    return times


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    arguments = sys.argv[1:]
    file = arguments.pop() if "--json" in arguments else None
    names = [a for a in arguments if a != "--json"] or list(WORKLOADS)
    found = {}
    for name in names:
        load = WORKLOADS[name]
        times = measured(load)
        print(f"{name}: {load.clients} clients x {load.samples} samples, {load.model}, batch {load.batch}")
        base = statistics.median(times["bare loop"])
        found[name] = {}
        for contender, seconds in times.items():
            factors = sorted(base / s for s in seconds)
            found[name][contender] = {
                "ms": 1e3 * statistics.median(seconds),
                "factor": base / statistics.median(seconds),
                "fastest": min(times["bare loop"]) / min(seconds),
            }
            spread = f"({factors[0]:.2f} to {factors[-1]:.2f})"
            print(
                f"  {contender:44s} {1e3 * statistics.median(seconds):8.1f} ms {base / statistics.median(seconds):6.2f} x {spread}"
                f" {found[name][contender]['fastest']:6.2f} x fastest"
            )
    if file is not None:
        Path(file).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
