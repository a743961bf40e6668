"""Regression: labels that are amounts."""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike.core.tasks.registry import task
from unalike.core.tasks.task import NUMBERS, SQUARED_ERROR, Task, in_columns


@task
class Regression(Task):
    """Squared error on one output; labels are floats."""

    loss_may_be_negative: ClassVar[bool] = False
    name: ClassVar[str] = "regression"
    label_type: ClassVar[torch.dtype] = torch.float32
    labels_in_words: ClassVar[str] = "numbers"
    traits: ClassVar[frozenset[str]] = frozenset({NUMBERS, SQUARED_ERROR})
    metrics: ClassVar[tuple[str, ...]] = ("loss", "rmse", "mae", "r2")
    compiled_loss: ClassVar[str | None] = "squared_error"
    advice_if_diverged: ClassVar[str] = "divide the target, which is not scaled"

    def takes(self, y: Tensor) -> bool:
        return y.is_floating_point()

    def label_from_text(self, text: str) -> float:
        return float(text)

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        error = (test - train.mean()).square().mean().sqrt().item()
        return f"always predicting the mean of the training samples has an RMSE of {error:.4g}"

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.reshape(y.shape) - y).square()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(logits.reshape(y.shape), y)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.reshape(logits.shape[0])


@task
class Amounts(Task):
    """Several amounts a sample: the mean of their squared errors. Labels are floats [N, L], and so are the outputs."""

    loss_may_be_negative: ClassVar[bool] = False
    name: ClassVar[str] = "amounts"
    label_type: ClassVar[torch.dtype] = torch.float32
    label_dimensions: ClassVar[int] = 1
    labels_in_words: ClassVar[str] = "several numbers a sample"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "rmse", "mae", "r2")
    advice_if_diverged: ClassVar[str] = Regression.advice_if_diverged

    def takes(self, y: Tensor) -> bool:
        # numbers that are all 0 or 1 may be truths, or stand for classes: their task is named
        return y.dim() == 2 and y.is_floating_point() and not bool(((y == 0) | (y == 1)).all())

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        error = (test - train.mean(0)).square().mean(0).sqrt().mean().item()
        return f"always predicting the means of the training samples has an RMSE of {error:.4g}"

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.reshape(y.shape) - y).square().mean(1)

    def predict(self, logits: Tensor) -> Tensor:
        return in_columns(logits)
