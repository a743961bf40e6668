"""Shamir's secret sharing (1979), and real numbers as integers modulo 2^64, in which masks vanish from a sum without rounding."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

SECRET_BYTES = 32
"""Bytes of a secret."""
PRIME = 2**256 + 297
"""The least prime above 2^256: secrets of 32 bytes are elements of its field."""
SHARE_BYTES = 33
"""Bytes of a share, an element of the field."""
RANDOM_BYTES = 48
"""Random bytes of a coefficient: modulo the prime it differs from a uniform one by 2^-127."""
FRACTION_BITS = 32
"""Bits of an encoded number after the point."""
Words = NDArray[np.uint64]
"""A vector of integers modulo 2^64."""


def split(secret: bytes, threshold: int, points: Sequence[int], random: bytes) -> list[bytes]:
    """The shares f(x) at the `points` x > 0, where f(x) = secret + a_1 x + ... + a_{t-1} x^{t-1}.

    Any `threshold` t of them give the secret of 32 bytes; fewer say nothing about it. `random` are 48 (t - 1) bytes for the a_i.
    """
    coefficients = []
    for start in range(0, RANDOM_BYTES * (threshold - 1), RANDOM_BYTES):
        coefficients.append(int.from_bytes(random[start : start + RANDOM_BYTES]))
    coefficients.append(int.from_bytes(secret))

    # Horner's rule: the secret comes last, so that it is f(0).
    shares = []
    for x in points:
        value = 0
        for coefficient in coefficients:
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret f(0) of shares f(x) by their points x, by Lagrange's interpolation; of false shares any 32 bytes."""
    total = 0
    for x, share in shares.items():
        # the polynomial that is 1 at x and 0 at the other points, at 0: above / below
        above = 1
        below = 1
        for other in shares.keys() - {x}:
            above = above * other % PRIME
            below = below * (other - x) % PRIME
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    # False shares may give a number of the field that has no 32 bytes.
    return (total % PRIME % 2**256).to_bytes(SECRET_BYTES)


def bound(terms: int) -> float:
    """The bound 2^31 / terms: of so many summands with values below it no sum can overflow."""
    return 2.0 ** (63 - FRACTION_BITS) / terms


def is_encodable(values: NDArray[np.float64], terms: int) -> bool:
    """Whether all values are finite and below the bound for one of `terms` summands."""
    # in this form the comparison is false for NaN
    return bool((np.abs(values) < bound(terms)).all())


def encode(values: NDArray[np.float64], terms: int) -> Words:
    """round(2^32 v) modulo 2^64, for one of `terms` summands.

    The decoded sum S of K summands differs from their exact sum by at most K 2^-33 + 2^-53 |S|. Every value gives a word, so that
    whether a summand can be made says nothing about it: NaN counts as 0, and what is not below the `bound` as the bound's nearest
    value.
    """
    largest = np.nextafter(bound(terms), 0)
    limited = values.clip(-largest, largest)
    limited[np.isnan(limited)] = 0
    limited *= 2.0**FRACTION_BITS
    return np.rint(limited).astype(np.int64).view(np.uint64)


def decode(total: Words) -> NDArray[np.float64]:
    """The values of an encoded sum."""
    return total.view(np.int64) / 2.0**FRACTION_BITS
