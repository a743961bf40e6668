"""The kinds of buffers of a module, and so what becomes of them when clients are averaged: this file declares it.

| kind | of | after a round |
| :-- | :-- | :-- |
| counters | whole numbers and truths of any module | the largest of the clients |
| running statistics | norm layers of torch | averaged, as `buffers=` of the run says |
| singular vectors | spectral norms of torch, both of them | computed anew from the new weights, whatever `buffers=` says |
| others | any other module | as running statistics; a run notes those that training changes |

An average of directions is no direction: two opposite ones give 0. So vectors that belong to weights follow the weights.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from unalike.core.types import Tree

POWER_ITERATIONS = 1000
"""Most steps of the power method by which singular vectors are computed anew."""
RELATIVE_GROWTH = 1e-6
"""The power method ends where the singular value that it finds grows by less than this, relative to itself."""


class SpectralWeight(NamedTuple):
    """A matrix whose largest singular value a module divides by, and the names of the buffers with its vectors."""

    weight: Tensor
    u: str
    v: str


def singular_vectors(module: nn.Module) -> Tree:
    """The singular vectors of the largest singular value of each weight with a spectral norm, by the names of their buffers.

    The power method starts from the vectors that the module has: v = W^T u / |W^T u|, u = W v / |W v|. Vectors of length 0 or
    that are not finite start anew.
    """
    vectors: Tree = {}
    with torch.no_grad():
        buffers = dict(module.named_buffers())
        for weight, u_name, v_name in _spectral_weights(module):
            u = buffers[u_name]
            if not u.isfinite().all() or not u.any():
                u = torch.ones_like(u)
            v = buffers[v_name]
            found = 0.0
            for _ in range(POWER_ITERATIONS):
                v = F.normalize(weight.mT @ u, dim=0)
                stretched = weight @ v
                u = F.normalize(stretched, dim=0)
                before, found = found, float(stretched.norm())
                if not found > before * (1 + RELATIVE_GROWTH):
                    break
            vectors |= {u_name: u, v_name: v}
    return vectors


def spectral_buffers(module: nn.Module) -> set[str]:
    """The names of the buffers that hold singular vectors."""
    names = set()
    for weight in _spectral_weights(module):
        names |= {weight.u, weight.v}
    return names


def unknown_buffers(module: nn.Module) -> list[str]:
    """The names of the buffers of amounts that belong to no module of which it is known how they are averaged."""
    known = spectral_buffers(module)
    for path, owner in module.named_modules():
        if isinstance(owner, nn.modules.batchnorm._NormBase):
            known |= {f"{path}.{name}".removeprefix(".") for name in owner._buffers}
    return [
        name
        for name, buffer in module.named_buffers()
        if buffer.is_floating_point() and name not in known
    ]


def _spectral_weights(module: nn.Module) -> Iterator[SpectralWeight]:
    """The weights with a spectral norm, as parametrization or as hook, as matrices."""
    for path, owner in module.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(owner, ParametrizationList):
            yield from _parametrized(owner, prefix)
        for hook in owner._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                weight = getattr(owner, f"{hook.name}_orig")
                name = prefix + hook.name
                yield SpectralWeight(_matrix(weight, hook.dim), f"{name}_u", f"{name}_v")


def _parametrized(parametrizations: ParametrizationList, prefix: str) -> Iterator[SpectralWeight]:
    """The weight as the spectral norm of a list of parametrizations receives it, which those before it have made."""
    if not any(isinstance(p, _SpectralNorm) for p in parametrizations):
        return
    weight = parametrizations.original
    for number, parametrization in enumerate(parametrizations):
        # rows have no vectors: torch normalizes them by their length
        if isinstance(parametrization, _SpectralNorm) and weight.dim() > 1:
            name = f"{prefix}{number}."
            yield SpectralWeight(_matrix(weight, parametrization.dim), f"{name}_u", f"{name}_v")
        weight = parametrization(weight)


def _matrix(weight: Tensor, dim: int) -> Tensor:
    """A weight as the matrix [n, m] with the axis `dim` in front."""
    return weight.movedim(dim, 0).flatten(1)
