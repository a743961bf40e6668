"""Compiled loops (numba) of a convolution with max pooling and ReLU on one image, forward and backward.

`kernels` calls them. An image of H x W pixels and C channels lies in memory pixel by pixel in a border of zeros, [H + 2 padding,
W + 2 padding, C]. So the pixels that meet one row of a filter of side S are S C consecutive numbers, a *strip*. A weight is kept
twice:

    weight   [filters S, S C padded]         a strip of a filter in each row: for gradients
    turned   [filters / LANES, S S C, LANES]   a number of a vector of filters in each row: for the forward pass

Of each pooled window only the largest number has a gradient. `origins` holds the place in the image where its strip begins, or -1
if the ReLU is off there. Therefore a backward pass takes 1 / pool^2 of the products of a forward pass, and less.

Columns of the table are read before a loop: within it the compiler would read them again after each store.
"""

import numpy as np
from numba import njit

from unalike.loops.layer_loops import ZERO, inline, up
from unalike.loops.simd import LANES, MATHS, fill, load, select, spread, store, vector_width

PIXELS = 8
"""Pixels that `convolve` names one by one."""

SIDE, CHANNELS, ACROSS, FILTERS, LANED, POOL, RECTIFIED, STRIP = range(8)
"""Columns of the table of convolutions: side of a filter, channels, width of the image with its border, filters, these padded to
vectors, side of a pooled window, whether a ReLU follows, floats of a padded strip."""
HEIGHT, WIDTH, PADDING, ROWS_AFTER, COLUMNS_AFTER = range(8, 13)
"""Height, width and padding of the image, height and width of the pooled output."""
IMAGE, ORIGINS, AFTER, ROW_STEP, COLUMN_STEP, FILTER_STEP = range(13, 19)
"""Where a sample's image and origins begin among its floats, and where its output begins there (for the last convolution: in its
row of h_0); the steps to the output's next row, column and filter."""
FILTER, OFFSET, TURNED, LEARNS, OFFSET_LEARNS = range(19, 24)
"""Where weight and bias begin in the workspace, and the turned weight among the turned weights; whether weight and bias are
trained."""
called = njit(fastmath=MATHS, nogil=True)
"""For functions that are called: to write them into their caller would take the compiler longer, and save no time."""
NONE, NOWHERE = np.float32(0), np.float32(-1)


@inline
def place_image(layer, row, image):
    """Copy a sample [C H W] into the inside of an image with a border."""
    channels, height, width, across, padding = (
        layer[CHANNELS],
        layer[HEIGHT],
        layer[WIDTH],
        layer[ACROSS],
        layer[PADDING],
    )
    for y in range(height):
        for c in range(channels):
            to, at = ((y + padding) * across + padding) * channels + c, (c * height + y) * width
            for x in range(width):
                image[0, to + x * channels] = row[at + x]


@inline
def turn_weight(layer, weights, turned):
    """Write the weight as the forward pass reads it."""
    side, filters, begin, padded = layer[SIDE], layer[FILTERS], layer[FILTER], layer[STRIP]
    strip = side * layer[CHANNELS]
    for o in range(filters):
        for y in range(side):
            at = begin + (o * side + y) * padded
            to = o // LANES * side * strip + y * strip
            for i in range(strip):
                turned[to + i, o % LANES] = weights[at + i]


@inline
def convolve(layer, image, at, turned, bias, out, row):
    """out[row] = the convolution at the pixels of a row that begins at `at`: eight pixels and a vector of filters at a time."""
    side, step, across, filters = layer[SIDE], layer[CHANNELS], layer[ACROSS], layer[LANED]
    strip, columns = side * step, layer[COLUMNS_AFTER] * layer[POOL]
    for o in range(0, filters, LANES):
        start, begin = load(bias, 0, o), o // LANES * side * strip
        for x in range(0, columns, PIXELS):
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = start
            for y in range(side):
                p = at + (y * across + x) * step
                for i in range(strip):
                    w = load(turned, begin + y * strip + i, 0)
                    a0 = a0 + w * spread(image, 0, p + i)
                    a1 = a1 + w * spread(image, 0, p + i + step)
                    a2 = a2 + w * spread(image, 0, p + i + 2 * step)
                    a3 = a3 + w * spread(image, 0, p + i + 3 * step)
                    a4 = a4 + w * spread(image, 0, p + i + 4 * step)
                    a5 = a5 + w * spread(image, 0, p + i + 5 * step)
                    a6 = a6 + w * spread(image, 0, p + i + 6 * step)
                    a7 = a7 + w * spread(image, 0, p + i + 7 * step)
            to = x * filters + o
            store(out, row, to, a0)
            store(out, row, to + filters, a1)
            store(out, row, to + 2 * filters, a2)
            store(out, row, to + 3 * filters, a3)
            store(out, row, to + 4 * filters, a4)
            store(out, row, to + 5 * filters, a5)
            store(out, row, to + 6 * filters, a6)
            store(out, row, to + 7 * filters, a7)


