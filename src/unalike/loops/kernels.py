"""Compiled loops (numba) that train a chain of layers by SGD: forward pass, gradients and `core.solvers.SGD`.

Start reading at `train`, at the end. Each thread has one workspace, which stays in the cache while a client trains:

    weights | momenta | pull (if any) | gradients | anchor (if any) | convolutions (if any) | h_0 h_1 ... h_L | d_0 d_1 ... d_L

`h_i` is what linear layer i takes ([rows, columns]: h_0 the samples or the output of the last convolution, h_L the logits) and d_i
the gradient of the loss in h_i. All are padded with zeros that stay zeros (drawing in `layout`). The loops over the samples of a
batch are in `layer_loops`. Convolutions (`convolution_batch`) take more memory:

    turned weights | rows | pixel | images and origins of each sample | gradients of the images of one sample

A step computes the gradients of linear layers and moves their weights at once. Where it cannot, `gradient_steps` moves them:
gradients are added up over parts of a batch that is larger than `Data.rows`, and those of an inner loop (`methods.part.InnerLoop`)
are taken elsewhere than at the weights before the step, the anchor.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, types

from unalike.loops.convolution_batch import (
    convolve_samples,
    lowest_that_learns,
    pass_back,
)
from unalike.loops.gradient_steps import (
    inner_step,
    return_to,
    step_convolutions,
    step_layers,
)
from unalike.loops.layer_loops import (
    ACTIVATION,
    BIAS,
    BIAS_MOVES,
    BINARY,
    CLASSES,
    COLUMNS,
    EVEN,
    MOVES,
    ONE,
    OUT,
    PAIR,
    ROWS,
    SQUARES,
    WEIGHT,
    WIDE,
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
from unalike.loops.simd import (
    LANES,
    MATHS,
    borrowed_array,
    matrix,
    next_piece,
    prefetch,
    vector_width,
)

CACHE_LINE_FLOATS = 16
"""Floats of a cache line."""

HELD, SWAPPED, ROW, PIXEL, SAMPLE = range(5)
"""Floats of the workspace: all parameters, turned weights, the rows of a row of windows, an output pixel, and the images and
origins of a sample."""
LOSSES = {"cross_entropy": CLASSES, "binary_cross_entropy": BINARY, "squared_error": SQUARES}
"""Losses, by the names that tasks give them (`Task.compiled_loss`). `CLASSES` reads classes, the others targets."""


class Data(NamedTuple):
    """A chunk's samples and batches: the batch of client k in step t are the rows batches[k, t, : sizes[k, t]] of `x`."""

    x: np.ndarray
    """Samples [N, D], float32."""
    batches: np.ndarray
    """Rows of `x` [K, T, B]."""
    sizes: np.ndarray
    """Samples of each step [K, T]; 0: the step is left out."""
    labels: np.ndarray
    """Classes of all samples [N]; empty for other losses."""
    targets: np.ndarray
    """Labels of the batches' samples [K T B], float32; empty for `CLASSES`."""
    rows: int
    """Samples that are computed at a time, at most."""


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
    inner_steps: int = 0
    """Steps of the inner loop (see `methods.part.InnerLoop`); 0: there is none."""
    rate: np.float32 = ZERO
    """Their learning rate."""
    strength: np.float32 = ZERO
    """Their pull to the weights before them."""


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
    types.NamedTuple([FLOATS, array(types.int64, 3), WHOLE, COUNTS, VECTOR, types.int64], Data),
    types.NamedTuple([WHOLE, WHOLE, WHOLE, COUNTS], Model),
    types.NamedTuple(
        [
            types.int64,
            *2 * [types.float32],
            types.boolean,
            *3 * [FLOATS],
            types.int64,
            *2 * [types.float32],
        ],
        Step,
    ),
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
        total += write(
            weights[at:], begun[to:], following[to:], differences, add, factor, out[to : to + count]
        )
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
def take(values, begin, apart, out):
    """out <- the values from `begin` on, each `apart` places after the one before."""
    for r in range(len(out)):
        out[r] = values[begin + r * apart]


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
        for i in range(0, x.shape[1], CACHE_LINE_FLOATS):
            prefetch(x, at * x.shape[1] + i)


