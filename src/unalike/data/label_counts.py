"""Counting labels by client."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from unalike.data.ragged import Ragged


def label_counts(y: Tensor, classes: list[str] | None, owned: Ragged) -> np.ndarray:
    """How many of each client's samples carry each label, int64 [K, C]; [K, 0] for regression (`classes` None)."""
    wide = len(classes or ())
    if not wide:
        return np.zeros((len(owned), 0), np.int64)
    cells = owned.owners * wide + y.cpu().numpy().astype(np.int64)[owned.values]
    return np.bincount(cells, minlength=len(owned) * wide).reshape(len(owned), wide)
