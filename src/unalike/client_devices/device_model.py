"""Models of devices: properties of the clients' devices, combined by `+` and drawn from the seed.

>>> model = device_model("lognormal(sigma=1) + deadline(seconds=60)")
>>> len(model.rates(clients=10, seed=0).samples_per_second)
10
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from unalike._utils import seeds
from unalike._utils.registry import Registry
from unalike._utils.spec import parse

registry = Registry("device trait", home="unalike.client_devices.traits", group="unalike.devices")

Presence = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Clients [K] and a moment for each [K] (seconds since the run began) -> whether the client's device is there [K]."""

USUAL_SAMPLES_PER_SECOND = 100.0
USUAL_MBIT_DOWN = 20.0
USUAL_MBIT_UP = 5.0
BITS_IN_MBIT = 1e6
BITS_IN_BYTE = 8


@dataclass(frozen=True)
class Rates:
    """The speeds of N devices, each [N]."""

    samples_per_second: np.ndarray
    """Training samples that pass forwards and backwards through the model in a second."""
    bytes_down_per_second: np.ndarray
    bytes_up_per_second: np.ndarray

    @classmethod
    def equal(
        cls, clients: int, samples_per_second: float, mbit_down: float, mbit_up: float
    ) -> Rates:
        """The same speeds for all devices; megabits in a second."""
        every = np.ones(clients)
        return cls(
            samples_per_second=samples_per_second * every,
            bytes_down_per_second=mbit_down * BITS_IN_MBIT / BITS_IN_BYTE * every,
            bytes_up_per_second=mbit_up * BITS_IN_MBIT / BITS_IN_BYTE * every,
        )

    def slowed(self, computing: np.ndarray, sending: np.ndarray) -> Rates:
        """The speeds divided by these factors [N]."""
        return Rates(
            samples_per_second=self.samples_per_second / computing,
            bytes_down_per_second=self.bytes_down_per_second / sending,
            bytes_up_per_second=self.bytes_up_per_second / sending,
        )


class DeviceTrait:
    """One property of the clients' devices. The defaults of its hooks change nothing.

    Random numbers come from the generator that a hook is given: the same seed makes the same devices.
    """

    decides_who_counts: ClassVar[bool] = False
    """Whether it decides whose updates count, and so changes the draw that an accounting of privacy relies on."""
    draws_work: ClassVar[bool] = False
    """Whether `share_of_steps` draws which part of its local steps a device makes."""

    @property
    def deadline(self) -> float:
        """Seconds after the beginning of a round when the server stops waiting. Default: it waits."""
        return math.inf

    @property
    def stops_at_deadline(self) -> bool:
        """Whether clients send what they have in time for the deadline. Default: they make all steps, and may be late."""
        return False

    @property
    def updates_awaited(self) -> float:
        """The number of updates with which the server ends a round. Default: all, in which case infinite."""
        return math.inf

    @property
    def drops_late(self) -> bool:
        """Whether updates do not count that come after their round has ended. Default: they count when they come."""
        return False

    def rates(self, rates: Rates, rng: np.random.Generator) -> Rates:
        """The speeds of the devices, given those by the traits before. Called once a run."""
        return rates

    def presence(self, clients: int, rng: np.random.Generator) -> Presence | None:
        """The times when each device is there. Called once a run. Default: None, always."""
        return None

    def shares_done(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The share of its round after which each device loses the connection; 1 where it does not. Called once a round."""
        return np.ones(clients)

    def share_of_steps(self, rng: np.random.Generator) -> float:
        """The share of its local steps that one device makes in a round, with `draws_work`. Default: all."""
        return 1.0


@dataclass(frozen=True)
class DeviceModel:
    """Several traits, applied from left to right."""

    traits: tuple[DeviceTrait, ...]

    @cached_property
    def decides_who_counts(self) -> bool:
        return any(trait.decides_who_counts for trait in self.traits)

    @cached_property
    def changes_work(self) -> bool:
        """Whether clients may make a part of their local steps only."""
        return self.stops_at_deadline or any(trait.draws_work for trait in self.traits)

    @cached_property
    def deadline(self) -> float:
        return min(trait.deadline for trait in self.traits)

    @cached_property
    def stops_at_deadline(self) -> bool:
        """Whether clients send what they have in time, instead of being late."""
        return any(trait.stops_at_deadline for trait in self.traits)

    @cached_property
    def updates_awaited(self) -> float:
        """The number of updates with which the server ends a round; infinite: it awaits all."""
        return min(trait.updates_awaited for trait in self.traits)

    @cached_property
    def drops_late(self) -> bool:
        """Whether updates do not count that come after their round has ended."""
        return any(trait.drops_late for trait in self.traits)

    def rates(self, clients: int, seed: int) -> Rates:
        """The speeds of all devices."""
        rates = Rates.equal(clients, USUAL_SAMPLES_PER_SECOND, USUAL_MBIT_DOWN, USUAL_MBIT_UP)
        for place, trait in enumerate(self.traits):
            rates = trait.rates(rates, seeds.generator(seed, "device rates", place))
        return rates

    def presence(self, clients: int, seed: int) -> Presence | None:
        """The times when the devices are there: those when every trait says so. None: always."""
        rules = []
        for place, trait in enumerate(self.traits):
            rule = trait.presence(clients, seeds.generator(seed, "device presence", place))
            if rule is not None:
                rules.append(rule)
        if len(rules) < 2:
            return next(iter(rules), None)

        def is_there(ids: np.ndarray, moments: np.ndarray) -> np.ndarray:
            there = np.ones(len(ids), bool)
            for rule in rules:
                there &= rule(ids, moments)
            return there

        return is_there

    def shares_done(self, clients: int, seed: int, round: int) -> np.ndarray:
        """The share of its round that each of the clients in it does before it loses the connection; 1: all of it."""
        done = np.ones(clients)
        for place, trait in enumerate(self.traits):
            # a generator takes as long as the draw for a thousand clients
            if type(trait).shares_done is DeviceTrait.shares_done:
                continue
            rng = seeds.generator(seed, "device connections", round, place)
            done = np.minimum(done, trait.shares_done(clients, rng))
        return done

    def shares_of_steps(self, clients: np.ndarray, seed: int, round: int) -> np.ndarray:
        """The share of its local steps that each of these clients makes in a round, whoever else is asked."""
        shares = np.ones(len(clients))
        for place, trait in enumerate(self.traits):
            if not trait.draws_work:
                continue
            for i, client in enumerate(clients.tolist()):
                rng = seeds.generator(seed, "device work", round, client, place)
                shares[i] = min(shares[i], trait.share_of_steps(rng))
        return shares


def device_model(spec: str) -> DeviceModel:
    """The devices of a spec text. Raises `UnalikeError` for an unknown name or option."""
    return DeviceModel(tuple(registry.build(call) for call in parse(spec)))