@inline
def forward(layers, weights, tiles, tile, rows):
    """h_1 to h_L from h_0."""
    for i in range(len(layers)):
        layer = layers[i]
        even, columns, after = layer[EVEN], layer[COLUMNS], up(layer[OUT], PAIR)
        h, z = matrix(tiles, i * tile, rows, columns), matrix(tiles, (i + 1) * tile, rows, after)
        w, b = (
            matrix(weights, layer[WEIGHT], even, columns),
            weights[layer[BIAS] : layer[BIAS] + even],
        )
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
            m, p = (
                matrix(momenta, layer[WEIGHT], even, columns),
                matrix(pull, layer[WEIGHT], even, columns),
            )
            weight_step(h, d, w, m, p, pulled, lr, carry, momentum, decays[i, 0], nesterov)
        if layer[BIAS_MOVES]:
            at, wide = layer[BIAS], up(layer[OUT], LANES)
            b, m, p = (
                matrix(weights, at, 1, wide),
                matrix(momenta, at, 1, wide),
                matrix(pull, at, 1, wide),
            )
            bias_step(d, b, m, p, pulled, lr, carry, momentum, decays[i, 1], nesterov)


@inline
def lowest_layer_that_learns(layers):
    """The first linear layer that is trained; the last one if none is."""
    i = 0
    while i < len(layers) - 1 and not (layers[i, MOVES] or layers[i, BIAS_MOVES]):
        i += 1
    return i


