"""Measure the executors against a bare PyTorch loop on the same work, interleaved in one process; one thread in every process.

    python benchmarks/executors.py [name of a workload ...] [--device cuda] [--json FILE]

For whole rounds of training (no evaluation) it prints the median time, its factor over the bare loop's median with the spread, and
the factor between the fastest rounds, which is more reliable on a busy machine. `--json` adds the numbers of the device to a file:
`benchmarks/gpu.json` holds those of `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
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
from unalike.runtime.processes.launch import backend_here
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalBackend


@dataclass(frozen=True)
class Workload:
    """A number of clients with samples of one shape, a model, a batch size and the executors to compare.

    Samples are random numbers, or one of so many `tokens`. The label of each is one of ten classes, or, of a named task, one for
    each of the `places` [H, W] or [T].
    """

    clients: int
    samples: int
    shape: tuple[int, ...]
    model: str
    batch: int
    contenders: tuple[str, ...] = ()
    task: str | None = None
    places: tuple[int, ...] = ()
    tokens: int = 0

    def people(self) -> ua.Population:
        g = torch.Generator().manual_seed(0)
        count = self.samples * math.prod(self.places)
        labels = (torch.arange(count) % 10).view(self.samples, *self.places)
        clients = []
        for _ in range(self.clients):
            x = torch.randn(self.samples, *self.shape, generator=g)
            if self.tokens:
                x = torch.randint(self.tokens, x.shape, generator=g)
            clients.append(ua.ClientData(train=(x, labels)))
        return ua.Population.of(clients, task=self.task)

    def loss(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy; of texts the classes are the last dimension."""
        return nn.functional.cross_entropy(logits.mT if self.tokens else logits, y)


DENSE = ("loop", "batched", "distributed(workers=2, inner='batched')")
IMAGES = (
    "loop",
    "loop bf16",
    "distributed(workers=2, inner='loop')",
    "distributed(workers=2, inner='loop') bf16",
)
WORKLOADS = {
    "logistic": Workload(300, 100, (64,), "linear", 10, DENSE),
    "mlp": Workload(100, 100, (64,), "mlp(hidden=(64,))", 10, DENSE),
    "2nn": Workload(100, 100, (784,), "mlp(hidden=(200, 200))", 10, DENSE),
    "cnn": Workload(4, 100, (3, 32, 32), "cnn", 50, IMAGES),
    "resnet20": Workload(4, 50, (3, 32, 32), "resnet20", 50, IMAGES),
    "unet": Workload(
        clients=4,
        samples=96,
        shape=(1, 32, 32),
        model="unet(width=8)",
        batch=16,
        contenders=("loop", "auto"),
        task="segmentation",
        places=(32, 32),
    ),
    "language": Workload(
        clients=10,
        samples=100,
        shape=(40,),
        model="char_lstm(hidden=64, layers=1, every=True)",
        batch=10,
        contenders=("loop", "auto"),
        task="token_classification",
        places=(40,),
        tokens=80,
    ),
}
DEVICE_WORKLOADS = {
    "logistic": Workload(100, 100, (64,), "linear", 10),
    "2nn": Workload(100, 100, (784,), "mlp(hidden=(200, 200))", 10),
    "cnn": Workload(20, 250, (3, 32, 32), "cnn", 50),
    "resnet20": Workload(10, 200, (3, 32, 32), "resnet20", 50),
    "resnet18": Workload(10, 200, (3, 32, 32), "resnet18", 50),
}
"""Work of a size for an accelerator."""
DEVICE_CONTENDERS = ("loop", "batched", "auto", "loop bf16", "batched bf16")
REPEATS, DEVICE_REPEATS = 7, 3
"""Timed rounds; on a device, where launches of small kernels take seconds a round, fewer."""


