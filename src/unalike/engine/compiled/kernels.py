"""Compiled loops (numba) that train a chain of layers by SGD: forward pass, gradients and `core.solvers.SGD`.

Start reading at `train`, at the end. Each thread has one workspace, which stays in the cache while a client trains:

    weights | momenta | pull (if any) | convolutions (if any) | h_0 h_1 ... h_L | d_0 d_1 ... d_L

`h_i` is what linear layer i takes ([rows, columns]: h_0 the samples or the output of the last convolution, h_L the logits) and d_i
the gradient of the loss in h_i. All are padded with zeros that stay zeros (drawing in `layout`). The loops over the samples of a
batch are in `layer_loops`. Convolutions (`convolution_batch`) take more memory:

    gradients | turned weights | rows | pixel | images and origins of each sample | gradients of the images of one sample
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from unalike._utils.simd import LANES, MATHS, borrowed, matrix, prefetch, turn, widest
from unalike.engine.compiled.convolution_batch import convolve_samples, lowest_that_learns, pass_back, step_convolutions
from unalike.engine.compiled.layer_loops import (
    BINARY,
    CLASSES,
    ONE,
    PAIR,
    ROWS,
    SQUARES,
    ZERO,
    activate,
    activation_gradient,
    affine,
    bias_step,
    inline,
    input_gradient,
    loss_gradient,
    up,
    weight_step,
)

LINE = 16
"""Floats of a cache line."""

WIDE, OUT, COLUMNS, EVEN, WEIGHT, BIAS, ACTIVATION, MOVES, BIAS_MOVES = range(9)
"""Columns of the table of linear layers: number of inputs, of outputs, both padded, the first float of weight and bias in the
workspace, the activation after the layer, and whether weight and bias are trained."""
HELD, CONVOLVED, SWAPPED, ROW, PIXEL, SAMPLE = range(6)
"""Floats of the workspace: all parameters, those of convolutions, turned weights, the rows of a row of windows, an output pixel,
and the images and origins of a sample."""
LOSSES = {"classification": CLASSES, "binary": BINARY, "regression": SQUARES}
"""Losses, by the name of the task."""


class Data(NamedTuple):
    """A chunk's samples and batches: the batch of client k in step t are the rows batches[k, t, : sizes[k, t]] of `x`."""

    x: np.ndarray
    """Samples [N, D], float32."""
    batches: np.ndarray
    """Rows of `x` [K, T, B]."""
    sizes: np.ndarray
    """Samples of each step [K, T]; 0: the step is left out."""
    labels: np.ndarray
    """Classes of all samples [N]; empty for other tasks."""
    targets: np.ndarray
    """Labels of the batches' samples [K T B], float32; empty for classification."""


class Model(NamedTuple):
    """The layers (see `layout`)."""

    layers: np.ndarray
    """The table of linear layers [L, 9]; columns `WIDE` to `BIAS_MOVES`."""
    convolutions: np.ndarray
    """The table of convolutions before them [C, 24], perhaps empty; columns in `convolution_loops`."""
    runs: np.ndarray
    """Parts of the parameters that are contiguous both in the workspace and in a client's row: first float in the one and in the
    other, length [R, 3]."""
    floats: np.ndarray
    """Sizes of parts of the workspace, `HELD` to `SAMPLE`."""


class Step(NamedTuple):
    """Loss and solver: g <- g + decay w + pull;  m <- momentum m + g;  w <- w - lr m  (Nesterov: w - lr (g + momentum m))."""

    loss: int
    """`CLASSES`, `BINARY` or `SQUARES`."""
    lr: np.float32
    momentum: np.float32
    nesterov: bool
    decays: np.ndarray
    """Factor of each layer's weight and bias in their gradients [C + L, 2]."""
    pulls: np.ndarray
    """Added to the gradients: rows [K, P], [1, P] for all clients or [0, 0] for none."""
    starts: np.ndarray
    """Momenta before the first step, in the same way."""


class Results(NamedTuple):
    """The output arrays: one row per client, or one row per piece with the sum over its clients."""

    differences: bool
    """Whether to write what was added to the parameters instead of the parameters."""
    factors: np.ndarray
    """Factors of the clients in the sum [K]; empty: no sums."""
    bounds: np.ndarray
    """Piece s are the clients bounds[s] to bounds[s + 1] - 1."""
    sums: np.ndarray
    """Each client's sums of losses, samples and steps [3, K], float64."""
    trained: np.ndarray
    """Rows [K, P], or with `factors` [S, P]."""


def array(kind, dimensions):
    return types.Array(kind, dimensions, "C")


