"""The base class of tasks, which declares their labels, loss, predictions and metrics; and the traits that a task may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike._utils.spec import Call
from unalike.core.types import Batch

Formula = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
"""Labels [n, ...], predictions [n, ...] and logits ([n] for one output, else [n, C]) -> a metric."""
FormulaOfLoss = Callable[[np.ndarray], np.ndarray]
"""Mean losses [...] -> a metric of the same samples, [...]."""

CLASSES = "classes"
"""Trait: each label is one of several classes."""
CLASS_LOGITS = "class logits"
"""Trait: the model has one output for each class, its logit."""
TWO_CLASSES = "two classes"
"""Trait: there are two classes, so that a sample has a risk, and areas under curves exist."""
NUMBERS = "numbers"
"""Trait: each label is a number, and the prediction an estimate of it."""
SQUARED_ERROR = "squared error"
"""Trait: the loss of a sample is its squared error, so that RMSE and R² of all clients follow from sums."""
EXPECTED_COUNTS = "expected counts"
"""Trait: each label is a count, and the prediction the count that is expected."""
SEVERAL_LABELS = "several labels"
"""Trait: each label is several truths, and the model has a logit for each."""
EVENT_TIMES = "event times"
"""Trait: each label is a time and whether an event ended it, and the prediction a risk."""
PIXEL_CLASSES = "pixel classes"
"""Trait: each label is a class for each pixel of an image, and so is the prediction."""
TOKEN_CLASSES = "token classes"
"""Trait: each label is a class for each token of a text, and so is the prediction."""
SAME_SHAPE = "same shape"
"""Trait: the outputs have the shape of the label, and the loss of a sample is its mean squared error."""
RELATIVE_OUTPUTS = "relative outputs"
"""Trait: outputs count in comparison with each other alone, so that a number added to all of a client changes nothing."""
SEPARATE_LOSSES = "separate losses"
"""Trait: the loss of a sample depends on its own outputs and label alone. Every task has it unless it `compares_samples`."""

IN_WORDS = {
    CLASSES: "classes (integer labels)",
    CLASS_LOGITS: "classes (integer labels)",
    NUMBERS: "numbers (float labels)",
    EXPECTED_COUNTS: "counts",
    SEVERAL_LABELS: "several true/false labels a sample",
    EVENT_TIMES: "times to an event",
    PIXEL_CLASSES: "a class for each pixel",
    TOKEN_CLASSES: "a class for each token",
    SAME_SHAPE: "outputs in the shape of the label",
    SEPARATE_LOSSES: "a loss of each sample by itself",
}
"""Trait -> what a user has to give, where that is no task's name."""


