"""The seeds of a comparison: a fixed list, or seeds that are added until the decision stands."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Self

from unalike._utils.errors import UnalikeError
from unalike.comparison.racing.race_budget import FEWEST_SEEDS, RaceBudget

AUTO = "auto"


@dataclass(frozen=True)
class SeedPlan:
    """The seeds that may be run, in order.

    `looks` is None if all of them are run. Otherwise it is (fewest, most): after the fewest, and after each further seed, seeds are
    added only while the decision is open, and only to methods that matter for it. `race` is the budget of a race, which has looks,
    too; None for any other comparison.
    """

    seeds: list[int]
    looks: tuple[int, int] | None = None
    race: RaceBudget | None = None

    @classmethod
    def of(
        cls, seeds: int | str | Sequence[int] = 3, min_seeds: int = 3, max_seeds: int = 10
    ) -> Self:
        """The plan for `seeds`: their number, a list of them, or "auto".

        Raises:
            UnalikeError: for anything else, for a seed listed twice, and unless 2 <= min_seeds <= max_seeds with "auto".
        """
        if isinstance(seeds, str) and seeds == AUTO:
            if not 2 <= min_seeds <= max_seeds:
                raise UnalikeError(
                    f"found min_seeds={min_seeds} and max_seeds={max_seeds}; expected 2 or more seeds, and min_seeds not above "
                    "max_seeds"
                )
            return cls(list(range(max_seeds)), (min_seeds, max_seeds))
        try:
            if isinstance(seeds, Iterable) and not isinstance(seeds, str):
                numbers = [index(seed) for seed in seeds]
            else:
                numbers = list(range(index(seeds)))  # type: ignore[arg-type]
        except TypeError:
            raise UnalikeError(
                f"seeds={seeds!r}: expected how many (3), which ([0, 1, 4]) or 'auto'"
            ) from None
        if len(set(numbers)) < len(numbers):
            raise UnalikeError(f"a seed is listed twice in {numbers}; list it once")
        return cls(numbers)

    @classmethod
    def of_race(cls, within: str, rounds: int) -> Self:
        """The plan of a race within a budget such as '10 min', whose runs have so many rounds."""
        budget = RaceBudget.read(within)
        most = budget.most_seeds(rounds)
        return cls(list(range(most)), (min(FEWEST_SEEDS, most), most), budget)

    @property
    def flags(self) -> dict[str, Any]:
        """The flags of the command line that give this plan."""
        if self.race is not None:  # the race chooses its methods and seeds
            return {"within": self.race.text, "method": None, "seeds": None}
        if self.looks is None:
            return {"seeds": write_seeds(self.seeds)}
        return {"seeds": AUTO, "min_seeds": self.looks[0], "max_seeds": self.looks[1]}


def read_seeds(text: str) -> list[int] | str:
    """Read `--seeds`: `3` means the seeds 0, 1, 2; `0,1,4` lists them; `4,` is the seed 4 alone; `auto` stays as it is.

    Raises `UnalikeError` for other texts.
    """
    if text == AUTO:
        return AUTO
    return read_numbers(text, ", or auto (add seeds until the decision stands)")


def read_numbers(text: str, others: str = "") -> list[int]:
    """Read `--seeds` where `auto` has no meaning; see `read_seeds`. `others` names what else is expected, for the error."""
    try:
        numbers = [int(item) for item in text.rstrip(", ").split(",")]
    except ValueError:
        raise UnalikeError(
            f"seeds={text!r}: expected how many (3) or which (0,1,4; one alone as 4,){others}"
        ) from None
    return numbers if "," in text else list(range(numbers[0]))


def write_seeds(seeds: Sequence[int]) -> str:
    """The value of `--seeds` for these seeds: `3` for 0, 1, 2; `0,1,4` for others; `4,` for one seed alone."""
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    if len(seeds) == 1:
        return f"{seeds[0]},"
    return ",".join(map(str, seeds))
