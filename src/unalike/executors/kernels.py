"""Local training by SGD of a chain of dense layers as compiled loops (numba): the formulas of `core.dense` and `core.solver`.

A client's weights, momenta and activations stay in one workspace, and in the cache, from its first step to its last. There rows
come in fives and columns in sixteens, filled up with zeros that stay zeros: loops have no remainders, loads are aligned, and each
number that is loaded is used several times.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from unalike.core.vectors import matrix, widest

ROWS, LANES = 5, 16
"""Samples that `affine`, `errors` and `descend` name one by one; floats that a line of the cache holds."""

WIDE, OUT, COLUMNS, EVEN, WEIGHT, BIAS, SOURCE, BIAS_SOURCE, ACTIVATION, MOVES, BIAS_MOVES = range(11)
"""What the table of layers says of each: its inputs, its outputs, both filled up, where its weight and its bias lie in the
workspace and in a client's parameters (-1: it has no bias), the activation after it, and whether weight and bias are trained."""
IDENTITY, RELU, TANH, SIGMOID = range(4)
"""Activations."""
CLASSES, BINARY, SQUARES = range(3)
LOSSES = {"classification": CLASSES, "binary": BINARY, "regression": SQUARES}
"""Losses, by the name of the task."""

ZERO, HALF, ONE, TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
LEAST, LOG2E, LN2 = np.float32(-87), np.float32(np.log2(np.e)), np.float32(np.log(2))
SERIES = tuple(np.float32(1 / math.factorial(i)) for i in range(2, 8))
"""Of e^r: beyond 1 + r, until what is left out is less than half of the last bit while |r| <= ln(2) / 2."""
BIAS_OF_EXPONENT, FRACTION = np.int32(127), np.int32(23)
HUGE = 1e200
MATHS = {"reassoc", "contract", "nsz", "arcp"}  # a NaN stays one: it is how divergence shows
FLOATS, WHOLE = "f4[:,::1]", "i8[:,::1]"
SIGNATURE = (
    f"void({FLOATS}, {FLOATS}, i8[:,:,::1], f4[:,:,::1], {WHOLE}, {WHOLE}, i8, "
    f"{FLOATS}, {FLOATS}, i8, f4, f4, b1, b1, f4[::1], i8[::1], f8[::1], {FLOATS}, i8, i8)"
)
"""That `train` is compiled for when this module is imported, once on a machine."""
inline = njit(fastmath=MATHS, inline="always")


