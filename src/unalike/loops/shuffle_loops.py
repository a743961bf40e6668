"""`Generator.permutation` for many clients in one compiled loop (numba): NumPy's numbers, bit for bit.

For each client: `SeedSequence` (O'Neill's seed_seq_fe) hashes the seed's words into a state of PCG64 (XSL-RR), whose numbers
drive the shuffle of Fisher and Yates, as in NumPy since 1.17. To exchange entry i with a random entry j <= i, NumPy masks a
random word and draws again while the result is too large:

    i = 5 = 101b    mask = 111b (the bits up to i's highest)    word & mask = 6 -> too large, again    = 3 -> swap entries 5, 3

`shuffle` does the same without a branch on the refusal: a refused word swaps entry i with itself and leaves i as it is.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types

from unalike.loops.simd import intrinsic, prefetch

U32, U64 = np.uint32, np.uint64
LOW = U64(0xFFFFFFFF)
ZERO, ONE, HALF, ROTATION, LAST = U64(0), U64(1), U64(32), U64(58), U64(63)
STEP_HIGH, STEP_LOW = U64(0x2360ED051FC65DA4), U64(0x4385DF649FCCF645)
"""The multiplier of PCG64, in two words."""
HASH, HASH_BY, DRAW, DRAW_BY = U32(0x43B0D7E5), U32(0x931E8875), U32(0x8B51F9DD), U32(0x58F38DED)
MIX_OWN, MIX_OTHER = U32(0xCA01F9DD), U32(0x4973F715)
FOLD = U32(16)
AHEAD = 4
"""Clients whose rows are prefetched: with very many clients rows lie far apart in memory."""

SIGNATURES = [
    types.void(
        types.u4[::1], types.u4[::1], types.Array(row, 1, "A", readonly=True), *[types.i8[::1]] * 4
    )
    for row in (types.i4, types.i8)
]
"""The types for which `shuffle` is compiled when this module is imported; kept on disk."""
inline = njit(inline="always")


@inline
def hashed(value, constant, factor):
    """The hash of a word, and the constant for the next word."""
    value = U32(value ^ constant)
    constant = U32(constant * factor)
    value = U32(value * constant)
    return U32(value ^ (value >> FOLD)), constant


@inline
def mixed(x, y):
    """Two hashes combined."""
    value = U32(U32(MIX_OWN * x) - U32(MIX_OTHER * y))
    return U32(value ^ (value >> FOLD))


@intrinsic
def product(typing, a, b):
    """The high word of the product of two words."""

    def make(context, builder, signature, arguments):
        a, b = (builder.zext(word, ir.IntType(128)) for word in arguments)
        high = builder.lshr(builder.mul(a, b), ir.Constant(ir.IntType(128), 64))
        return builder.trunc(high, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), make


@inline
def stepped(high, low, step_high, step_low):
    """One step of PCG64: state * multiplier + increment, modulo 2^128."""
    made_low = low * STEP_LOW
    made_high = product(low, STEP_LOW) + high * STEP_LOW + low * STEP_HIGH
    added = made_low + step_low
    return made_high + step_high + (ONE if added < made_low else ZERO), added


@inline
def seeded(words, pool, state):
    """`SeedSequence(words).generate_state(4, np.uint64)`, written into `state`."""
    constant = HASH
    for i in range(4):
        pool[i], constant = hashed(words[i] if i < len(words) else U32(0), constant, HASH_BY)
    for source in range(4):
        for place in range(4):
            if place != source:
                other, constant = hashed(pool[source], constant, HASH_BY)
                pool[place] = mixed(pool[place], other)
    for word in words[4:]:
        for place in range(4):
            other, constant = hashed(word, constant, HASH_BY)
            pool[place] = mixed(pool[place], other)
    constant = DRAW
    for i in range(4):
        low, constant = hashed(pool[2 * i % 4], constant, DRAW_BY)
        high, constant = hashed(pool[(2 * i + 1) % 4], constant, DRAW_BY)
        state[i] = U64(high) << HALF | U64(low)


@njit(SIGNATURES, nogil=True, cache=True)
def shuffle(head, last, rows, starts, sizes, places, out):
    """Fill out[places[k] : places[k + 1]] for every client k with permutations of its rows, one after the other.

    Client k has rows[starts[k] : starts[k] + sizes[k]]; the words of its seed are [*head, last[k]].
    """
    words, pool, seeds = np.empty(len(head) + 1, U32), np.empty(4, U32), np.empty(4, U64)
    words[:-1] = head
    order = np.empty(sizes.max(), np.int64)
    for k in range(len(last)):
        if k + AHEAD < len(last):
            prefetch(rows, starts[k + AHEAD])
        words[-1] = last[k]
        seeded(words, pool, seeds)
        step_high, step_low = seeds[2] << ONE | seeds[3] >> LAST, seeds[3] << ONE | ONE
        low = step_low + seeds[1]
        high = step_high + seeds[0] + (ONE if low < step_low else ZERO)
        high, low = stepped(high, low, step_high, step_low)
        spare, left, at = ZERO, False, places[k]
        while at < places[k + 1]:
            for i in range(sizes[k]):
                order[i] = rows[starts[k] + i]
            i = sizes[k] - 1
            while i > 0:
                mask = U64(i)
                for shift in (1, 2, 4, 8, 16, 32):
                    mask |= mask >> U64(shift)
                least = np.int64(mask >> ONE)
                while i > least:
                    if left:
                        j = spare & mask
                    else:
                        high, low = stepped(high, low, step_high, step_low)
                        turn, both = high >> ROTATION, high ^ low
                        both = both >> turn | both << (-turn & LAST)
                        j, spare = both & LOW & mask, both >> HALF
                    left = not left
                    taken = j <= U64(i)
                    # a refused number swaps i with itself: the processor could not predict a branch here
                    other = j if taken else U64(i)
                    order[i], order[other] = order[other], order[i]
                    i -= taken
            used = min(sizes[k], places[k + 1] - at)
            out[at : at + used] = order[:used]
            at += used
