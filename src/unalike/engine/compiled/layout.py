"""The layout of a chain's parameters in the arrays of the compiled loops.

A client's parameters are one row of P floats, layer by layer, weights [out, in] row by row. A chain 3 -> 2 -> 1:

    W1 00 01 02 10 11 12 | b1 0 1 | W2 00 01 | b2 0                                  P = 6 + 2 + 2 + 1

Before a client trains, the loops copy the row into a workspace in which each weight is padded with zeros (.) to an even number
of rows and to columns of two vectors, and each bias to one vector. Here, with vectors of 4 floats:

    W1  00 01 02 .  .  .  .  .       b1  0 1 . .
        10 11 12 .  .  .  .  .
    W2  00 01 .  .  .  .  .  .       b2  0 . . .
        .  .  .  .  .  .  .  .

so no loop has a remainder. Padding multiplies zeros and stays zero.

The weight of a convolution [filters, channels, S, S] stands in a row as [filters, S, S, channels], and in the workspace as a matrix
[filters S, S channels] with columns padded to one vector: a row for each strip of a filter (`convolution_loops`).
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from unalike.core.types import Tree
from unalike.engine.compiled.convolution_table import convolution_table, padded
from unalike.engine.compiled.layer_chain import LayerChain


@dataclass(frozen=True)
class Layout:
    """The two layouts of a chain's parameters, in rows and in the workspace.

    `names` are each layer's weight and bias, `places` each parameter's first float in a row and its shape, `filters` the
    weights of convolutions. `layers` has a line per linear layer for the loops, with columns as in `layer_loops` (`WIDE`,
    `OUT`, ...), `convolutions` one per convolution, as in `convolution_loops`. `runs` are what is contiguous in both layouts:
    its first float in the workspace, in a row, and its length. `floats` are sizes of parts of the workspace (`kernels.HELD` to
    `SAMPLE`).
    """

    names: tuple[tuple[str, str | None], ...]
    places: dict[str, tuple[int, torch.Size]]
    filters: frozenset[str]
    layers: np.ndarray
    convolutions: np.ndarray
    runs: np.ndarray
    floats: np.ndarray

    def flat(self, params: Tree) -> Tensor:
        """Stacked parameters as rows [K, P]; [1, P] where all clients have the same."""
        same = all(params[n].stride(0) == 0 for n in self.places)
        some = {n: params[n][:1] if same else params[n] for n in self.places}
        return torch.cat(
            [(w.movedim(2, -1) if n in self.filters else w).flatten(1) for n, w in some.items()], 1
        )

    def decays(self, decay: float, strength: float, shared: Collection[str]) -> np.ndarray:
        """Factors of each layer's weight and bias in their gradients [L, 2]: weight decay, plus the pull's strength if shared."""
        rows = [[decay + strength * (n in shared) for n in names] for names in self.names]
        return np.array(rows, np.float32)

    def views(self, flat: Tensor) -> Tree:
        """Rows as parameters by name, of shape [K, ...]; views, except for the weights of convolutions."""
        return {n: self._view(flat, n) for n in self.places}

    def _view(self, flat: Tensor, name: str) -> Tensor:
        at, shape = self.places[name]
        values = flat.narrow(1, at, shape.numel())
        if name not in self.filters:
            return values.view(-1, *shape)
        filters, channels, height, width = shape
        return values.view(-1, filters, height, width, channels).movedim(-1, 2).contiguous()


@lru_cache(64)
def layout_of(
    chain: LayerChain,
    shapes: tuple[tuple[str, torch.Size], ...],
    moves: frozenset[str],
    sample: tuple[int, ...],
) -> Layout:
    """The layout of a chain. `shapes` are those of the parameters by name, `moves` the parameters that are trained."""
    from unalike.loops import layer_loops as loops  # needs numba, which `obstacle` found

    shape = dict(shapes)
    places: dict[str, tuple[int, torch.Size]] = {}
    taken = 0
    for name in (n for pair in chain.names for n in pair if n is not None):
        places[name] = (taken, shape[name])
        taken += shape[name].numel()
    begins = {name: at for name, (at, _) in places.items()}
    table = convolution_table(chain, sample, begins, moves)
    codes: dict[type[nn.Module] | None, int]
    codes = {
        None: loops.IDENTITY,
        nn.ReLU: loops.RELU,
        nn.Tanh: loops.TANH,
        nn.Sigmoid: loops.SIGMOID,
    }
    layers, runs, held = [], table.runs, table.parameters
    for layer in chain.layers:
        out, wide = shape[layer.weight]
        even, columns = padded(out, 2), padded(wide, loops.PAIR)
        bias, trained = held + even * columns, (layer.weight in moves, layer.bias in moves)
        layers.append((wide, out, columns, even, held, bias, codes[layer.activation], *trained))
        runs += [(held + o * columns, begins[layer.weight] + o * wide, wide) for o in range(out)]
        runs += [] if layer.bias is None else [(bias, begins[layer.bias], out)]
        held = bias + padded(even, loops.LANES)
    floats = (held, table.turned, table.row, table.pixel, table.sample)
    arrays = (np.array(lines, np.int64) for lines in (layers, table.lines, runs, floats))
    return Layout(
        chain.names, places, frozenset(layer.weight for layer in chain.convolutions), *arrays
    )
