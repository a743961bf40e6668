"""Hashes of arrays and texts: the same content has the same fingerprint on every machine."""

import hashlib
from typing import NamedTuple

import numpy as np
from torch import Tensor

PIECE = 1 << 20
"""Number of values that are converted to int64 at a time."""


class Widened(NamedTuple):
    """Integers that are hashed as int64 without a converted copy of the whole array."""

    values: np.ndarray


def digest(*parts: Tensor | np.ndarray | Widened | str) -> str:
    """Hash texts and arrays (dtype, shape, values) in the order given: blake2b, 128 bits, as a hex text."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, str):
            total.update(f"text {len(part)} {part}".encode())
            continue
        if isinstance(part, Widened):
            total.update(f"array {np.dtype(np.int64).str} {part.values.shape}".encode())
            for first in range(0, len(part.values), PIECE):
                total.update(part.values[first : first + PIECE].astype(np.int64).data)
            continue
        array = np.ascontiguousarray(
            part.detach().cpu().numpy() if isinstance(part, Tensor) else part
        )
        total.update(f"array {array.dtype.str} {array.shape}".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
