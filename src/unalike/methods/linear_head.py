"""A model's linear head as a matrix of coefficients, and the sums over samples from which Newton's method moves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import (
    CLASS_LOGITS,
    PIXEL_CLASSES,
    RELATIVE_OUTPUTS,
    SEPARATE_LOSSES,
    TOKEN_CLASSES,
    Task,
)
from unalike.core.types import Batch, Context, Tree
from unalike.core.views import StageSettings

MAX_COEFFICIENTS = 4096
"""Most coefficients of a fit: the second derivatives of so many take 128 MiB."""
RANK_TOLERANCE = 1e-10
"""Eigenvalues below this share of the largest one count as 0."""
LEAST_FALL = 1e-300
"""Least fall of a loss by which another one is divided."""

Loss = Callable[[Tensor], Tensor]
"""Logits [B, C] -> the loss of all samples, []."""


@dataclass(frozen=True)
class LinearHead:
    """The coefficients of a linear head as a matrix [R, Q]: R outputs, and Q columns, the features and then the intercept.

    Of C classes with a logit each R is C - 1: each row is the difference from the first class, with which others are compared.
    P = R Q is the number of coefficients; derivatives [P] and [P, P] have them row by row. Without an intercept there is no column
    for it, and biases stay as they are.
    """

    model: Model
    task: Task
    features: int
    outputs: int
    has_intercept: bool

    @classmethod
    def of(cls, settings: StageSettings) -> LinearHead:
        """The head of the model.

        Raises `UnalikeError` for one that is not linear, is frozen, or has too many coefficients, and for labels by pixel or token.
        """
        model = settings.model
        if settings.task.offers(PIXEL_CLASSES) or settings.task.offers(TOKEN_CLASSES):
            raise UnalikeError(
                f"newton fits one label of each sample; found a task of {settings.task.name}, with one for each place in it"
            )
        features, outputs = model.head_size
        has_bias = f"{model.head_path}.bias" in model.params
        # a number added to all outputs may change nothing, such as a log hazard in a Cox model
        is_relative = settings.task.offers(RELATIVE_OUTPUTS)
        head = cls(
            model=model,
            task=settings.task,
            features=features,
            outputs=outputs,
            has_intercept=has_bias and not is_relative,
        )
        if not all(model.trainable(name) for name in head.names):
            raise UnalikeError(
                "newton fits the head of the model and found one that is frozen; expected a linear layer with requires_grad"
            )
        if head.count > MAX_COEFFICIENTS:
            raise UnalikeError(
                f"newton found {head.count} coefficients, and clients would send their second derivatives, a square of so many; "
                f"expected at most {MAX_COEFFICIENTS}: use fewer features, or another method"
            )
        return head

    @property
    def without_intercept(self) -> LinearHead:
        """The coefficients of the features alone."""
        return replace(self, has_intercept=False)

    @property
    def bias(self) -> str:
        """The name of the biases."""
        return f"{self.model.head_path}.bias"

    @property
    def names(self) -> list[str]:
        """The names of the weights and, with an intercept, of the biases."""
        weights = f"{self.model.head_path}.weight"
        return [weights, self.bias] if self.has_intercept else [weights]

    @property
    def first(self) -> int:
        """The first output with coefficients of its own: 1 where the first class is what others are compared with."""
        return int(self.task.offers(CLASS_LOGITS) and self.outputs > 1)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape [R, Q] of the coefficients."""
        return self.outputs - self.first, self.features + self.has_intercept

    @property
    def count(self) -> int:
        """The number P of coefficients."""
        rows, columns = self.shape
        return rows * columns

    def weights(self, params: Tree) -> Tensor:
        """Weights and, with an intercept, biases of all outputs, [C, Q], in float64."""
        columns = [tree.exact(params[name]).reshape(self.outputs, -1) for name in self.names]
        return torch.cat(columns, dim=1)

    def coefficients(self, params: Tree) -> Tensor:
        """The coefficients [R, Q] at these parameters."""
        weights = self.weights(params)
        return weights[1:] - weights[:1] if self.first else weights

    def moved(self, params: Tree, move: Tensor) -> Tree:
        """The change of weights and biases that moves the coefficients by `move` [R, Q]; the first class stays where it is."""
        stays = move.new_zeros(self.first, move.shape[1])
        change = torch.cat([stays, move])
        moved = {}
        widths = [self.features, change.shape[1] - self.features]
        for name, columns in zip(self.names, change.split(widths, dim=1)):
            like = params[name]
            # the type first: some devices have no float64
            moved[name] = columns.reshape(like.shape).to(like.dtype).to(like.device)
        return moved

    def design(self, params: Tree, buffers: Tree, context: Context, batch: Batch) -> Tensor:
        """The features of samples, and a column of ones for the intercept: [B, Q] in float64."""
        z = tree.exact(self.model.features(params, batch.x, buffers=buffers, context=context))
        ones = torch.ones_like(z[:, : self.shape[1] - self.features])
        return torch.cat([z, ones], dim=1)

    def sums(self, logits: Tensor, design: Tensor, batch: Batch) -> Tree:
        """The loss [] of the samples, its derivatives `gradient` [P] and `curvature` [P, P], and the number of `samples` [].

        The sums are over samples, in float64, at the `logits` [B, C]; rows of padding count as 0. The derivatives are in the
        coefficients of a `design` [B, Q], by which logits move: P = R Q.
        """
        counts = torch.ones_like(design[:, 0])
        if batch.weight is not None:
            counts = tree.exact(batch.weight)
        y = batch.y.to(design.device)  # which may be the CPU, where there is float64
        samples = Batch(x=design, y=y, weight=counts)

        def total_loss(logits: Tensor) -> Tensor:
            return counts.sum() * self.task.batch_loss(logits, samples)

        slopes = grad(total_loss)(logits)[:, self.first :]
        gradient = torch.einsum("br,bq->rq", slopes, design).flatten()
        bends = self._bends if self.task.offers(SEPARATE_LOSSES) else self._common_bends
        return {
            "loss": total_loss(logits),
            "gradient": gradient,
            "curvature": bends(total_loss, logits, design).reshape(len(gradient), len(gradient)),
            "samples": counts.sum(),
        }

    def _bends(self, loss: Loss, logits: Tensor, design: Tensor) -> Tensor:
        """The second derivatives [R, Q, R, Q] of a loss that is a sum of each sample's own: those in the logits are [B, R, R]."""

        def slope_of(output: int, logits: Tensor) -> Tensor:
            return grad(loss)(logits)[:, output].sum()

        own = range(self.first, self.outputs)
        by_output = [grad(slope_of, argnums=1)(output, logits) for output in own]
        in_logits = torch.stack(by_output, dim=1)[:, :, self.first :]
        return torch.einsum("brs,bp,bq->rpsq", in_logits, design, design)

    def _common_bends(self, loss: Loss, logits: Tensor, design: Tensor) -> Tensor:
        """The second derivatives [R, Q, R, Q] of a loss that compares samples, coefficient by coefficient.

        Those in the logits would be [B, R, B, R]. A coefficient moves the logits of all samples, and that changes their slopes.
        """

        def slope_along(output: int, column: Tensor, logits: Tensor) -> Tensor:
            return grad(loss)(logits)[:, output] @ column

        by_coefficient = []
        for output in range(self.first, self.outputs):
            for column in design.T:
                changes = grad(slope_along, argnums=2)(output, column, logits)[:, self.first :]
                by_coefficient.append(torch.einsum("bs,bq->sq", changes, design))
        return torch.stack(by_coefficient)


