"""Tensors of unlike sizes that have their leading rows and columns in common, as the submodels of HeteroFL do."""

from collections.abc import Sequence

import torch
from torch import Tensor


def corner(t: Tensor, shape: Sequence[int]) -> Tensor:
    """The leading entries of `t` along every dimension, in a tensor of this shape."""
    return t[tuple(slice(0, size) for size in shape)].contiguous()


def mean_of_corners(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """m[i] = sum_g p_g t_g[i] / sum_g p_g over the tensors t_g that have an entry i; 0 where none has, or all shares are 0.

    Of tensors of one shape it is their weighted mean.

    Args:
        tensors: Tensors with one number of dimensions.
        shares: The share p_g of each of them, not negative.

    Returns:
        A tensor as large as the largest along each dimension.
    """
    first = tensors[0]
    largest = torch.tensor([t.shape for t in tensors]).amax(0).tolist()
    total = first.new_zeros(largest)
    mass = first.new_zeros(largest)
    for t, share in zip(tensors, shares, strict=True):
        place = tuple(slice(0, size) for size in t.shape)
        total[place] += share * t
        mass[place] += share
    return torch.where(mass > 0, total / mass, 0.0)
