"""Samplers: the rules by which the clients of a round are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unalike._utils import seeds
from unalike.core.privacy import ReleaseSampling


class CohortSampler(Protocol):
    """Chooses who is asked in a round. The same round gives the same cohort again, so that a run that resumes asks the same."""

    def cohort(self, round: int, eligible: Sequence[int], size: int) -> list[int]:
        """The clients of the cohort, in ascending order.

        Args:
            round: Index of the round in the run, from 0.
            eligible: Clients that may be asked, in ascending order.
            size: Number of clients to ask, or to expect.
        """


@dataclass(frozen=True)
class FixedCohort:
    """So many of the eligible clients, without replacement; all of them in a full round."""

    seed: int

    def cohort(self, round: int, eligible: Sequence[int], size: int) -> list[int]:
        if size == len(eligible):
            return [*eligible]
        rng = seeds.generator(self.seed, "cohort", round)
        places = np.sort(rng.choice(len(eligible), size, replace=False))
        return _at(eligible, places)


@dataclass(frozen=True)
class PoissonCohort:
    """Each eligible client by itself, with the same `probability`, so that a cohort may be empty."""

    seed: int
    probability: float

    def cohort(self, round: int, eligible: Sequence[int], size: int) -> list[int]:
        rng = seeds.generator(self.seed, "cohort", round)
        places = np.flatnonzero(rng.random(len(eligible)) < self.probability)
        return _at(eligible, places)


def sampler_of(sampling: ReleaseSampling, seed: int) -> CohortSampler:
    """The sampler whose draws the accounting of privacy is told as `sampling`."""
    if sampling.draw == "poisson":
        return PoissonCohort(seed, sampling.expected / sampling.units)
    return FixedCohort(seed)


def _at(eligible: Sequence[int], places: np.ndarray) -> list[int]:
    # a million clients that are all eligible are a range, and need no look-up
    if isinstance(eligible, range):
        return places.tolist()
    return [eligible[place] for place in places.tolist()]
