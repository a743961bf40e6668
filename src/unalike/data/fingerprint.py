"""Hashes of arrays and texts: the same content has the same fingerprint on every machine."""

import hashlib
from typing import NamedTuple

import numpy as np
from torch import Tensor

PIECE_VALUES = 1 << 20
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
        elif isinstance(part, Widened):
            _hash_widened(total, part.values)
        elif isinstance(part, Tensor):
            _hash_array(total, part.detach().cpu().numpy())
        else:
            _hash_array(total, part)
    return total.hexdigest()


def _hash_array(total: hashlib.blake2b, values: np.ndarray) -> None:
    """Hash the type, the shape and the bytes of an array."""
    array = np.ascontiguousarray(values)
    total.update(f"array {array.dtype.str} {array.shape}".encode())
    total.update(array.reshape(-1).view(np.uint8).data)


def _hash_widened(total: hashlib.blake2b, values: np.ndarray) -> None:
    """Hash integers as an array of int64; a piece at a time, so that no second array of that size is made."""
    total.update(f"array {np.dtype(np.int64).str} {values.shape}".encode())
    for first in range(0, len(values), PIECE_VALUES):
        piece = values[first : first + PIECE_VALUES].astype(np.int64)
        total.update(piece.data)
