"""The weighted sum of stacked updates and each update's distance from their mean, reading large tensors once."""

from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.loops import crew as compiled_loops


def spread(stacked: Tree) -> Tree:
    """||t_k - mean_j t_j||^2 of every tensor, [K] each, from stacked trees [K, ...]."""
    return tree.map(_spread, stacked)


def weighted_sum_and_spread(stacked: Tree, weights: Tensor) -> tuple[Tree, Tree]:
    loops = tree.column_loops(stacked)
    found = {name: _sum_and_spread(loops, t, weights.to(t.dtype)) for name, t in stacked.items()}
    return {name: total for name, (total, _) in found.items()}, {
        name: apart for name, (_, apart) in found.items()
    }


def column_moments(
    u: Tensor, weights: Tensor, loops: ModuleType | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the columns of u [K, M]: weighted mean [M] and standard deviation [M]; least and largest squared deviation of all entries.

    `loops` are those of `tree.column_loops`, for updates of which u is a part.

    The mean of equal values is exact: a rounding error would be enlarged where deviations are scaled by their range.
    """
    mean, sd = torch.empty_like(u[0]), torch.empty_like(u[0])
    if loops is not None and tree.loops_read(u, weights):
        extremes = np.empty((loops.blocks(u), 2), np.float32)
        given = u.numpy(), weights.numpy(), mean.numpy(), sd.numpy(), extremes
        compiled_loops.share_out(partial(loops.moments, *given), len(extremes))
        return mean, sd, torch.tensor(extremes[:, 0].min()), torch.tensor(extremes[:, 1].max())
    nearest, furthest = [], []
    for at in tree.blocks(
        u
    ):  # in blocks that stay in the cache: otherwise every operation reads u from memory again
        block = u[:, at]
        least, most = block.amin(0), block.amax(0)
        mean[at] = torch.where(least == most, least, weights @ block)
        d = (block - mean[at]).square_()
        sd[at] = d.mean(0).sqrt()
        nearest.append(d.amin())
        furthest.append(torch.maximum(most - mean[at], mean[at] - least).amax())
    return mean, sd, torch.stack(nearest).amin(), torch.stack(furthest).amax().square()


def _sum_and_spread(loops: ModuleType | None, t: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    rows = tree.matrix(t)
    if loops is None or not tree.loops_read(rows, weights):
        return tree.combined(t, weights), _spread(t)
    total, apart = torch.empty_like(rows[0]), np.empty((loops.blocks(rows), len(rows)))
    given = rows.numpy(), weights.numpy(), total.numpy(), apart
    compiled_loops.share_out(partial(loops.sum_and_spread, *given), len(apart))
    return total.view(t.shape[1:]), torch.from_numpy(apart.sum(0)).to(t.dtype)


def _spread(t: Tensor) -> Tensor:
    squares = [
        torch.linalg.vector_norm(block - block.mean(0), dim=1).square()
        for block in tree.columns({"": t})
    ]
    return torch.stack(squares).sum(0)
