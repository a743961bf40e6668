"""Evaluation of many clients' test samples in one pass, and the metrics of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unalike.core.model import Model
from unalike.core.task import Task
from unalike.core.types import Context, Tree
from unalike.results.metrics import FORMULAS, Groups

Metrics = dict[str, float]
Predict = Callable[[Tensor], Tensor]
"""Inputs [B, ...] -> logits [B, C]."""

ROWS = 4096
"""Samples of one forward pass in evaluation."""


@dataclass(frozen=True)
class Scores:
    """One entry per test sample: whose it is, its loss, its label, the prediction and, for a binary task, the logit (else 0)."""

    client: np.ndarray
    loss: np.ndarray
    y: np.ndarray
    predicted: np.ndarray
    logit: np.ndarray

    @classmethod
    def join(cls, scores: Sequence[Scores]) -> Scores:
        """The samples of several evaluations."""
        return cls(*(np.concatenate([getattr(s, f) for s in scores]) for f in cls.__dataclass_fields__))


def score(task: Task, predict: Predict, x: Tensor, y: Tensor, client: np.ndarray) -> Scores:
    """Run a model over samples x [n, ...], y [n] that belong to clients [n]."""
    losses, predicted, logit = [], [], []
    with torch.no_grad():
        for rows_x, rows_y in zip(x.split(ROWS), y.split(ROWS), strict=True):
            logits = predict(rows_x)
            losses.append(task.losses(logits, rows_y))
            predicted.append(task.predict(logits))
            logit.append(logits.reshape(len(rows_y), -1)[:, 0] if task.name == "binary" else torch.zeros(len(rows_y)))
    each, guess, sure = (torch.cat(parts).cpu().numpy() for parts in (losses, predicted, logit))
    return Scores(client, each, y.cpu().numpy(), guess, sure)


def shared_model(model: Model, params: Tree, buffers: Tree, context: Context | None = None) -> Predict:
    """The prediction of one model; for one client where the model is fed its facts, `context`, else for everybody."""
    return lambda x: model(params, x, buffers=buffers, context=context).logits


def measure(task: Task, scores: Scores) -> Metrics:
    """The metrics of the task over the samples given; NaN where there are none."""
    return _measured(task, scores, np.zeros(len(scores.loss), np.int64), 1)[0]


def metric_names(task: Task) -> tuple[str, ...]:
    """The columns that `measure` fills."""
    return tuple(FORMULAS[task.name])


def per_client(task: Task, scores: Scores, clients: Iterable[int]) -> dict[int, Metrics]:
    """`measure` for each client by itself, for all of them at once."""
    wanted = np.fromiter(clients, np.int64)
    place = np.full(max(wanted.max(initial=-1), scores.client.max(initial=-1)) + 1, -1)
    place[wanted] = np.arange(len(wanted))
    of = place[scores.client]
    kept = Scores(*(getattr(scores, name)[of >= 0] for name in Scores.__dataclass_fields__))
    return dict(zip(wanted.tolist(), _measured(task, kept, of[of >= 0], len(wanted)), strict=True))


def _measured(task: Task, scores: Scores, of: np.ndarray, count: int) -> list[Metrics]:
    groups = Groups(of, count, scores.loss, scores.y, scores.predicted, scores.logit)
    with np.errstate(invalid="ignore", divide="ignore"):  # a group without samples has no metric
        columns = [formula(groups) for formula in FORMULAS[task.name].values()]
    names = metric_names(task)
    return [dict(zip(names, row, strict=True)) for row in np.stack(columns, axis=1).tolist()]
