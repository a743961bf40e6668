"""A race while it runs: which methods are in it, what its cells have cost, and what each look drops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from unalike._utils.tensor_files import write_bytes
from unalike.comparison.racing.drop_rule import (
    leader_of,
    seeds_to_tell_apart,
    tests_against_leader,
)
from unalike.comparison.racing.race_budget import FEWEST_SEEDS, RaceBudget
from unalike.comparison.racing.short_list import NEVER_DROPPED
from unalike.statistics.inference import difference_table
from unalike.statistics.race_account import Departure, RaceAccount
from unalike.statistics.seed_draws import draws_of, sampling_variances
from unalike.statistics.summary import scores_by_seed
from unalike.statistics.verdicts import BASELINE, CANDIDATE, UNDECIDED, WORSE

if TYPE_CHECKING:
    from unalike.reporting.content import ReportContent

TIMES_FILE = "race.json"
FUTILE_FROM = 5
"""Seeds from which a race may end because no number of seeds within its limit would tell more methods apart."""
ALWAYS_TRIED = 2
"""Methods of the short list that run whatever the budget is: with fewer there is nothing to compare."""


@dataclass
class CellSeconds:
    """The seconds of the cells of a race, by the key of the cell's run. In a folder they are kept from one call to the next."""

    file: Path | None = None
    by_key: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None) -> CellSeconds:
        """The seconds that a folder keeps; none where it keeps none, or where they cannot be read."""
        if folder is None:
            return cls()
        file = folder / TIMES_FILE
        try:
            stored = json.loads(file.read_text("utf-8"))
            return cls(file, {str(key): float(seconds) for key, seconds in stored.items()})
        except (OSError, ValueError, TypeError, AttributeError):
            return cls(file)

    def add(self, key: str, seconds: float) -> float:
        """Keep the seconds of a cell unless they are known already. Returns those that count."""
        if key in self.by_key:
            return self.by_key[key]
        self.by_key[key] = seconds
        if self.file is not None:
            write_bytes(self.file, (json.dumps(self.by_key, indent=1) + "\n").encode())
        return seconds


