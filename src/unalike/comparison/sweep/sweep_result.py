"""The result of a sweep: its table, the best values of each method, heat maps and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unalike.comparison.comparison import Comparison
from unalike.data.columns import is_number
from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.table import (
    Row,
    Table,
    TableColumn,
    aligned_text,
    html,
    interval,
    number,
    rows,
    words,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MOST_NAMED = 6
"""Most best points that are named in a sentence."""


@dataclass(frozen=True, repr=False)
class Sweep:
    """Comparisons at every point of a grid, as `ua.sweep` returns them.

    Attributes:
        axes: name -> its values, as text.
        comparisons: values of a point, in the order of the names -> its comparison.
        data_axes: the names that change the clients' data: their values are other tasks and no choices.
        lacking: label of a method -> the names that it does not have, as FedAvg has no `mu`.
    """

    axes: Mapping[str, Sequence[str]]
    comparisons: Mapping[tuple[str, ...], Comparison]
    data_axes: Sequence[str]
    lacking: Mapping[str, Sequence[str]]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per point and method: mean score over seeds, its standard deviation, difference to the baseline, verdict.

        `best` marks the best point of a method by test samples, among those with the same data.
        """
        import pandas as pd

        score = self.metric.name
        columns = ["method", score, f"{score}_sd", "seeds"]
        columns += ["difference", "ci_low", "ci_high", "verdict"]
        frames = []
        for point, comparison in self.comparisons.items():
            content = comparison.content()
            scored = content.scores_of(content.deciding_protocol)
            axes = pd.DataFrame([point] * len(scored), columns=list(self.axes), index=scored.index)
            frames.append(pd.concat([axes, scored[columns]], axis=1))
        table = pd.concat(frames, ignore_index=True)

        # Points with other data are other tasks: a method has a best point in each of them.
        same_task = [table[name] for name in (*self.data_axes, "method")]
        gains = (self.metric.sign * table[self.metric.name]).groupby(same_task, sort=False)
        is_first = gains.rank(method="first", ascending=False) == 1
        return table.assign(best=is_first & (len(self.choices) > 0))

    @property
    def best(self) -> pd.DataFrame:
        """The rows of `table` with the best point of each method, by test samples, among those with the same data."""
        return self.table[self.table["best"]].reset_index(drop=True)

    @property
    def choices(self) -> list[str]:
        """The names whose values are choices: all that do not change the clients' data."""
        return [name for name in self.axes if name not in self.data_axes]

    @property
    def methods(self) -> list[str]:
        """The labels of the methods."""
        return list(dict.fromkeys(self.table["method"]))

    @property
    def metric(self) -> Metric:
        """The metric that decides."""
        return self._first.content().metric

    @property
    def name(self) -> str:
        """The data as the user named it, without what is swept; the data sets where these are."""
        if "data" in self.axes:
            return wording.listing(self.axes["data"])
        return str(self._first.facts.partition.get("data", "your clients"))

    @property
    def _first(self) -> Comparison:
        return next(iter(self.comparisons.values()))

    @property
    def findings(self) -> list[str]:
        """The best points, the limits of reading them by test samples, and best values at the end of their range."""
        if not self.choices:
            return [
                "Every point is another task, so none is best: the maps show where methods change places."
            ]
        best, metric = rows(self.best), self.metric
        texts = [
            f"{self._with(row)} ({metric.text(row[metric.name])})" for row in best[:MOST_NAMED]
        ]
        more = len(best) - MOST_NAMED
        rest = f"; {wording.plural(more, 'more row')} in the table" if more > 0 else ""
        chosen = (
            "These points were chosen by the test samples that score them, so the scores are too good and no test compares them; "
            "`unalike tune` chooses by validation samples."
        )
        return [
            f"Best points: {'; '.join(texts)}{rest}.",
            chosen,
            *self._edges(),
            *self._repeated(),
        ]

    def _with(self, row: Row) -> str:
        """The method of a row, at the values of the names that it has."""
        lacking = self.lacking[row["method"]]
        point = ", ".join(
            f"{name}={row[name]}"
            for name in (*self.data_axes, *self.choices)
            if name not in lacking
        )
        return f"{row['method']}{point and f' at {point}'}"

    def _repeated(self) -> list[str]:
        """One sentence for each name that some methods lack, whose rows are the same runs at all its values."""
        sentences = []
        for name in self.axes:
            methods = [method for method in self.methods if name in self.lacking[method]]
            if methods:
                sentences.append(
                    f"{wording.few(methods)}: no {name}, so the same runs stand at each of its values. Their intervals differ, "
                    "because the variance is estimated from all methods at a point."
                )
        return sentences

    def _edges(self) -> list[str]:
        """One sentence for each name with a best value that is the first or the last of at least three numbers."""
        texts = []
        best = rows(self.best)
        for name, values in self.axes.items():
            is_range = len(values) > 2 and all(map(is_number, values))
            if name not in self.choices or not is_range:
                continue
            having = [row for row in best if name not in self.lacking[row["method"]]]
            at_end = [row["method"] for row in having if row[name] in (values[0], values[-1])]
            if at_end:
                methods = wording.few(list(dict.fromkeys(at_end)))
                texts.append(
                    f"The best {name} of {methods} is at the end of the grid: wider values may be better."
                )
        return texts

    def plot(self, kind: str = "scores") -> go.Figure:
        """Draw heat maps: a map per method over two names of the grid, or one map of methods over a single name.

        Args:
            kind: "scores", or "differences" to the baseline of each point.

        Raises:
            UnalikeError: the kind is unknown, or there are no differences, as for one method.
        """
        from unalike.reporting.pages import plot

        return plot("sweep", self, kind, "sweep two methods or more")

    def save(self, folder: str | Path) -> Path:
        """Write the page `sweep.html`, the table as `sweep.csv` and `sweep.json`, and the heat maps as SVG and PDF.

        Returns the path of the page.
        """
        from unalike.reporting.charts.matplotlib_figures import write
        from unalike.reporting.html import write_text
        from unalike.reporting.pages import figures, save

        page = save("sweep", self, folder)
        write_text(self.table.to_csv(index=False, lineterminator="\n"), Path(folder) / "sweep.csv")
        for kind, figure in figures("sweep", self).items():
            write(figure, Path(folder) / f"sweep-{kind}")
        return page

    def to_json(self) -> str:
        """The table as JSON text, a list of rows."""
        return str(self.table.to_json(orient="records", indent=1))

    def as_table(self) -> Table:
        """The table as pages, terminals and notebooks show it."""
        metric, shown = self.metric, self.table
        columns: list[TableColumn] = [words(name, name) for name in self.axes]
        columns += [
            words("Method", "method"),
            number(metric.title, metric.name, metric.text),
            number("± sd", f"{metric.name}_sd", metric.amount),
            number("Difference to the baseline", "difference", metric.difference),
            interval(f"{wording.confidence(0.05)} interval", "ci_low", "ci_high", metric.interval),
            words("Verdict at this point", "verdict"),
            words("Best point", lambda row: "best" if row["best"] else ""),
            number("Seeds", "seeds"),
        ]
        return Table.of("Every point and method", columns, rows(shown))

    def __repr__(self) -> str:
        return f"<Sweep of {', '.join(self.methods)} on {self.name} over {', '.join(self.axes)}, {len(self.comparisons)} points>"

    def __str__(self) -> str:
        return "\n".join([*self.findings, "", aligned_text(self.as_table())])

    def _repr_html_(self) -> str:
        from unalike._utils.notebook import paragraph

        return "".join([*map(paragraph, (repr(self), *self.findings)), html(self.as_table())])
