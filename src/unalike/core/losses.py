"""Losses that clients minimize in the place of the task's: by name, or a function of outputs and labels.

They change local training alone; scores, `loss` among them, are always those of the task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.functions import text_of_function
from unalike._utils.registry import Registry
from unalike._utils.spec import parse_one
from unalike._utils.validated import validated
from unalike.core.tasks.registry import names_of_tasks_with
from unalike.core.tasks.task import CLASSES, NUMBERS, Task
from unalike.core.types import Batch, Context, Tree

registry = Registry("loss", home="unalike.core.losses", group="unalike.losses")

COUNTS = "loss.counts"
"""Name of the fact that holds a client's training samples of each class, [C]; it never leaves the client."""

ClassWeights = Literal["balanced"] | tuple[Annotated[float, Ge(0)], ...] | None
LossFunction = Callable[[Tensor, Tensor], Tensor]


class Loss:
    """A loss of outputs on labels: `losses` of each sample, or their `mean` at once."""

    needs_of_task: ClassVar[str] = CLASSES
    """The trait of the tasks for which it is defined; empty for all tasks."""
    class_weights: ClassWeights = None

    @property
    def needs_counts(self) -> bool:
        """Whether it looks at the client's class counts."""
        return self.class_weights == "balanced"

    def check(self, task: Task, outputs: int) -> None:
        """Raise `UnalikeError` for another task, or for weights of another number of classes than `outputs`."""
        if not task.offers(self.needs_of_task):
            expected = " or ".join(names_of_tasks_with(self.needs_of_task))
            raise UnalikeError(f"found a task of {task.name}; expected {expected}")
        weights = self.class_weights
        if isinstance(weights, tuple) and len(weights) != outputs:
            raise UnalikeError(
                f"found {len(weights)} class weights; expected {outputs}, one for each class"
            )

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        """The loss of each sample, [B]."""
        raise NotImplementedError

    def mean(self, logits: Tensor, batch: Batch, context: Context) -> Tensor:
        """The mean over the rows of the batch that count: a scalar."""
        return batch.mean(self.losses(logits, batch.y, context))


def loss(name_or_function: str | LossFunction) -> Loss:
    """The loss of a text such as "focal(gamma=2)", or of a function. Raises `UnalikeError` for anything else."""
    if isinstance(name_or_function, str):
        return registry.build(parse_one(name_or_function))
    if not callable(name_or_function) or isinstance(name_or_function, type):
        raise UnalikeError(
            f"loss={name_or_function!r}: expected a name such as 'focal(gamma=2)', or a function of outputs [B, C] and labels [B]; "
            "an objective of your own is added to methods, as in 'fedprox + my_objective'"
        )
    return GivenLoss(name_or_function)


def class_counts(y: Tensor, classes: int | None) -> Tree:
    """The fact `COUNTS` of a client with these labels."""
    return {"counts": torch.bincount(y.long(), minlength=classes or 2)}


@registry.register("cross_entropy")
@validated
class CrossEntropy(Loss):
    """mean_b of -w_y log p_y, and with smoothing s of -(1 - s) w_y log p_y - s / C sum_c w_c log p_c.

    As `torch.nn.CrossEntropyLoss`, except that the mean is not divided by the mean weight of the batch: so a client that has only
    a rare class counts with its weight. "balanced" weights are n / (m n_c) for the m classes that the client has, from its own
    training samples: its classes then count the same. A binary model's classes are false and true.
    """

    class_weights: ClassWeights = None
    label_smoothing: Annotated[float, Ge(0), Le(1)] = 0.0

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        # the one logit of a binary model is that of true; the softmax over 0 and it is its sigmoid
        if y.dtype == torch.bool:
            z = logits.reshape(y.shape)
            logits = torch.stack([torch.zeros_like(z), z], 1)
        log_p = logits.log_softmax(1)
        weighted = log_p * self._weights(log_p, context)

        label = y.long().unsqueeze(1)
        share = self._share(log_p.gather(1, label).squeeze(1))
        of_label = weighted.gather(1, label).squeeze(1) * share
        # smoothing gives the label less, and every class its part of the rest
        smoothing = self.label_smoothing
        return -(1 - smoothing) * of_label - smoothing * weighted.mean(1)

    def _share(self, log_p: Tensor) -> Tensor | float:
        """The share of the loss of a sample with this log probability of its label that counts."""
        return 1.0

    def _weights(self, log_p: Tensor, context: Context) -> Tensor:
        """The weights of the classes, [C]."""
        if self.class_weights is None:
            return log_p.new_ones(log_p.shape[1])
        if isinstance(self.class_weights, tuple):
            return log_p.new_tensor(self.class_weights)
        counts = context[COUNTS]["counts"].to(log_p.dtype)
        present = counts > 0
        balanced = counts.sum() / (present.sum() * counts.clamp_min(1))
        return torch.where(present, balanced, 0.0)


@registry.register("focal")
@validated
class Focal(CrossEntropy):
    """mean_b of -w_y (1 - p_y)^gamma log p_y (Lin et al. 2017, eq. 5); gamma = 0 is `cross_entropy`, whose options it has."""

    gamma: Annotated[float, Ge(0)] = 2.0

    def _share(self, log_p: Tensor) -> Tensor | float:
        # 1 - p, kept above 0: the slope of 0^gamma is infinite below gamma = 1
        one_minus_p = -torch.expm1(log_p).clamp_max(-1e-12)
        return one_minus_p**self.gamma


@registry.register("huber")
@validated
class Huber(Loss):
    """mean_b of e^2 / 2 for errors |e| < delta, and delta (|e| - delta / 2) for larger ones (`torch.nn.HuberLoss`)."""

    delta: Annotated[float, Gt(0)] = 1.0
    needs_of_task: ClassVar[str] = NUMBERS

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        return F.huber_loss(logits.reshape(y.shape), y, reduction="none", delta=self.delta)


@dataclass(frozen=True)
class GivenLoss(Loss):
    """A function of outputs and labels, which returns a scalar, or a loss for each sample [B].

    Outputs are logits [B, C] and labels whole numbers [B]; of a model with one output both are floats [B].
    """

    function: LossFunction
    needs_of_task: ClassVar[str] = ""

    def mean(self, logits: Tensor, batch: Batch, context: Context) -> Tensor:
        # a function of one output sees floats [B] on both sides, as losses of torch take them
        y = batch.y
        if logits.numel() == y.numel():
            logits = logits.reshape(y.shape)
        if y.dtype == torch.bool:
            y = y.to(logits.dtype)

        # it is the user's function: what it returns is known only now
        value: Any = self.function(logits, y)
        if isinstance(value, Tensor) and value.shape == y.shape[:1]:
            return batch.mean(value)
        if isinstance(value, Tensor) and value.dim() == 0:
            return value
        if isinstance(value, Tensor):
            description = f"a tensor of shape {list(value.shape)}"
        else:
            description = type(value).__name__
        raise UnalikeError(
            f"loss={text_of_function(self.function)} gives {description}; "
            f"expected a scalar, or a loss for each of the {len(y)} samples"
        )
