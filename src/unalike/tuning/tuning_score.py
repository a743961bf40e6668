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

PERSONAL_PREFIX = "personal_"
WORST_DECILE_PREFIX = "worst_decile_"
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
        personal, rest = _split_prefix(PERSONAL_PREFIX, text or "")
        worst, rest = _split_prefix(WORST_DECILE_PREFIX, rest)
        try:
            if rest:
                read([rest])
        except UnalikeError as error:
            raise UnalikeError(
                f"objective={text!r}: {error}; expected a metric such as "
                "'accuracy', or 'worst_decile', 'personal_accuracy', "
                "'worst_decile_macro_f1'"
            ) from None
        return cls(text or "", rest, personal, worst)

    def metrics(self, others: Sequence[str]) -> tuple[str, ...]:
        """The metrics of the runs by name: that of the objective comes first and therefore decides."""
        if not self.metric:
            return tuple(others)
        return tuple(dict.fromkeys((self.metric, *others)))

    def judged(self, metric: Metric) -> Metric:
        """The metric that the objective makes of the one that decides: itself, or its mean over the worst tenth."""
        return metric.of_worst_tenth if self.worst else metric

    def of_round(self, history: History) -> float:
        """The score after the newest round; NaN if it was not evaluated."""
        column = self._column(history.last, history.columns)
        if not self.worst:
            return column.value(history.last)
        import pandas as pd

        of_clients = [column.value(row) for row in history.last_clients]
        return worst_decile(pd.Series(of_clients, dtype=float), column.metric)

    def of_runs(self, rounds: pd.DataFrame, clients: pd.DataFrame, columns: Columns) -> pd.Series:
        """The score of each run by (method, seed), as the report computes it; a run without a score is left out."""
        import pandas as pd

        def worst(values: pd.Series) -> float:
            return worst_decile(values, columns.metric)

        scores = {}
        for method, of_method in rounds.groupby("method", sort=False):
            column = self._column_of(of_method, columns)
            if self.worst:
                rows = clients[clients["method"] == method]
                scores[method] = rows.groupby("seed", sort=False)[column.name].agg(worst)
            else:
                scores[method] = tail_mean(of_method, column).droplevel("method")
        return pd.concat(scores, names=["method", "seed"]).dropna()

    def decision(self, comparison: Comparison) -> Decision:
        """The decision of a comparison by this objective, among all methods that have a score."""
        content = comparison.content()
        column_of_shared = content.scores[content.unprefixed_protocol].name
        shared = content.rounds.groupby("method")[column_of_shared].count()
        if not (self.worst or self.personal) and shared.all():
            return content.shared_decision  # the usual decision of a report

        # One table with the objective's score of every method in one column, which is then decided on as in a report.
        columns = Columns.of([content.unprefixed_protocol], [self.judged(content.metric)])
        column = columns.metric.name
        resampled: pd.DataFrame | None = None
        if self.worst:
            scores = self.of_runs(comparison.rounds, comparison.clients, comparison.columns)
            by_run = comparison.rounds.groupby(["method", "seed"], sort=False)
            costs = by_run[["seconds", "bytes_down", "bytes_up"]].sum()
            score = {column: scores}
            table = costs.assign(**score, round=1)
            table = table.dropna(subset=[column]).reset_index()
        else:
            column_of_method = {}
            for name, rounds in comparison.rounds.groupby("method"):
                column_of_method[str(name)] = self._column_of(rounds, comparison.columns).name
            table = _in_one_column(comparison.rounds, column, column_of_method)
            if comparison.resampled is not None:
                resampled = _in_one_column(comparison.resampled, column, column_of_method)
        clients = comparison.clients[["method", "seed", "client"]].copy()
        clients[column] = math.nan
        judged = summary(table, clients, columns, content.rules, resampled)
        return decide(table, judged, columns, content.rules, content.unprefixed_protocol, resampled)

    def _column_of(self, rounds: pd.DataFrame, columns: Columns) -> Column:
        """The column of the rounds of a method."""
        highest = {str(name): float(rounds[name].max()) for name in rounds.select_dtypes("number")}
        return self._column(highest, columns)

    def _column(self, row: Row, columns: Columns) -> Column:
        """The column of personal or of shared models, as the objective says; of the others where only these have a score."""
        shared = columns.get(columns.unprefixed_protocol)
        assert shared is not None
        personal = columns.get("personal") or shared
        preferred, other = (personal, shared) if self.personal else (shared, personal)
        if math.isnan(preferred.value(row)) and not math.isnan(other.value(row)):
            return other
        return preferred


def _in_one_column(
    table: pd.DataFrame, column: str, column_of_method: Mapping[str, str]
) -> pd.DataFrame:
    """The table with the scores of each method's own column in one column."""
    import pandas as pd

    scores = []
    for method, rows in table.groupby("method"):
        name = column_of_method[str(method)]
        scores.append(rows[name] if name in rows else rows["seed"] * math.nan)
    joined = table.copy()
    joined[column] = pd.concat(scores)
    return joined


def _split_prefix(prefix: str, text: str) -> tuple[bool, str]:
    """Whether the text begins with the prefix, or is all of it but the last `_`, and the rest of the text."""
    whole = f"{text}_"
    return whole.startswith(prefix), whole.removeprefix(prefix).removesuffix("_")
