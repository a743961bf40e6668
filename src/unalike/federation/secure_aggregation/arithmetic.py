"""Shamir's secret sharing (1979), and real numbers as integers modulo 2^64, in which masks vanish from a sum without rounding."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unalike._utils.errors import UnalikeError

PRIME = 2**256 + 297
"""The least prime above 2^256: secrets of 32 bytes are elements of its field."""
SHARE, RANDOM = 33, 48
"""Bytes of a share, and random bytes of a coefficient: modulo the prime it differs from a uniform one by 2^-127."""
Words = NDArray[np.uint64]
"""A vector of integers modulo 2^64."""
FRACTION = 32
"""Bits of an encoded number after the point."""


def split(secret: bytes, threshold: int, points: Sequence[int], random: bytes) -> list[bytes]:
    """The shares f(x) at the `points` x > 0, where f(x) = secret + a_1 x + ... + a_{t-1} x^{t-1}.

    Any `threshold` t of them give the secret of 32 bytes; fewer say nothing about it. `random` are 48 (t - 1) bytes for the a_i.
    """
    pieces = [random[i : i + RANDOM] for i in range(0, RANDOM * (threshold - 1), RANDOM)]
    shares = []
    for x in points:
        value = 0
        for piece in (*pieces, secret):
            value = (value * x + int.from_bytes(piece)) % PRIME
        shares.append(value.to_bytes(SHARE))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret f(0) of shares f(x) by their points x, by Lagrange's interpolation; of false shares any 32 bytes."""
    total = 0
    for x, share in shares.items():
        above = below = 1
        for other in shares.keys() - {x}:
            above, below = above * other % PRIME, below * (other - x) % PRIME
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    return (total % PRIME % 2**256).to_bytes(32)


def encode(values: NDArray[np.float64], terms: int) -> Words:
    """round(2^32 v) modulo 2^64, for one of `terms` summands.

    The decoded sum S of K summands differs from their exact sum by at most K 2^-33 + 2^-53 |S|. Raises `UnalikeError` for values
    that are not finite or not below 2^31 / terms, with which no sum can overflow.
    """
    if not bool(
        (np.abs(values) < (limit := 2.0 ** (63 - FRACTION) / terms)).all()
    ):  # not so for NaN
        raise UnalikeError(
            f"a value of {np.abs(values).max():.3g} in a sum; expected less than {limit:.3g}"
        )
    return np.rint(values * 2.0**FRACTION).astype(np.int64).view(np.uint64)


def decode(total: Words) -> NDArray[np.float64]:
    """The values of an encoded sum."""
    return total.view(np.int64) / 2.0**FRACTION
