"""Samplers whose choice follows from what is known before training: chance, sizes, names and turns."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree
from unalike.methods.part import part
from unalike.methods.sampler import Candidates, Choice, CohortOutcome, Sampler

TURN = "turn"
"""State [N]: the number of the round in which a client was asked last, counted from 1; 0 before it was asked."""


@part
class UniformCohort(Sampler):
    """So many of the N clients, each with the chance m / N, without replacement; the usual draw of a run.

    With equal weights (`uniform`) the expected update is that of all clients: no bias. Weighted by size, the mean of a cohort is a
    ratio, whose bias goes to 0 as m grows. With m = N all are asked.
    """

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        if candidates.size == len(candidates.ids):
            return Choice([*candidates.ids])
        places = candidates.generator.choice(len(candidates.ids), candidates.size, replace=False)
        return Choice(candidates.at(places))


@part
class PoissonCohort(Sampler):
    """Each client by itself, with the probability m / N, so that a cohort may be empty; as the option sampling="poisson".

    The chances are those of `uniform_cohort`, and so is the bias: none for equal weights over cohorts that are not empty. With
    m = N all are asked.
    """

    draw = "poisson"
    simulated_only: ClassVar[str] = "a draw whose cohorts may be empty"

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        is_asked = candidates.generator.random(len(candidates.ids)) < candidates.share
        return Choice(candidates.at(np.flatnonzero(is_asked)))


@part
class CohortBySize(Sampler):
    """A client with n_k samples has the chance min(1, m n_k / n), without replacement (systematic sampling, Madow 1949).

    The clients stand on a line in random order, each as long as its chance; the cohort are those at u, u + 1, ..., u + m - 1 for a
    random u in [0, 1). Add `uniform`: the mean of the cohort with equal weights is then the mean of all clients by size without
    bias (as scheme I of Li et al. 2020 draws them with replacement), unless a client has more than n / m samples: it is asked
    in every round, and counts too little. Without `uniform`, large clients count twice. Equal sizes give the chances of
    `uniform_cohort`.
    """

    decides_by: ClassVar[str] = "their numbers of samples"

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        ids = candidates.numbers
        rng = candidates.generator
        chances = inclusion_chances(candidates.sizes[ids], candidates.size)
        order = rng.permutation(len(ids))
        clients = candidates.at(systematic(chances, order, rng))
        total = int(candidates.sizes[ids].sum())
        reasons = {k: f"{candidates.sizes[k]} of {total} samples" for k in clients}
        return Choice(clients, reasons)


def systematic(chances: np.ndarray, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The places of a draw with these chances [K] of whole sum, by points at distance 1 on a line on which all stand in `order`.

    Of any stretch of the line that is j long, j are drawn, but for one more or less.
    """
    ends = np.cumsum(chances[order])
    points = rng.random() + np.arange(round(ends[-1]))
    # rounding may leave the end of the line a little short of the sum
    on_line = np.searchsorted(ends, points, side="right").clip(max=len(order) - 1)
    return np.unique(order[on_line])


def inclusion_chances(sizes: np.ndarray, count: int) -> np.ndarray:
    """The chance of each to be among `count`, in proportion to its size and at most 1, [K]; their sum is `count`."""
    chances = np.ones(len(sizes))
    is_certain = np.zeros(len(sizes), bool)
    while not is_certain.all():
        others = ~is_certain
        chances[others] = (count - is_certain.sum()) * sizes[others] / sizes[others].sum()
        too_large = others & (chances >= 1)
        chances[too_large] = 1
        if not too_large.any():
            break
        is_certain |= too_large
    return chances


@part
class RoundRobin(Sampler):
    """The m clients whose last turn is longest ago, of these the first by number: each one is asked once in N / m rounds.

    Over such a cycle all have the same share in the rounds: no bias over a cycle, though each round has one, and neighbors are
    always asked together. Clients that are away miss no turn. With m = N all are asked.
    """

    decides_by: ClassVar[str] = "their turn"

    def choice_init(self, clients: int) -> Tree:
        return {TURN: torch.zeros(clients, dtype=torch.int64)}

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        turns = state[TURN].numpy(force=True)[candidates.numbers]
        longest_ago = np.argsort(turns, kind="stable")[: candidates.size]
        clients = candidates.at(longest_ago)
        return Choice(clients, dict.fromkeys(clients, "its turn"))

    def observe(self, outcome: CohortOutcome, state: Tree) -> Tree:
        turns = state[TURN].clone()
        turns[torch.from_numpy(outcome.asked)] = outcome.round + 1
        return {TURN: turns}


@part
class NamedClients(Sampler):
    """These clients in every round, if they are there, whatever the participation: `named_clients(clients=('site0', 'site2'))`.

    The model becomes that of these clients: a bias towards them, which stays. All names is full participation.
    """

    clients: tuple[str, ...] = Field(min_length=1, default=("client-0",))

    decides_by: ClassVar[str] = "their names"

    def cohort_size(self, usual: int) -> int:
        return len({*self.clients})

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        numbers = {self._number(name, candidates.names) for name in self.clients}
        clients = sorted(numbers & set(candidates.ids))
        return Choice(clients, dict.fromkeys(clients, "named"))

    def _number(self, name: str, names: Sequence[str]) -> int:
        """The number of a client. Raises `UnalikeError` for a name that no client has."""
        try:
            return names.index(name)
        except ValueError:
            raise UnalikeError(
                f"{self.name}: found no client {name!r}; expected one of {len(names)} names such as {names[0]!r}"
            ) from None
