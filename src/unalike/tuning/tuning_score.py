"""The tuning score: the score by which hyperparameters are chosen and tuned methods are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unalike._utils.errors import UnalikeError
from unalike.metrics.columns import Column, Columns
from unalike.metrics.named_metrics import Metric, read
from unalike.reporting.decision import Decision, decide
from unalike.runtime.records.history import History, Row
from unalike.statistics.scores import tail_mean, worst_decile
from unalike.statistics.summary import summary

if TYPE_CHECKING:
    import pandas as pd

    from unalike.comparison.comparison import Comparison

PERSONAL, WORST_DECILE = "personal_", "worst_decile_"
"""Prefixes of a metric in the text of a tuning score."""


@dataclass(frozen=True)
class TuningScore:
    """A score of a run and its better direction.

    `text` is the objective as the user wrote it and `metric` the spec of the metric, both empty for the usual one. `personal`:
    personal models are scored where a method has them; otherwise the shared model, where it has one. `worst`: the score is the
    mean over the worst tenth of the clients.
    """

    text: str = ""
    metric: str = ""
    personal: bool = False
    worst: bool = False

    @classmethod
    def parse(cls, text: str | None) -> TuningScore:
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

    def judged(self, metric: Metric) -> Metric:
        """The metric that the objective makes of the one that decides: itself, or its mean over the worst tenth."""
        return metric.of_worst_tenth if self.worst else metric

    def of_round(self, history: History) -> float:
        """The score after the newest round; NaN if it was not evaluated."""
        column = self._column(history.last, history.columns)
        if not self.worst:
            return column.value(history.last)
        import pandas as pd

        return worst_decile(
            pd.Series(list(map(column.value, history.last_clients)), dtype=float), column.metric
        )

    def of_runs(self, rounds: pd.DataFrame, clients: pd.DataFrame, columns: Columns) -> pd.Series:
        """The score of each run by (method, seed), as the report computes it; a run without a score is left out."""
        import pandas as pd

        found = {}
        for method, own in rounds.groupby("method", sort=False):
            column = self._column_of(own, columns)
            if self.worst:
                by_seed = clients[clients["method"] == method].groupby("seed", sort=False)[
                    column.name
                ]
                found[method] = by_seed.agg(lambda values: worst_decile(values, columns.metric))
            else:
                found[method] = tail_mean(own, column).droplevel("method")
        return pd.concat(found, names=["method", "seed"]).dropna()

    def decision(self, comparison: Comparison) -> Decision:
        """The decision of a comparison by this objective, among all methods that have a score."""
        content = comparison.content()
        shared = content.rounds.groupby("method")[
            content.scores[content.unprefixed_protocol].name
        ].count()
        if not (self.worst or self.personal) and shared.all():
            return content.shared_decision
        columns = Columns.of([content.unprefixed_protocol], [self.judged(content.metric)])
        column, resampled = columns.metric.name, None
        if self.worst:
            scores = self.of_runs(comparison.rounds, comparison.clients, comparison.columns)
            costs = comparison.rounds.groupby(["method", "seed"], sort=False)[
                ["seconds", "bytes_down", "bytes_up"]
            ].sum()
            table = costs.assign(**{column: scores}, round=1).dropna(subset=[column]).reset_index()
        else:
            by_method = comparison.rounds.groupby("method")
            of = {
                str(name): self._column_of(own, comparison.columns).name for name, own in by_method
            }
            table = _taken(comparison.rounds, column, of)
            resampled = (
                None if comparison.resampled is None else _taken(comparison.resampled, column, of)
            )
        clients = comparison.clients[["method", "seed", "client"]].assign(**{column: math.nan})
        judged = summary(table, clients, columns, content.rules, resampled)
        return decide(table, judged, columns, content.rules, content.unprefixed_protocol, resampled)

    def _column_of(self, rounds: pd.DataFrame, columns: Columns) -> Column:
        """The column of the rounds of a method."""
        highest = {str(name): float(rounds[name].max()) for name in rounds.select_dtypes("number")}
        return self._column(highest, columns)

    def _column(self, row: Row, columns: Columns) -> Column:
        """The column of the wanted models, personal or shared; that of the other ones where only these have a score."""
        shared, personal = columns.get(columns.unprefixed_protocol), columns.get("personal")
        assert shared is not None
        personal = personal or shared
        wanted, other = (personal, shared) if self.personal else (shared, personal)
        return (
            other if math.isnan(wanted.value(row)) and not math.isnan(other.value(row)) else wanted
        )


def _taken(table: pd.DataFrame, column: str, of: Mapping[str, str]) -> pd.DataFrame:
    """The table with the scores of each method's own column in one column."""
    import pandas as pd

    scores = [
        own[of[str(m)]] if of[str(m)] in own else own["seed"] * math.nan
        for m, own in table.groupby("method")
    ]
    return table.assign(**{column: pd.concat(scores)})


def _split_prefix(prefix: str, text: str) -> tuple[bool, str]:
    """Whether the text begins with the prefix, or is all of it but the last `_`, and the rest of the text."""
    whole = f"{text}_"
    return whole.startswith(prefix), whole.removeprefix(prefix).removesuffix("_")
