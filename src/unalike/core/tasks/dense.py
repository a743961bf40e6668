"""Dense prediction: labels with a class for each place of a sample, which is a pixel or a token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import task
from unalike.core.tasks.task import PIXEL_CLASSES, TOKEN_CLASSES, FormulaOfLoss, Task

NOT_COUNTED = -1
"""The label that metrics find at places that do not count, whatever number the data has there."""
NO_SUCH_LABEL = -100
"""The label that torch's cross-entropy leaves out where a task leaves out none: its default, which `label_fault` refuses then."""


@dataclass(frozen=True)
class _Dense(Task):
    """A task with a class for each place of a sample. Places whose label is `ignored` do not count.

        loss_b = mean over the places i of sample b that count of -log softmax(z_bi)[y_bi]

    A sample counts once, however many of its places count. `classes` is the number of classes; None until labels tell it, as their
    largest one plus 1. All places of one sample are the limit case `classification`.
    """

    loss_may_be_negative: ClassVar[bool] = False
    label_type: ClassVar[torch.dtype] = torch.int64
    labels_in_words: ClassVar[str]
    predicts_arrays: ClassVar[bool] = True
    place: ClassVar[str]
    """A place of a sample in words."""

    classes: int | None = None
    ignored: int | None = None

    def __post_init__(self) -> None:
        if self.classes is None:
            return
        if self.classes < 1:
            raise UnalikeError(
                f"{self.name}: found classes={self.classes}, expected how many classes there are"
            )
        if self.ignored is not None and 0 <= self.ignored < self.classes:
            raise UnalikeError(
                f"{self.name}: found ignored={self.ignored}, which is one of the classes 0..{self.classes - 1}; expected a label "
                f"that no class has, such as 255 or -100: write it where a {self.place} does not count"
            )

    @property
    def is_fitted(self) -> bool:
        return self.classes is not None

    def fitted_to(self, y: Tensor) -> Task:
        labels = y[self._counts(y)]
        if self.is_fitted or not len(labels):
            return self
        return self.with_classes(max(1, int(labels.max()) + 1))

    def with_classes(self, classes: int | None) -> Task:
        return self if self.is_fitted else replace(self, classes=classes)

    def label_fault(self, y: Tensor, classes: int | None) -> str:
        counts = self._counts(y)
        labels = y[counts]
        if self.classes is not None and len(labels):
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= self.classes:
                return (
                    f"labels lie in {low}..{high}, expected 0..{self.classes - 1} for {self.classes} classes; where a {self.place} "
                    f"does not count, name its label: task='{self.name}(ignored={low if low < 0 else high})'"
                )
        is_empty = ~counts.flatten(1).any(1)
        if is_empty.any():
            return f"sample {int(is_empty.nonzero()[0])} has no {self.place} that counts: all are {self.ignored}; leave it out"
        return ""

    def outcome(self, y: Tensor) -> Tensor:
        """The mean class of the places that count, which orders samples, and is no class."""
        counts = self._counts(y)
        sums = torch.where(counts, y, 0).flatten(1).sum(1)
        return sums / counts.flatten(1).sum(1).clamp(min=1)

    def outputs(self, classes: int | None, label_shape: Sequence[int] = ()) -> int | None:
        return self.classes

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        ignored = NO_SUCH_LABEL if self.ignored is None else self.ignored
        classes_first = logits.movedim(self._class_axis, 1)
        by_place = F.cross_entropy(classes_first, y, reduction="none", ignore_index=ignored)
        if self.ignored is None:
            return by_place.flatten(1).mean(1)
        # a row of padding may have no place that counts
        counted = self._counts(y).flatten(1).sum(1).clamp(min=1)
        return by_place.flatten(1).sum(1) / counted

    def predict(self, logits: Tensor) -> Tensor:
        return logits.argmax(self._class_axis)

    def scored(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and predictions; labels are `NOT_COUNTED` at places that do not count."""
        return torch.where(self._counts(y), y, NOT_COUNTED), self.predict(logits)

    def _counts(self, y: Tensor) -> Tensor:
        """True at the places that count, in the shape of the labels."""
        return torch.ones_like(y, dtype=torch.bool) if self.ignored is None else y != self.ignored

    @property
    def _class_axis(self) -> int:
        """The dimension of a batch's outputs that runs over the classes."""
        assert self.class_dimension is not None
        return 1 + self.class_dimension

    def _frequencies(self, y: Tensor) -> Tensor:
        """The number of places that count of each class, [C]."""
        return torch.bincount(y[self._counts(y)], minlength=self.classes or 1)

    def _shares_of(self, y: Tensor, label: int) -> Tensor:
        """The share of the places of each sample that count which have this label, [N]."""
        counted = self._counts(y).flatten(1).sum(1)
        return (y == label).flatten(1).sum(1) / counted


@task
class Segmentation(_Dense):
    """A class for each pixel: labels [N, H, W] for outputs [N, C, H, W]; the mean cross-entropy over the pixels that count.

    An image is a sample: Dice and IoU are those of each image, mean over the classes that it has in its mask or prediction, and
    then means over images.
    """

    name: ClassVar[str] = "segmentation"
    label_dimensions: ClassVar[int | None] = 2
    labels_in_words: ClassVar[str] = "classes of pixels"
    traits: ClassVar[frozenset[str]] = frozenset({PIXEL_CLASSES})
    metrics: ClassVar[tuple[str, ...]] = ("loss", "dice", "iou", "pixel_accuracy")
    place: ClassVar[str] = "pixel"
    outputs_in_words: ClassVar[str] = (
        "a logit of each class for each pixel; classes that you do not know of are labels that do not count: write ignored=255"
    )

    def as_labels(self, y: Tensor) -> Tensor:
        masks = y.squeeze(1) if y.dim() == 4 and y.shape[1] == 1 else y
        if masks.dim() != 3:
            raise ValueError("expected masks [N, H, W]: the number of a class for each pixel")
        return masks

    def label_doubt(self, y: Tensor) -> str:
        # A mark of pixels that do not count, such as 255, or a mask of 0 and 255, lies far above the classes.
        found = y[self._counts(y)].unique().tolist()
        if len(found) < 2 or 2 * (found[-1] - found[-2]) <= found[-1] + 1:
            return ""
        return (
            f"no pixel has a label between {found[-2]} and {found[-1]}, and a model has an output for each: where pixels of "
            f"{found[-1]} do not count write task='segmentation(ignored={found[-1]})', else number the classes 0, 1, 2, ..."
        )

    def shape_of_labels(self, input_shape: Sequence[int], classes: int | None) -> tuple[int, ...]:
        return tuple(input_shape[-2:])

    def output_shape(self, classes: int | None, label_shape: Sequence[int] = ()) -> tuple[int, ...]:
        return (self.classes or 1, *label_shape)

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        most = int(self._frequencies(train).argmax())
        share = self._shares_of(test, most)
        classes_of_image = torch.zeros(len(test))
        for label in range(self.classes or 1):
            has_class = (test == label).flatten(1).any(1)
            # the predicted class counts whether or not the mask has it
            classes_of_image += has_class | (label == most)
        dice = (2 * share / (1 + share) / classes_of_image).mean().item()
        return f"always predicting the class {most} has a mean Dice of {dice:.4f} and a pixel accuracy of {share.mean().item():.4f}"


@dataclass(frozen=True)
class _ClassesOfTokens(_Dense):
    """A class for each token: labels [N, T] for outputs [N, T, C], as transformers give them (torch's loss takes [N, C, T])."""

    label_dimensions: ClassVar[int | None] = 1
    class_dimension: ClassVar[int | None] = 1
    place: ClassVar[str] = "token"
    outputs_in_words: ClassVar[str] = "for each token a logit of each class, with the classes last"

    ignored: int | None = -100

    def as_labels(self, y: Tensor) -> Tensor:
        if y.dim() != 2:
            raise ValueError("expected [N, T]: the number of a class for each token")
        return y

    def shape_of_labels(self, input_shape: Sequence[int], classes: int | None) -> tuple[int, ...]:
        return tuple(input_shape[:1])

    def output_shape(self, classes: int | None, label_shape: Sequence[int] = ()) -> tuple[int, ...]:
        return (*label_shape, self.classes or 1)


@task
class TokenClassification(_ClassesOfTokens):
    """A class for each token, such as its part of speech: labels [N, T] for outputs [N, T, C]; those that are -100 do not count."""

    name: ClassVar[str] = "token_classification"
    labels_in_words: ClassVar[str] = "classes of tokens"
    traits: ClassVar[frozenset[str]] = frozenset({TOKEN_CLASSES})
    metrics: ClassVar[tuple[str, ...]] = ("loss", "token_accuracy")

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        most = int(self._frequencies(train).argmax())
        share = self._shares_of(test, most).mean().item()
        return f"always predicting the class {most} has a token accuracy of {share:.4f}"


@task
class NextToken(_ClassesOfTokens):
    """The token that follows each one, as a language model predicts it: labels [N, T] for outputs [N, T, C].

    Without labels they are the inputs, shifted: y_t = x_(t+1), and the last one does not count. (Models of transformers shift by
    themselves; here output t is compared with label t.) Classes are the tokens of the vocabulary. Perplexity is exp(loss), so that
    texts count alike; of texts of one length it is the usual one, exp of the mean over all tokens.
    """

    name: ClassVar[str] = "next_token"
    labels_in_words: ClassVar[str] = "next tokens"
    traits: ClassVar[frozenset[str]] = frozenset({TOKEN_CLASSES})
    metrics: ClassVar[tuple[str, ...]] = ("loss", "perplexity", "token_accuracy")

    def labels_of_inputs(self, x: Tensor) -> Tensor | None:
        if x.is_floating_point() or x.dim() != 2:
            raise ValueError("expected whole numbers [N, T], the tokens")
        if self.ignored is None or x.shape[1] < 2:
            raise ValueError("expected two tokens or more, and a label such as ignored=-100")
        nothing_follows = torch.full_like(x[:, :1], self.ignored)
        return torch.cat([x[:, 1:], nothing_follows], dim=1)

    def formula_of_loss(self, metric: str) -> FormulaOfLoss | None:
        return np.exp if metric == "perplexity" else None

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        # 1 more of each token, so that none is impossible
        log_shares = (self._frequencies(train) + 1.0).log().log_softmax(0)
        shape = self.output_shape(None, test.shape[1:])
        perplexity = self.loss(log_shares.expand(len(test), *shape), test).exp().item()
        return f"always predicting how often each token occurs in the training samples has a perplexity of {perplexity:.4g}"
