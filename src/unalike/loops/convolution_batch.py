"""Compiled loops (numba) of all convolutions over the samples of a batch: forward pass and gradients.

`kernels` calls them, and `gradient_steps` moves the weights. `convolution_loops` has the loops over one image, and the columns of
the table of convolutions.
"""

from unalike.loops.convolution_loops import (
    AFTER,
    CHANNELS,
    COLUMNS_AFTER,
    FILTER,
    FILTERS,
    IMAGE,
    LANED,
    LEARNS,
    OFFSET,
    OFFSET_LEARNS,
    ORIGINS,
    PIXELS,
    POOL,
    ROWS_AFTER,
    SIDE,
    STRIP,
    TURNED,
    add_gradients,
    convolve_and_pool,
    place_image,
    turn_weight,
)
from unalike.loops.layer_loops import inline, up
from unalike.loops.simd import LANES, matrix


@inline
def lowest_that_learns(convolutions):
    """The first convolution that is trained; their number if none is."""
    i = 0
    while i < len(convolutions) and not (convolutions[i, LEARNS] or convolutions[i, OFFSET_LEARNS]):
        i += 1
    return i


@inline
def convolve_samples(convolutions, x, index, weights, turned, row, pixel, images, sample, h):
    """h = the output of the last convolution, from the rows `index` of x."""
    last = len(convolutions) - 1
    for i in range(last + 1):
        turn_weight(convolutions[i], weights, turned_of(convolutions[i], turned))
    for r in range(len(index)):
        at, begin = index[r], r * sample
        if at < 0 or at >= len(x):
            raise IndexError("a sample is not among the data")
        place_image(
            convolutions[0], x[at], matrix(images, begin + convolutions[0, IMAGE], 1, sample)
        )
        for i in range(last + 1):
            layer = convolutions[i]
            image = matrix(images, begin + layer[IMAGE], 1, sample)
            origins = matrix(images, begin + layer[ORIGINS], 1, sample)
            after = h[r : r + 1] if i == last else matrix(images, begin + layer[AFTER], 1, sample)
            z = matrix(
                row, 0, layer[POOL], up(layer[COLUMNS_AFTER] * layer[POOL], PIXELS) * layer[LANED]
            )
            bias, point = bias_of(layer, weights), matrix(pixel, 0, 1, layer[LANED])
            convolve_and_pool(
                layer, image, turned_of(layer, turned), bias, z, point, origins, after
            )


@inline
def pass_back(convolutions, lowest, weights, gradients, row, images, slopes, sample, d, count):
    """Add up the gradients of the convolutions from the `lowest` on, from the gradient `d` of the last one's output."""
    last = len(convolutions) - 1
    for r in range(count):
        for i in range(last, lowest - 1, -1):
            layer, begin = convolutions[i], r * sample
            image = matrix(images, begin + layer[IMAGE], 1, sample)
            origins = matrix(images, begin + layer[ORIGINS], 1, sample)
            own = d[r : r + 1] if i == last else matrix(slopes, layer[AFTER], 1, sample)
            to_image = matrix(slopes, layer[IMAGE], 1, layer[ORIGINS] - layer[IMAGE])
            to_weight, to_bias = weight_of(layer, gradients), bias_of(layer, gradients)
            few = matrix(row, 0, 2, layer[ROWS_AFTER] * layer[COLUMNS_AFTER] + 3)
            weight = weight_of(layer, weights)
            add_gradients(
                layer, image, origins, own, weight, few, to_weight, to_bias, to_image, i > lowest
            )


@inline
def weight_of(layer, floats):
    """A convolution's part of weights or gradients."""
    return matrix(floats, layer[FILTER], layer[FILTERS] * layer[SIDE], layer[STRIP])


@inline
def bias_of(layer, floats):
    """The part of its bias, padded to vectors."""
    return matrix(floats, layer[OFFSET], 1, layer[LANED])


@inline
def turned_of(layer, turned):
    """Its turned weight."""
    rows = layer[LANED] // LANES * layer[SIDE] * layer[SIDE] * layer[CHANNELS]
    return matrix(turned, layer[TURNED], rows, LANES)
