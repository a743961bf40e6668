"""The recorded numbers of a cell, as its result keeps them: those of the evaluated rounds, thinned where they are many.

`keep` makes them of the table of a run; `by_round` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unalike.runtime.records.recording import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

Recorded = dict[str, Any]
"""`rounds`; `series`: entries with `values` by round, and with those of the columns `SERIES` that say something; `thinned`."""

MOST_NUMBERS = 4000
"""Above this many numbers, they are thinned."""
LEAST_ROUNDS = 10
"""Clients are averaged before fewer than these rounds are kept."""
MEAN = -2
"""The client of a series that is the mean over clients, or over pairs of them; "mean" as an entry of `by_round`."""
SERIES = tuple(name for name in COLUMNS if name not in ("round", "value"))


def keep(table: pd.DataFrame, evaluated: Sequence[int]) -> Recorded:
    """The numbers of the evaluated rounds, at most about `MOST_NUMBERS`.

    Where there are more, these are done one after the other until they are few enough: cosines are averaged over pairs of clients,
    evaluated rounds are left out (the last one is kept), numbers of clients are averaged, more rounds are left out.

    Args:
        table: the records of a run.
        evaluated: the evaluated rounds.

    Returns:
        The rounds, one series for every number, and in `thinned` what was averaged or left out.
    """
    table = table[table["round"].isin(list(evaluated))].astype({"value": "float64"})

    # The steps go from what readers miss least to what they miss most.
    steps = (_over_pairs, _fewer_rounds(LEAST_ROUNDS), _over_clients, _fewer_rounds(1))
    thinned = []
    for thin in steps:
        if len(table) > MOST_NUMBERS:
            table, what_was_done = thin(table)
            if what_was_done:
                thinned.append(what_was_done)

    # Columns with their default value say nothing, so that a series goes without them.
    rounds = sorted({int(number) for number in table["round"]})
    series: list[dict[str, Any]] = []
    for key, rows in table.groupby(list(SERIES), sort=False):
        labels = {name: value for name, value in zip(SERIES, key) if value != COLUMNS[name]}
        by_number = rows.groupby("round")["value"].mean().to_dict()
        values = [by_number.get(number, math.nan) for number in rounds]
        series.append({**labels, "values": values})
    return {"rounds": rounds, "series": series, "thinned": "; ".join(thinned)}


def by_round(recorded: Recorded, quantity: str, by: str = "layer") -> dict[str, dict[int, float]]:
    """The values of a quantity for each entry of the column `by`: entry -> round -> mean over what else differs."""
    # Several series may fall into one entry, such as those of the layers for `by="client"`.
    entries: dict[str, dict[int, list[float]]] = {}
    for series in recorded.get("series", []):
        if series["quantity"] != quantity:
            continue
        label = series.get(by, COLUMNS[by])
        entry = "mean" if label == MEAN else str(label)
        values_at = entries.setdefault(entry, {})
        for number, value in zip(recorded["rounds"], series["values"]):
            if value is not None:
                values_at.setdefault(number, []).append(value)

    means: dict[str, dict[int, float]] = {}
    for entry, values_at in entries.items():
        means[entry] = {}
        for number in sorted(values_at):
            values = values_at[number]
            means[entry][number] = sum(values) / len(values)
    return means


def _mean(table: pd.DataFrame, where: pd.Series, over: Mapping[str, Any]) -> pd.DataFrame:
    """The table in which the rows `where` are averaged over the columns `over`, which get the values given there."""
    import pandas as pd

    alike = table[where].assign(**over)
    groups = alike.groupby([*SERIES, "round"], sort=False, as_index=False)
    averaged = groups["value"].mean()
    return pd.concat([table[~where], averaged])


def _over_pairs(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    pairs = table["other"] >= 0
    if not pairs.any():
        return table, ""
    averaged = _mean(table, pairs, {"client": MEAN, "other": COLUMNS["other"]})
    return averaged, "means over pairs of clients"


def _over_clients(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    averaged = _mean(table, table["client"] >= 0, {"client": MEAN})
    return averaged, "means over clients"


def _fewer_rounds(least: int) -> Callable[[pd.DataFrame], tuple[pd.DataFrame, str]]:
    """Leave out rounds evenly, but keep `least` of them and the last."""

    def thin(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
        rounds = sorted(set(table["round"]))
        count = max(least, MOST_NUMBERS * len(rounds) // len(table), 1)
        step = -(-len(rounds) // count)
        # Counted from the end, so that the last round is among them.
        rest = rounds[::-step]
        what_was_done = f"one of {step} evaluated rounds" if step > 1 else ""
        return table[table["round"].isin(rest)], what_was_done

    return thin