FLOATS, WHOLE = array(types.float32, 2), array(types.int64, 2)
VECTOR, COUNTS = array(types.float32, 1), array(types.int64, 1)
SIGNATURE = types.void(
    FLOATS,
    types.NamedTuple([FLOATS, array(types.int64, 3), WHOLE, COUNTS, VECTOR], Data),
    types.NamedTuple([WHOLE, WHOLE, WHOLE, COUNTS], Model),
    types.NamedTuple([types.int64, types.float32, types.float32, types.boolean, FLOATS, FLOATS, FLOATS], Step),
    types.NamedTuple([types.boolean, VECTOR, COUNTS, array(types.float64, 2), FLOATS], Results),
    COUNTS,
)
"""The types for which `train` is compiled when this module is imported; kept on disk."""


@inline
def unpack(runs, row, weights):
    """Copy a client's row into the workspace."""
    for at, source, count in runs:
        weights[at : at + count] = row[source : source + count]


@inline
def finish_client(runs, weights, begun, following, differences, add, factor, out):
    """Write a client's result into its row `out`, and the row that the next client starts from into the workspace, in one pass.

    Returns the sum of the client's parameters, which is finite if all of them are.
    """
    total = ZERO
    for at, to, count in runs:
        total += write(weights[at:], begun[to:], following[to:], differences, add, factor, out[to : to + count])
    return total


@inline
def write(now, begun, following, differences, add, factor, out):
    """out <- factor now, with `differences` factor (now - begun), with `add` that plus out; now <- following."""
    total = ZERO
    for i in range(len(out)):
        total += now[i]
        gained = factor * (now[i] - (begun[i] if differences else ZERO))
        out[i] = gained + (out[i] if add else ZERO)
        now[i] = following[i]
    return total


@inline
def gather(x, index, h):
    """h <- the rows `index` of x, then zeros."""
    h[len(index) :] = ZERO
    for r in range(len(index)):
        at = index[r]
        if at < 0 or at >= len(x):
            raise IndexError("a sample is not among the data")
        for i in range(x.shape[1]):
            h[r, i] = x[at, i]


@inline
def fetch_ahead(x, index):
    """Ask for the rows `index` of x, which the next step gathers; they arrive while this step computes."""
    for at in index:
        for i in range(0, x.shape[1], LINE):
            prefetch(x, at * x.shape[1] + i)


@inline
def forward(layers, weights, tiles, tile, rows):
    """h_1 to h_L from h_0."""
    for i in range(len(layers)):
        layer = layers[i]
        even, columns, after = layer[EVEN], layer[COLUMNS], up(layer[OUT], PAIR)
        h, z = matrix(tiles, i * tile, rows, columns), matrix(tiles, (i + 1) * tile, rows, after)
        w, b = matrix(weights, layer[WEIGHT], even, columns), weights[layer[BIAS] : layer[BIAS] + even]
        affine(h, w, b, layer[WIDE], z)
        if layer[ACTIVATION]:
            activate(layer[ACTIVATION], z, layer[OUT])


@inline
def backward(layers, lowest, weights, momenta, pull, pulled, tiles, tile, rows, decays, solver):
    """One step of each layer, from the last to the `lowest`; d_i is computed with the weights before their step.

    With `lowest` -1, convolutions learn, too, and d_0 is computed for them.
    """
    depth, (lr, carry, momentum, nesterov) = len(layers), solver
    for i in range(depth - 1, max(lowest, 0) - 1, -1):
        layer, here = layers[i], (depth + 1 + i) * tile
        even, columns, after = layer[EVEN], layer[COLUMNS], up(layer[OUT], PAIR)
        w = matrix(weights, layer[WEIGHT], even, columns)
        h, d = matrix(tiles, i * tile, rows, columns), matrix(tiles, here + tile, rows, after)
        if i > lowest:
            e = matrix(tiles, here, rows, columns)
            input_gradient(d, w, e)
            if i > 0:
                activation_gradient(layers[i - 1, ACTIVATION], e, h, layer[WIDE])
        if layer[MOVES]:
            m, p = matrix(momenta, layer[WEIGHT], even, columns), matrix(pull, layer[WEIGHT], even, columns)
            weight_step(h, d, w, m, p, pulled, lr, carry, momentum, decays[i, 0], nesterov)
        if layer[BIAS_MOVES]:
            at, wide = layer[BIAS], up(layer[OUT], LANES)
            b, m, p = matrix(weights, at, 1, wide), matrix(momenta, at, 1, wide), matrix(pull, at, 1, wide)
            bias_step(d, b, m, p, pulled, lr, carry, momentum, decays[i, 1], nesterov)


