"""Samples by client and class, as a chart of characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SIZES = " ·∘○●⬤"
"""Characters by increasing count."""

WIDEST, HIGHEST = 60, 40
"""Most clients and classes that fit on a terminal."""


def bubbles(counts: np.ndarray, classes: Sequence[str], room: int = 160) -> str:
    """One row per class and one column per client for counts [K, C]; the largest character is the largest count.

    Lines have at most `room` characters; further clients follow in further charts below.

    >>> print(bubbles(np.array([[9, 0], [1, 4]]), ["a", "b"]))
    a  ⬤ ·
    b    ○
    <BLANKLINE>
    clients 0..1, largest ⬤ 9 samples
    """
    if not counts.size or len(counts) > WIDEST or counts.shape[1] > HIGHEST:
        return ""
    place = np.ceil((len(SIZES) - 1) * counts / counts.max()).astype(int)
    width = max(map(len, classes))
    fit = max(1, (room - width - 1) // 2)
    parts = []
    for first in range(0, len(place), fit):
        shown = place[first : first + fit]
        rows = [
            f"{name:{width}}  " + " ".join(SIZES[p] for p in column)
            for name, column in zip(classes, shown.T, strict=True)
        ]
        parts.append("\n".join([*(row.rstrip() for row in rows), "", f"clients {first}..{first + len(shown) - 1}"]))
    return "\n\n".join(parts) + f", largest {SIZES[-1]} {counts.max()} samples"
