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

    table = ConvolutionTable()
    sides = chain.sides(sample)
    for i, layer in enumerate(chain.convolutions):
        height, width = sides[i]
        rows, columns = sides[i + 1]
        padded_filters = padded(layer.filters, LANES)

        # a strip of a filter is one row of windows; padded, so that no loop has a remainder
        strip = layer.kernel * layer.channels
        padded_strip = padded(strip, LANES)
        strips = layer.filters * layer.kernel

        # a sample's floats: the image with its border, then the origins
        padded_width = width + 2 * layer.padding
        # `convolve` reads up to seven pixels beyond the image, and uses none of them
        pixels = padded_width * (height + 2 * layer.padding) + PIXELS
        image = table.sample
        origins = image + padded(pixels * layer.channels + LANES, LANES)
        table.sample = origins + rows * columns * padded_filters

        # the output lies in the next image, inside its border, or in the input of the linear layers
        if i + 1 < len(chain.convolutions):
            border = chain.convolutions[i + 1].padding
            output_line = (columns + 2 * border) * layer.filters
            output = table.sample + border * (output_line + layer.filters)
            output_places = (output, output_line, layer.filters, 1)
        else:
            output_places = (0, columns, 1, rows * columns)

        # the workspace's floats: the filters, then the biases
        weight = table.parameters
        bias = weight + strips * padded_strip
        table.parameters = bias + padded_filters

        kind = (layer.kernel, layer.channels, padded_width, layer.filters, padded_filters)
        work = (layer.pool, layer.rectified, padded_strip)
        image_size = (height, width, layer.padding, rows, columns)
        trained = (layer.weight in moves, layer.bias in moves)
        table.rows.append(
            (
                *kind,
                *work,
                *image_size,
                image,
                origins,
                *output_places,
                weight,
                bias,
                table.turned,
                *trained,
            )
        )

        # where the same weights lie in a client's row
        begin = begins[layer.weight]
        for number in range(strips):
            table.runs.append((weight + number * padded_strip, begin + number * strip, strip))
        if layer.bias is not None:
            table.runs.append((bias, begins[layer.bias], layer.filters))

        table.turned += layer.kernel * strip * padded_filters
        windows = layer.pool * padded(columns * layer.pool, PIXELS) * padded_filters
        table.row = max(table.row, windows, 2 * (rows * columns + 3))
        table.pixel = max(table.pixel, padded_filters)
    return table


def padded(n: int, to: int) -> int:
    """The least multiple of `to` that is at least n."""
    return -(-n // to) * to
