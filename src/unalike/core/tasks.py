"""What the labels ask for: the per-sample loss and the shape of a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike._utils.errors import UnalikeError


class Task(Protocol):
    """A task turns logits and labels into losses, and logits into predictions."""

    name: str

    @property
    def stacked(self) -> Task:
        """The same task as it is fastest in `torch.vmap`."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Per-sample losses [B] from logits [B, C] and labels [B]."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Their mean."""

    def slopes(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The losses [B], and the derivative of each in its own logits, [B, C]."""

    def predict(self, logits: Tensor) -> Tensor:
        """Predictions [B] from logits [B, C]."""


class Classification:
    """Cross-entropy over C classes; labels are integers in 0..C-1."""

    name = "classification"

    @property
    def stacked(self) -> Task:
        return StackedClassification()

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)

    def slopes(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        true, log_sum = y.unsqueeze(1), torch.logsumexp(logits, 1, keepdim=True)
        losses = (log_sum - logits.gather(1, true)).squeeze(1)
        return losses, (logits - log_sum).exp_().scatter_add_(1, true, logits.new_full((1, 1), -1.0).expand_as(true))

    def predict(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


class StackedClassification(Classification):
    """log sum_c exp z_c - z_y: torch's own kernel takes a row of few classes at a time, which is slow for many clients."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return torch.logsumexp(logits, 1) - logits.gather(1, y.unsqueeze(1)).squeeze(1)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.losses(logits, y).mean()


class Binary:
    """Binary cross-entropy on one logit; labels are booleans."""

    name = "binary"

    @property
    def stacked(self) -> Task:
        return self

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits.reshape(y.shape), y.to(logits.dtype), reduction="none")

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits.reshape(y.shape), y.to(logits.dtype))

    def slopes(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.losses(logits, y), logits.sigmoid() - y.to(logits.dtype).reshape(logits.shape)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.flatten(0) > 0 if logits.dim() == 1 else logits[..., 0] > 0


class Regression:
    """Squared error on one output; labels are floats."""

    name = "regression"

    @property
    def stacked(self) -> Task:
        return self

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.reshape(y.shape) - y).square()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(logits.reshape(y.shape), y)

    def slopes(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.losses(logits, y), 2 * (logits - y.reshape(logits.shape))

    def predict(self, logits: Tensor) -> Tensor:
        return logits.reshape(logits.shape[0])


TASKS: dict[str, Task] = {task.name: task for task in (Classification(), Binary(), Regression())}


def task_for(y: Tensor) -> Task:
    """The task that labels of this dtype ask for: integers classification, booleans binary, floats regression."""
    if y.dtype == torch.bool:
        return TASKS["binary"]
    return TASKS["regression" if y.is_floating_point() else "classification"]


def check_task(asker: str, tasks: Sequence[str], task: Task) -> None:
    """Raise `UnalikeError` where what `asker` does means nothing for such labels."""
    if task.name not in tasks:
        raise UnalikeError(f"{asker} needs classes (integer labels); found a task of {task.name}: leave it out")


def find_task(name: str) -> Task:
    """The task of this name. Raises `UnalikeError` for another one."""
    if name not in TASKS:
        raise UnalikeError(f"unknown task {name!r}; expected one of {', '.join(TASKS)}")
    return TASKS[name]
