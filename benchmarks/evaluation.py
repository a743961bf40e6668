"""Seconds to evaluate one model, by our evaluation and by plain torch: `python evaluation.py WORKLOAD TIMES`.

Both use all cores, as by default. Plain torch: the module in evaluation mode under `no_grad`, a hundred samples at a time; the loss
and the predictions are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from clock import Clock, alternating
from networks import network
from torch import Tensor
from torch.nn.functional import cross_entropy
from workloads import WORKLOADS

from unalike.core.model import Model
from unalike.core.tasks import find_task
from unalike.engine.threads import threads_for
from unalike.metrics.scoring import SharedModel, score

SAMPLES, ROWS = {"2nn": 10_000, "cnn": 10_000, "resnet20": 2000}, 100


def plain(module: torch.nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    """Evaluation in plain torch."""
    module.eval()

    def evaluate() -> object:
        losses, predicted = [], []
        with torch.no_grad():
            for rows, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):
                logits = module(rows)
                losses.append(cross_entropy(logits, labels, reduction="none"))
                predicted.append(logits.argmax(1))
        return torch.cat(losses), torch.cat(predicted)

    return evaluate


def ours(model: Model, x: Tensor, y: Tensor) -> Callable[[], object]:
    """Evaluation as in a run."""
    task, predict = find_task("classification"), SharedModel(model, model.params, model.buffers)
    owner = np.zeros(len(y), np.int64)

    def evaluate() -> object:
        with threads_for(model):
            return score(task, predict, x, y, owner)

    return evaluate


def main(name: str, times: int) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES[name], *WORKLOADS[name].shape, generator=g)
    y = torch.randint(0, WORKLOADS[name].classes, (len(x),), generator=g)
    calls = {"plain": plain(network(name), x, y), "ours": ours(Model(network(name)), x, y)}
    Clock().report(samples=len(x), **alternating(calls, times, rest=0.05))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