def bare(
    clients: ua.Population, module: nn.Module, load: Workload, device: str
) -> Callable[[], None]:
    """FedAvg without the library: copy the weights, train, average. All samples are on the device."""
    module, samples = (
        module.to(device),
        [[t.to(device) for t in client.train] for client in clients],
    )
    start = {n: p.detach().clone() for n, p in module.named_parameters()}

    def round_() -> None:
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for x, y in samples:
            with torch.no_grad():
                for name, p in module.named_parameters():
                    p.copy_(start[name])
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
            for rows in torch.randperm(len(y), device=device).split(load.batch):
                optimizer.zero_grad()
                load.loss(module(x[rows]), y[rows]).backward()
                optimizer.step()
            for name, p in module.named_parameters():
                total[name] += p.detach() / len(clients)

    return round_


def ours(
    stack: ExitStack, clients: ua.Population, load: Workload, contender: str, device: str
) -> Callable[[], object]:
    """A round of FedAvg by an executor; its worker processes live as long as `stack`."""
    executor, _, precision = contender.partition(" bf16")
    executor, precision = executor, "bf16" if contender.endswith("bf16") else "float32"
    work = ua.Work(batch_size=load.batch, lr=0.01, momentum=0.9)
    run_config = configure_run(
        "fedavg",
        clients,
        model=load.model,
        rounds=1000,
        executor=executor,
        work=work,
        precision=precision,
        device=device,
    )
    run_config = run_config.here()
    assert run_config.population.x.device.type == torch.device(device).type
    stage = next(steps_of(run_config.plan, run_config.plan_inputs))
    backend = (
        stack.enter_context(backend_here(run_config))
        if executor.startswith("distributed")
        else LocalBackend(run_config)
    )
    clients_of_stage = backend.stage(stage, 0, None)
    clients_of_stage.start()
    return partial(run_round, clients_of_stage)


def measured(load: Workload, device: str) -> dict[str, list[float]]:
    """Seconds of each contender's rounds."""
    with ExitStack() as stack:
        clients = load.people()
        # worker processes start before this one computes anything
        rounds = {
            name: ours(stack, clients, load, name, device)
            for name in load.contenders or DEVICE_CONTENDERS
        }
        rounds = {
            "bare loop": bare(clients, ua.model(load.model, load.shape, 10), load, device)
        } | rounds
        times: dict[str, list[float]] = {name: [] for name in rounds}
        for repeat in range((REPEATS if device == "cpu" else DEVICE_REPEATS) + 2):
            for name, run in rounds.items():
                wait(device)
                started = time.perf_counter()
                run()
                wait(device)
                if repeat > 1:  # the first rounds warm up
                    times[name].append(time.perf_counter() - started)
    return times


def wait(device: str) -> None:
    """Return when the device has done its work."""
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    workloads = WORKLOADS if arguments.device == "cpu" else DEVICE_WORKLOADS
    device, found = "cpu", {}
    if arguments.device != "cpu":
        device = torch.get_device_module(arguments.device).get_device_name()
        print(f"{device}, torch {torch.__version__}")
    for name in arguments.workloads or workloads:
        load = workloads[name]
        times = measured(load, arguments.device)
        base = statistics.median(times["bare loop"])
        text = f"{load.clients} clients x {load.samples} samples, {load.model}, batches of {load.batch}"
        print(f"{name}: {text}", flush=True)
        found[name] = {"text": text, "torch": torch.__version__, "contenders": {}}
        for contender, seconds in times.items():
            factors = sorted(base / s for s in seconds)
            found[name]["contenders"][contender] = {
                "ms": 1e3 * statistics.median(seconds),
                "factor": base / statistics.median(seconds),
                "fastest": min(times["bare loop"]) / min(seconds),
            }
            spread = f"({factors[0]:.2f} to {factors[-1]:.2f})"
            print(
                f"  {contender:44s} {1e3 * statistics.median(seconds):8.1f} ms {base / statistics.median(seconds):6.2f} x {spread}"
                f" {found[name]['contenders'][contender]['fastest']:6.2f} x fastest"
            )
    if arguments.json is not None:
        before = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        before[device] = before.get(device, {}) | found
        arguments.json.write_text(json.dumps(before, indent=1) + "\n")


if __name__ == "__main__":
    main()
