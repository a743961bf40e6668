"""Tasks: the per-sample loss and the prediction that go with a kind of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike._utils.errors import UnalikeError


class Task:
    """Losses from logits and labels, and predictions from logits."""

    name: ClassVar[str]
    areas: ClassVar[bool] = False
    """Whether there are two classes, so that areas under curves are among the metrics of the task."""

    def of(self, classes: Sequence[str] | None) -> Task:
        """The same task with these classes."""
        return self

    @property
    def stacked(self) -> Task:
        """The same task in the form that is fastest under `torch.vmap`."""
        return self

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Per-sample losses [B] from logits [B, C] and labels [B]."""
        raise NotImplementedError

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean of the losses."""
        return self.losses(logits, y).mean()

    def predict(self, logits: Tensor) -> Tensor:
        """Predictions [B] from logits [B, C]."""
        raise NotImplementedError

    def probabilities(self, logits: Tensor) -> Tensor | None:
        """The probability of each class [B, C] (of false and true for one logit); None for regression."""
        return None


class Classification(Task):
    """Cross-entropy over C classes; labels are integers in 0..C-1."""

    name = "classification"

    def of(self, classes: Sequence[str] | None) -> Task:
        if classes is not None and len(classes) == 2:
            return TwoClasses()
        return self

    @property
    def stacked(self) -> Task:
        return StackedClassification()

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)


class TwoClasses(Classification):
    """Cross-entropy over two classes, the second of which is the positive one."""

    areas = True


class StackedClassification(Classification):
    """Cross-entropy as log sum_c exp z_c - z_y.

    Under `torch.vmap` torch's own kernel works on one short row of classes at a time, which is slow for many clients.
    """

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        of_label = logits.gather(1, y.unsqueeze(1)).squeeze(1)
        return torch.logsumexp(logits, 1) - of_label

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.losses(logits, y).mean()


class Binary(Task):
    """Binary cross-entropy on one logit; labels are booleans."""

    name = "binary"
    areas = True

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        z = logits.reshape(y.shape)
        return F.binary_cross_entropy_with_logits(z, y.to(z.dtype), reduction="none")

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        z = logits.reshape(y.shape)
        return F.binary_cross_entropy_with_logits(z, y.to(z.dtype))

    def predict(self, logits: Tensor) -> Tensor:
        if logits.dim() == 1:
            return logits > 0
        return logits[..., 0] > 0

    def probabilities(self, logits: Tensor) -> Tensor:
        z = logits.reshape(logits.shape[0])
        return torch.stack([(-z).sigmoid(), z.sigmoid()], -1)


class Regression(Task):
    """Squared error on one output; labels are floats."""

    name = "regression"

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.reshape(y.shape) - y).square()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(logits.reshape(y.shape), y)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.reshape(logits.shape[0])


TASKS: dict[str, Task] = {
    "classification": Classification(),
    "binary": Binary(),
    "regression": Regression(),
}


def task_for(y: Tensor) -> Task:
    """The task for labels of this dtype: integers classification, booleans binary, floats regression."""
    if y.dtype == torch.bool:
        return TASKS["binary"]
    if y.is_floating_point():
        return TASKS["regression"]
    return TASKS["classification"]


def check_task(asker: str, tasks: Sequence[str], task: Task) -> None:
    """Raise `UnalikeError` if `asker` is not defined for the task; `tasks` are those for which it is."""
    if task.name not in tasks:
        raise UnalikeError(
            f"{asker} needs classes (integer labels); found a task of {task.name}: leave it out"
        )


def find_task(name: str) -> Task:
    """The task of this name. Raises `UnalikeError` for an unknown name."""
    if name not in TASKS:
        raise UnalikeError(f"unknown task {name!r}; expected one of {', '.join(TASKS)}")
    return TASKS[name]
