"""Gradients of DP-SGD: one for each sample, clipped, summed, with noise."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad

from unalike.core import tree
from unalike.core.privacy import normal_noise
from unalike.core.types import Batch, Tree


def clipped_sum(
    loss: Callable[[Tree, Batch], Tensor], params: Tree, batch: Batch, clip: float
) -> Tree:
    """sum_b min(1, clip / ||g_b||) g_b over the rows of a batch that count, g_b the gradient of `loss` on row b alone.

    Args:
        loss: Function of parameters and a batch of one row, a scalar.
        params: Parameters, [*shape] each.
        batch: Samples, `x` [B, ...].
        clip: Largest L2 norm of a row's gradient.

    Returns:
        The sum, [*shape] each; of L2 sensitivity `clip` where a row's gradient becomes 0.
    """

    def gradient(x: Tensor, y: Tensor) -> Tree:
        return grad(loss)(params, Batch(x[None], y[None]))

    if not len(batch.x):
        return tree.zeros(params)
    each = torch.vmap(gradient, randomness="different")(batch.x, batch.y)
    norms = (
        torch.stack([g.reshape(len(g), -1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    )
    factor = tree.shortening(norms, clip)
    if batch.weight is not None:
        factor = factor * batch.weight
    return tree.map(lambda g: torch.tensordot(factor.to(g), g, 1), each)


def private_mean(
    total: Tree, rows: Tensor | float, deviation: Tensor | float, secret: bool
) -> Tree:
    """(total + N(0, deviation^2 I)) / rows; a batch of padding alone counts as one row."""
    count = torch.as_tensor(rows).clamp_min(1)
    return tree.map(lambda g: (g + deviation * normal_noise(g, secret)) / count.to(g), total)
