"""Counts: labels that say how often something happened."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from unalike.core.tasks.registry import task
from unalike.core.tasks.task import EXPECTED_COUNTS, Task


@task
class Counts(Task):
    """Poisson regression: mu_b = exposure_b exp(z_b), and the loss is -log Poisson(count_b; mu_b).

        loss_b = mu_b - count_b log mu_b + log count_b!

    A label is [count, log exposure], so that the exposure (days, kilometres, persons) goes wherever labels go; labels [N] are
    counts with the exposure 1. The prediction is the rate exp(z), the count that is expected in one unit of exposure; metrics
    compare mu with the count.
    """

    loss_may_be_negative: ClassVar[bool] = False
    name: ClassVar[str] = "counts"
    label_type: ClassVar[torch.dtype] = torch.float32
    label_dimensions: ClassVar[int] = 1
    label_shape: ClassVar[tuple[int, ...] | None] = (2,)
    labels_in_words: ClassVar[str] = "counts"
    traits: ClassVar[frozenset[str]] = frozenset({EXPECTED_COUNTS})
    coefficient_ratio: ClassVar[str] = "rate"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "poisson_deviance", "rmse", "mae")
    advice_if_diverged: ClassVar[str] = (
        "give the exposure in a larger unit, as in log(days / 365): expected counts grow exponentially with the output"
    )

    def as_labels(self, y: Tensor) -> Tensor:
        column = y.unsqueeze(1) if y.dim() == 1 else y
        if column.dim() != 2 or column.shape[1] > 2:
            raise ValueError("expected counts [N], or [count, log exposure] [N, 2]")
        if column.shape[1] == 2:
            return column
        return torch.cat([column, torch.zeros_like(column)], dim=1)

    def label_fault(self, y: Tensor, classes: int | None) -> str:
        counts = y[:, 0]
        if (counts < 0).any() or (counts != counts.round()).any():
            return "counts are whole numbers of 0 or more; for other amounts the task is regression"
        return ""

    def label_from_text(self, text: str) -> float:
        return float(text)

    def outcome(self, y: Tensor) -> Tensor:
        return y[:, 0]

    def outputs(self, classes: int | None, label_shape: Sequence[int] = ()) -> int | None:
        return None

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        rate = train[:, 0].sum() / train[:, 1].exp().sum()
        counts = test[:, 0]
        expected = rate * test[:, 1].exp()
        deviance = 2 * (torch.xlogy(counts, counts / expected) - counts + expected).mean()
        return (
            f"always predicting the rate of the training samples, {rate.item():.4g}, has a mean Poisson deviance of "
            f"{deviance.item():.4g}"
        )

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        counts = y[:, 0]
        log_expected = logits.reshape(len(y)) + y[:, 1]
        return log_expected.exp() - counts * log_expected + torch.lgamma(counts + 1)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.flatten().exp()

    def scored(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y[:, 0], (logits.reshape(len(y)) + y[:, 1]).exp()
