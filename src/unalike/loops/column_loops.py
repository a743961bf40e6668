"""Sums over the rows of a matrix, column by column, as compiled loops (numba) that read memory once."""

import numpy as np
from numba import njit

from unalike.loops.simd import borrowed_array, next_piece, vector_width

BLOCK_COLUMNS = 4096
"""Columns of a block: those of twenty clients stay in a core's cache until they are read a second time."""

ZERO = np.float32(0)
MATHS = {"reassoc", "contract", "nsz"}  # a NaN stays one


def blocks(rows):
    """The number of blocks of a matrix."""
    return -(-rows.shape[1] // BLOCK_COLUMNS)


@njit(fastmath=MATHS, inline="always")
def add_up(rows, weights, start, stop, out):
    """out = sum_k weights_k rows_k over the columns from `start` to `stop`, four rows at a time."""
    out[:] = ZERO
    whole = len(rows) // 4 * 4
    for k in range(0, whole, 4):
        a, b, c, d = (
            rows[k][start:stop],
            rows[k + 1][start:stop],
            rows[k + 2][start:stop],
            rows[k + 3][start:stop],
        )
        u, v, w, z = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for i in range(len(out)):
            out[i] += (u * a[i] + v * b[i]) + (w * c[i] + z * d[i])
    for k in range(whole, len(rows)):
        a, u = rows[k][start:stop], weights[k]
        for i in range(len(out)):
            out[i] += u * a[i]


@njit("void(f4[:,::1], f4[::1], f4[::1], i8[::1])", fastmath=MATHS, nogil=True, cache=True)
def weighted_sum(rows, weights, total, turns):
    """total = sum_k weights_k rows_k. Threads call this function at once and take the blocks by the counter `turns` [1]."""
    vector_width()
    rows, total, block = borrowed_array(rows), borrowed_array(total), next_piece(turns)
    while block * BLOCK_COLUMNS < len(total):
        start, stop = block * BLOCK_COLUMNS, min((block + 1) * BLOCK_COLUMNS, len(total))
        add_up(rows, weights, start, stop, total[start:stop])
        block = next_piece(turns)


@njit(inline="always")
def top(values):
    """The largest value; it overwrites the others. Halves are compared elementwise, which takes vectors."""
    count = len(values)
    while count > 1:
        half = (count + 1) // 2
        first, second = values[:half], values[half:count]
        for i in range(len(second)):
            first[i] = max(first[i], second[i])
        count = half
    return values[0]


@njit(
    "void(f4[:,::1], f4[::1], f4[::1], f4[::1], f4[:,::1], i8[::1])",
    fastmath=MATHS,
    nogil=True,
    cache=True,
)
def moments(rows, weights, mean, sd, extremes, turns):
    """The moments of the columns (`update_spread.column_moments`); extremes[b] = least and largest squared deviation in block b.

    Threads call it at once, as `weighted_sum`.
    """
    vector_width()
    kept, last = np.empty((3, BLOCK_COLUMNS), np.float32), len(rows) - 1
    rows = borrowed_array(rows)
    mean = borrowed_array(mean)
    sd = borrowed_array(sd)
    block = next_piece(turns)
    while block < len(extremes):
        start, stop = block * BLOCK_COLUMNS, min((block + 1) * BLOCK_COLUMNS, rows.shape[1])
        centre, squares, least, most, near = (
            mean[start:stop],
            sd[start:stop],
            kept[0],
            kept[1],
            kept[2],
        )
        add_up(rows, weights, start, stop, centre)
        least[:], most[:], near[:] = np.inf, -np.inf, np.inf
        for k in range(0, len(rows), 4):  # the last row counts again where there are no four
            a, b = rows[k][start:stop], rows[min(k + 1, last)][start:stop]
            c, d = rows[min(k + 2, last)][start:stop], rows[min(k + 3, last)][start:stop]
            for i in range(len(a)):
                least[i] = min(least[i], min(min(a[i], b[i]), min(c[i], d[i])))
                most[i] = max(most[i], max(max(a[i], b[i]), max(c[i], d[i])))
        for i in range(len(centre)):
            centre[i], squares[i] = least[i] if least[i] == most[i] else centre[i], ZERO
        for k in range(len(rows)):
            row = rows[k][start:stop]
            for i in range(len(row)):
                away = (row[i] - centre[i]) * (row[i] - centre[i])
                squares[i] += away
                near[i] = away if away < near[i] else near[i]
        for i in range(len(centre)):
            squares[i] = np.sqrt(squares[i] / np.float32(len(rows)))
            near[i], most[i] = -near[i], max(most[i] - centre[i], centre[i] - least[i])
        extremes[block, 0], extremes[block, 1] = (
            -top(near[: len(centre)]),
            top(most[: len(centre)]) ** 2,
        )
        block = next_piece(turns)


@njit(
    "void(f4[:,::1], f4[::1], f4[::1], f8[:,::1], i8[::1])", fastmath=MATHS, nogil=True, cache=True
)
def sum_and_spread(rows, weights, total, apart, turns):
    """total = sum_k weights_k rows_k, and apart[b, k] = ||rows_k - mean_j rows_j||^2 over the columns of block b.

    Threads call it at once, as `weighted_sum`.
    """
    vector_width()
    centre, even = (
        np.empty(BLOCK_COLUMNS, np.float32),
        np.full(len(rows), 1 / len(rows), np.float32),
    )
    rows, total, block = borrowed_array(rows), borrowed_array(total), next_piece(turns)
    while block < len(apart):
        start, stop = block * BLOCK_COLUMNS, min((block + 1) * BLOCK_COLUMNS, rows.shape[1])
        mean = centre[: stop - start]
        add_up(rows, weights, start, stop, total[start:stop])
        add_up(rows, even, start, stop, mean)
        for k in range(len(rows)):
            row, square = rows[k][start:stop], ZERO
            for i in range(len(mean)):
                away = row[i] - mean[i]
                square += away * away
            apart[block, k] = square
        block = next_piece(turns)
