"""The weighted sum of stacked updates and their distances from the mean as compiled loops (numba) that read memory once."""

import numpy as np
from numba import njit

from unalike._utils.simd import turn, widest

WIDTH = 2048
"""Columns of a block: those of twenty clients stay in a core's cache until they are read a second time."""

ZERO = np.float32(0)
MATHS = {"reassoc", "contract", "nsz"}  # a NaN stays one
SIGNATURE = "void(f4[:,::1], f4[::1], f4[::1], f8[:,::1], i8[::1])"
"""The types for which `combine` is compiled when this module is imported; kept on disk."""


@njit(fastmath=MATHS, inline="always")
def add_up(rows, weights, start, stop, out):
    """out = sum_k weights_k rows_k over the columns from `start` to `stop`, four rows at a time."""
    out[:] = ZERO
    whole = len(rows) // 4 * 4
    for k in range(0, whole, 4):
        a, b, c, d = rows[k][start:stop], rows[k + 1][start:stop], rows[k + 2][start:stop], rows[k + 3][start:stop]
        u, v, w, z = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for i in range(len(out)):
            out[i] += (u * a[i] + v * b[i]) + (w * c[i] + z * d[i])
    for k in range(whole, len(rows)):
        a, u = rows[k][start:stop], weights[k]
        for i in range(len(out)):
            out[i] += u * a[i]


@njit("void(f4[:,::1], f4[::1], f4[::1], f4[::1], f4[:,::1], i8[::1])", fastmath=MATHS, nogil=True, cache=True)
def moments(rows, weights, mean, sd, extremes, turns):
    """The moments of the columns (`update_spread.column_moments`); extremes[b] = least and largest squared deviation in block b.

    Threads call it at once, as `combine`.
    """
    widest()
    least, most, near = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32)
    block = turn(turns)
    while block < len(extremes):
        start, stop = block * WIDTH, min((block + 1) * WIDTH, rows.shape[1])
        centre, squares = mean[start:stop], sd[start:stop]
        add_up(rows, weights, start, stop, centre)
        least[: stop - start], most[: stop - start], near[: stop - start] = (
            rows[0][start:stop],
            rows[0][start:stop],
            np.inf,
        )
        for k in range(1, len(rows)):
            row = rows[k][start:stop]
            for i in range(len(row)):
                least[i] = row[i] if row[i] < least[i] else least[i]
                most[i] = row[i] if row[i] > most[i] else most[i]
        for i in range(len(centre)):
            centre[i], squares[i] = least[i] if least[i] == most[i] else centre[i], ZERO
        for k in range(len(rows)):
            row = rows[k][start:stop]
            for i in range(len(row)):
                away = (row[i] - centre[i]) * (row[i] - centre[i])
                squares[i] += away
                near[i] = away if away < near[i] else near[i]
        nearest, furthest = np.float32(np.inf), ZERO
        for i in range(len(centre)):
            squares[i] = np.sqrt(squares[i] / np.float32(len(rows)))
            nearest, furthest = min(nearest, near[i]), max(furthest, max(most[i] - centre[i], centre[i] - least[i]))
        extremes[block, 0], extremes[block, 1] = nearest, furthest * furthest
        block = turn(turns)


@njit(SIGNATURE, fastmath=MATHS, nogil=True, cache=True)
def combine(rows, weights, total, apart, turns):
    """total = sum_k weights_k rows_k, and apart[b, k] = ||rows_k - mean_j rows_j||^2 over the columns of block b.

    Threads call this function at once and take the blocks by the counter `turns` [1].
    """
    widest()
    centre, even = np.empty(WIDTH, np.float32), np.full(len(rows), 1 / len(rows), np.float32)
    block = turn(turns)
    while block < len(apart):
        start, stop = block * WIDTH, min((block + 1) * WIDTH, rows.shape[1])
        mean = centre[: stop - start]
        add_up(rows, weights, start, stop, total[start:stop])
        add_up(rows, even, start, stop, mean)
        for k in range(len(rows)):
            row, square = rows[k][start:stop], ZERO
            for i in range(len(mean)):
                away = row[i] - mean[i]
                square += away * away
            apart[block, k] = square
        block = turn(turns)
