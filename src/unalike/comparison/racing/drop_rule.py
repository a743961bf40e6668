"""The statistics of one look at a race: which methods are shown to be worse than the one in front.

A method is dropped if its mean difference to the leader, the method with the best mean so far, is shown to be below 0: by the
moderated t test of all verdicts, with Holm's correction for the number of methods still in the race, at the level that
`level_of_each_look` gives to each look. The best method can be dropped only if one of the others is falsely shown to be better
than it; each of these tests is two-sided, and only one side drops it, so over all looks and methods the nominal probability is
half of 5 %. `benchmarks/race_rates.py` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from unalike.statistics.inference import seeds_needed
from unalike.statistics.moderated_t import ModeratedT, holm, moderated_t
from unalike.statistics.verdicts import UNDECIDED, verdicts

if TYPE_CHECKING:
    import pandas as pd


def tests_against_leader(
    gains: np.ndarray,
    level: float,
    *,
    overlap: float = 0.0,
    sampling: ArrayLike = 0.0,
    smallest: float = 0.0,
) -> tuple[ModeratedT, np.ndarray]:
    """Test gains over the leader, [..., seeds, methods], positive if better; NaN for methods that have left.

    Returns the tests and the verdict on each method: `worse` is out of the race. `overlap` and `sampling` are those of
    `moderated_t`, `smallest` is the smallest effect of interest.
    """
    tested = moderated_t(gains, level, overlap, sampling)
    words = verdicts(tested.mean, tested.low, tested.high, holm(tested.p), level, smallest)
    return tested, words


def seeds_to_tell_apart(
    tested: ModeratedT,
    words: np.ndarray,
    level: float,
    *,
    overlap: float,
    sampling: ArrayLike,
    smallest: float,
) -> int | None:
    """The fewest seeds with which some undecided method is likely to be told from the leader; None if none is undecided.

    With fewer seeds than this no further look is expected to change anything. A method whose spread is not known counts as one
    seed: another seed may give it a spread.
    """
    sampled = np.broadcast_to(np.asarray(sampling, dtype=float), words.shape)
    needed = []
    for j in np.flatnonzero(words == UNDECIDED):
        if np.isnan(tested.sd[j]):
            needed.append(1)
            continue
        needed.append(
            seeds_needed(
                float(tested.mean[j]),
                float(tested.sd[j]),
                smallest,
                level,
                overlap,
                float(sampled[j]),
            )
        )
    return min(needed, default=None)


def leader_of(scores: Mapping[str, pd.Series]) -> str:
    """The method with the best mean over its seeds; higher scores are better, and the first of equal ones leads."""
    means = {name: float(own.mean()) for name, own in scores.items()}
    return max(means, key=lambda name: means[name])
