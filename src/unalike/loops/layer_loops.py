"""Compiled loops (numba) over the samples of a batch: dense layers, activations and losses, forward and backward.

`kernels` calls them. Rows are padded to a multiple of 5, outputs to 2 and columns to two vectors, so loops have no remainders,
loads are aligned, and each vector that is loaded is used several times. That is why `affine` and `input_gradient` name five
samples one by one: their sums stay in registers.
"""

import math

import numpy as np
from numba import njit

from unalike.loops.simd import (
    LANES,
    MATHS,
    fill,
    first,
    floor,
    horizontal_max,
    horizontal_sum,
    lanes_up_to,
    larger,
    load,
    power,
    smaller,
    store,
)

ROWS, PAIR = 5, 2 * LANES
"""Samples that `affine` and `input_gradient` name one by one; floats of two vectors."""

WIDE, OUT, COLUMNS, EVEN, WEIGHT, BIAS, ACTIVATION, MOVES, BIAS_MOVES = range(9)
"""Columns of the table of linear layers: number of inputs, of outputs, both padded, the first float of weight and bias in the
workspace, the activation after the layer, and whether weight and bias are trained."""
IDENTITY, RELU, TANH, SIGMOID = range(4)
"""Activations."""
CLASSES, BINARY, SQUARES = range(3)
"""Losses."""

ZERO, HALF, ONE, TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
LEAST, LOG2E, LN2 = np.float32(-87), np.float32(np.log2(np.e)), np.float32(np.log(2))
SERIES = tuple(np.float32(1 / math.factorial(i)) for i in range(2, 8))
"""Coefficients of e^r after 1 + r. For |r| <= ln(2) / 2 the rest of the series is less than half of the last bit."""
HUGE, HIGH = 1e200, np.float32(3e38)

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
            s = horizontal_sum((a0, a1, a2, a3, a4, c0, c1, c2, c3, c4))
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

    `carry` is the momentum's factor of the old m: 0 in a client's first step, where m is the previous client's, unless `starts`
    replaces it.
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
        off = (lanes_up_to(classes - c) - ONE) * HIGH
        a0 = larger(a0, load(z, r, c) + off)
        a1 = larger(a1, load(z, r + 1, c) + off)
        a2 = larger(a2, load(z, r + 2, c) + off)
        a3 = larger(a3, load(z, r + 3, c) + off)
        a4 = larger(a4, load(z, r + 4, c) + off)
    t = horizontal_max((a0, a1, a2, a3, a4))
    s0 = s1 = s2 = s3 = s4 = fill(ZERO)
    for c in range(0, classes, LANES):
        own = lanes_up_to(classes - c)
        s0 = s0 + exponentials(z, r, c, t[0], own, d)
        s1 = s1 + exponentials(z, r + 1, c, t[1], own, d)
        s2 = s2 + exponentials(z, r + 2, c, t[2], own, d)
        s3 = s3 + exponentials(z, r + 3, c, t[3], own, d)
        s4 = s4 + exponentials(z, r + 4, c, t[4], own, d)
    s = horizontal_sum((s0, s1, s2, s3, s4))
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
def loss_gradient(kind, z, index, labels, targets, count, classes, d):
    """The sum of the losses of the samples `index` with logits `z`; the gradient of this sum over `count` goes into `d`.

    `labels` are the classes of all samples; for other tasks the labels are the first of `targets`.
    """
    rows = len(index)
    share, y = ONE / np.float32(count), targets[:rows]
    if kind == CLASSES:
        loss = cross_entropy(z, index, labels, classes, share, d)
    elif kind == BINARY:
        loss = binary_cross_entropy(z, y, share, d)
    else:
        loss = squared_error(z, y, share, d)
    for r in range(
        rows, d.shape[0]
    ):  # numba would drop `d[rows:] = ZERO`, as nothing follows it here
        for c in range(0, d.shape[1], LANES):
            store(d, r, c, fill(ZERO))
    return loss
