"""A table of coefficients with rounded numbers, for terminals, and as a page for printing."""

import math
from collections.abc import Sequence

import pandas as pd

from unalike.reporting import wording
from unalike.reporting.html import fill
from unalike.reporting.table import Table, TableColumn, interval, number, rows, words
from unalike.statistics.moderated_t import ALPHA

NEAR_ONE = 0.1
"""Ratios that are nearer to 1 are written by their distance to it."""


def reading(coefficients: pd.DataFrame) -> list[str]:
    """Sentences on the columns of the table, with the user's word for a client."""
    noun = coefficients.attrs["client_noun"]
    return [
        "A coefficient is per unit of its column. A category is compared with the one that is marked as the reference.",
        "Standard errors and intervals hold if samples are independent and the model is right; robust ones allow samples of one "
        f"{noun} to be alike, and tend to be too small with fewer than some thirty {wording.several(noun)}.",
    ]


def as_table(coefficients: pd.DataFrame, caption: str = "") -> Table:
    """The rows of `Run.coefficients` with rounded numbers; a dash where there is none."""
    confidence = wording.confidence(ALPHA)
    columns: list[TableColumn] = [words("Term", "term")]
    if coefficients["outcome"].nunique() > 1:
        columns.insert(0, words("Outcome", "outcome"))
    columns += [
        number("Coefficient", "coefficient", _digits),
        number("Standard error", "se", _digits),
        interval(f"{confidence} interval", "low", "high", _range),
        number("p", "p", wording.probability),
    ]
    # odds, rate or hazard ratios; a regression has none
    for name in map(str, coefficients.columns):
        ratio = name.removesuffix("_ratio")
        if ratio == name:
            continue
        columns += [
            number(f"{ratio.capitalize()} ratio", name, _ratio),
            interval(f"{confidence} interval of it", f"{ratio}_low", f"{ratio}_high", _ratios),
        ]
    columns += [
        number("Robust error", "robust_se", _digits),
        number("Robust p", "robust_p", wording.probability),
    ]
    return Table.of(caption, columns, rows(coefficients))


def page(coefficients: pd.DataFrame, title: str, about: str, notes: Sequence[str]) -> str:
    """The table as one HTML document that needs no other file."""
    table = as_table(coefficients, "All terms")
    return fill(
        "table_page.html.j2",
        kind="Coefficients",
        title=title,
        about=about,
        heading="How to read it",
        reading=[*reading(coefficients), *notes],
        table=table,
    )


def _digits(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _ratio(value: float) -> str:
    """Three digits; near 1 two digits of the distance to it, so that an interval that excludes 1 does not end at it: 1.0047."""
    distance = abs(value - 1)
    if distance == 0 or distance >= NEAR_ONE:
        return _digits(value)
    return f"{value:.{1 - math.floor(math.log10(distance))}f}"


def _ratios(low: float, high: float) -> str:
    return f"{_ratio(low)} to {_ratio(high)}"


def _range(low: float, high: float) -> str:
    return f"{_digits(low)} to {_digits(high)}"
