"""The model in use: the model that a client predicts with, its personal model where the method trains one, else the shared model.

Methods with and without personal models can be compared by it, since both are scored on the same test samples of the same clients.
"""

from collections.abc import Collection, Iterator

import pandas as pd

from unalike.metrics.columns import USED, Column, Columns


def personal_methods(rounds: pd.DataFrame, columns: Columns) -> list[str]:
    """The methods that have scores of personal models, in order of appearance."""
    return _scored(rounds, columns.get("personal"))


def protocol_in_use(rounds: pd.DataFrame, columns: Columns) -> str:
    """The protocol that scores the model in use of every method.

    `personal` if every method has personal models, `used` if some have, that of the plain columns if none has. It is the last,
    too, if the other methods are not scored on the clients' test samples (`--protocol server`).
    """
    personal = personal_methods(rounds, columns)
    shared = [name for name in _scored(rounds, columns.get("clients")) if name not in personal]
    plain = _scored(rounds, columns.get(columns.plain))
    others = [name for name in plain if name not in (*personal, *shared)]
    if not personal or others:
        return columns.plain
    return USED if shared else "personal"


def with_models_in_use(
    table: pd.DataFrame, personal: Collection[str], columns: Columns
) -> pd.DataFrame:
    """The table with a column `used_x` for every `personal_x`: its value for the methods `personal`, else the shared model's."""
    has_own, used = table["method"].isin(personal), {}
    for new, own, shared in _names_in_use(columns):
        if own in table:
            of_shared = (
                table[shared] if shared in table else pd.Series(index=table.index, dtype=object)
            )
            used[new] = table[own].where(has_own, of_shared)
    return table.assign(**used)


def _names_in_use(columns: Columns) -> Iterator[tuple[str, str, str]]:
    """The names of a column of the models in use, of the personal models and of the shared model ("" for none)."""
    for new in (column for column in columns.with_used().all if column.protocol == USED):
        own, shared = (
            columns.get(protocol, new.metric.name, new.split)
            for protocol in ("personal", "clients")
        )
        assert own is not None
        yield new.name, own.name, "" if shared is None else shared.name
        yield new.selected, own.selected, "" if shared is None else shared.selected


def _scored(rounds: pd.DataFrame, column: Column | None) -> list[str]:
    """The methods with a score in this column."""
    if column is None or column.name not in rounds:
        return []
    return [str(name) for name in rounds.loc[rounds[column.name].notna(), "method"].unique()]