@dataclass(frozen=True)
class Task:
    """A kind of labels, and everything that follows from it. All tasks are values: two of one class are equal.

    A task declares the class attributes below and writes `losses` and `predict`; the other methods have a default. A part, a loss
    or a metric that is not defined for every task names the trait that it needs (`needs_of_task`), never a task. Nothing outside
    this folder asks which task it has.
    """

    name: ClassVar[str]
    """Name in spec text, in stored files and in messages."""

    # ---- labels ----

    label_type: ClassVar[torch.dtype]
    """Type of the labels: int64, bool or float32."""
    label_dimensions: ClassVar[int | None] = 0
    """Dimensions of the label of one sample: 0 for labels [N]; None for those of its input."""
    label_shape: ClassVar[tuple[int, ...] | None] = None
    """Shape of the label of one sample, where it is the same for all data, such as (2,) of a time and an event."""
    labels_in_words: ClassVar[str]
    """The labels in a message: classes, true/false, numbers."""
    traits: ClassVar[frozenset[str]] = frozenset()
    """The traits of the task, such as `CLASSES` or `NUMBERS`, for those who need one of them."""
    compares_samples: ClassVar[bool] = False
    """Whether the loss of a sample depends on the others of its batch, as in a risk set. Scores then compare a client's own."""
    loss_may_be_negative: ClassVar[bool] = True
    """Whether the loss of a sample can be below 0, as minus a log density can. A federation refuses such losses otherwise."""
    coefficient_ratio: ClassVar[str] = ""
    """The ratio that the exponential of a linear model's coefficient is: odds, rate or hazard; empty for none.

    The loss is then minus a log likelihood, from which standard errors follow without a variance.
    """
    class_names: ClassVar[tuple[str, ...]] = ()
    """The names of the classes, of a task that has the same ones for all data."""

    # ---- outputs ----

    class_dimension: ClassVar[int | None] = 0
    """The dimension of a sample's outputs that runs over classes, of which a model may have more than the data; None: none has."""
    outputs_in_words: ClassVar[str] = ""
    """What the outputs for one sample are, where they are not simply one per class, or one number."""
    predicts_arrays: ClassVar[bool] = False
    """Whether a prediction is an array with the places of its input, such as a mask or a text, and no cells of a table."""

    # ---- metrics, compiled loops and advice ----

    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    """The names of its metrics, in the order of their columns."""
    compiled_loss: ClassVar[str | None] = None
    """The name of its loss in the compiled loops (`loops.kernels.LOSSES`); None: they do not have it."""
    advice_if_diverged: ClassVar[str] = ""
    """Advice for training that diverges, besides a smaller learning rate, as the end of a sentence; empty for none."""

    def offers(self, need: str) -> bool:
        """Whether the task has the trait `need`; every task offers an empty one."""
        if need == SEPARATE_LOSSES:
            return not self.compares_samples
        return not need or need in self.traits

    @property
    def spec(self) -> str:
        """The text from which `find_task` makes it: its name, with the parameters that differ from their defaults."""
        changed = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                changed[field.name] = value
        return str(Call(self.name, changed)) if changed else self.name

    def require(self, need: str, asker: str) -> None:
        """Raise `UnalikeError` if the task lacks the trait `need` of `asker`, a part or a plan."""
        if not self.offers(need):
            raise UnalikeError(
                f"{asker} needs {IN_WORDS.get(need, need)}; found a task of {self.name}: leave it out ({Limit.INPUTS})"
            )

    @property
    def takes_class_names(self) -> bool:
        """Whether the data says how many classes there are, and their names."""
        return CLASSES in self.traits and not self.class_names

    # ---- labels of data ----

    def takes(self, y: Tensor) -> bool:
        """Whether labels of this type are of this task where nobody names one. Default: the task is always named."""
        return False

    def as_labels(self, y: Tensor) -> Tensor:
        """Labels as they are given, in the shape of the task: without a further dimension of length 1, or with one that lacks.

        Raises `ValueError` for labels of another shape, with the shape that was expected.
        """
        wanted = 1 + (self.label_dimensions or 0)
        if y.dim() == wanted + 1 and y.shape[-1] == 1:
            return y.squeeze(-1)
        if y.dim() == wanted - 1 and wanted > 1:
            return y.unsqueeze(-1)
        if y.dim() != wanted:
            shape = ["N", *"LMK"[: wanted - 1]]
            raise ValueError(f"expected [{', '.join(shape)}]")
        return y

    def labels_of_inputs(self, x: Tensor) -> Tensor | None:
        """The labels of samples [N, ...] that are given without any; None: the task needs labels.

        Raises `ValueError` for inputs that give none, with those that were expected.
        """
        return None

    @property
    def is_fitted(self) -> bool:
        """Whether no parameter is left to the labels; a federation's task must be fitted, as sites have unlike labels."""
        return True

    def fitted_to(self, y: Tensor) -> Task:
        """The same task with the parameters that were left to labels [N, ...]."""
        return self

    def with_classes(self, classes: int | None) -> Task:
        """The same task for so many classes, where their number is a parameter that was left open."""
        return self

    def shape_of_labels(self, input_shape: Sequence[int], classes: int | None) -> tuple[int, ...]:
        """The shape of the label of one sample, from that of its input and the number of classes, or of labels, that is known."""
        if self.label_shape is not None:
            return self.label_shape
        return (classes or 1,) if self.label_dimensions else ()

    def outcome(self, y: Tensor) -> Tensor:
        """One number of the label of each sample [N], by which divisions are stratified: the label, or the mean of several."""
        return y if y.dim() == 1 else y.float().flatten(1).mean(1)

    def kinds(self, y: Tensor) -> Tensor:
        """The parts of labels that take few values, [N, M]: the class, or each of several truths. Default: none, as of numbers.

        Of a rare value, scores tell about single samples: sites leave these out.
        """
        return y.new_zeros(len(y), 0)

    def label_fault(self, y: Tensor, classes: int | None) -> str:
        """The fault of labels [N, ...] of the right type and shape; empty if there is none."""
        return ""

    def label_doubt(self, y: Tensor) -> str:
        """A warning about labels that may be used; empty for most."""
        return ""

    def label_from_text(self, text: str) -> float:
        """The label that a file writes so. Raises `ValueError` for a text that is none."""
        raise ValueError(f"{self.name} reads no label from a text")

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        """The best constant prediction on labels and its score on others, in words; empty if there is no usual one."""
        return ""

    # ---- outputs ----

    def outputs(self, classes: int | None, label_shape: Sequence[int] = ()) -> int | None:
        """The number of outputs of a model for this many classes, or labels of this shape; None for one output.

        It is the argument `classes` of `ua.model`.
        """
        width = torch.Size(label_shape).numel()
        return None if width == 1 else width

    def output_shape(self, classes: int | None, label_shape: Sequence[int] = ()) -> tuple[int, ...]:
        """The shape of the outputs for one sample: one number for each output."""
        return (self.outputs(classes, label_shape) or 1,)

    def takes_outputs(
        self, shape: Sequence[int], classes: int | None, label_shape: Sequence[int] = ()
    ) -> bool:
        """Whether a model may give outputs of this shape for one sample: also one with more classes than the data."""
        if self.outputs(classes, label_shape) is None:
            return math.prod(shape) == 1
        expected = self.output_shape(classes, label_shape)
        used = list(shape)
        axis = self.class_dimension
        if axis is not None and len(shape) == len(expected):
            used[axis] = min(shape[axis], expected[axis])
        return tuple(used) == expected

    def of(self, classes: Sequence[str] | None) -> Task:
        """The same task with these classes."""
        return self

    @property
    def stacked(self) -> Task:
        """The same task in the form that is fastest under `torch.vmap`."""
        return self

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Per-sample losses [B] from logits [B, ...] and labels [B, ...]."""
        raise NotImplementedError

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean of the losses, a scalar."""
        return self.losses(logits, y).mean()

    def batch_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """The mean loss over the rows of a batch that count, a scalar; 0 for a batch of padding alone.

        A task whose samples have parts that do not count, such as padded tokens, leaves them out here and in `losses`.
        """
        if batch.weight is None:
            return self.loss(logits, batch.y)
        return batch.mean(self.losses(logits, batch.y))

    def predict(self, logits: Tensor) -> Tensor:
        """Predictions [B, ...] from logits [B, ...]."""
        raise NotImplementedError

    def scored(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and predictions [B, ...] that metrics compare: as they are, unless a label says more than its outcome."""
        return y, self.predict(logits)

    def formula(self, metric: str) -> Formula | None:
        """The formula of one of its metrics, where it depends on the task's parameters; None: the metric has its own."""
        return None

    def formula_of_loss(self, metric: str) -> FormulaOfLoss | None:
        """The formula of one of its metrics that follows from the mean loss, such as a perplexity; None for all others."""
        return None

    def probabilities(self, logits: Tensor) -> Tensor | None:
        """The probability of each class [B, C] (of false and true for one logit); None without classes."""
        return None

    def logits_of(self, probabilities: Tensor) -> Tensor | None:
        """Logits with these probabilities of the classes [B, C], as models of other libraries give them; None without classes.

        The inverse of `probabilities`; no probability may be 0.
        """
        return None

    def scored_logits(self, logits: Tensor, wanted: bool) -> Tensor:
        """The logits that are kept with the scores of samples; `wanted`: by a metric that was chosen.

        They are [B] for one output; those of several outputs [B, C] are kept where they are wanted, else [B, 0].
        """
        if logits.shape[1:].numel() == 1:
            return logits.flatten()
        # logits of many outputs would take most of the memory of an evaluation
        return logits if wanted else logits[:, :0]


def in_columns(logits: Tensor) -> Tensor:
    """Logits [B, L], or [B] of one output, as [B, L]."""
    return logits.unsqueeze(1) if logits.dim() == 1 else logits
