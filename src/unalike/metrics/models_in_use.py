"""The model in use: the model that a client predicts with, its personal model where the method trains one, else the shared model.

Methods with and without personal models can be compared by it, since both are scored on the same test samples of the same clients.
"""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from unalike.metrics.metrics import USED
from unalike.metrics.statistics import headline, prefix_of, prefixes


def personal_methods(rounds: pd.DataFrame, plain: str = "clients") -> list[str]:
    """The methods that have scores of personal models, in order of appearance."""
    column = prefixes(plain)["personal"] + headline(rounds).column
    return _scored(rounds, column)


def protocol_in_use(rounds: pd.DataFrame, plain: str = "clients") -> str:
    """The protocol that scores the model in use of every method.

    `personal` if every method has personal models, `used` if some have, `plain` if none has. It is `plain`, too, if the other
    methods are not scored on the clients' test samples (`--protocol server`).
    """
    front, column = prefixes(plain), headline(rounds).column
    personal = personal_methods(rounds, plain)
    shared = [name for name in _scored(rounds, front["clients"] + column) if name not in personal]
    others = [name for name in _scored(rounds, column) if name not in (*personal, *shared)]
    if not personal or others:
        return plain
    return USED if shared else "personal"


def with_models_in_use(table: pd.DataFrame, personal: Collection[str], plain: str = "clients") -> pd.DataFrame:
    """The table with a column `used_x` for every `personal_x`: its value for the methods `personal`, else the shared model's."""
    front = prefixes(plain)
    own = table["method"].isin(personal)
    rests = [c.removeprefix(front["personal"]) for c in map(str, table) if prefix_of(c) == front["personal"]]
    used = {}
    for rest in rests:
        shared = front["clients"] + rest
        known = table[shared] if shared in table else pd.Series(index=table.index, dtype=object)
        used[f"{USED}_{rest}"] = table[front["personal"] + rest].where(own, known)
    return table.assign(**used)


def _scored(rounds: pd.DataFrame, column: str) -> list[str]:
    """The methods with a score in this column."""
    return [] if column not in rounds else [str(name) for name in rounds.loc[rounds[column].notna(), "method"].unique()]
