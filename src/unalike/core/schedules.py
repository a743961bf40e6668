"""Schedules of the local learning rate: its factor in each round, by name or as a function of the round."""

import math
from collections.abc import Callable
from inspect import signature

from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry
from unalike._utils.spec import Call, parse_one

registry = Registry("schedule", home="unalike.core.schedules")

Schedule = Callable[[int], float]
"""Round, from 0 -> factor of the local learning rate."""


def schedule(text: str) -> Schedule:
    """The schedule of a text such as "cosine(warmup=5)". Raises `UnalikeError` for an unknown name or option."""
    return registry.build(parse_one(text))


def over(text: str, rounds: int) -> str:
    """The text with the rounds of the run, where its schedule depends on them and the text does not say them."""
    call = parse_one(text)
    if "rounds" not in signature(registry[call.name]).parameters:
        return text
    parameters = {"rounds": rounds} | call.parameters
    return str(Call(call.name, parameters))


@registry.register("cosine")
def cosine(*, rounds: int | None = None, warmup: int = 0, end: float = 0.0) -> Schedule:
    """end + (1 - end) (1 + cos(pi r / R)) / 2 in round r of R, after `warmup` rounds (`CosineAnnealingLR` with T_max = R).

    R are the rounds without those of the warm-up; unless given, `rounds` are those of the run.
    """

    # the number of rounds may be unknown here, as long as nobody asks for a factor: see `over`
    def factor(round: int) -> float:
        if rounds is None:
            raise UnalikeError(
                "the schedule cosine depends on the number of rounds; write cosine(rounds=50)"
            )
        angle = math.pi * round / (rounds - warmup)
        return end + (1 - end) * (1 + math.cos(angle)) / 2

    if rounds is not None and not 0 <= warmup < rounds:
        raise UnalikeError(
            f"cosine: found warmup={warmup} of {rounds} rounds; expected fewer, and 0 or more"
        )
    return _warmed(factor, warmup)


@registry.register("step")
def step(*, every: int, factor: float = 0.1, warmup: int = 0) -> Schedule:
    """factor^floor(r / every) in round r after `warmup` rounds (`StepLR`)."""
    if every < 1:
        raise UnalikeError(f"step: found every={every}; expected a number of rounds, 1 or more")
    return _warmed(lambda round: factor ** (round // every), warmup)


@registry.register("exponential")
def exponential(*, factor: float = 1.0, warmup: int = 0) -> Schedule:
    """factor^r in round r after `warmup` rounds (`ExponentialLR`)."""
    return _warmed(lambda round: factor**round, warmup)


def _warmed(after: Schedule, warmup: int) -> Schedule:
    """(r + 1) / (warmup + 1) in the rounds r of the warm-up, and then the schedule `after`, from its beginning."""

    def factor(round: int) -> float:
        if round < warmup:
            return (round + 1) / (warmup + 1)
        return after(round - warmup)

    return factor