@inline
def pool_row(layer, z, y, origins, pixel, out):
    """The largest numbers of a row of windows, after ReLU, from the convolution's rows `z`; and their origins.

    `pixel` [1, filters padded] is memory for one output pixel.
    """
    pool, filters, laned, rectified = layer[POOL], layer[FILTERS], layer[LANED], layer[RECTIFIED]
    step, across, columns = layer[CHANNELS], layer[ACROSS], layer[COLUMNS_AFTER]
    down, right, beside = layer[ROW_STEP], layer[COLUMN_STEP], layer[FILTER_STEP]
    for x in range(columns):
        for o in range(0, laned, LANES):
            top, at = (
                load(z, 0, x * pool * laned + o),
                fill(np.float32((y * across + x) * pool * step)),
            )
            for v in range(pool):
                for u in range(x * pool, x * pool + pool):
                    now, here = (
                        load(z, v, u * laned + o),
                        fill(np.float32(((y * pool + v) * across + u) * step)),
                    )
                    at = select(now, top, at, here)
                    top = select(now, top, top, now)
            if rectified:
                off = fill(NONE)
                at, top = select(top, off, fill(NOWHERE), at), select(top, off, off, top)
            store(origins, 0, (y * columns + x) * laned + o, at)
            store(pixel, 0, o, top)
        to = y * down + x * right
        for o in range(filters):
            out[0, to + o * beside] = pixel[0, o]


@called
def convolve_and_pool(layer, image, turned, bias, z, pixel, origins, out):
    """Forward pass of one image. `z` [pool, columns filters padded] is memory for the convolution's rows of a row of windows."""
    vector_width()
    pool, line = layer[POOL], layer[ACROSS] * layer[CHANNELS]
    for y in range(layer[ROWS_AFTER]):
        for v in range(pool):
            convolve(layer, image, (y * pool + v) * line, turned, bias, z, v)
        pool_row(layer, z, y, origins, pixel, out)


@called
def add_gradients(layer, image, origins, d, weight, few, to_weight, to_bias, to_image, passes):
    """Add one image's gradients to those of the batch, and with `passes` write the gradient of the image.

    `d` is the gradient of the output, with the output's steps; `few` [2, windows + 3] is memory for the windows of a filter.
    """
    vector_width()
    if passes:
        for i in range(0, to_image.shape[1], LANES):
            store(to_image, 0, i, fill(ZERO))
    for o in range(layer[FILTERS]):
        quarter = up(find_windows(layer, origins, d, o, few, to_bias), 4) // 4
        for n in range(quarter):
            add_windows(layer, image, o, few, n, quarter, weight, to_weight, to_image, passes)


@inline
def find_windows(layer, origins, d, o, few, to_bias):
    """Write the origins and gradients of a filter's windows whose ReLU is on, and add these to the bias's gradient.

    Returns the number of windows. Three windows with gradient 0 follow them.
    """
    count, total, columns, laned = 0, ZERO, layer[COLUMNS_AFTER], layer[LANED]
    down, right, beside = layer[ROW_STEP], layer[COLUMN_STEP], layer[FILTER_STEP]
    for y in range(layer[ROWS_AFTER]):
        for x in range(columns):
            at = origins[0, (y * columns + x) * laned + o]
            g = d[0, y * down + x * right + o * beside]
            few[0, count], few[1, count] = (
                at,
                g,
            )  # the next window takes the place of one that is off
            on = at > NOWHERE
            count += on
            total += g if on else ZERO
    for n in range(count, count + 3):
        few[0, n], few[1, n] = ZERO, ZERO
    to_bias[0, o] += total
    return count


@inline
def add_windows(layer, image, o, few, n, quarter, weight, to_weight, to_image, passes):
    """Add the gradients of four windows of a filter, n and every `quarter` after it.

    These are far apart: a processor waits when it loads numbers that it has just stored from another address.
    """
    g0, g1, g2, g3 = (
        few[1, n],
        few[1, n + quarter],
        few[1, n + 2 * quarter],
        few[1, n + 3 * quarter],
    )
    p0, p1 = np.int64(few[0, n]), np.int64(few[0, n + quarter])
    p2, p3 = np.int64(few[0, n + 2 * quarter]), np.int64(few[0, n + 3 * quarter])
    side, strip, line = layer[SIDE], layer[STRIP], layer[ACROSS] * layer[CHANNELS]
    for v in range(side):
        row = o * side + v
        for i in range(0, strip, LANES):
            q = v * line + i
            x0, x1, x2, x3 = (
                load(image, 0, p0 + q),
                load(image, 0, p1 + q),
                load(image, 0, p2 + q),
                load(image, 0, p3 + q),
            )
            store(
                to_weight,
                row,
                i,
                load(to_weight, row, i) + (g0 * x0 + g1 * x1) + (g2 * x2 + g3 * x3),
            )
            if passes:
                w = load(weight, row, i)
                store(to_image, 0, p0 + q, load(to_image, 0, p0 + q) + g0 * w)
                store(to_image, 0, p1 + q, load(to_image, 0, p1 + q) + g1 * w)
                store(to_image, 0, p2 + q, load(to_image, 0, p2 + q) + g2 * w)
                store(to_image, 0, p3 + q, load(to_image, 0, p3 + q) + g3 * w)
