"""The model in use: the model that a client predicts with, its personal model where the method trains one, else the shared model.

Methods with and without personal models can be compared by it, since both are scored on the same test samples of the same clients.
"""

from collections.abc import Collection, Iterator

import pandas as pd

from unalike.metrics.columns import IN_USE, Column, Columns


def personal_methods(rounds: pd.DataFrame, columns: Columns) -> list[str]:
    """The methods that have scores of personal models, in order of appearance."""
    return _methods_with_score(rounds, columns.get("personal"))


def protocol_in_use(rounds: pd.DataFrame, columns: Columns) -> str:
    """The protocol that scores the model in use of every method.

    `personal` if every method has personal models, `used` if some have, that of the columns without a prefix if none
    has. It is the last, too, if the other methods are not scored on the clients' test samples (`--protocol server`).
    """
    personal = personal_methods(rounds, columns)
    with_shared_model = _methods_with_score(rounds, columns.get("clients"))
    shared = [name for name in with_shared_model if name not in personal]
    of_first_protocol = _methods_with_score(rounds, columns.get(columns.unprefixed_protocol))
    others = [name for name in of_first_protocol if name not in (*personal, *shared)]
    if not personal or others:
        return columns.unprefixed_protocol
    return IN_USE if shared else "personal"


def with_models_in_use(
    table: pd.DataFrame, personal: Collection[str], columns: Columns
) -> pd.DataFrame:
    """The table with a column `used_x` for every `personal_x`: its value for the methods `personal`, else the shared model's."""
    has_personal = table["method"].isin(personal)
    in_use = {}
    for name, personal_name, shared_name in _names_in_use(columns):
        if personal_name not in table:
            continue
        of_shared = pd.Series(index=table.index, dtype=object)
        if shared_name in table:
            of_shared = table[shared_name]
        in_use[name] = table[personal_name].where(has_personal, of_shared)
    return table.assign(**in_use)


def _names_in_use(columns: Columns) -> Iterator[tuple[str, str, str]]:
    """The names of a column of the models in use, of the personal models and of the shared model ("" for none)."""
    for column in columns.with_models_in_use().all:
        if column.protocol != IN_USE:
            continue
        personal = columns.get("personal", column.metric.name, column.split)
        shared = columns.get("clients", column.metric.name, column.split)
        assert personal is not None
        yield column.name, personal.name, "" if shared is None else shared.name
        yield column.selected, personal.selected, "" if shared is None else shared.selected


def _methods_with_score(rounds: pd.DataFrame, column: Column | None) -> list[str]:
    """The methods with a score in this column."""
    if column is None or column.name not in rounds:
        return []
    has_score = rounds[column.name].notna()
    return [str(name) for name in rounds.loc[has_score, "method"].unique()]