@inline
def up(n, to):
    """The least multiple of `to` from `n` on."""
    return -(-n // to) * to


@inline
def affine(x, w, b, out):
    """out = x w^T + b, five samples and two outputs at a time."""
    for o in range(0, w.shape[0], 2):
        for r in range(0, x.shape[0], 5):
            a0 = a1 = a2 = a3 = a4 = c0 = c1 = c2 = c3 = c4 = ZERO
            for i in range(x.shape[1]):
                u, v = w[o, i], w[o + 1, i]
                a0 += u * x[r, i]
                a1 += u * x[r + 1, i]
                a2 += u * x[r + 2, i]
                a3 += u * x[r + 3, i]
                a4 += u * x[r + 4, i]
                c0 += v * x[r, i]
                c1 += v * x[r + 1, i]
                c2 += v * x[r + 2, i]
                c3 += v * x[r + 3, i]
                c4 += v * x[r + 4, i]
            out[r, o], out[r, o + 1] = a0 + b[o], c0 + b[o + 1]
            out[r + 1, o], out[r + 1, o + 1] = a1 + b[o], c1 + b[o + 1]
            out[r + 2, o], out[r + 2, o + 1] = a2 + b[o], c2 + b[o + 1]
            out[r + 3, o], out[r + 3, o + 1] = a3 + b[o], c3 + b[o + 1]
            out[r + 4, o], out[r + 4, o + 1] = a4 + b[o], c4 + b[o + 1]


@inline
def errors(d, w, out):
    """out = d w, five samples and two outputs at a time."""
    out[:] = ZERO
    for r in range(0, d.shape[0], 5):
        for o in range(0, w.shape[0], 2):
            a0, a1, a2, a3, a4 = d[r, o], d[r + 1, o], d[r + 2, o], d[r + 3, o], d[r + 4, o]
            c0, c1, c2, c3, c4 = d[r, o + 1], d[r + 1, o + 1], d[r + 2, o + 1], d[r + 3, o + 1], d[r + 4, o + 1]
            for i in range(out.shape[1]):
                u, v = w[o, i], w[o + 1, i]
                out[r, i] += a0 * u + c0 * v
                out[r + 1, i] += a1 * u + c1 * v
                out[r + 2, i] += a2 * u + c2 * v
                out[r + 3, i] += a3 * u + c3 * v
                out[r + 4, i] += a4 * u + c4 * v


@inline
def descend(x, d, w, m, pull, pulled, g, rate, memory, keep, decay, nesterov):
    """One step of SGD along g = d^T x + decay w + pull:  m <- keep m + g;  w <- w - rate m  (Nesterov: - rate (g + keep m)).

    `memory` stands for `keep` before m, and is 0 in a client's first step.
    """
    ten = x.shape[0] >= 10  # of the last samples, whose part of g is not written down
    last = x.shape[0] - (10 if ten else 5)
    if last == 0 and not pulled:
        g[:] = ZERO
    for o in range(w.shape[0]):
        if pulled:
            for i in range(x.shape[1]):
                g[i] = pull[o, i]
        for r in range(0, last, 5):
            d0, d1, d2, d3, d4 = d[r, o], d[r + 1, o], d[r + 2, o], d[r + 3, o], d[r + 4, o]
            if r == 0 and not pulled:
                for i in range(x.shape[1]):
                    g[i] = d0 * x[r, i] + d1 * x[r + 1, i] + d2 * x[r + 2, i] + d3 * x[r + 3, i] + d4 * x[r + 4, i]
            else:
                for i in range(x.shape[1]):
                    g[i] += d0 * x[r, i] + d1 * x[r + 1, i] + d2 * x[r + 2, i] + d3 * x[r + 3, i] + d4 * x[r + 4, i]
        r = last
        d0, d1, d2, d3, d4 = d[r, o], d[r + 1, o], d[r + 2, o], d[r + 3, o], d[r + 4, o]
        if ten:
            d5, d6, d7, d8, d9 = d[r + 5, o], d[r + 6, o], d[r + 7, o], d[r + 8, o], d[r + 9, o]
            for i in range(x.shape[1]):
                s = d0 * x[r, i] + d1 * x[r + 1, i] + d2 * x[r + 2, i] + d3 * x[r + 3, i] + d4 * x[r + 4, i]
                s += d5 * x[r + 5, i] + d6 * x[r + 6, i] + d7 * x[r + 7, i] + d8 * x[r + 8, i] + d9 * x[r + 9, i]
                move(w, m, o, i, s + g[i], rate, memory, keep, decay, nesterov)
        else:
            for i in range(x.shape[1]):
                s = d0 * x[r, i] + d1 * x[r + 1, i] + d2 * x[r + 2, i] + d3 * x[r + 3, i] + d4 * x[r + 4, i]
                move(w, m, o, i, s + g[i], rate, memory, keep, decay, nesterov)


@inline
def move(w, m, o, i, g, rate, memory, keep, decay, nesterov):
    """One entry along g + decay w."""
    s = g + decay * w[o, i]
    now = memory * m[o, i] + s
    m[o, i] = now
    w[o, i] -= rate * (s + keep * now if nesterov else now)


@inline
def descend_bias(d, b, m, pull, pulled, rate, memory, keep, decay, nesterov):
    """The same of a bias, g = sum d + decay b + pull."""
    own, ahead = (ONE, keep) if nesterov else (ZERO, ONE)
    for o in range(len(b)):
        s = decay * b[o]
        for r in range(d.shape[0]):
            s += d[r, o]
        if pulled:
            s += pull[o]
        m[o] = memory * m[o] + s
        b[o] -= rate * (own * s + ahead * m[o])


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
def back(kind, e, h, wide):
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
    """e^x for x <= 0 as 2^n e^r, without a call, so that many are made at once; e^-87 for what is less. To 1e-7 of it above -10,
    and 3e-7 below.
    """
    x = LEAST if x < LEAST else x
    n = np.floor(x * LOG2E + HALF)
    r, (a, b, c, d, e, f) = x - n * LN2, SERIES
    series = ONE + r * (ONE + r * (a + r * (b + r * (c + r * (d + r * (e + r * f))))))
    return series * np.int32((np.int32(n) + BIAS_OF_EXPONENT) << FRACTION).view(np.float32)


@inline
def slopes(kind, z, y, classes, d):
    """The sum of the losses of the logits `z`, and in `d` the gradient of their mean."""
    total, product, share = 0.0, np.float64(1), ONE / np.float32(len(y))
    d[len(y) :] = ZERO
    for r in range(len(y)):
        if kind == CLASSES:
            true, top, summed = int(y[r]), z[r, 0], ZERO
            if true < 0 or true >= classes:
                raise IndexError("a label is not among the model's outputs")
            for c in range(classes):
                top = max(top, z[r, c])
            for c in range(z.shape[1]):
                e = exponential(z[r, c] - top) if c < classes else ZERO
                d[r, c] = e
                summed += e
            for c in range(z.shape[1]):
                d[r, c] *= share / summed
            d[r, true] -= share
            total += top - z[r, true]
            product = product * summed  # one logarithm for many samples
            if product > HUGE:
                total, product = total + np.log(product), np.float64(1)
        elif kind == BINARY:
            total += max(z[r, 0], ZERO) - z[r, 0] * y[r] + np.log1p(np.exp(-abs(z[r, 0])))
            d[r, 0] = (ONE / (ONE + np.exp(-z[r, 0])) - y[r]) * share
        else:
            total += (z[r, 0] - y[r]) ** 2
            d[r, 0] = TWO * (z[r, 0] - y[r]) * share
    return total + np.log(product)


@inline
def load(layers, own, weights):
    """A client's parameters into the workspace."""
    for layer in layers:
        for o in range(layer[OUT]):
            at, source = layer[WEIGHT] + o * layer[COLUMNS], layer[SOURCE] + o * layer[WIDE]
            weights[at : at + layer[WIDE]] = own[source : source + layer[WIDE]]
        at, source = layer[BIAS], layer[BIAS_SOURCE]
        if source >= 0:
            weights[at : at + layer[OUT]] = own[source : source + layer[OUT]]


@inline
def change(layers, weights, begun, following, apart, add, factor, own):
    """A client's parameters out of the workspace into `own`, as `put` says, and those that the next one begins with into it. Their
    sum, which is finite where all of them are.
    """
    total = ZERO
    for layer in layers:
        for o in range(layer[OUT]):
            at, to = layer[WEIGHT] + o * layer[COLUMNS], layer[SOURCE] + o * layer[WIDE]
            total += put(weights[at:], begun[to:], following[to:], apart, add, factor, own[to : to + layer[WIDE]])
        at, to = layer[BIAS], layer[BIAS_SOURCE]
        if to >= 0:
            total += put(weights[at:], begun[to:], following[to:], apart, add, factor, own[to : to + layer[OUT]])
    return total


@inline
def put(now, then, following, apart, add, factor, out):
    """out = factor now, or (`apart`) factor (now - then), or (`add`) that onto what is there; now = following."""
    total = ZERO
    for i in range(len(out)):
        total += now[i]
        gained = factor * (now[i] - (then[i] if apart else ZERO))
        out[i] = gained + (out[i] if add else ZERO)
        now[i] = following[i]
    return total


@inline
def gather(x, index, h):
    """h = the rows `index` of x, then zeros."""
    h[len(index) :] = ZERO
    for r in range(len(index)):
        at = index[r]
        if at < 0 or at >= len(x):
            raise IndexError("a sample is not among the data")
        for i in range(x.shape[1]):
            h[r, i] = x[at, i]


@inline
def forward(layers, weights, tiles, tile, rows):
    """Each layer's tile from the one before."""
    for i in range(len(layers)):
        layer = layers[i]
        even, columns, after = layer[EVEN], layer[COLUMNS], up(layer[OUT], LANES)
        h, z = matrix(tiles, i * tile, rows, columns), matrix(tiles, (i + 1) * tile, rows, after)
        affine(h, matrix(weights, layer[WEIGHT], even, columns), weights[layer[BIAS] : layer[BIAS] + even], z)
        if layer[ACTIVATION]:
            activate(layer[ACTIVATION], z, layer[OUT])


@njit(SIGNATURE, fastmath=MATHS, nogil=True, cache=True)
def train(
    start,
    x,
    index,
    y,
    sizes,
    layers,
    held,
    decays,
    pulls,
    loss,
    rate,
    keep,
    nesterov,
    apart,
    factors,
    bounds,
    losses,
    trained,
    first,
    end,
):
    """Writes what clients come to: sums of losses into `losses` [K], and into row s of `trained` [S, P] the parameters of the
    client bounds[s], or (`apart`) what was added to them; with `factors` [K] the sum of that over the clients bounds[s] to
    bounds[s + 1] - 1. Does so for the rows `first` to `end` - 1.

    start: parameters [1 or K, P]. x: samples [N, D], of which `index` [K, T, B] makes the batches. y: labels [K, T, B].
    sizes: samples of every step [K, T], 0 for none. layers: the table described above, whose parameters take `held` floats of the
    workspace. decays: what each layer's weight and bias are multiplied with in their gradients [L, 2]. pulls: what is added to the
    gradients [0, 1 or K, P].
    """
    widest()
    depth, lowest, top = len(layers), 0, layers[:, COLUMNS].max()
    while lowest < depth - 1 and not (layers[lowest, MOVES] or layers[lowest, BIAS_MOVES]):
        lowest += 1
    tile = up(index.shape[2], ROWS) * max(top, up(layers[-1, OUT], LANES))
    pulled, summed = len(pulls) > 0, len(factors) > 0
    models = 3 if pulled else 2
    space = np.empty(models * held + top + 2 * (depth + 1) * tile + LANES, np.float32)
    space = space[(-space.ctypes.data % 64) // 4 :]
    weights, momenta, pull = space[:held], space[held : 2 * held], space[(models - 1) * held : models * held]
    g, tiles = space[models * held : models * held + top], space[models * held + top :]
    space[:] = ZERO
    shared = len(start) - 1
    load(layers, start[min(bounds[first], shared)], weights)
    for s in range(first, end):
        for k in range(bounds[s], bounds[s + 1]):
            begun, following, memory = start[min(k, shared)], start[min(k + 1, shared)], ZERO
            if pulled:
                load(layers, pulls[min(k, len(pulls) - 1)], pull)
            for t in range(index.shape[1]):
                n = sizes[k, t]
                if n == 0:
                    continue
                rows = up(n, ROWS)
                gather(x, index[k, t, :n], matrix(tiles, 0, rows, layers[0, COLUMNS]))
                forward(layers, weights, tiles, tile, rows)
                after = up(layers[-1, OUT], LANES)
                z, d = matrix(tiles, depth * tile, rows, after), matrix(tiles, (2 * depth + 1) * tile, rows, after)
                losses[k] += slopes(loss, z, y[k, t, :n], layers[-1, OUT], d)
                for i in range(depth - 1, lowest - 1, -1):
                    layer, here = layers[i], (depth + 1 + i) * tile
                    even, columns, after = layer[EVEN], layer[COLUMNS], up(layer[OUT], LANES)
                    w = matrix(weights, layer[WEIGHT], even, columns)
                    h, d = matrix(tiles, i * tile, rows, columns), matrix(tiles, here + tile, rows, after)
                    if i > lowest:
                        e = matrix(tiles, here, rows, columns)
                        errors(d, w, e)
                        back(layers[i - 1, ACTIVATION], e, h, layer[WIDE])
                    if layer[MOVES]:
                        m, p = matrix(momenta, layer[WEIGHT], even, columns), matrix(pull, layer[WEIGHT], even, columns)
                        descend(h, d, w, m, p, pulled, g, rate, memory, keep, decays[i, 0], nesterov)
                    if layer[BIAS_MOVES]:
                        at, past = layer[BIAS], layer[BIAS] + layer[OUT]
                        m, p = momenta[at:past], pull[at:past]
                        descend_bias(d, weights[at:past], m, p, pulled, rate, memory, keep, decays[i, 1], nesterov)
                memory = keep
            factor, add = factors[k] if summed else ONE, summed and k > bounds[s]
            total = change(layers, weights, begun, following, apart, add, factor, trained[s])
            if not (np.isfinite(losses[k]) and np.isfinite(total)):
                space[:] = ZERO  # it went into the zeros, too
                load(layers, following, weights)
