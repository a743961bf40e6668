"""Classification: labels that are one of several classes, with a logit for each class or one logit for true."""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike.core.tasks.registry import task
from unalike.core.tasks.task import CLASS_LOGITS, CLASSES, TWO_CLASSES, Task

METRICS_OF_CLASSES = ("loss", "accuracy", "macro_f1", "balanced_accuracy")
METRICS_OF_TWO_CLASSES = (*METRICS_OF_CLASSES, "roc_auc", "average_precision")

TRUTHS = {"0": False, "false": False, "1": True, "true": True}
"""How files write true and false, in lower case."""


class _Classes(Task):
    """A task whose labels are classes, numbered from 0."""

    loss_may_be_negative: ClassVar[bool] = False
    coefficient_ratio: ClassVar[str] = "odds"

    def kinds(self, y: Tensor) -> Tensor:
        return y.unsqueeze(1)

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        most = int(torch.bincount(train.long()).argmax())
        share = (test == most).float().mean().item()
        name = str(most) if classes is None else classes[most]
        return f"always predicting {name!r} has an accuracy of {share:.4f}"


@task
class Classification(_Classes):
    """Cross-entropy over C classes; labels are integers in 0..C-1."""

    name: ClassVar[str] = "classification"
    label_type: ClassVar[torch.dtype] = torch.int64
    labels_in_words: ClassVar[str] = "classes"
    traits: ClassVar[frozenset[str]] = frozenset({CLASSES, CLASS_LOGITS})
    metrics: ClassVar[tuple[str, ...]] = METRICS_OF_CLASSES
    compiled_loss: ClassVar[str | None] = "cross_entropy"

    def takes(self, y: Tensor) -> bool:
        return not y.is_floating_point() and y.dtype != torch.bool

    def label_fault(self, y: Tensor, classes: int | None) -> str:
        if classes is None or not len(y):
            return ""
        low, high = int(y.min()), int(y.max())
        if low >= 0 and high < classes:
            return ""
        return (
            f"labels lie in {low}..{high}, expected 0..{classes - 1} for {classes} classes; "
            "renumber the labels or name every class"
        )

    def outputs(self, classes: int | None, label_shape: Sequence[int] = ()) -> int | None:
        return classes

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

    def logits_of(self, probabilities: Tensor) -> Tensor:
        return probabilities.log()

    def scored_logits(self, logits: Tensor, wanted: bool) -> Tensor:
        # one class alone has logits [B, 1], too
        return logits if wanted else logits[:, :0]


class TwoClasses(Classification):
    """Cross-entropy over two classes, the second of which is the positive one."""

    traits: ClassVar[frozenset[str]] = Classification.traits | {TWO_CLASSES}
    metrics: ClassVar[tuple[str, ...]] = METRICS_OF_TWO_CLASSES

    def scored_logits(self, logits: Tensor, wanted: bool) -> Tensor:
        return logits


class StackedClassification(Classification):
    """Cross-entropy as log sum_c exp z_c - z_y.

    Under `torch.vmap` torch's own kernel works on one short row of classes at a time, which is slow for many clients.
    """

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        of_label = logits.gather(1, y.unsqueeze(1)).squeeze(1)
        return torch.logsumexp(logits, 1) - of_label

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.losses(logits, y).mean()


@task
class Binary(_Classes):
    """Binary cross-entropy on one logit; labels are booleans."""

    name: ClassVar[str] = "binary"
    label_type: ClassVar[torch.dtype] = torch.bool
    labels_in_words: ClassVar[str] = "true/false"
    traits: ClassVar[frozenset[str]] = frozenset({CLASSES, TWO_CLASSES})
    class_names: ClassVar[tuple[str, ...]] = ("False", "True")
    metrics: ClassVar[tuple[str, ...]] = METRICS_OF_TWO_CLASSES
    compiled_loss: ClassVar[str | None] = "binary_cross_entropy"

    def takes(self, y: Tensor) -> bool:
        return y.dtype == torch.bool

    def label_from_text(self, text: str) -> float:
        if text.lower() not in TRUTHS:
            raise ValueError(f"{text!r} is neither true nor false")
        return TRUTHS[text.lower()]

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

    def logits_of(self, probabilities: Tensor) -> Tensor:
        of_false, of_true = probabilities.log().unbind(-1)
        return (of_true - of_false).unsqueeze(-1)


ASSUMED_TASK = Classification()
"""The task where there are no labels to tell it and nothing depends on it, as in `ua.wire`, which counts bytes."""