@inline
def rows_of_pass(n, j, inner, strength):
    """The rows of a batch of n that pass j uses: the first one, the step to the next one, and their number.

    Without an inner loop, or with one that has a strength, all rows; otherwise those of even place, and of odd place at last.
    """
    apart = 2 if inner and strength == ZERO else 1
    offset = 1 if apart == 2 and j == inner and n > 1 else 0
    return offset, apart, -(-(n - offset) // apart)


@inline
def predict(x, chosen, model, weights, memory):
    """h_0 to h_L from the samples `chosen`. Returns h_L and d_L."""
    (layers, convolutions), (turned, row, pixel, images, _, sample, tiles, tile) = model, memory
    depth, rows, after = len(layers), up(len(chosen), ROWS), up(layers[-1, OUT], PAIR)
    h = matrix(tiles, 0, rows, layers[0, COLUMNS])
    if len(convolutions):
        h[len(chosen) :] = ZERO
        convolve_samples(convolutions, x, chosen, weights, turned, row, pixel, images, sample, h)
    else:
        gather(x, chosen, h)
    forward(layers, weights, tiles, tile, rows)
    return matrix(tiles, depth * tile, rows, after), matrix(
        tiles, (2 * depth + 1) * tile, rows, after
    )


@inline
def learn(model, lowest, weights, momenta, pull, pulled, gradients, memory, count, decays, solver):
    """One step of the linear layers, from d_L; the gradients of convolutions are added to `gradients`."""
    (layers, convolutions), (_, row, _, images, slopes, sample, tiles, tile) = model, memory
    before, rows, (lowest_layer, lowest_convolution) = len(convolutions), up(count, ROWS), lowest
    bottom = lowest_layer if lowest_convolution == before else -1
    backward(
        layers, bottom, weights, momenta, pull, pulled, tiles, tile, rows, decays[before:], solver
    )
    if lowest_convolution < before:
        e = matrix(tiles, (len(layers) + 1) * tile, rows, layers[0, COLUMNS])
        pass_back(
            convolutions,
            lowest_convolution,
            weights,
            gradients,
            row,
            images,
            slopes,
            sample,
            e,
            count,
        )


@njit
def workspace(layers, floats, most, pulled, inner):
    """A thread's workspace (drawing above) of zeros, for `most` samples: the array that owns it, the part that is used, and views.

    `floats` are the sizes of its parts, `HELD` to `SAMPLE`.
    """
    depth, held, sample = len(layers), floats[HELD], floats[SAMPLE]
    models, anchored = 3 if pulled else 2, held if inner else 0
    tile = most * max(layers[:, COLUMNS].max(), up(layers[-1, OUT], PAIR))
    parts = [
        models * held,
        held,
        anchored,
        floats[SWAPPED],
        floats[ROW],
        floats[PIXEL],
        most * sample,
        sample,
    ]
    begin = np.array(parts).cumsum()
    owned = np.zeros(begin[-1] + 2 * (depth + 1) * tile + CACHE_LINE_FLOATS, np.float32)
    space = borrowed_array(owned)[
        -(owned.ctypes.data // 4) % CACHE_LINE_FLOATS :
    ]  # begins with a cache line
    weights, momenta, pull = (
        space[:held],
        space[held : 2 * held],
        space[(models - 1) * held : models * held],
    )
    gradients, anchor = space[begin[0] : begin[1]], space[begin[1] : begin[2]]
    turned, row, pixel = space[begin[2] :], space[begin[3] :], space[begin[4] :]
    memory = (
        turned,
        row,
        pixel,
        space[begin[5] :],
        space[begin[6] :],
        sample,
        space[begin[7] :],
        tile,
    )
    return owned, space, (weights, momenta, pull, gradients, anchor), memory


@njit(SIGNATURE, fastmath=MATHS, nogil=True, cache=True)
def train(start, data, model, step, results, turns):  # noqa: C901  (one compiled loop for all kinds of training)
    """Train clients from the rows `start` [1 or K, P], one piece of `results.bounds` after the other, until none is left.

    Threads call this function at once and take the pieces by the counter `turns` [1]. Each client is written by one thread.
    """
    vector_width()
    start, x, index, sizes = (
        borrowed_array(start),
        borrowed_array(data.x),
        borrowed_array(data.batches),
        borrowed_array(data.sizes),
    )
    labels, targets = borrowed_array(data.labels), borrowed_array(data.targets)
    layers, convolutions, runs = (
        borrowed_array(model.layers),
        borrowed_array(model.convolutions),
        borrowed_array(model.runs),
    )
    decays = borrowed_array(step.decays)
    pulls = borrowed_array(step.pulls)
    starts = borrowed_array(step.starts)
    sums, trained = borrowed_array(results.sums), borrowed_array(results.trained)
    factors, bounds, differences = results.factors, results.bounds, results.differences
    before, capacity = len(convolutions), min(index.shape[2], data.rows)
    pulled, summed, inner, most = (
        len(pulls) > 0,
        len(factors) > 0,
        step.inner_steps,
        up(capacity, ROWS),
    )
    lowest = (lowest_layer_that_learns(layers), lowest_that_learns(convolutions))
    owned, space, parameters, memory = workspace(layers, model.floats, most, pulled, inner > 0)
    weights, momenta, pull, gradients, anchor = parameters
    tables = (layers, convolutions)
    places, labelled, zeros = (
        np.empty(most, np.int64),
        np.empty(most, np.float32),
        np.zeros_like(step.decays),
    )
    chosen, own, none = borrowed_array(places), borrowed_array(labelled), borrowed_array(zeros)
    shared = len(start) - 1
    s = next_piece(turns)
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
                if t + 1 < index.shape[1]:
                    fetch_ahead(x, index[k, t + 1])
                place = (k * index.shape[1] + t) * index.shape[2]
                if inner:
                    anchor[:] = weights
                for j in range(inner + 1):
                    last, (offset, apart, count) = (
                        j == inner,
                        rows_of_pass(n, j, inner, step.strength),
                    )
                    fused = inner == 0 and count <= capacity
                    solver = (step.lr, carry, step.momentum, step.nesterov)
                    for done in range(0, count, capacity):
                        now = min(capacity, count - done)
                        take(index[k, t], offset + done * apart, apart, chosen[:now])
                        if len(targets):
                            take(targets, place + offset + done * apart, apart, own[:now])
                        z, d = predict(x, chosen[:now], tables, weights, memory)
                        loss = loss_gradient(
                            step.loss, z, chosen[:now], labels, own, count, layers[-1, OUT], d
                        )
                        if last:
                            sums[0, k] += loss * n / count
                            if step.strength > ZERO:
                                continue  # the gradient is that of the envelope
                        into, factor = (momenta, decays) if fused else (gradients, none)
                        made = solver if fused else (ZERO, ONE, ZERO, False)
                        learn(
                            tables,
                            lowest,
                            weights,
                            into,
                            pull,
                            pulled and fused,
                            gradients,
                            memory,
                            now,
                            factor,
                            made,
                        )
                    if not last:
                        inner_step(
                            convolutions, weights, gradients, anchor, step.rate, step.strength
                        )
                        continue
                    if inner:
                        sums[0, k] += n * return_to(anchor, weights, gradients, step.strength)
                    if not fused:
                        step_layers(
                            layers,
                            weights,
                            momenta,
                            pull,
                            pulled,
                            gradients,
                            decays[before:],
                            solver,
                        )
                    if lowest[1] < before:
                        step_convolutions(
                            convolutions, weights, momenta, pull, pulled, gradients, decays, solver
                        )
                sums[1, k] += n
                sums[2, k] += 1
                carry = step.momentum
            at, factor, add = (s, factors[k], k > bounds[s]) if summed else (k, ONE, False)
            total = finish_client(
                runs, weights, begun, following, differences, add, factor, trained[at]
            )
            if not (np.isfinite(sums[0, k]) and np.isfinite(total)):
                space[:] = ZERO  # NaN and infinities have reached the padding, too
                unpack(runs, following, weights)
        s = next_piece(turns)
    owned[0] = labelled[0] = zeros[0, 0] = (
        ZERO  # keeps these alive until here: `borrowed_array` does not count as a use
    )
    places[0] = 0
