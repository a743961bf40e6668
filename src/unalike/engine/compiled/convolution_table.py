"""The table of a chain's convolutions for the compiled loops, and the memory that they take.

The floats of a sample, for two convolutions (`convolution_loops` explains images and origins):

    image 1 | origins 1 | image 2 | origins 2          the output of 1 lies in image 2, inside its border; that of 2 in h_0
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from unalike.engine.compiled.layer_chain import LayerChain


@dataclass
class ConvolutionTable:
    """The table, and sizes in floats."""

    rows: list[tuple[int, ...]] = field(default_factory=list)
    """A row per convolution; columns in `convolution_loops`."""
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    """Strips of filters and biases: the first float in the workspace, in a client's row, and the length."""
    parameters: int = 0
    """Of weights and biases in the workspace."""
    turned: int = 0
    """Of turned weights."""
    row: int = 0
    """Of the largest row of windows, or of two numbers for each window of a filter."""
    pixel: int = 0
    """Of the largest output pixel."""
    sample: int = 0
    """Of a sample's images and origins."""

    @property
    def lines(self) -> np.ndarray:
        """The table as an array [C, columns]."""
        from unalike.loops.convolution_loops import OFFSET_LEARNS

        return np.array(self.rows, np.int64).reshape(len(self.rows), OFFSET_LEARNS + 1)


def convolution_table(
    chain: LayerChain, sample: tuple[int, ...], begins: Mapping[str, int], moves: Collection[str]
) -> ConvolutionTable:
    """Lay out the convolutions of a chain.

    `begins` is each parameter's first float in a client's row; `moves` are the parameters that are trained.
    """
    from unalike.loops.convolution_loops import (
        LANES,
        PIXELS,
    )  # needs numba, which `supports` found

    table, sides = ConvolutionTable(), chain.sides(sample)
    for i, layer in enumerate(chain.convolutions):
        (height, width), (rows, columns) = sides[i : i + 2]
        laned, wide = padded(layer.filters, LANES), layer.kernel * layer.channels
        strip, across = padded(wide, LANES), width + 2 * layer.padding
        # `convolve` reads up to seven pixels beyond the image, and uses none of them
        pixels = across * (height + 2 * layer.padding) + PIXELS
        image, weight = table.sample, table.parameters
        origins = image + padded(pixels * layer.channels + LANES, LANES)
        table.sample, bias = (
            origins + rows * columns * laned,
            weight + layer.filters * layer.kernel * strip,
        )
        if i + 1 < len(chain.convolutions):
            edge = chain.convolutions[i + 1].padding
            line = (columns + 2 * edge) * layer.filters
            after = (table.sample + edge * (line + layer.filters), line, layer.filters, 1)
        else:
            after = (0, columns, 1, rows * columns)
        table.rows.append(
            (
                *(
                    layer.kernel,
                    layer.channels,
                    across,
                    layer.filters,
                    laned,
                    layer.pool,
                    layer.rectified,
                    strip,
                ),
                *(height, width, layer.padding, rows, columns),
                *(image, origins, *after),
                *(weight, bias, table.turned, layer.weight in moves, layer.bias in moves),
            )
        )
        begin = begins[layer.weight]
        table.runs += [
            (weight + j * strip, begin + j * wide, wide)
            for j in range(layer.filters * layer.kernel)
        ]
        table.runs += [] if layer.bias is None else [(bias, begins[layer.bias], layer.filters)]
        table.parameters = bias + laned
        table.turned += layer.kernel * wide * laned
        table.row = max(
            table.row,
            layer.pool * padded(columns * layer.pool, PIXELS) * laned,
            2 * (rows * columns + 3),
        )
        table.pixel = max(table.pixel, laned)
    return table


def padded(n: int, to: int) -> int:
    """The least multiple of `to` that is at least n."""
    return -(-n // to) * to
