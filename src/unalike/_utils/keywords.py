"""Errors for keywords that a function does not take: misspelt ones, and those of other libraries."""

import difflib
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from unalike._utils.errors import InvalidValue

FOREIGN_KEYWORDS = {
    "batch": "batch_size",
    "minibatch": "batch_size",
    "epoch": "epochs",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "criterion": "loss",
    "loss_fn": "loss",
    "loss_function": "loss",
    "lr_schedule": "schedule",
    "lr_scheduler": "schedule",
    "scheduler": "schedule",
    "round": "rounds",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "num_clients": "clients",
    "n_clients": "clients",
    "client_fraction": "participation",
    "fraction_fit": "participation",
    "learning_rate": "lr",
    "optimiser": "optimizer",
    "dataset": "data",
    "folder": "out",
    "validation": "val",
}
"""Keywords that users know from other libraries -> the keywords here."""

_USE_SWEEP = 'ua.sweep(methods, {"lr": [0.01, 0.1]}, ...) compares at every point of a grid'
_USE_LOAD = (
    "name the columns of a table where it is read: "
    "data=ua.load(table, target='outcome', group='hospital')"
)
KEYWORDS_ELSEWHERE = {
    "grid": _USE_SWEEP,
    "sweep": _USE_SWEEP,
    "target": _USE_LOAD,
    "group": _USE_LOAD,
    "unit": _USE_LOAD,
    "drop": _USE_LOAD,
    "date": _USE_LOAD,
}
"""Keyword -> the advice that names the function that takes it."""


def check_keywords(
    owner: str,
    names: Iterable[str],
    known: Collection[str],
    work: Collection[str] = (),
    kind: object = None,
) -> None:
    """Check the keywords `names` that a function was called with.

    `owner` is the function as users write it ("ua.run"), `known` the keywords that it takes, `work` the fields of `ua.Work` if
    it takes `work`, `kind` the class if it makes one. Raises `InvalidValue`, which suggests the keyword that was meant.
    """
    only_in_work = set(work) - set(known)
    for name in names:
        if name in known:
            continue
        # the surest advice first: a known mistake, a field of `Work`, then a keyword that is spelled alike
        if name in KEYWORDS_ELSEWHERE:
            advice = KEYWORDS_ELSEWHERE[name]
        elif FOREIGN_KEYWORDS.get(name, name) in only_in_work:
            advice = f"write work=ua.Work({meant(name, work)}=...)"
        else:
            advice = hint(name, known, kind) or f"it takes {', '.join(known)}"
        raise InvalidValue(f"{owner} takes no keyword {name!r}; {advice}")


def fields_of(kind: type[Any]) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def hint(name: str, known: Iterable[str], kind: object = None) -> str:
    """The suggestion for a keyword that is not among the known ones; empty if none of them is close.

    An attribute without annotation of the class `kind` is no field.
    """
    value = getattr(kind, name, None)
    bases = getattr(kind, "__mro__", ())
    is_annotated = any(name in vars(base).get("__annotations__", ()) for base in bases)
    if isinstance(value, bool | int | float | str) and not is_annotated:
        return f"a field is written with its type: {name}: {type(value).__name__} = {value!r}"
    suggestion = meant(name, known)
    return f"did you mean {suggestion!r}?" if suggestion else ""


def meant(name: str, known: Iterable[str]) -> str:
    """The known keyword that was meant; empty if none is close."""
    keyword = FOREIGN_KEYWORDS.get(name, name)
    similar = difflib.get_close_matches(keyword, known, n=1, cutoff=0.6)
    return similar[0] if similar else ""
