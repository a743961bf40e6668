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
        are_same = all(params[name].stride(0) == 0 for name in self.places)
        columns = []
        for name in self.places:
            weight = params[name][:1] if are_same else params[name]
            if name in self.filters:
                weight = weight.movedim(2, -1)
            columns.append(weight.flatten(1))
        return torch.cat(columns, 1)

    def decays(self, decay: float, strength: float, shared: Collection[str]) -> np.ndarray:
        """Factors of each layer's weight and bias in their gradients [L, 2]: weight decay, plus the pull's strength if shared."""
        rows = []
        for weight, bias in self.names:
            rows.append([decay + strength * (name in shared) for name in (weight, bias)])
        return np.array(rows, np.float32)

    def views(self, flat: Tensor) -> Tree:
        """Rows as parameters by name, of shape [K, ...]; views, except for the weights of convolutions."""
        return {n: self._view(flat, n) for n in self.places}

    def _view(self, flat: Tensor, name: str) -> Tensor:
        begin, shape = self.places[name]
        values = flat.narrow(1, begin, shape.numel())
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

    # in a client's row the parameters follow each other without gaps
    shape = dict(shapes)
    places: dict[str, tuple[int, torch.Size]] = {}
    taken = 0
    for name in (n for pair in chain.names for n in pair if n is not None):
        places[name] = (taken, shape[name])
        taken += shape[name].numel()
    begins = {name: begin for name, (begin, _) in places.items()}

    # in the workspace the convolutions come first, then the linear layers
    table = convolution_table(chain, sample, begins, moves)
    codes: dict[type[nn.Module] | None, int]
    codes = {
        None: loops.IDENTITY,
        nn.ReLU: loops.RELU,
        nn.Tanh: loops.TANH,
        nn.Sigmoid: loops.SIGMOID,
    }
    layers = []
    runs = table.runs
    weight = table.parameters
    for layer in chain.layers:
        out, wide = shape[layer.weight]
        even_out, columns = padded(out, 2), padded(wide, loops.PAIR)
        bias = weight + even_out * columns
        trained = (layer.weight in moves, layer.bias in moves)
        code = codes[layer.activation]
        layers.append((wide, out, columns, even_out, weight, bias, code, *trained))
        begin = begins[layer.weight]
        for row in range(out):
            runs.append((weight + row * columns, begin + row * wide, wide))
        if layer.bias is not None:
            runs.append((bias, begins[layer.bias], out))
        weight = bias + padded(even_out, loops.LANES)
    floats = (weight, table.turned, table.row, table.pixel, table.sample)
    return Layout(
        names=chain.names,
        places=places,
        filters=frozenset(layer.weight for layer in chain.convolutions),
        layers=np.array(layers, np.int64),
        convolutions=table.lines,
        runs=np.array(runs, np.int64),
        floats=np.array(floats, np.int64),
    )
