"""The weighted sum of stacked updates and each update's distance from their mean, reading large tensors once."""

from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from unalike._utils import compiled_loops
from unalike.core import tree
from unalike.core.types import Tree

LARGE = 2**24
"""Bytes of updates from which on the compiled loops are loaded."""


def spread(stacked: Tree) -> Tree:
    """||t_k - mean_j t_j||^2 of every tensor, [K] each, from stacked trees [K, ...]."""
    return tree.map(_spread, stacked)


def weighted_sum_and_spread(stacked: Tree, weights: Tensor) -> tuple[Tree, Tree]:
    loops = compiled_loops.loops("unalike.core.update_spread_loops") if tree.nbytes(stacked) >= LARGE else None
    found = {name: _sum_and_spread(loops, t, weights.to(t.dtype)) for name, t in stacked.items()}
    return {name: total for name, (total, _) in found.items()}, {name: apart for name, (_, apart) in found.items()}


def _sum_and_spread(loops: ModuleType | None, t: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    if loops is None or t.dtype != torch.float32 or t.device.type != "cpu" or not t.is_contiguous():
        return tree.combined(t, weights), _spread(t)
    rows, total = tree.matrix(t), torch.empty(t[0].numel())
    apart = np.empty((-(-len(total) // loops.WIDTH), len(t)))
    compiled_loops.share_out(partial(loops.combine, rows.numpy(), weights.numpy(), total.numpy(), apart), len(apart))
    return total.view(t.shape[1:]), torch.from_numpy(apart.sum(0)).to(t.dtype)


def _spread(t: Tensor) -> Tensor:
    squares = [torch.linalg.vector_norm(block - block.mean(0), dim=1).square() for block in tree.columns({"": t})]
    return torch.stack(squares).sum(0)
