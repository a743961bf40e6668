"""The budget of a race: seconds of the whole race, rounds of each method, or seeds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from unalike._utils.errors import UnalikeError

DEFAULT_BUDGET = "10 min"
"""The budget of a race unless one is given."""
FEWEST_SEEDS, MOST_SEEDS = 3, 10
"""Seeds before the first look, and most seeds of a race whose budget does not count seeds."""

Unit = Literal["seconds", "rounds", "seeds"]
UNITS: dict[str, tuple[Unit, int]] = {
    "s": ("seconds", 1),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
    "round": ("rounds", 1),
    "rounds": ("rounds", 1),
    "seed": ("seeds", 1),
    "seeds": ("seeds", 1),
}
"""Unit as it is written -> what it counts, and how many of it."""


@dataclass(frozen=True)
class RaceBudget:
    """The most that a race may spend: `amount` in `unit`, as the user wrote it in `text`.

    Seconds are those of all cells together, rounds those of each method over all its seeds.
    """

    text: str
    unit: Unit
    amount: float

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a budget such as '10 min'. Raises `UnalikeError` for anything else."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", str(text).lower())
        known = match is not None and match[2] in UNITS and float(match[1]) > 0
        if match is None or not known:
            raise UnalikeError(
                f"within={text!r}; expected time, rounds of each method or seeds, such as '10 min', '200 rounds', '5 seeds'"
            )
        unit, factor = UNITS[match[2]]
        amount = float(match[1]) * factor
        if unit != "seconds" and amount != int(amount):
            raise UnalikeError(f"within={text!r}; expected a whole number of {unit}")
        return cls(str(text).strip(), unit, amount)

    def most_seeds(self, rounds: int) -> int:
        """The most seeds of a race whose runs have this many rounds. Raises `UnalikeError` if not one run fits."""
        if self.unit == "seconds":
            return MOST_SEEDS
        if self.unit == "seeds":
            return int(self.amount)
        if self.amount < rounds:
            raise UnalikeError(
                f"within={self.text!r} is less than one run of {rounds} rounds; give more, or fewer rounds a run (--rounds)"
            )
        return int(self.amount // rounds)

    @property
    def seconds(self) -> float | None:
        """The seconds that may be spent; None if rounds or seeds are counted."""
        return self.amount if self.unit == "seconds" else None
