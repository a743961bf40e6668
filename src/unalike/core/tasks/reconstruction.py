"""Reconstruction: the inputs are predicted, as by an autoencoder."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from unalike.core.tasks.registry import task
from unalike.core.tasks.task import SAME_SHAPE, FormulaOfLoss, Task


@task
class Reconstruction(Task):
    """The mean squared error of each sample: loss_b = mean_i (z_bi - x_bi)^2. There are no labels; outputs have the input's shape.

    RMSE is the root of the mean loss. The peak signal-to-noise ratio needs the range of the values: it is the metric
    `psnr(data_range=1)`. Labels that are given, [N, ...] in the shape of the inputs, are predicted instead, as of a model that
    removes noise.
    """

    loss_may_be_negative: ClassVar[bool] = False
    name: ClassVar[str] = "reconstruction"
    label_type: ClassVar[torch.dtype] = torch.float32
    label_dimensions: ClassVar[int | None] = None
    labels_in_words: ClassVar[str] = "the inputs themselves"
    traits: ClassVar[frozenset[str]] = frozenset({SAME_SHAPE})
    metrics: ClassVar[tuple[str, ...]] = ("loss", "rmse")
    predicts_arrays: ClassVar[bool] = True
    class_dimension: ClassVar[int | None] = None
    outputs_in_words: ClassVar[str] = "in the shape of the inputs"

    def as_labels(self, y: Tensor) -> Tensor:
        if y.dim() < 2:
            raise ValueError(
                "expected no labels, (x, None), or [N, ...] in the shape of the inputs,"
            )
        return y

    def labels_of_inputs(self, x: Tensor) -> Tensor | None:
        if not x.is_floating_point():
            raise ValueError("expected numbers; for tokens the task is next_token")
        return x

    def shape_of_labels(self, input_shape: Sequence[int], classes: int | None) -> tuple[int, ...]:
        return tuple(input_shape)

    def output_shape(self, classes: int | None, label_shape: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(label_shape)

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        error = (test - train.mean(0)).square().mean().sqrt().item()
        return f"always predicting the mean of the training samples has an RMSE of {error:.4g}"

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.reshape(y.shape) - y).square().flatten(1).mean(1)

    def predict(self, logits: Tensor) -> Tensor:
        return logits

    def formula_of_loss(self, metric: str) -> FormulaOfLoss | None:
        return np.sqrt if metric == "rmse" else None
