"""The role that chooses the clients of a round, and the values that it is given and returns."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from unalike._utils import seeds
from unalike.client_devices.simulated_clock import ClientNumbers, client_numbers
from unalike.core.types import Tree
from unalike.methods.part import Part


@dataclass(frozen=True)
class Candidates:
    """The clients of which a sampler chooses a cohort.

    Attributes:
        ids: Numbers of the clients that may be asked, in ascending order: those with samples whose devices are there.
        size: Number of clients to ask.
        share: The probability with which each client is asked where each one is drawn by itself.
        sizes: Training samples of all clients of the run, [N].
        names: Names of all clients of the run.
        round: Index of the round in the run, from 0.
        seed: Seed of the run.
    """

    ids: Sequence[int]
    size: int
    share: float
    sizes: np.ndarray
    names: Sequence[str]
    round: int
    seed: int

    @property
    def generator(self) -> np.random.Generator:
        """The random generator of the round's draw: the same round gives the same numbers again."""
        return seeds.generator(self.seed, "cohort", self.round)

    @property
    def numbers(self) -> np.ndarray:
        """`ids` as an array."""
        return client_numbers(self.ids)

    def at(self, places: np.ndarray) -> list[int]:
        """The clients at these places of `ids`, in ascending order."""
        places = np.sort(places)
        # a million clients that may all be asked are a range from 0, and need no look-up
        if isinstance(self.ids, range):
            return places.tolist()
        return self.numbers[places].tolist()


@dataclass(frozen=True)
class Choice:
    """The clients of a cohort.

    Attributes:
        clients: Their numbers, in ascending order.
        reasons: Client -> why it was chosen; empty where all have the same chance.
        shares: Client -> the share of its local steps that it is asked to make, in (0, 1], from a sampler with `sets_work`. A
            client that is missing makes all.
    """

    clients: Sequence[int]
    reasons: Mapping[int, str] = field(default_factory=dict)
    shares: Mapping[int, float] = field(default_factory=dict)

    def shares_of(self, clients: ClientNumbers) -> np.ndarray:
        """The shares of their local steps that these clients are asked to make, [K]."""
        if not self.shares:
            return np.ones(len(clients))
        return np.array([self.shares.get(client, 1.0) for client in clients])


class CohortOutcome(NamedTuple):
    """The numbers of a cohort that the server knows after its round.

    Attributes:
        round: Index of the round in the run, from 0.
        asked: Numbers of all clients that were asked [A].
        ids: Numbers of those whose updates counted [K].
        sizes: Their training samples [K].
        losses: Their mean training losses over the local steps [K].
        seconds: The time from the request to the update of each, [K]; NaN where nothing measures it.
        shares: The shares of their local steps that they were asked to make [K].
        updates: Their updates as they were sent, [K, ...] each, for a sampler with `needs = "updates"`; else empty.
    """

    round: int
    asked: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    losses: np.ndarray
    seconds: np.ndarray
    shares: np.ndarray
    updates: Tree


class Sampler(Part):
    """The rule that chooses who is asked in a round; a method has at most one (without: the option `sampling` of the run).

    Its state is one for all clients of a stage, and part of checkpoints.
    """

    has_own_name: ClassVar[bool] = True

    draw: ClassVar[Literal["fixed", "poisson"]] = "fixed"
    """"fixed": so many clients without replacement; "poisson": each one by itself.

    Without it: so many clients.
    """
    decides_by: ClassVar[str] = ""
    """What decides who is asked, in words, where the chances of clients differ: privacy that counts on a random draw refuses it.

    Without it: all clients have the same chance, by chance alone.
    """
    reads_losses: ClassVar[bool] = False
    """`observe` reads the losses of single clients: privacy and secure aggregation, which hide them, refuse it.

    Without it: it is accepted, and reads numbers without meaning there.
    """

    sets_work: ClassVar[bool] = False
    """`choose` says which share of its local steps each client makes; several processes and late updates refuse it.

    Without it: `Choice.shares` is not read, and clients make all steps.
    """

    def choice_init(self, clients: int) -> Tree:
        """State before the first round. Called once a stage. Default: empty.

        Args:
            clients: Number of all clients of the run, N.

        Returns:
            Any tree; tensors about clients have the shape [N].
        """
        return {}

    def cohort_size(self, usual: int) -> int:
        """Number of clients that a round asks if all are there. Called once a stage. Default: `usual`.

        Args:
            usual: Number of clients by the participation of the run.
        """
        return usual

    @abstractmethod
    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        """The cohort of a round. It follows from the arguments alone, so that a run that resumes asks the same. No default.

        Args:
            candidates: The clients that may be asked.
            state: State of this part.
        """

    def observe(self, outcome: CohortOutcome, state: Tree) -> Tree:
        """New state after a round. Called once a round, when its updates have been aggregated. Default: unchanged.

        Args:
            outcome: Numbers of the clients that were asked.
            state: State of this part, which is not written to.
        """
        return state
