"""The result of `ua.tune`: its numbers, and what they show, in sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike.comparison.comparison import Comparison
from unalike.comparison.references import reference
from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look
from unalike.reporting.decision import Decision
from unalike.reporting.table import Table, interval, number, plain, words
from unalike.tuning.ranking import Ranked, ranking, swapped
from unalike.tuning.trial import DIVERGED, PRUNED, Trial, best_of
from unalike.tuning.trials import TrialBudget, Trials
from unalike.tuning.tunable import Tunable, Values
from unalike.tuning.tuning_score import TuningScore

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, repr=False)
class Tuning:
    """The result of `ua.tune`: `print(tuning)` is a summary, `tuning.table` has the numbers, `tuning.save(folder)` writes a page.

    `tuning.chosen` has the chosen values by method, `tuning.before` and `tuning.after` are the comparisons with the values as
    they were given and with the chosen ones, `tuning.trials` all trials.

    Attributes:
        name: data set and partition.
        methods: label -> method with its local training, as they were given.
        trials: label -> its trials.
        objective: the score that was tuned, and by which the methods are compared.
        budget: what each method could spend.
        rounds: rounds of a trial that is not stopped early.
        seed: the seed of the trials.
        before: the comparison with the values as they were given, on other seeds.
        after: the comparison with the chosen values, on the same seeds as `before`.
        command: the command that repeats the tuning.
    """

    name: str
    methods: Mapping[str, Tunable]
    trials: Trials
    objective: TuningScore
    budget: TrialBudget
    rounds: int
    seed: int
    before: Comparison
    after: Comparison
    command: str = ""

    @cached_property
    def metric(self) -> Metric:
        """The metric of the objective, with its better direction."""
        return self.objective.judged(self.after.columns.metric)

    @property
    def chosen(self) -> dict[str, Values]:
        """Method -> the values of its best trial; those that it was given with if no trial has finished."""
        sign = self.metric.sign
        return {
            label: chosen_values(one, self.trials[label], sign)
            for label, one in self.methods.items()
        }

    @cached_property
    def ranking(self) -> list[Ranked]:
        """The methods before and after tuning, best after it first."""
        before = self._scores(self.before)
        after = self._scores(self.after)
        references = [m["label"] for m in self.after.facts.methods if reference(m["spec"])]
        return ranking(before, after, list(self.methods), references, self.metric.sign)

    def _scores(self, comparison: Comparison) -> pd.Series:
        """The scores of a comparison by (method, seed)."""
        return self.objective.of_runs(comparison.rounds, comparison.clients, comparison.columns)

    @cached_property
    def decision(self) -> Decision:
        """The decision between the tuned methods, by the objective."""
        return self.objective.decision(self.after)

    @property
    def table(self) -> pd.DataFrame:
        """One row per method: chosen values, scores before and after tuning, gain, ranks."""
        import pandas as pd

        chosen = self.chosen
        rows = []
        for one in self.ranking:
            row = {
                "method": one.method,
                "values": _values_text(chosen[one.method]),
                "before": one.before.mean,
                "after": one.after.mean,
                "gain": one.gain.mean,
                "gain_low": one.gain.low,
                "gain_high": one.gain.high,
                "rank_before": one.rank_before,
                "rank_after": one.rank_after,
            }
            rows.append(row)
        return pd.DataFrame(rows)

    def before_and_after(self, looks: Mapping[str, Look] | None = None) -> Table:
        """The methods before and after tuning as a table, for pages, terminals and notebooks."""
        metric = self.metric
        chosen = self.chosen

        def values_of(one: Ranked) -> str:
            return _values_text(chosen[one.method])

        def low(one: Ranked) -> float:
            return one.gain.low

        def high(one: Ranked) -> float:
            return one.gain.high

        columns = [
            words("Method", lambda one: one.method, looks),
            words("Chosen values", values_of),
            number("As given", lambda one: one.before.mean, metric.text),
            number("Tuned", lambda one: one.after.mean, metric.text),
            number("Gain", lambda one: one.gain.mean, metric.difference),
            interval("95 % interval", low, high, metric.interval),
            number("Rank as given", lambda one: one.rank_before),
            number("Rank tuned", lambda one: one.rank_after),
        ]
        return Table.of("The methods before and after tuning", columns, self.ranking)

    @property
    def notes(self) -> list[str]:
        """Warnings to show above the results."""
        with_both = [
            m["label"]
            for m in self.after.facts.methods
            if {"clients", "personal"} <= set(m["protocols"])
        ]
        notes = list(dict.fromkeys([*self.before.facts.notes, *self.after.facts.notes]))
        if with_both and not self.objective.personal:
            notes.append(
                f"The shared model of {wording.listing(with_both)} was tuned, as "
                "of all methods, and not the personal models; with the objective "
                "'personal' these are."
            )
        return notes

    @property
    def findings(self) -> list[str]:
        """The results of the tuning in sentences."""
        return [str(self.decision), _order(self.ranking), self._gains(), self._spent()]

    def plot(self, kind: str = "ranking") -> go.Figure:
        """Draw one of the charts of the page.

        Args:
            kind: "ranking" (scores before and after tuning), "search" (best score by trial), "rates" (score by learning rate),
                "spread" (the scores of all trials) or "pareto" (the tuned methods by score, fairness, traffic and time).

        Returns:
            The Plotly figure.

        Raises:
            UnalikeError: The kind is unknown.
        """
        from unalike.reporting.pages import plot

        return plot("tuning", self, kind, "see tuning.table")

    def save(self, folder: str | Path) -> Path:
        """Write the page `tuning.html`, which needs no network, and the numbers as `tuning.json`.

        The folder is made if it does not exist. Returns the path of the page. Raises `UnalikeError` if it cannot be written.
        """
        from unalike.reporting.pages import save

        return save("tuning", self, folder)

    def to_json(self) -> str:
        """All numbers as JSON text, for other programs."""
        trials = {}
        for label, of_method in self.trials.items():
            trials[label] = [asdict(trial) for trial in of_method]
        content: dict[str, Any] = {
            "name": self.name,
            "objective": self.metric.name,
            "budget": asdict(self.budget),
            "rounds": self.rounds,
            "seed": self.seed,
            "command": self.command,
            "chosen": self.chosen,
            "trials": trials,
            "ranking": json.loads(self.table.to_json(orient="records")),
            "findings": self.findings,
        }
        return json.dumps(content, indent=1, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join([*self.findings, "", plain(self.before_and_after())])

    def __repr__(self) -> str:
        methods = ", ".join(self.methods)
        trials = wording.plural(self.budget.trials, "trial")
        return f"<Tuning of {methods} on {self.name}, {trials} each>"

    def _gains(self) -> str:
        """The methods that are better for their tuning, in a sentence."""
        better = [one for one in self.ranking if one.gain.low > 0]
        if not better:
            return "No method is shown to gain by tuning."
        largest = max(one.gain.mean for one in better)
        first = wording.listing(one.method for one in better if one.gain.mean == largest)
        names = wording.listing(one.method for one in better)
        amount = self.metric.difference(self.metric.sign * largest)
        return f"Tuning helps {names}; it changes {first} most, by {amount}."

    def _spent(self) -> str:
        """The cost of the trials, in a sentence."""
        trials = [trial for of_method in self.trials.values() for trial in of_method]
        pruned = [trial for trial in trials if trial.end == PRUNED]
        diverged = [trial for trial in trials if trial.end == DIVERGED]
        full = len(trials) * self.rounds
        saved = sum(self.rounds - trial.rounds for trial in pruned)
        share = saved / full if full else 0.0
        return (
            f"{wording.plural(len(trials), 'trial')} of up to "
            f"{wording.plural(self.rounds, 'round')}: {len(pruned)} were stopped "
            f"early, which saved {saved} of {full} rounds ({wording.share(share)}); "
            f"{len(diverged)} diverged."
        )


def chosen_values(method: Tunable, trials: Sequence[Trial], sign: int) -> Values:
    """The values of the best trial; those that the method was given with if no trial has finished."""
    best = best_of(trials, sign)
    return method.values if best is None else dict(best.values)


def _values_text(values: Mapping[str, Any]) -> str:
    """Hyperparameters as text: `lr=0.0316, proximal.mu=0.012`."""
    parts = []
    for name, value in values.items():
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        parts.append(f"{name}={text}")
    return ", ".join(parts)


def _order(ranked: Sequence[Ranked]) -> str:
    """The change of the order of the methods, in a sentence."""
    scored = [one for one in ranked if one.rank_before is not None and one.rank_after is not None]
    if len(scored) < 2:
        return (
            "There are no two methods with scores before and after tuning, so there is no ranking."
        )
    best_before = min(one.rank_before or 0 for one in scored)
    best_after = min(one.rank_after or 0 for one in scored)
    before = [one.method for one in scored if one.rank_before == best_before]
    after = [one.method for one in scored if one.rank_after == best_after]
    are = "is" if len(before) == 1 else "are"
    when = "before and after"
    if before != after:
        when = f"before it, {wording.listing(after)} after"
    first = f"{wording.listing(before)} {are} first {when} it."
    turned = len(swapped(scored))
    if not turned:
        return f"Tuning does not change the ranking: {first}"
    pairs = len(scored) * (len(scored) - 1) // 2
    return f"Tuning turns {turned} of {wording.plural(pairs, 'pair')} of methods round: {first}"
