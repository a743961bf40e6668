"""The weighted sum of stacked updates and each update's distance from their mean, reading large tensors once."""

from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.loops import crew


def spread(stacked: Tree) -> Tree:
    """||t_k - mean_j t_j||^2 of every tensor, [K] each, from stacked trees [K, ...]."""
    return tree.map(_spread, stacked)


def weighted_sum_and_spread(stacked: Tree, weights: Tensor) -> tuple[Tree, Tree]:
    """The `tree.weighted_sum` of stacked trees [K, ...] by weights [K], and their `spread`."""
    loops = tree.column_loops(stacked)
    sums: Tree = {}
    spreads: Tree = {}
    for name, t in stacked.items():
        sums[name], spreads[name] = _sum_and_spread(loops, t, weights.to(t.dtype))
    return sums, spreads


def column_moments(
    u: Tensor, weights: Tensor, loops: ModuleType | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the columns of u [K, M]: weighted mean [M] and standard deviation [M]; least and largest squared deviation of all entries.

    `loops` are those of `tree.column_loops`, for updates of which u is a part.

    The mean of equal values is exact: a rounding error would be enlarged where deviations are scaled by their range.
    """
    mean = torch.empty_like(u[0])
    sd = torch.empty_like(u[0])
    if loops is not None and tree.loops_read(u, weights):
        # least and largest squared deviation of each block
        extremes = np.empty((loops.blocks(u), 2), np.float32)
        measure_blocks = partial(
            loops.moments, u.numpy(), weights.numpy(), mean.numpy(), sd.numpy(), extremes
        )
        crew.share_out(measure_blocks, len(extremes))
        least_square = torch.tensor(extremes[:, 0].min())
        largest_square = torch.tensor(extremes[:, 1].max())
        return mean, sd, least_square, largest_square

    # in blocks that stay in the cache: otherwise every operation reads u from memory again
    least_squares = []
    largest_deviations = []
    for columns in tree.blocks(u):
        block = u[:, columns]
        least = block.amin(0)
        most = block.amax(0)
        mean[columns] = torch.where(least == most, least, weights @ block)
        squares = (block - mean[columns]).square_()
        sd[columns] = squares.mean(0).sqrt()
        least_squares.append(squares.amin())
        # the largest deviation is that of the largest or of the least entry: no pass over all of them
        deviation = torch.maximum(most - mean[columns], mean[columns] - least)
        largest_deviations.append(deviation.amax())
    least_square = torch.stack(least_squares).amin()
    largest_square = torch.stack(largest_deviations).amax().square()
    return mean, sd, least_square, largest_square


def _sum_and_spread(loops: ModuleType | None, t: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Of one tensor [K, ...]: its weighted sum [...] and its spread [K]."""
    rows = tree.matrix(t)
    if loops is None or not tree.loops_read(rows, weights):
        return tree.combined(t, weights), _spread(t)
    total = torch.empty_like(rows[0])
    # the blocks are added up here, in their order, so that the number of threads changes no bit
    block_spreads = np.empty((loops.blocks(rows), len(rows)))
    measure_blocks = partial(
        loops.sum_and_spread, rows.numpy(), weights.numpy(), total.numpy(), block_spreads
    )
    crew.share_out(measure_blocks, len(block_spreads))
    spread_of_rows = torch.from_numpy(block_spreads.sum(0)).to(t.dtype)
    return total.view(t.shape[1:]), spread_of_rows


def _spread(t: Tensor) -> Tensor:
    """||t_k - mean_j t_j||^2 of one tensor [K, ...]: [K]."""
    squares = []
    for block in tree.columns({"": t}):
        deviations = block - block.mean(0)
        squares.append(torch.linalg.vector_norm(deviations, dim=1).square())
    return torch.stack(squares).sum(0)
