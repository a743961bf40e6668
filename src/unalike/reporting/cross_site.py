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

ALL = "all sites"
"""The word for a model that was not made for one site."""
OWN = " *"
"""Behind the score of a site's own model on its own rows."""
READING = (
    "A row is a model, a column the test rows of a site. * marks a site's own model on its own rows.",
    "The mean is that of all sites with a score; a site's own model scores there on the rows of the other sites, too.",
    "All models have the same training rows of one division; scores of one division and of small sites vary by chance.",
)
"""How to read the table."""


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


def as_table(scores: pd.DataFrame, metric: Metric) -> Table:
    """The table of one metric; `scores` are those of `comparison.cross_site`."""
    columns = [
        words("Model", lambda row: row.method),
        words("Trained at", lambda row: row.site or ALL),
    ]
    for site in scores["client"].unique():
        columns.append(_site_column(str(site), metric))
    columns.append(number("Mean", lambda row: row.mean, metric.text))
    return Table.of(
        f"{metric.title} of every model at every site", columns, model_rows(scores, metric)
    )


def _site_column(site: str, metric: Metric) -> TableColumn:
    def cell(row: ModelRow) -> TableCell:
        score = row.scores[site]
        is_own = row.site == site
        text = metric.text(score) + (OWN if is_own else "")
        return TableCell(text, score, strong=is_own)

    return TableColumn(site, cell)


def small_sites(scores: pd.DataFrame) -> str:
    """A note on sites with few test rows of an outcome, whose scores say little; empty without such."""
    if "n_positive" not in scores:
        return ""
    sizes = scores.drop_duplicates("client")
    fewest = sizes[["n_positive"]].assign(others=sizes["n_test"] - sizes["n_positive"]).min(axis=1)
    few = [str(name) for name in sizes["client"][fewest < MIN_SAMPLES_OF_CLASS]]
    if not few:
        return ""
    return (
        f"Fewer than {MIN_SAMPLES_OF_CLASS} test rows of one outcome, so that a score there says little: "
        f"{wording.few(few, 'site')}."
    )


def page(scores: pd.DataFrame, metric: Metric, title: str, notes: Sequence[str]) -> str:
    """The table as one HTML document that needs no other file."""
    table = as_table(scores, metric)
    return fill(
        "table_page.html.j2",
        kind="Every model at every site",
        title=title,
        about=table.caption,
        heading="How to read it",
        reading=[*READING, *notes],
        table=table,
    )


def wide(scores: pd.DataFrame, metric: Metric) -> list[dict[str, Any]]:
    """A record for each model with all digits: `model trained_at`, a score for each site, and `mean`."""
    records = []
    for row in model_rows(scores, metric):
        record: dict[str, Any] = {"model": row.method, "trained_at": row.site or ALL}
        records.append(record | row.scores | {"mean": row.mean})
    return records