def newton_move(curvature: Tensor, slope: Tensor, loss: Tensor) -> Tensor:
    """-H^- g [P], shortened where the loss cannot fall as far as its quadratic model says, since no loss is below 0.

    The model falls by (t - t^2 / 2) g^T H^- g after the share t of the move. The largest t with which that is at most the loss
    keeps a Poisson regression, whose loss is exponential, from predicting exp(1000) events after its first move.
    """
    move = -(generalized_inverse(curvature) @ slope)
    fall = -(slope @ move)
    possible = (2 * loss / fall.clamp_min(LEAST_FALL)).clamp(0, 1)
    return (1 - (1 - possible).sqrt()) * move


def generalized_inverse(matrix: Tensor) -> Tensor:
    """A generalized inverse [P, P] of a symmetric, positive semidefinite matrix, which is its inverse if it has one.

    Rows and columns are first scaled to a diagonal of 1, so that units do not decide which directions count as 0.
    """
    diagonal = matrix.diagonal()
    scale = torch.where(diagonal > 0, diagonal.clamp_min(1e-300).rsqrt(), 0.0)
    scaled = scale[:, None] * matrix * scale
    values, vectors = torch.linalg.eigh(scaled)
    counts = values > RANK_TOLERANCE * values.max()
    reciprocals = torch.where(counts, 1 / values, 0.0)
    inverse = vectors * reciprocals @ vectors.T
    return scale[:, None] * inverse * scale
