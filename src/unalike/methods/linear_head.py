"""A model's linear head as a matrix of coefficients, and the sums over samples from which Newton's method moves it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS, Task
from unalike.core.types import Batch, Context, Tree
from unalike.core.views import StageSettings

MAX_COEFFICIENTS = 4096
"""Most coefficients of a fit: the second derivatives of so many take 128 MiB."""
RANK_TOLERANCE = 1e-10
"""Eigenvalues below this share of the largest one count as 0."""


@dataclass(frozen=True)
class LinearHead:
    """The coefficients of a linear head as a matrix [R, Q]: R outputs, and Q columns, the features and then the intercept.

    Of C classes with a logit each R is C - 1: each row is the difference from the first class, with which others are compared.
    P = R Q is the number of coefficients; derivatives [P] and [P, P] have them row by row.
    """

    model: Model
    task: Task
    features: int
    outputs: int

    @classmethod
    def of(cls, settings: StageSettings) -> LinearHead:
        """The head of the model. Raises `UnalikeError` for one that is not linear, is frozen, or has too many coefficients."""
        model = settings.model
        features, outputs = model.head_size
        head = cls(model, settings.task, features, outputs)
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
    def names(self) -> list[str]:
        """The names of the weights and, if there are any, of the biases."""
        names = [f"{self.model.head_path}.weight", f"{self.model.head_path}.bias"]
        return [name for name in names if name in self.model.params]

    @property
    def first(self) -> int:
        """The first output with coefficients of its own: 1 where the first class is what others are compared with."""
        return int(self.task.offers(CLASS_LOGITS) and self.outputs > 1)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape [R, Q] of the coefficients."""
        has_bias = len(self.names) > 1
        return self.outputs - self.first, self.features + has_bias

    @property
    def count(self) -> int:
        """The number P of coefficients."""
        rows, columns = self.shape
        return rows * columns

    def weights(self, params: Tree) -> Tensor:
        """Weights and biases of all outputs, [C, Q], in float64."""
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

    def sums(self, weights: Tensor, design: Tensor, batch: Batch) -> Tree:
        """The loss [] of the samples, its derivatives `gradient` [P] and `curvature` [P, P], and the number of `samples` [].

        The sums are over samples, in float64, at `weights` [C, Q]; rows of padding count as 0.
        """
        counts = torch.ones_like(design[:, 0])
        if batch.weight is not None:
            counts = tree.exact(batch.weight)
        y = batch.y.to(design.device)  # which may be the CPU, where there is float64

        def total_loss(logits: Tensor) -> Tensor:
            losses = self.task.losses(logits, y)
            return counts @ losses.reshape(len(counts), -1).sum(1)

        def slope_of(output: int, logits: Tensor) -> Tensor:
            return grad(total_loss)(logits)[:, output].sum()

        # A sample's loss depends on its own logits alone: the derivatives in the logits are [B, R] and [B, R, R].
        logits = design @ weights.T
        slopes = grad(total_loss)(logits)[:, self.first :]
        own = range(self.first, self.outputs)
        by_output = [grad(slope_of, argnums=1)(output, logits) for output in own]
        bends = torch.stack(by_output, dim=1)[:, :, self.first :]

        gradient = torch.einsum("br,bq->rq", slopes, design)
        curvature = torch.einsum("brs,bp,bq->rpsq", bends, design, design)
        return {
            "loss": total_loss(logits),
            "gradient": gradient.flatten(),
            "curvature": curvature.reshape(self.count, self.count),
            "samples": counts.sum(),
        }


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
