"""The result of `ua.recommend`: methods with expected gain, risk and cost, in numbers and in sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from unalike._utils.notebook import paragraph
from unalike._utils.version import __version__
from unalike.diagnosis.diagnosis import Diagnosis
from unalike.metrics.named_metrics import KNOWN, Metric
from unalike.recommendation.judgement import ALWAYS_FEDAVG, AVERAGE, FORECAST, Judgement
from unalike.recommendation.stored_runs import BASELINE
from unalike.reporting.table import Table, TableColumn, html, interval, number, words
from unalike.reporting.wording import listing, share, significant

if TYPE_CHECKING:
    import pandas as pd

OBJECTIVE_NAMES = {
    "accuracy": "accuracy",
    "worst_decile": "accuracy of the worst tenth of the clients",
}
"""Objective -> its name in a sentence."""
POINTS = KNOWN["accuracy"]
"""The metric whose differences are points of a share, as gains and regrets are written."""
SHORT_LIST = 3
"""Number of methods to compare, beside FedAvg."""


@dataclass(frozen=True)
class Advice:
    """A method, and its results in the stored tasks that are like the clients.

    Attributes:
        method: The label of the method.
        spec: The method as spec text.
        sure: Whether it is recommended before FedAvg: on real owners' data a lower bound of its median gain is above 0
            (`forecast.lower_bound`); for clients that a partition made, the median gain is.
        gain: The median gain over FedAvg in the objective, weighted by likeness, in the metric of each task (of errors, the
            share by which they are smaller). No gain is larger than the clients' metric allows above a constant prediction.
        low: The gain that it exceeded in nine tenths of the tasks, by weight.
        high: The gain that it exceeded in a tenth of them.
        risk: The weight of the tasks in which it was worse than FedAvg by more than `LOSS`.
        traffic: Bytes of a round, divided by those of FedAvg.
        time: Seconds of a run, divided by those of FedAvg.
        rate: The local learning rate that was best most often, by weight.
        measured: The median gain in the clients' own metric over the real owners' tasks that are stored in it; None if none is.
    """

    method: str
    spec: str
    sure: bool
    gain: float
    low: float
    high: float
    risk: float
    traffic: float
    time: float
    rate: float
    measured: float | None = None


@dataclass(frozen=True)
class AlikeTask:
    """A stored task that is like the clients.

    The weights of all tasks sum to 1; `best` is the best method there, `gain` that of the recommended method there.
    """

    task: str
    weight: float
    best: str
    gain: float


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation:
    """Methods for some clients, best first, as `ua.recommend` returns them; `str(recommendation)` is the summary.

    Attributes:
        name: The data and its partition.
        objective: The score that counts, "accuracy" or "worst_decile".
        metric: The metric of the clients.
        measured: The number of real owners' tasks that are stored in this metric.
        owners: Whether the clients are real owners of data, so that only stored tasks of such count.
        advice: The methods, best first; FedAvg is among them with a gain of 0.
        reasons: The answers that lead to tasks like these clients.
        alike: The stored tasks that are most like these clients.
        judgement: How good such recommendations were on held-out tasks.
        diagnosis: The diagnosis of the clients.
        unlike: Whether no stored task is like these clients, so that all tasks count alike.
        notes: Limits of this recommendation.
        command: The command that repeats it; empty for clients from a program.
    """

    name: str
    objective: str
    metric: Metric
    measured: int
    owners: bool
    advice: Sequence[Advice]
    reasons: Sequence[str]
    alike: Sequence[AlikeTask]
    judgement: Judgement
    diagnosis: Diagnosis
    unlike: bool = False
    notes: Sequence[str] = field(default_factory=tuple)
    command: str = ""

    @property
    def short_list(self) -> list[Advice]:
        """The methods to compare on the clients' own data: the first ones whose median gain is positive."""
        return [one for one in self.advice if one.gain > 0][:SHORT_LIST]

    @property
    def findings(self) -> list[str]:
        """The recommendation in sentences: the short list, its basis, and how good such advice was."""
        return [self._choice(), self._basis(), self._quality()]

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """The columns of the table of advice: with gains in the clients' metric where these are stored and tell something new."""
        if not self.measured or (self.metric.name == "accuracy" and not self.owners):
            return ADVICE_COLUMNS
        heading = f"In {self.metric.word}, {self.measured} data sets"
        return (
            *ADVICE_COLUMNS[:3],
            number(heading, lambda one: one.measured, POINTS.change),
            *ADVICE_COLUMNS[3:],
        )

    @property
    def table(self) -> pd.DataFrame:
        """One row per method, best first: the fields of `Advice`."""
        import pandas as pd

        return pd.DataFrame([asdict(one) for one in self.advice]).set_index("method")

    def to_json(self) -> str:
        """All numbers as JSON text, for other programs."""
        content = {
            "unalike": __version__,
            "name": self.name,
            "objective": self.objective,
            "metric": self.metric.name,
            "owners": self.owners,
            "advice": [asdict(one) for one in self.advice],
            "reasons": list(self.reasons),
            "alike": [asdict(one) for one in self.alike],
            "judgement": asdict(self.judgement),
            "findings": self.findings,
            "notes": list(self.notes),
            "command": self.command,
        }
        return json.dumps(content, indent=1, allow_nan=False)

    def save(self, folder: str | Path) -> Path:
        """Write the page `recommendation.html`, which needs no network, and the numbers as `recommendation.json`.

        The folder is made if it does not exist. Returns the path of the page. Raises `UnalikeError` if it cannot be written.
        """
        from unalike.reporting.pages import save

        return save("recommendation", self, folder)

    def __str__(self) -> str:
        return " ".join(self.findings)

    def __repr__(self) -> str:
        names = ", ".join(one.method for one in self.short_list) or "FedAvg"
        return f"<Recommendation for {self.name}: {names}>"

    def _repr_html_(self) -> str:
        return "".join(map(paragraph, self.findings)) + html(
            Table.of("", self.columns, self.advice)
        )

    def _choice(self) -> str:
        others = [one.method for one in self.short_list]
        if not self.advice[0].sure:
            compare = f" Worth a comparison on your own data: {listing(others)}." if others else ""
            sure = "no method surely gains" if self.owners else "no method promises a gain"
            return f"Stay with FedAvg: {sure} over it.{compare}"
        first = self.advice[0]
        unit = "" if self.owners else f" in {OBJECTIVE_NAMES[self.objective]}"
        return (
            f"Try {first.method} first: in the median of the tasks it had {POINTS.amount(first.gain)} points more than FedAvg"
            f"{unit} ({POINTS.amount(first.low)} to {POINTS.amount(first.high)} in eight of ten tasks); in {share(first.risk)} of "
            "them it was worse. "
            f"Compare it with {listing([*(name for name in others if name != first.method), BASELINE])} on your own data."
        )

    def _basis(self) -> str:
        if self.owners:
            text = (
                f"This counts the {self.judgement.owners} stored data sets with real owners alike, each in its own metric. "
                "A gain is sure if the sign test, corrected for the number of methods, says so"
            )
            unlike = (
                "; your clients are unlike all of them, so even this is a guess"
                if self.unlike
                else ""
            )
            return f"{text}{unlike}."
        tasks = self.judgement.tasks
        if self.unlike:
            return (
                f"No stored task is like these clients, so this counts all {tasks} stored tasks alike: a guess. A comparison on "
                "your own data is the only answer."
            )
        if self.judgement.policy(False) == AVERAGE:
            return (
                f"This counts all {tasks} stored tasks alike: forecasts from the diagnosis were not surely better than the "
                "method that is best on average, so they are not used."
            )
        return (
            f"This is about those of {tasks} stored tasks that are like these clients. They are alike in: "
            f"{'; '.join(self.reasons)}."
        )

    def _quality(self) -> str:
        regret = self.judgement.regret["owners" if self.owners else "data"]
        own, fedavg = regret[self.judgement.policy(self.owners)], regret[ALWAYS_FEDAVG]
        text = (
            "How good is this? On data sets that the choice had not seen it missed the best method by "
            f"{POINTS.amount(own.mean)} points on average ({POINTS.amount(own.low)} to {POINTS.amount(own.high)}); "
            f"FedAvg missed it by {POINTS.amount(fedavg.mean)}"
        )
        if not self.owners:
            return f"{text}. This holds for data that a partition divided, and not for real owners."
        return f"{text}, and forecasts from tasks like the clients by {POINTS.amount(regret[FORECAST].mean)}."


def _times(value: float) -> str:
    return f"{significant(value, digits=2)}x"


ADVICE_COLUMNS = (
    words("Method", lambda one: one.method),
    number("Median gain", lambda one: one.gain, POINTS.change),
    interval("In eight of ten tasks", lambda one: one.low, lambda one: one.high, POINTS.interval),
    number("Worse in", lambda one: one.risk, share),
    number("Traffic", lambda one: one.traffic, _times),
    number("Time", lambda one: one.time, _times),
    number("Learning rate", lambda one: one.rate, "{:g}".format),
)
"""The columns of a table of advice, for pages, terminals and notebooks."""
