"""Local training by SGD of a chain of dense layers as compiled loops (numba): the formulas of `core.dense` and `core.solver`.

A client's weights, momenta and activations stay in one workspace, and in the cache, from its first step to its last. There
samples come in fives, outputs in twos and columns in pairs of vectors, filled up with zeros that stay zeros: loops have no
remainders, loads are aligned, and each vector that is loaded is used several times.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

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
"""Samples that `affine` and `errors` name one by one; floats of two vectors; those that come into the cache together."""

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
HUGE, HIGH = 1e200, np.float32(3e38)
FLOATS, WHOLE = "f4[:,::1]", "i8[:,::1]"
SIGNATURE = (
    f"void({FLOATS}, {FLOATS}, i8[:,:,::1], i8[::1], f4[::1], {WHOLE}, {WHOLE}, i8, "
    f"{FLOATS}, {FLOATS}, i8, f4, f4, b1, b1, f4[::1], i8[::1], f8[:,::1], {FLOATS}, i8[::1])"
)
"""That `train` is compiled for when this module is imported, once on a machine."""
inline = njit(fastmath=MATHS, inline="always")


@inline
def up(n, to):
    """The least multiple of `to` from `n` on."""
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
def errors(d, w, out):
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
def descend(x, d, w, m, pull, pulled, rate, client_state, keep, decay, nesterov):
    """One step of SGD along g = d^T x + decay w + pull:  m <- keep m + g;  w <- w - rate m  (Nesterov: - rate (g + keep m)).

    `client_state` stands for `keep` before m, and is 0 in a client's first step. Two outputs and two vectors at a time.
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
            move(w, m, o, i, a, rate, client_state, keep, decay, nesterov)
            move(w, m, o, i + LANES, b, rate, client_state, keep, decay, nesterov)
            move(w, m, o + 1, i, s, rate, client_state, keep, decay, nesterov)
            move(w, m, o + 1, i + LANES, t, rate, client_state, keep, decay, nesterov)


@inline
def move(w, m, o, i, g, rate, client_state, keep, decay, nesterov):
    """A vector of weights along g + decay w."""
    before = load(w, o, i)
    s = g + decay * before
    now = client_state * load(m, o, i) + s
    store(m, o, i, now)
    store(w, o, i, before - rate * (s + keep * now if nesterov else now))


@inline
def descend_bias(d, b, m, pull, pulled, rate, client_state, keep, decay, nesterov):
    """The same of a bias, g = sum d + decay b + pull, all of them rows of one matrix each."""
    for o in range(0, b.shape[1], LANES):
        g = load(pull, 0, o) if pulled else fill(ZERO)
        for r in range(d.shape[0]):
            g = g + load(d, r, o)
        move(b, m, 0, o, g, rate, client_state, keep, decay, nesterov)


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
    """e^x of a vector x <= 0 as 2^n e^r; e^-87 for what is less. To 1e-7 of it above -10, and 3e-7 below."""
    x = larger(x, LEAST)
    n = floor(x * LOG2E + HALF)
    r, (a, b, c, d, e, f) = x - n * LN2, SERIES
    return (ONE + r * (ONE + r * (a + r * (b + r * (c + r * (d + r * (e + r * f))))))) * power(n)


@inline
def softmax(z, r, classes, share, d):
    """d = share softmax(z) of five samples from `r` on; their largest logits, and their sums of e^(z - the largest)."""
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
        s0 = s0 + raised(z, r, c, t[0], own, d)
        s1 = s1 + raised(z, r + 1, c, t[1], own, d)
        s2 = s2 + raised(z, r + 2, c, t[2], own, d)
        s3 = s3 + raised(z, r + 3, c, t[3], own, d)
        s4 = s4 + raised(z, r + 4, c, t[4], own, d)
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
def raised(z, r, c, top, own, d):
    """e^(z - top) of a vector of logits, also written into d; 0 where they are not a sample's `own`."""
    e = exponential(smaller(load(z, r, c) - top, ZERO)) * own
    store(d, r, c, e)
    return e


@inline
def of_classes(z, index, labels, classes, share, d):
    """The sum of the cross-entropies of logits, and in `d` the gradient of `share` times it. `labels` are those of all samples."""
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
def of_truths(z, y, share, d):
    """The same of binary cross-entropies."""
    loss = 0.0
    for r in range(len(y)):
        loss += max(z[r, 0], ZERO) - z[r, 0] * y[r] + np.log1p(np.exp(-abs(z[r, 0])))
        d[r, 0] = (ONE / (ONE + np.exp(-z[r, 0])) - y[r]) * share
    return loss


@inline
def of_numbers(z, y, share, d):
    """The same of squared errors."""
    loss = 0.0
    for r in range(len(y)):
        loss += (z[r, 0] - y[r]) ** 2
        d[r, 0] = TWO * (z[r, 0] - y[r]) * share
    return loss


@inline
def slopes(kind, z, index, labels, targets, place, classes, d):
    """The sum of the losses of the logits `z` of the samples `index`, and in `d` the gradient of their mean.

    `labels` are the classes of all samples, or else `targets` from `place` on the numbers of these.
    """
    rows = len(index)
    share, y = ONE / np.float32(rows), targets[place : place + rows]
    if kind == CLASSES:
        loss = of_classes(z, index, labels, classes, share, d)
    elif kind == BINARY:
        loss = of_truths(z, y, share, d)
    else:
        loss = of_numbers(z, y, share, d)
    for r in range(rows, d.shape[0]):  # as the last thing that is done with it, numba would leave `d[rows:] = ZERO` out
        for c in range(0, d.shape[1], LANES):
            store(d, r, c, fill(ZERO))
    return loss


