"""Several labels: a sample has any number of them."""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike.core.tasks.registry import task
from unalike.core.tasks.task import SEVERAL_LABELS, Task, in_columns


@task
class Multilabel(Task):
    """Binary cross-entropy on a logit for each of L labels, their mean for a sample; labels are booleans [N, L]."""

    loss_may_be_negative: ClassVar[bool] = False
    name: ClassVar[str] = "multilabel"
    label_type: ClassVar[torch.dtype] = torch.bool
    label_dimensions: ClassVar[int] = 1
    labels_in_words: ClassVar[str] = "several true/false a sample"
    traits: ClassVar[frozenset[str]] = frozenset({SEVERAL_LABELS})
    coefficient_ratio: ClassVar[str] = "odds"
    metrics: ClassVar[tuple[str, ...]] = (
        "loss",
        "subset_accuracy",
        "micro_f1",
        "label_f1",
        "label_roc_auc",
    )

    def takes(self, y: Tensor) -> bool:
        # rows with one truth each may be one-hot classes: their task is named
        return y.dtype == torch.bool and y.dim() == 2 and not bool((y.sum(1) == 1).all())

    def kinds(self, y: Tensor) -> Tensor:
        return y

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        usual = train.float().mean(0) > 0.5
        share = (test == usual).all(1).float().mean().item()
        return (
            f"always predicting the labels that most training samples have is right in all labels of a share of {share:.4f} of the "
            "samples"
        )

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        z = logits.reshape(y.shape)
        return F.binary_cross_entropy_with_logits(z, y.to(z.dtype), reduction="none").mean(1)

    def predict(self, logits: Tensor) -> Tensor:
        return in_columns(logits) > 0

    def scored_logits(self, logits: Tensor, wanted: bool) -> Tensor:
        return in_columns(logits)
