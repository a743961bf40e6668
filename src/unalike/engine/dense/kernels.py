"""Compiled loops (numba) that train a chain of dense layers by SGD: forward pass, gradients and `core.solvers.SGD`.

Start reading at `train`, at the end. Each thread has one workspace, which stays in the cache while a client trains:

    weights | momenta | pull (if any) | h_0 h_1 ... h_L | (unused) d_1 ... d_L

`h_i` is what layer i takes ([rows, columns]: h_0 the samples, h_L the logits) and d_i the gradient of the loss in h_i. Rows are
padded to a multiple of 5, outputs to 2 and columns to two vectors, with zeros that stay zeros (drawing in `layout`): loops have
no remainders, loads are aligned, and each vector that is loaded is used several times. That is why `affine` and
`input_gradient` name five samples one by one: their sums stay in registers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit, types

from unalike._utils.simd import (
    LANES,
    MATHS,
    borrowed,
    fill,
    first,
    floor,
    larger,
    load,
    matrix,
    power,
    prefetch,
    smaller,
    store,
    tops,
    totals,
    turn,
    upto,
    widest,
)

ROWS, PAIR, LINE = 5, 2 * LANES, 16
"""Samples that `affine` and `input_gradient` name one by one; floats of two vectors; floats of a cache line."""

WIDE, OUT, COLUMNS, EVEN, WEIGHT, BIAS, SOURCE, BIAS_SOURCE, ACTIVATION, MOVES, BIAS_MOVES = range(11)
"""Columns of the table of layers: number of inputs, of outputs, both padded, the first float of weight and bias in the workspace
and in a client's row (-1: no bias), the activation after the layer, and whether weight and bias are trained."""
IDENTITY, RELU, TANH, SIGMOID = range(4)
"""Activations."""
CLASSES, BINARY, SQUARES = range(3)
LOSSES = {"classification": CLASSES, "binary": BINARY, "regression": SQUARES}
"""Losses, by the name of the task."""

ZERO, HALF, ONE, TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
LEAST, LOG2E, LN2 = np.float32(-87), np.float32(np.log2(np.e)), np.float32(np.log(2))
SERIES = tuple(np.float32(1 / math.factorial(i)) for i in range(2, 8))
"""Coefficients of e^r after 1 + r. For |r| <= ln(2) / 2 the rest of the series is less than half of the last bit."""
HUGE, HIGH = 1e200, np.float32(3e38)


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
    """The table of layers [L, 11]; columns `WIDE` to `BIAS_MOVES`."""
    held: int
    """Floats of the workspace that the parameters take."""


class Step(NamedTuple):
    """Loss and solver: g <- g + decay w + pull;  m <- momentum m + g;  w <- w - lr m  (Nesterov: w - lr (g + momentum m))."""

    loss: int
    """`CLASSES`, `BINARY` or `SQUARES`."""
    lr: np.float32
    momentum: np.float32
    nesterov: bool
    decays: np.ndarray
    """Factor of each layer's weight and bias in their gradients [L, 2]."""
    pulls: np.ndarray
    """Added to the gradients: rows [K, P], [1, P] for all clients or [0, 0] for none."""


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
    types.NamedTuple([WHOLE, types.int64], Model),
    types.NamedTuple([types.int64, types.float32, types.float32, types.boolean, FLOATS, FLOATS], Step),
    types.NamedTuple([types.boolean, VECTOR, COUNTS, array(types.float64, 2), FLOATS], Results),
    COUNTS,
)
"""The types for which `train` is compiled when this module is imported; kept on disk."""
inline = njit(fastmath=MATHS, inline="always")


