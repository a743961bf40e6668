"""The layout of a dense model's parameters in the arrays of the compiled loops.

A client's parameters are one row of P floats, layer by layer, weights [out, in] row by row. A chain 3 -> 2 -> 1:

    W1 00 01 02 10 11 12 | b1 0 1 | W2 00 01 | b2 0                                  P = 6 + 2 + 2 + 1

Before a client trains, the loops copy the row into a workspace in which each weight is padded with zeros (.) to an even number
of rows and to columns of two vectors, and each bias to one vector. Here, with vectors of 4 floats:

    W1  00 01 02 .  .  .  .  .       b1  0 1 . .
        10 11 12 .  .  .  .  .
    W2  00 01 .  .  .  .  .  .       b2  0 . . .
        .  .  .  .  .  .  .  .

so no loop has a remainder. Padding multiplies zeros and stays zero.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from unalike.core.dense_chain import DenseChain
from unalike.core.types import Tree


@dataclass(frozen=True)
class Layout:
    """The two layouts of a chain's parameters, in rows and in the workspace.

    Args:
        names: each layer's weight and bias.
        places: each parameter's first float in a row, and its shape.
        table: a line per layer for the loops; its columns are named in `kernels` (`WIDE`, `OUT`, ...).
        held: floats of the workspace that the parameters take.
    """

    names: tuple[tuple[str, str | None], ...]
    places: dict[str, tuple[int, torch.Size]]
    table: np.ndarray
    held: int

    def flat(self, params: Tree) -> Tensor:
        """Stacked parameters as rows [K, P]; [1, P] where all clients have the same."""
        if all(params[n].stride(0) == 0 for n in self.places):
            return torch.cat([params[n][0].flatten() for n in self.places])[None]
        return torch.cat([params[n].flatten(1) for n in self.places], 1)

    def decays(self, decay: float, strength: float, shared: Collection[str]) -> np.ndarray:
        """Factors of each layer's weight and bias in their gradients [L, 2]: weight decay, plus the pull's strength if shared."""
        rows = [[decay + strength * (n in shared) for n in names] for names in self.names]
        return np.array(rows, np.float32)

    def views(self, flat: Tensor) -> Tree:
        """Rows as parameters by name: views of shape [K, ...]."""
        return {n: flat.narrow(1, at, shape.numel()).view(-1, *shape) for n, (at, shape) in self.places.items()}


@lru_cache(64)
def layout_of(chain: DenseChain, shapes: tuple[tuple[str, torch.Size], ...], moves: frozenset[str]) -> Layout:
    """The layout of a chain.

    Args:
        chain: the layers.
        shapes: each parameter's name and shape.
        moves: the parameters that are trained.
    """
    from unalike.engine.dense import layer_loops as loops  # needs numba, which `supports` found

    shape = dict(shapes)
    codes: dict[type[nn.Module] | None, int]
    codes = {None: loops.IDENTITY, nn.ReLU: loops.RELU, nn.Tanh: loops.TANH, nn.Sigmoid: loops.SIGMOID}
    places, table, taken, held = {}, [], 0, 0
    for layer in chain.layers:
        out, wide = shape[layer.weight]
        for name in (layer.weight, layer.bias):
            if name is not None:
                places[name] = (taken, shape[name])
                taken += shape[name].numel()
        even, columns = padded(out, 2), padded(wide, loops.PAIR)
        source = places[layer.weight][0]
        bias_source = -1 if layer.bias is None else source + out * wide
        bias, trained = held + even * columns, (layer.weight in moves, layer.bias in moves)
        activation = codes[layer.activation]
        table.append((wide, out, columns, even, held, bias, source, bias_source, activation, *trained))
        held = bias + padded(even, loops.LANES)
    names = tuple((layer.weight, layer.bias) for layer in chain.layers)
    return Layout(names, places, np.array(table, np.int64), held)


def padded(n: int, to: int) -> int:
    """The least multiple of `to` that is at least n."""
    return -(-n // to) * to