@dataclass
class Race:
    """The state of a race.

    `running` are the methods that are in it, in the order of the short list, `most` the most seeds. `seconds` are those of the
    cells of each method so far. `ended` is the reason why the race is over, empty while it is not.
    """

    budget: RaceBudget
    most: int
    running: list[str]
    kept: frozenset[str] = frozenset(NEVER_DROPPED)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    departures: list[Departure] = field(default_factory=list)
    seeds: int = 0
    ended: str = ""

    @property
    def fewest(self) -> int:
        """The seeds before the first look."""
        return min(FEWEST_SEEDS, self.most)

    @property
    def spent(self) -> float:
        """The seconds of all cells so far."""
        return sum(sum(of_method) for of_method in self.seconds.values())

    def add_cell(self, method: str, seconds: float) -> None:
        """Count a cell that has run."""
        self.seconds.setdefault(method, []).append(seconds)

    def begins(self, method: str) -> bool:
        """Whether the budget has room for a method under the fewest seeds, asked before its first cell.

        The cost of the method is not known yet: it counts as the mean of those before it.
        """
        limit = self.budget.seconds
        tried = len(self.seconds)
        if limit is None or tried < ALWAYS_TRIED:
            return True
        a_seed = self.spent * (tried + 1) / tried
        return a_seed * self.fewest <= limit

    def affords_another_seed(self) -> bool:
        """Whether all methods that are in the race fit once more into the budget, at their mean cost so far."""
        limit = self.budget.seconds
        if limit is None:
            return True
        a_seed = sum(sum(own) / len(own) for name in self.running if (own := self.seconds[name]))
        return self.spent + a_seed <= limit

    def leave_out(self, method: str) -> None:
        """Take a method out that the budget has no room for."""
        why = f"no time: {self.fewest} seeds of it would not fit into {self.budget.text}"
        self._depart(Departure(method, 0, why))

    def drop_diverged(self, method: str, seed: int) -> None:
        """Take a method out whose training diverged; the baseline and the references stay."""
        if method not in self.kept:
            self._depart(
                Departure(method, len(self.seconds[method]), f"diverged under seed {seed}")
            )

    def _depart(self, departure: Departure) -> None:
        self.departures.append(departure)
        self.running.remove(departure.method)

    def look(self, content: ReportContent) -> None:
        """Look at the results after a seed: drop what is shown to be worse than the leader, and see whether the race is over."""
        judged = content.scores_of(content.deciding_protocol).set_index("method")
        column = content.columns.get(content.deciding_protocol)
        if column is None or judged.empty:
            return
        roles = judged["role"]
        self._drop_twins({name: str(roles[name]) for name in self.running if name in roles})

        # References are no candidates: neither can they win, nor does being worse than one of them mean anything.
        by_seed = scores_by_seed(content.rounds, column)
        raced = [
            name
            for name in self.running
            if name in by_seed and roles.get(name) in (BASELINE, CANDIDATE)
        ]
        if len(raced) < 2:
            self.ended = "nothing is left to compare"
            return
        sign = content.metric.sign
        scores = {name: by_seed[name] for name in raced}
        leader = leader_of({name: sign * own for name, own in scores.items()})
        others = [name for name in raced if name != leader]
        gains = sign * difference_table(scores, leader)[others].to_numpy(float)
        rules = content.rules
        variances = sampling_variances(draws_of(content.resampled, column), leader, others)
        tested, words = tests_against_leader(
            gains,
            rules.level,
            overlap=rules.overlap,
            sampling=variances,
            smallest=content.smallest_difference,
        )
        for j, name in enumerate(others):
            if words[j] == WORSE and name not in self.kept:
                ends = sorted((sign * float(tested.low[j]), sign * float(tested.high[j])))
                self._depart(
                    Departure(
                        name,
                        seeds=self.seeds,
                        why=f"worse than {leader}",
                        leader=leader,
                        difference=sign * float(tested.mean[j]),
                        low=ends[0],
                        high=ends[1],
                    )
                )

        # It is over where no method is left that further seeds could tell from the leader.
        needed = seeds_to_tell_apart(
            tested,
            words,
            rules.level,
            overlap=rules.overlap,
            sampling=variances,
            smallest=content.smallest_difference,
        )
        if content.decision.stands or needed is None:
            self.ended = "the decision stands"
        elif needed > self.most > self.seeds >= FUTILE_FROM:
            undecided = sum(word == UNDECIDED for word in words)
            self.ended = (
                f"up to {self.most} seeds are not likely to tell {leader} from any of the {undecided} methods that are "
                "undecided against it"
            )

    def _drop_twins(self, role_of: dict[str, str]) -> None:
        """Take methods out whose scores are those of another one: no seed can tell the two apart."""
        for name, role in role_of.items():
            if role not in (BASELINE, CANDIDATE) and name not in self.kept:
                self._depart(Departure(name, self.seeds, role))

    @property
    def account(self) -> RaceAccount:
        """The account of the race so far."""
        left_out = sum(not departure.seeds for departure in self.departures)
        return RaceAccount(
            within=self.budget.text,
            began=len(self.running) + len(self.departures) - left_out,
            seeds=self.seeds,
            seconds=self.spent,
            ended=self.ended,
            departures=self.departures,
        )


@dataclass(frozen=True)
class RaceStart:
    """The start of a race: its budget, and method -> why it cannot run here, for those of the short list that cannot."""

    budget: RaceBudget
    cannot_run: Mapping[str, str]

    def begin(self, methods: list[str], most: int, baseline: str) -> Race:
        """A race of these methods with at most so many seeds. A baseline of the user's own is never dropped, either."""
        absent = [Departure(name, 0, f"cannot run: {why}") for name, why in self.cannot_run.items()]
        kept = frozenset((*NEVER_DROPPED, baseline))
        return Race(self.budget, most, list(methods), kept, departures=absent)