@inline
def up(n, to):
    """The least multiple of `to` that is at least n."""
    return -(-n // to) * to


@inline
def affine(x, w, b, wide, out):
    """out = x w^T + b, five samples and two outputs at a time."""
    for o in range(0, w.shape[0], 2):
        for r in range(0, x.shape[0], 5):
            a0 = a1 = a2 = a3 = a4 = first(b[o])
            c0 = c1 = c2 = c3 = c4 = first(b[o + 1])
            for i in range(0, wide, LANES):
                u, v = load(w, o, i), load(w, o + 1, i)
                x0, x1, x2, x3, x4 = (
                    load(x, r, i),
                    load(x, r + 1, i),
                    load(x, r + 2, i),
                    load(x, r + 3, i),
                    load(x, r + 4, i),
                )
                a0, c0 = a0 + u * x0, c0 + v * x0
                a1, c1 = a1 + u * x1, c1 + v * x1
                a2, c2 = a2 + u * x2, c2 + v * x2
                a3, c3 = a3 + u * x3, c3 + v * x3
                a4, c4 = a4 + u * x4, c4 + v * x4
            s = totals((a0, a1, a2, a3, a4, c0, c1, c2, c3, c4))
            out[r, o], out[r, o + 1] = s[0], s[5]
            out[r + 1, o], out[r + 1, o + 1] = s[1], s[6]
            out[r + 2, o], out[r + 2, o + 1] = s[2], s[7]
            out[r + 3, o], out[r + 3, o + 1] = s[3], s[8]
            out[r + 4, o], out[r + 4, o + 1] = s[4], s[9]


@inline
def input_gradient(d, w, out):
    """out = d w, five samples and two vectors at a time."""
    for i in range(0, out.shape[1], PAIR):
        for r in range(0, d.shape[0], 5):
            a0 = a1 = a2 = a3 = a4 = c0 = c1 = c2 = c3 = c4 = fill(ZERO)
            for o in range(w.shape[0]):
                u, v = load(w, o, i), load(w, o, i + LANES)
                d0, d1, d2, d3, d4 = d[r, o], d[r + 1, o], d[r + 2, o], d[r + 3, o], d[r + 4, o]
                a0, c0 = a0 + u * d0, c0 + v * d0
                a1, c1 = a1 + u * d1, c1 + v * d1
                a2, c2 = a2 + u * d2, c2 + v * d2
                a3, c3 = a3 + u * d3, c3 + v * d3
                a4, c4 = a4 + u * d4, c4 + v * d4
            store(out, r, i, a0)
            store(out, r + 1, i, a1)
            store(out, r + 2, i, a2)
            store(out, r + 3, i, a3)
            store(out, r + 4, i, a4)
            store(out, r, i + LANES, c0)
            store(out, r + 1, i + LANES, c1)
            store(out, r + 2, i + LANES, c2)
            store(out, r + 3, i + LANES, c3)
            store(out, r + 4, i + LANES, c4)


@inline
def weight_step(x, d, w, m, pull, pulled, lr, carry, momentum, decay, nesterov):
    """One step of SGD with g = d^T x + decay w + pull, as in `Step`. Two outputs and two vectors at a time.

    `carry` is the momentum's factor of the old m: 0 in a client's first step, where m is the previous client's.
    """
    for o in range(0, w.shape[0], 2):
        for i in range(0, w.shape[1], PAIR):
            a = b = s = t = fill(ZERO)
            for r in range(x.shape[0]):
                u, v, p, q = load(x, r, i), load(x, r, i + LANES), d[r, o], d[r, o + 1]
                a, b, s, t = a + p * u, b + p * v, s + q * u, t + q * v
            if pulled:
                a, b = a + load(pull, o, i), b + load(pull, o, i + LANES)
                s, t = s + load(pull, o + 1, i), t + load(pull, o + 1, i + LANES)
            move(w, m, o, i, a, lr, carry, momentum, decay, nesterov)
            move(w, m, o, i + LANES, b, lr, carry, momentum, decay, nesterov)
            move(w, m, o + 1, i, s, lr, carry, momentum, decay, nesterov)
            move(w, m, o + 1, i + LANES, t, lr, carry, momentum, decay, nesterov)


@inline
def move(w, m, o, i, g, lr, carry, momentum, decay, nesterov):
    """One step of the vector of weights w[o, i:], with the gradient g + decay w."""
    before = load(w, o, i)
    s = g + decay * before
    now = carry * load(m, o, i) + s
    store(m, o, i, now)
    store(w, o, i, before - lr * (s + momentum * now if nesterov else now))


@inline
def bias_step(d, b, m, pull, pulled, lr, carry, momentum, decay, nesterov):
    """The same for a bias, g = sum d + decay b + pull; `b`, `m` and `pull` are matrices of one row."""
    for o in range(0, b.shape[1], LANES):
        g = load(pull, 0, o) if pulled else fill(ZERO)
        for r in range(d.shape[0]):
            g = g + load(d, r, o)
        move(b, m, 0, o, g, lr, carry, momentum, decay, nesterov)


@inline
def activate(kind, h, wide):
    """h <- f(h)."""
    for r in range(h.shape[0]):
        for i in range(wide):
            if kind == RELU:
                h[r, i] = ZERO if h[r, i] < ZERO else h[r, i]
            elif kind == TANH:
                h[r, i] = np.tanh(h[r, i])
            elif kind == SIGMOID:
                h[r, i] = ONE / (ONE + np.exp(-h[r, i]))


@inline
def activation_gradient(kind, e, h, wide):
    """e <- f'(z) e, from h = f(z)."""
    for r in range(h.shape[0]):
        for i in range(wide):
            if kind == RELU:
                e[r, i] = ZERO if h[r, i] <= ZERO else e[r, i]
            elif kind == TANH:
                e[r, i] *= ONE - h[r, i] * h[r, i]
            elif kind == SIGMOID:
                e[r, i] *= h[r, i] * (ONE - h[r, i])


@inline
def exponential(x):
    """e^x of a vector x <= 0, as 2^n e^r; e^-87 for x < -87. Relative error 1e-7 for x > -10, else 3e-7."""
    x = larger(x, LEAST)
    n = floor(x * LOG2E + HALF)
    r, (a, b, c, d, e, f) = x - n * LN2, SERIES
    return (ONE + r * (ONE + r * (a + r * (b + r * (c + r * (d + r * (e + r * f))))))) * power(n)


@inline
def softmax(z, r, classes, share, d):
    """d = share softmax(z) of the five samples from `r` on. Returns their largest logits, and their sums of e^(z - largest)."""
    a0 = a1 = a2 = a3 = a4 = fill(-HIGH)
    for c in range(0, classes, LANES):
        off = (upto(classes - c) - ONE) * HIGH
        a0 = larger(a0, load(z, r, c) + off)
        a1 = larger(a1, load(z, r + 1, c) + off)
        a2 = larger(a2, load(z, r + 2, c) + off)
        a3 = larger(a3, load(z, r + 3, c) + off)
        a4 = larger(a4, load(z, r + 4, c) + off)
    t = tops((a0, a1, a2, a3, a4))
    s0 = s1 = s2 = s3 = s4 = fill(ZERO)
    for c in range(0, classes, LANES):
        own = upto(classes - c)
        s0 = s0 + exponentials(z, r, c, t[0], own, d)
        s1 = s1 + exponentials(z, r + 1, c, t[1], own, d)
        s2 = s2 + exponentials(z, r + 2, c, t[2], own, d)
        s3 = s3 + exponentials(z, r + 3, c, t[3], own, d)
        s4 = s4 + exponentials(z, r + 4, c, t[4], own, d)
    s = totals((s0, s1, s2, s3, s4))
    f0, f1, f2, f3, f4 = share / s[0], share / s[1], share / s[2], share / s[3], share / s[4]
    for c in range(0, classes, LANES):
        store(d, r, c, load(d, r, c) * f0)
        store(d, r + 1, c, load(d, r + 1, c) * f1)
        store(d, r + 2, c, load(d, r + 2, c) * f2)
        store(d, r + 3, c, load(d, r + 3, c) * f3)
        store(d, r + 4, c, load(d, r + 4, c) * f4)
    return t, s


@inline
def exponentials(z, r, c, top, own, d):
    """e^(z - top) of a vector of logits times `own` (1 for a class, 0 for padding), also written into d."""
    e = exponential(smaller(load(z, r, c) - top, ZERO)) * own
    store(d, r, c, e)
    return e


@inline
def cross_entropy(z, index, labels, classes, share, d):
    """The sum of the cross-entropies of the samples `index`; its gradient times `share` goes into `d`."""
    loss, product = 0.0, np.float64(1)
    for five in range(0, d.shape[0], ROWS):
        largest, sums = softmax(z, five, classes, share, d)
        for r in range(five, min(five + ROWS, len(index))):
            true = labels[index[r]]
            if true < 0 or true >= classes:
                raise IndexError("a label is not among the model's outputs")
            d[r, true] -= share
            loss += largest[r - five] - z[r, true]
            product = product * sums[r - five]  # one logarithm for many samples
        if product > HUGE:
            loss, product = loss + np.log(product), np.float64(1)
    return loss + np.log(product)


@inline
def binary_cross_entropy(z, y, share, d):
    """The same for binary cross-entropies."""
    loss = 0.0
    for r in range(len(y)):
        loss += max(z[r, 0], ZERO) - z[r, 0] * y[r] + np.log1p(np.exp(-abs(z[r, 0])))
        d[r, 0] = (ONE / (ONE + np.exp(-z[r, 0])) - y[r]) * share
    return loss


@inline
def squared_error(z, y, share, d):
    """The same for squared errors."""
    loss = 0.0
    for r in range(len(y)):
        loss += (z[r, 0] - y[r]) ** 2
        d[r, 0] = TWO * (z[r, 0] - y[r]) * share
    return loss


@inline
def loss_gradient(kind, z, index, labels, targets, place, classes, d):
    """The sum of the losses of the samples `index` with logits `z`; the gradient of their mean goes into `d`.

    `labels` are the classes of all samples; for other tasks the labels are `targets` from `place` on.
    """
    rows = len(index)
    share, y = ONE / np.float32(rows), targets[place : place + rows]
    if kind == CLASSES:
        loss = cross_entropy(z, index, labels, classes, share, d)
    elif kind == BINARY:
        loss = binary_cross_entropy(z, y, share, d)
    else:
        loss = squared_error(z, y, share, d)
    for r in range(rows, d.shape[0]):  # numba would drop `d[rows:] = ZERO`, as nothing follows it here
        for c in range(0, d.shape[1], LANES):
            store(d, r, c, fill(ZERO))
    return loss


@inline
def unpack(layers, row, weights):
    """Copy a client's row into the workspace."""
    for layer in layers:
        for o in range(layer[OUT]):
            at, source = layer[WEIGHT] + o * layer[COLUMNS], layer[SOURCE] + o * layer[WIDE]
            weights[at : at + layer[WIDE]] = row[source : source + layer[WIDE]]
        at, source = layer[BIAS], layer[BIAS_SOURCE]
        if source >= 0:
            weights[at : at + layer[OUT]] = row[source : source + layer[OUT]]


@inline
def finish_client(layers, weights, begun, following, differences, add, factor, out):
    """Write a client's result into its row `out`, and the row that the next client starts from into the workspace, in one pass.

    Returns the sum of the client's parameters, which is finite if all of them are.
    """
    total = ZERO
    for layer in layers:
        for o in range(layer[OUT]):
            at, to = layer[WEIGHT] + o * layer[COLUMNS], layer[SOURCE] + o * layer[WIDE]
            total += write(
                weights[at:], begun[to:], following[to:], differences, add, factor, out[to : to + layer[WIDE]]
            )
        at, to = layer[BIAS], layer[BIAS_SOURCE]
        if to >= 0:
            total += write(
                weights[at:], begun[to:], following[to:], differences, add, factor, out[to : to + layer[OUT]]
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
    """One step of each layer, from the last to the `lowest`; d_i is computed with the weights before their step."""
    depth, (lr, carry, momentum, nesterov) = len(layers), solver
    for i in range(depth - 1, lowest - 1, -1):
        layer, here = layers[i], (depth + 1 + i) * tile
        even, columns, after = layer[EVEN], layer[COLUMNS], up(layer[OUT], PAIR)
        w = matrix(weights, layer[WEIGHT], even, columns)
        h, d = matrix(tiles, i * tile, rows, columns), matrix(tiles, here + tile, rows, after)
        if i > lowest:
            e = matrix(tiles, here, rows, columns)
            input_gradient(d, w, e)
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
    layers, decays, pulls = borrowed(model.layers), borrowed(step.decays), borrowed(step.pulls)
    sums, trained = borrowed(results.sums), borrowed(results.trained)
    factors, bounds, differences = results.factors, results.bounds, results.differences
    depth, lowest, top = len(layers), 0, layers[:, COLUMNS].max()
    while lowest < depth - 1 and not (layers[lowest, MOVES] or layers[lowest, BIAS_MOVES]):
        lowest += 1
    tile = up(index.shape[2], ROWS) * max(top, up(layers[-1, OUT], PAIR))
    pulled, summed, held = len(pulls) > 0, len(factors) > 0, model.held
    models = 3 if pulled else 2
    owned = np.empty(models * held + 2 * (depth + 1) * tile + LINE, np.float32)
    space = borrowed(owned)[-(owned.ctypes.data // 4) % LINE :]  # begins with a cache line
    weights, momenta, pull = space[:held], space[held : 2 * held], space[(models - 1) * held : models * held]
    tiles = space[models * held :]
    space[:] = ZERO
    shared = len(start) - 1
    s = turn(turns)
    while s < len(bounds) - 1:
        unpack(layers, start[min(bounds[s], shared)], weights)
        for k in range(bounds[s], bounds[s + 1]):
            begun, following, carry = start[min(k, shared)], start[min(k + 1, shared)], ZERO
            if pulled:
                unpack(layers, pulls[min(k, len(pulls) - 1)], pull)
            for t in range(index.shape[1]):
                n = sizes[k, t]
                if n == 0:
                    continue
                rows = up(n, ROWS)
                gather(x, index[k, t, :n], matrix(tiles, 0, rows, layers[0, COLUMNS]))
                if t + 1 < index.shape[1]:
                    fetch_ahead(x, index[k, t + 1])
                forward(layers, weights, tiles, tile, rows)
                after = up(layers[-1, OUT], PAIR)
                z, d = matrix(tiles, depth * tile, rows, after), matrix(tiles, (2 * depth + 1) * tile, rows, after)
                place = (k * index.shape[1] + t) * index.shape[2]
                sums[0, k] += loss_gradient(step.loss, z, index[k, t, :n], labels, targets, place, layers[-1, OUT], d)
                sums[1, k] += n
                sums[2, k] += 1
                solver = (step.lr, carry, step.momentum, step.nesterov)
                backward(layers, lowest, weights, momenta, pull, pulled, tiles, tile, rows, decays, solver)
                carry = step.momentum
            row, factor, add = (s, factors[k], k > bounds[s]) if summed else (k, ONE, False)
            total = finish_client(layers, weights, begun, following, differences, add, factor, trained[row])
            if not (np.isfinite(sums[0, k]) and np.isfinite(total)):
                space[:] = ZERO  # NaN and infinities have reached the padding, too
                unpack(layers, following, weights)
        s = turn(turns)
    owned[0] = ZERO  # keeps `owned` alive until here: `borrowed` does not count as a use
