"""Difference of one local step between the executors `loop` and `batched`, for every model.

    python benchmarks/agreement.py

Two clients with four samples each make one SGD step. The figure is the largest difference between their updates, relative to the
largest entry of the update. In float64 it is rounding error; in float32, deep networks amplify it.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import unalike as ua
from unalike.core.model import Model
from unalike.core.tasks import task_for
from unalike.core.views import StageSettings
from unalike.data import Population
from unalike.engine.base import ClientPool
from unalike.engine.batched import Batched
from unalike.engine.loop import Loop
from unalike.methods.method import Method
from unalike.training.client.client_states import ClientStates
from unalike.training.client.client_update import initial_client_state
from unalike.training.server.server_update import initial_server_state, make_broadcast

IMAGE = (3, 32, 32)
MODELS: dict[str, tuple[tuple[int, ...], str]] = {
    "linear": (IMAGE, "fedavg"),
    "logistic": (IMAGE, "fedavg"),
    "mlp": (IMAGE, "fedavg"),
    "2nn": ((1, 28, 28), "fedavg"),
    "cnn": (IMAGE, "fedavg"),
    "emnist_cnn": ((1, 28, 28), "fedavg"),
    "lenet": (IMAGE, "fedavg"),
    "mcmahan_cnn": ((1, 28, 28), "fedavg"),
    "vgg11": (IMAGE, "fedavg"),
    "mobilenet_v2": (IMAGE, "fedavg"),
    "resnet20": (IMAGE, "fedavg"),
    "resnet18": (IMAGE, "fedavg"),
    "resnet34": (IMAGE, "fedavg"),
    "wrn56_4": (IMAGE, "fedavg"),
    "densenet121": (IMAGE, "fedavg"),
    "vit": (IMAGE, "fedavg"),
    "textcnn(dropout=0.0)": ((16,), "fedavg"),
}


def population_of(shape: tuple[int, ...], dtype: torch.dtype) -> Population:
    g = torch.Generator().manual_seed(0)
    tokens = len(shape) == 1 and shape[0] == 16
    made = []
    for _ in range(2):
        x = (
            torch.randint(1, 200, (4, *shape), generator=g)
            if tokens
            else torch.randn(4, *shape, generator=g)
        )
        made.append(ua.ClientData(train=(x, torch.arange(4) % 10)))
    population = Population.of(made, classes=[str(c) for c in range(10)])
    return (
        population
        if tokens
        else Population(population.x.to(dtype), *(getattr(population, f) for f in FIELDS))
    )


FIELDS = ("y", "train", "test", "val", "names", "classes", "task")


def difference(name: str, shape: tuple[int, ...], spec: str, dtype: torch.dtype) -> float:
    module: nn.Module = ua.model(name, shape, 10).to(dtype)
    population, method = population_of(shape, dtype), Method.parse(spec)
    settings = StageSettings(
        Model(module), task_for(population.y), ua.Work(batch_size=None, lr=0.01)
    )
    updates = []
    for executor in (Loop, Batched):
        client_pool = ClientPool(
            method, settings, population, ClientStates(initial_client_state(method, settings))
        )
        broadcast = make_broadcast(method, settings, initial_server_state(method, settings), 2)
        found = executor(client_pool).run(broadcast, [0, 1], {})
        updates.append(torch.cat([u.flatten() for u in found.update.values()]))
    return float((updates[0] - updates[1]).abs().max() / updates[0].abs().max())


def main() -> None:
    chosen = sys.argv[1:] or list(MODELS)
    print(f"{'model':24s} {'float32':>10s} {'float64':>10s}")
    for name in chosen:
        shape, spec = MODELS[name]
        found = [difference(name, shape, spec, dtype) for dtype in (torch.float32, torch.float64)]
        print(f"{name:24s} {found[0]:10.1e} {found[1]:10.1e}", flush=True)


if __name__ == "__main__":
    main()
