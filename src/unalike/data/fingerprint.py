"""A short name for data: the same arrays give the same fingerprint on every machine."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from torch import Tensor

PIECE = 1 << 20
"""Numbers that are widened at a time."""


class Widened(NamedTuple):
    """Whole numbers that count as int64 and are not copied for it."""

    values: np.ndarray


def digest(*parts: Tensor | np.ndarray | Widened | str) -> str:
    """blake2b (128 bits, hex) over texts and over each array's dtype, shape and values, in the order given."""
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
        array = np.ascontiguousarray(part.detach().cpu().numpy() if isinstance(part, Tensor) else part)
        total.update(f"array {array.dtype.str} {array.shape}".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
