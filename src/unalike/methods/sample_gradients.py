"""Gradients of DP-SGD: one for each sample, clipped, summed, with noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad

from unalike.core import tree
from unalike.core.inputs import Inputs, map_inputs
from unalike.core.privacy import normal_noise
from unalike.core.types import Batch, PartTrees, Tree
from unalike.methods.gradient_rule import StepLoss, StepValues


@dataclass(frozen=True)
class PrivateGradients:
    """The clipped sum of the samples' gradients with noise, over the number of samples: the rule of DP-SGD.

    `clip` is the largest norm of a sample's gradient, `deviation` that of the noise. `expected_rows` is the number that every
    batch counts as, because the number of samples in it would tell the draw; None: its own. `secret`: the noise comes from the
    operating system.
    """

    clip: float
    deviation: Tensor | float
    expected_rows: Tensor | None
    secret: bool

    allows_more_gradients: ClassVar[bool] = False
    """Another gradient of the same samples would be another release."""

    @property
    def counts_empty_batches(self) -> bool:
        return self.expected_rows is not None

    def gradients(
        self, loss: StepLoss, variables: PartTrees, batch: Batch
    ) -> tuple[PartTrees, StepValues]:
        def loss_of_row(packed: Tree, row: Batch) -> Tensor:
            total, _ = loss(tree.unpack(packed), row)
            return total

        total = clipped_sum(loss_of_row, tree.pack(variables), batch, self.clip)
        mean = private_mean(total, self.rows_of(batch), self.deviation, self.secret)
        # only the gradient has noise, so nothing else of the step leaves it
        nothing = torch.zeros((), device=batch.y.device)
        return tree.unpack(mean), StepValues(nothing, loss.buffers, loss.own_buffers)

    def rows_of(self, batch: Batch) -> Tensor | float:
        return batch.rows if self.expected_rows is None else self.expected_rows


def clipped_sum(
    loss: Callable[[Tree, Batch], Tensor], params: Tree, batch: Batch, clip: float
) -> Tree:
    """sum_b min(1, clip / ||g_b||) g_b over the rows of a batch that count, g_b the gradient of `loss` on row b alone.

    A row whose gradient has no finite norm counts as 0. All rows take the same way, whatever their values.

    Args:
        loss: Function of parameters and a batch of one row, a scalar.
        params: Parameters, [*shape] each.
        batch: Samples, `x` [B, ...].
        clip: Largest L2 norm of a row's gradient.

    Returns:
        The sum, [*shape] each; of L2 sensitivity `clip` where a row's gradient becomes 0.
    """

    def gradient(x: Inputs, y: Tensor) -> Tree:
        row = Batch(map_inputs(lambda t: t[None], x), y[None])
        return grad(loss)(params, row)

    if not len(batch.y):
        return tree.zeros(params)
    by_row = torch.vmap(gradient, randomness="different")(batch.x, batch.y)
    squares = [g.reshape(len(g), -1).square().sum(1) for g in by_row.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    factor = tree.finite_shortening(norms, clip)
    # rows of padding have a gradient as well, and may not count
    if batch.weight is not None:
        factor = factor * batch.weight
    return tree.map(lambda g: torch.tensordot(factor.to(g), tree.finite(g), 1), by_row)


def private_mean(
    total: Tree, rows: Tensor | float, deviation: Tensor | float, secret: bool
) -> Tree:
    """(total + N(0, deviation^2 I)) / rows; a batch of padding alone counts as one row."""
    count = torch.as_tensor(rows).clamp_min(1)
    return tree.map(lambda g: (g + deviation * normal_noise(g, secret)) / count.to(g), total)
