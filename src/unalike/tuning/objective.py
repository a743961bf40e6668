"""The objective of tuning: the score by which hyperparameters are chosen and tuned methods are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unalike._utils.errors import UnalikeError
from unalike.metrics.named_metrics import WORST_DECILE, deciding, read
from unalike.metrics.statistics import headline, tail_mean, worst_decile
from unalike.metrics.summary import summary
from unalike.reporting.decision import Decision, decide
from unalike.runtime.records.history import History, Row

if TYPE_CHECKING:
    import pandas as pd

    from unalike.experiments.comparison import Comparison

PERSONAL = "personal_"


@dataclass(frozen=True)
class Objective:
    """A score of a run and its better direction.

    Attributes:
        text: the objective as the user wrote it; empty for the usual metric.
        metric: spec of the metric, such as `macro_f1`; empty for the first metric of the runs.
        personal: whether personal models are scored where a method has them; otherwise the shared model, where it has one.
        worst: whether the score is the mean over the worst tenth of the clients.
    """

    text: str = ""
    metric: str = ""
    personal: bool = False
    worst: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Objective:
        """Read `accuracy`, `worst_decile`, `worst_decile_macro_f1`, `personal_accuracy`, `personal_worst_decile` and the like.

        Raises `UnalikeError` for anything else.
        """
        personal, rest = _split_prefix(PERSONAL, text or "")
        worst, rest = _split_prefix(WORST_DECILE, rest)
        try:
            if rest:
                read([rest])
        except UnalikeError as error:
            raise UnalikeError(
                f"objective={text!r}: {error}; expected a metric such as 'accuracy', or 'worst_decile', 'personal_accuracy', "
                "'worst_decile_macro_f1'"
            ) from None
        return cls(text or "", rest, personal, worst)

    def metrics(self, others: Sequence[str]) -> tuple[str, ...]:
        """The metrics of the runs by name: that of the objective comes first and therefore decides."""
        return tuple(dict.fromkeys((self.metric, *others))) if self.metric else tuple(others)

    def judged(self, column: str) -> str:
        """The column for the score in a table that has no other score: `accuracy`, `worst_decile_accuracy`."""
        return f"{WORST_DECILE if self.worst else ''}{column}"

    def of_round(self, history: History) -> float:
        """The score after the newest round; NaN if it was not evaluated."""
        metric = deciding(history.last)
        if metric is None:
            return math.nan
        column = self._column(history.last, metric.column)
        if not self.worst:
            return float(history.last.get(column, math.nan))
        import pandas as pd

        return worst_decile(pd.Series([row.get(column, math.nan) for row in history.last_clients], dtype=float), metric)

    def of_runs(self, rounds: pd.DataFrame, clients: pd.DataFrame) -> pd.Series:
        """The score of each run by (method, seed), as the report computes it; a run without a score is left out."""
        import pandas as pd

        metric = headline(rounds)
        found = {}
        for method, own in rounds.groupby("method", sort=False):
            highest = {str(name): float(own[name].max()) for name in own.select_dtypes("number")}
            column = self._column(highest, metric.column)
            if self.worst:
                by_seed = clients[clients["method"] == method].groupby("seed", sort=False)[column]
                found[method] = by_seed.agg(lambda values: worst_decile(values, metric))
            else:
                found[method] = tail_mean(own, column).droplevel("method")
        return pd.concat(found, names=["method", "seed"]).dropna()

    def decision(self, comparison: Comparison) -> Decision:
        """The decision of a comparison by this objective."""
        content = comparison.content()
        if not (self.worst or self.personal):
            return content.shared_decision
        scores = self.of_runs(comparison.rounds, comparison.clients)
        column = self.judged(content.metric.column)
        rounds = comparison.rounds.groupby(["method", "seed"], sort=False)[["seconds", "bytes_down", "bytes_up"]].sum()
        table = rounds.assign(**{column: scores}, round=1).dropna(subset=[column]).reset_index()
        clients = comparison.clients[["method", "seed", "client"]].assign(**{column: math.nan})
        return decide(table, summary(table, clients, content.rules), content.rules, content.plain)

    def _column(self, row: Row, column: str) -> str:
        """The column of the wanted models, personal or shared; that of the other ones where only these have a score."""
        wanted, other = (PERSONAL + column, column) if self.personal else (column, PERSONAL + column)
        return other if math.isnan(row.get(wanted, math.nan)) and not math.isnan(row.get(other, math.nan)) else wanted


def _split_prefix(prefix: str, text: str) -> tuple[bool, str]:
    """Whether the text begins with the prefix, or is all of it but the last `_`, and the rest of the text."""
    whole = f"{text}_"
    return whole.startswith(prefix), whole.removeprefix(prefix).removesuffix("_")