@njit(SIGNATURE, fastmath=MATHS, nogil=True, cache=True)
def train(start, data, model, step, results, turns):
    """Train clients from the rows `start` [1 or K, P], one piece of `results.bounds` after the other, until none is left.

    Threads call this function at once and take the pieces by the counter `turns` [1]. Each client is written by one thread.
    """
    widest()
    start, x, index, sizes = borrowed(start), borrowed(data.x), borrowed(data.batches), borrowed(data.sizes)
    labels, targets = borrowed(data.labels), borrowed(data.targets)
    layers, convolutions, runs = borrowed(model.layers), borrowed(model.convolutions), borrowed(model.runs)
    decays, pulls, starts = borrowed(step.decays), borrowed(step.pulls), borrowed(step.starts)
    sums, trained = borrowed(results.sums), borrowed(results.trained)
    factors, bounds, differences = results.factors, results.bounds, results.differences
    before, depth, top = len(convolutions), len(layers), layers[:, COLUMNS].max()
    lowest_convolution, lowest = lowest_that_learns(convolutions), 0
    while lowest < depth - 1 and not (layers[lowest, MOVES] or layers[lowest, BIAS_MOVES]):
        lowest += 1
    if lowest_convolution < before:
        lowest = -1
    most, columns = up(index.shape[2], ROWS), layers[0, COLUMNS]
    tile = most * max(top, up(layers[-1, OUT], PAIR))
    pulled, summed, models = len(pulls) > 0, len(factors) > 0, 3 if len(pulls) else 2
    floats, held, sample = model.floats, model.floats[HELD], model.floats[SAMPLE]
    parts = [models * held, floats[CONVOLVED], floats[SWAPPED], floats[ROW], floats[PIXEL], most * sample, sample]
    begin = np.array(parts).cumsum()
    owned = np.empty(begin[-1] + 2 * (depth + 1) * tile + LINE, np.float32)
    space = borrowed(owned)[-(owned.ctypes.data // 4) % LINE :]  # begins with a cache line
    weights, momenta, pull = space[:held], space[held : 2 * held], space[(models - 1) * held : models * held]
    gradients, turned, row, pixel = space[begin[0] :], space[begin[1] :], space[begin[2] :], space[begin[3] :]
    images, slopes, tiles = space[begin[4] :], space[begin[5] :], space[begin[6] :]
    space[:] = ZERO
    shared = len(start) - 1
    s = turn(turns)
    while s < len(bounds) - 1:
        unpack(runs, start[min(bounds[s], shared)], weights)
        for k in range(bounds[s], bounds[s + 1]):
            begun, following, carry = start[min(k, shared)], start[min(k + 1, shared)], ZERO
            if pulled:
                unpack(runs, pulls[min(k, len(pulls) - 1)], pull)
            if len(starts):
                unpack(runs, starts[min(k, len(starts) - 1)], momenta)
                carry = step.momentum
            for t in range(index.shape[1]):
                n = sizes[k, t]
                if n == 0:
                    continue
                rows, chosen = up(n, ROWS), index[k, t, :n]
                h = matrix(tiles, 0, rows, columns)
                if before:
                    h[n:] = ZERO
                    convolve_samples(convolutions, x, chosen, weights, turned, row, pixel, images, sample, h)
                else:
                    gather(x, chosen, h)
                if t + 1 < index.shape[1]:
                    fetch_ahead(x, index[k, t + 1])
                forward(layers, weights, tiles, tile, rows)
                after = up(layers[-1, OUT], PAIR)
                z, d = matrix(tiles, depth * tile, rows, after), matrix(tiles, (2 * depth + 1) * tile, rows, after)
                place = (k * index.shape[1] + t) * index.shape[2]
                sums[0, k] += loss_gradient(step.loss, z, chosen, labels, targets, place, layers[-1, OUT], d)
                sums[1, k] += n
                sums[2, k] += 1
                solver = (step.lr, carry, step.momentum, step.nesterov)
                backward(layers, lowest, weights, momenta, pull, pulled, tiles, tile, rows, decays[before:], solver)
                if lowest < 0:
                    e = matrix(tiles, (depth + 1) * tile, rows, columns)
                    pass_back(convolutions, lowest_convolution, weights, gradients, row, images, slopes, sample, e, n)
                    step_convolutions(convolutions, weights, momenta, pull, pulled, gradients, decays, solver)
                carry = step.momentum
            at, factor, add = (s, factors[k], k > bounds[s]) if summed else (k, ONE, False)
            total = finish_client(runs, weights, begun, following, differences, add, factor, trained[at])
            if not (np.isfinite(sums[0, k]) and np.isfinite(total)):
                space[:] = ZERO  # NaN and infinities have reached the padding, too
                unpack(runs, following, weights)
        s = turn(turns)
    owned[0] = ZERO  # keeps `owned` alive until here: `borrowed` does not count as a use
