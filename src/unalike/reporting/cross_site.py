"""The table of every model at every site, for terminals and as a page for printing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.html import fill
from unalike.reporting.table import Table, TableCell, TableColumn, number, words
from unalike.statistics.risks import MIN_SAMPLES_OF_CLASS

if TYPE_CHECKING:
    import pandas as pd

OWN = " *"
"""Behind the score of a site's own model on its own rows."""


@dataclass(frozen=True)
class ModelRow:
    """A model and its scores by site."""

    method: str
    site: str
    scores: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean over the sites with a score."""
        known = [score for score in self.scores.values() if not math.isnan(score)]
        return math.nan if not known else sum(known) / len(known)


def model_rows(scores: pd.DataFrame, metric: Metric) -> list[ModelRow]:
    """The rows of the table: models of all sites first, then those of single sites."""
    rows = []
    for (method, site), part in scores.groupby(["method", "site"], sort=False):
        by_site = dict(zip(part["client"], part[metric.name], strict=True))
        rows.append(ModelRow(str(method), str(site), by_site))
    return sorted(rows, key=lambda row: row.site != "")


@dataclass(frozen=True)
class ModelsBySite:
    """The scores of `comparison.cross_site` by one metric; `noun` is what the user's data calls a site."""

    scores: pd.DataFrame
    metric: Metric
    noun: str

    @property
    def title(self) -> str:
        """The kind of table, for a heading."""
        return f"Every model at every {self.noun}"

    @property
    def all_sites(self) -> str:
        """The words for a model that was not made for one site."""
        return f"all {wording.several(self.noun)}"

    @property
    def reading(self) -> list[str]:
        """Sentences on the rows, the columns and the mean of the table."""
        noun = self.noun
        sites = wording.several(noun)
        return [
            f"A row is a model, a column the test rows of a {noun}. * marks the own model of a {noun} on its own rows.",
            f"The mean is that of {self.all_sites} with a score; the own model of a {noun} scores there on the rows of the other "
            f"{sites}, too.",
            f"All models have the same training rows of one division; scores of one division and of small {sites} vary by chance.",
        ]

    @property
    def table(self) -> Table:
        """The table of the models, one column for each site."""
        columns = [
            words("Model", lambda row: row.method),
            words("Trained at", lambda row: row.site or self.all_sites),
        ]
        for site in self.scores["client"].unique():
            columns.append(_site_column(str(site), self.metric))
        columns.append(number("Mean", lambda row: row.mean, self.metric.text))
        return Table.of(
            f"{self.metric.title} of every model at every {self.noun}",
            columns,
            model_rows(self.scores, self.metric),
        )

    @property
    def small_sites(self) -> str:
        """A note on sites with few test rows of an outcome, whose scores say little; empty without such."""
        if "n_positive" not in self.scores:
            return ""
        sizes = self.scores.drop_duplicates("client")
        others = sizes["n_test"] - sizes["n_positive"]
        fewest = sizes[["n_positive"]].assign(others=others).min(axis=1)
        few = [str(name) for name in sizes["client"][fewest < MIN_SAMPLES_OF_CLASS]]
        if not few:
            return ""
        return (
            f"Fewer than {MIN_SAMPLES_OF_CLASS} test rows of one outcome, so that a score there says little: "
            f"{wording.few(few, self.noun)}."
        )

    @property
    def records(self) -> list[dict[str, Any]]:
        """A record for each model with all digits: `model trained_at`, a score for each site, and `mean`."""
        records = []
        for row in model_rows(self.scores, self.metric):
            record: dict[str, Any] = {"model": row.method, "trained_at": row.site or self.all_sites}
            records.append(record | row.scores | {"mean": row.mean})
        return records

    def page(self, notes: Sequence[str]) -> str:
        """The table as one HTML document that needs no other file."""
        models = self.scores[["method", "site"]].drop_duplicates()
        sites = wording.plural(self.scores["client"].nunique(), self.noun)
        return fill(
            "table_page.html.j2",
            kind=self.title,
            title=f"{wording.plural(len(models), 'model')} at {sites}",
            about=self.table.caption,
            heading="How to read it",
            reading=[*self.reading, *notes],
            table=self.table,
        )


def _site_column(site: str, metric: Metric) -> TableColumn:
    def cell(row: ModelRow) -> TableCell:
        score = row.scores[site]
        is_own = row.site == site
        text = metric.text(score) + (OWN if is_own else "")
        return TableCell(text, score, strong=is_own)

    return TableColumn(site, cell)