@inline
def unpack(layers, own, weights):
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
def announce(x, index):
    """That the rows `index` of x are gathered next: they come while the batch before them is learnt from."""
    for at in index:
        for i in range(0, x.shape[1], LINE):
            prefetch(x, at * x.shape[1] + i)


@inline
def forward(layers, weights, tiles, tile, rows):
    """Each layer's tile from the one before."""
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
    """One step of each layer down to the `lowest`; the errors of the layer before are made of the weights as they were."""
    depth, (rate, client_state, keep, nesterov) = len(layers), solver
    for i in range(depth - 1, lowest - 1, -1):
        layer, here = layers[i], (depth + 1 + i) * tile
        even, columns, after = layer[EVEN], layer[COLUMNS], up(layer[OUT], PAIR)
        w = matrix(weights, layer[WEIGHT], even, columns)
        h, d = matrix(tiles, i * tile, rows, columns), matrix(tiles, here + tile, rows, after)
        if i > lowest:
            e = matrix(tiles, here, rows, columns)
            errors(d, w, e)
            back(layers[i - 1, ACTIVATION], e, h, layer[WIDE])
        if layer[MOVES]:
            m, p = matrix(momenta, layer[WEIGHT], even, columns), matrix(pull, layer[WEIGHT], even, columns)
            descend(h, d, w, m, p, pulled, rate, client_state, keep, decays[i, 0], nesterov)
        if layer[BIAS_MOVES]:
            at, wide = layer[BIAS], up(layer[OUT], LANES)
            b, m, p = matrix(weights, at, 1, wide), matrix(momenta, at, 1, wide), matrix(pull, at, 1, wide)
            descend_bias(d, b, m, p, pulled, rate, client_state, keep, decays[i, 1], nesterov)


@njit(SIGNATURE, fastmath=MATHS, nogil=True, cache=True)
def train(
    start,
    x,
    index,
    labels,
    targets,
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
    tally,
    trained,
    turns,
):
    """Writes what clients come to: sums of losses, samples and steps into `tally` [3, K], into the rows of `trained` [K, P] their
    parameters, or (`apart`) what was added to them; with `factors` [K] into row s of `trained` [S, P] the sum of that over piece s.
    Does so for the pieces whose `turns` it takes: piece s are the clients bounds[s] to bounds[s + 1] - 1.

    start: parameters [1 or K, P]. x: samples [N, D], of which `index` [K, T, B] makes the batches. labels: the classes of all
    samples [N], or `targets`: the numbers of the batches' samples [K T B]; the other is empty. sizes: samples of every step [K, T],
    0 for none. layers: the table described above, whose parameters take `held` floats of the workspace. decays: what each layer's
    weight and bias are multiplied with in their gradients [L, 2]. pulls: what is added to the gradients [0, 1 or K, P].
    """
    widest()
    start, x, index, sizes = borrowed(start), borrowed(x), borrowed(index), borrowed(sizes)
    labels, targets = borrowed(labels), borrowed(targets)
    layers, decays, pulls = borrowed(layers), borrowed(decays), borrowed(pulls)
    tally, trained = borrowed(tally), borrowed(trained)
    depth, lowest, top = len(layers), 0, layers[:, COLUMNS].max()
    while lowest < depth - 1 and not (layers[lowest, MOVES] or layers[lowest, BIAS_MOVES]):
        lowest += 1
    tile = up(index.shape[2], ROWS) * max(top, up(layers[-1, OUT], PAIR))
    pulled, summed = len(pulls) > 0, len(factors) > 0
    models = 3 if pulled else 2
    owned = np.empty(models * held + 2 * (depth + 1) * tile + LINE, np.float32)
    space = borrowed(owned)[-(owned.ctypes.data // 4) % LINE :]
    weights, momenta, pull = space[:held], space[held : 2 * held], space[(models - 1) * held : models * held]
    tiles = space[models * held :]
    space[:] = ZERO
    shared = len(start) - 1
    s = turn(turns)
    while s < len(bounds) - 1:
        unpack(layers, start[min(bounds[s], shared)], weights)
        for k in range(bounds[s], bounds[s + 1]):
            begun, following, client_state = start[min(k, shared)], start[min(k + 1, shared)], ZERO
            if pulled:
                unpack(layers, pulls[min(k, len(pulls) - 1)], pull)
            for t in range(index.shape[1]):
                n = sizes[k, t]
                if n == 0:
                    continue
                rows = up(n, ROWS)
                gather(x, index[k, t, :n], matrix(tiles, 0, rows, layers[0, COLUMNS]))
                if t + 1 < index.shape[1]:
                    announce(x, index[k, t + 1])
                forward(layers, weights, tiles, tile, rows)
                after = up(layers[-1, OUT], PAIR)
                z, d = matrix(tiles, depth * tile, rows, after), matrix(tiles, (2 * depth + 1) * tile, rows, after)
                place = (k * index.shape[1] + t) * index.shape[2]
                tally[0, k] += slopes(loss, z, index[k, t, :n], labels, targets, place, layers[-1, OUT], d)
                tally[1, k] += n
                tally[2, k] += 1
                solver = (rate, client_state, keep, nesterov)
                backward(layers, lowest, weights, momenta, pull, pulled, tiles, tile, rows, decays, solver)
                client_state = keep
            row, factor, add = (s, factors[k], k > bounds[s]) if summed else (k, ONE, False)
            total = change(layers, weights, begun, following, apart, add, factor, trained[row])
            if not (np.isfinite(tally[0, k]) and np.isfinite(total)):
                space[:] = ZERO  # it went into the zeros, too
                unpack(layers, following, weights)
        s = turn(turns)
    owned[0] = ZERO  # it is needed until here
