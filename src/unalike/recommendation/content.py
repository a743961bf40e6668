"""The content of a recommendation: methods with expected gain, risk and cost, in numbers and in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from unalike.diagnosis.diagnosis import Diagnosis
from unalike.recommendation.judgement import Judgement
from unalike.recommendation.regret import ALWAYS_FEDAVG, AVERAGE
from unalike.recommendation.task_runs import BASELINE
from unalike.reporting.wording import listing, share, significant

OBJECTIVE_NAMES = {"accuracy": "accuracy", "worst_decile": "accuracy of the worst tenth of the clients"}
"""Objective -> its name in a sentence."""
SHORT_LIST = 3
"""Number of methods to compare, beside FedAvg."""


@dataclass(frozen=True)
class Advice:
    """A method, and its results in the stored tasks that are like the clients.

    Attributes:
        method: The label of the method.
        spec: The method as spec text.
        gain: The mean gain over FedAvg in the objective, weighted by likeness.
        low: The gain that it exceeded in nine tenths of the tasks, by weight.
        high: The gain that it exceeded in a tenth of them.
        risk: The weight of the tasks in which it was worse than FedAvg by more than `LOSS`.
        traffic: Bytes of a round, divided by those of FedAvg.
        time: Seconds of a run, divided by those of FedAvg.
        rate: The local learning rate that was best most often, by weight.
    """

    method: str
    spec: str
    gain: float
    low: float
    high: float
    risk: float
    traffic: float
    time: float
    rate: float


@dataclass(frozen=True)
class AlikeTask:
    """A stored task that is like the clients.

    Attributes:
        task: Its name.
        weight: Its weight; all weights sum to 1.
        best: The best method there.
        gain: The gain of the recommended method there.
    """

    task: str
    weight: float
    best: str
    gain: float


@dataclass(frozen=True, eq=False, repr=False)
class RecommendationContent:
    """Methods for some clients, best first; `Recommendation` explains the fields."""

    name: str
    objective: str
    advice: Sequence[Advice]
    reasons: Sequence[str]
    alike: Sequence[AlikeTask]
    judgement: Judgement
    diagnosis: Diagnosis
    notes: Sequence[str] = field(default_factory=tuple)
    command: str = ""

    @property
    def short_list(self) -> list[Advice]:
        """The methods to compare on the clients' own data: the first ones that promise a gain."""
        return [one for one in self.advice if one.gain > 0][:SHORT_LIST]

    @property
    def findings(self) -> list[str]:
        """The recommendation in sentences: the short list, its basis, and how good such advice was."""
        return [self._choice(), self._basis(), self._quality()]

    def _choice(self) -> str:
        if not self.short_list:
            return "Stay with FedAvg: no method promises a gain over it."
        first, others = self.short_list[0], [one.method for one in self.short_list[1:]]
        return (
            f"Try {first.method} first: {points(first.gain)} points more than FedAvg expected in {OBJECTIVE_NAMES[self.objective]} "
            f"({points(first.low)} to {points(first.high)} in eight of ten tasks); in {share(first.risk)} of them it was worse. "
            f"Compare it with {listing([*others, BASELINE])} on your own data."
        )

    def _basis(self) -> str:
        tasks = self.judgement.tasks
        if self.judgement.policy == AVERAGE:
            return (
                f"This is the average over all {tasks} stored tasks: forecasts from the diagnosis were not surely better than the "
                "method that is best on average, so they are not used."
            )
        return (
            f"This is the average over those of {tasks} stored tasks that are like these clients. They are alike in: "
            f"{'; '.join(self.reasons)}."
        )

    def _quality(self) -> str:
        regret = self.judgement.regret["data"]
        own, fedavg = regret[self.judgement.policy], regret[ALWAYS_FEDAVG]
        return (
            f"How good is this? On data sets that the choice had not seen it missed the best method by {points(own.mean)} points "
            f"on average ({points(own.low)} to {points(own.high)}); FedAvg missed it by {points(fedavg.mean)}."
        )


COLUMNS = ("method", "expected gain", "in eight of ten tasks", "worse in", "traffic", "time", "learning rate")


def row_texts(advice: Advice) -> tuple[str, ...]:
    """One row of a table of advice as texts; see `COLUMNS`."""
    return (
        advice.method,
        points(advice.gain, "+"),
        f"{points(advice.low, '+')} to {points(advice.high, '+')}",
        share(advice.risk),
        f"{significant(advice.traffic, digits=2)}x",
        f"{significant(advice.time, digits=2)}x",
        f"{advice.rate:g}",
    )


def points(value: float, sign: str = "-") -> str:
    """A difference of shares in points with one digit, never `-0.0`; with sign "+", gains have a plus."""
    return f"{round(100 * value, 1) + 0.0:{sign}.1f}"
