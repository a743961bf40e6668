"""Errors for keywords that a function does not take: misspelt ones, and those of other libraries."""

import difflib
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from unalike._utils.errors import InvalidValue

FOREIGN = {
    **dict.fromkeys(("batch", "minibatch"), "batch_size"),
    **dict.fromkeys(("epoch", "local_epochs", "num_epochs"), "epochs"),
    **dict.fromkeys(("criterion", "loss_fn", "loss_function"), "loss"),
    **dict.fromkeys(("lr_schedule", "lr_scheduler", "scheduler"), "schedule"),
    **dict.fromkeys(("round", "num_rounds", "global_rounds"), "rounds"),
    **dict.fromkeys(("num_clients", "n_clients"), "clients"),
    **dict.fromkeys(("client_fraction", "fraction_fit"), "participation"),
    **{
        "learning_rate": "lr",
        "optimiser": "optimizer",
        "dataset": "data",
        "folder": "out",
        "validation": "val",
    },
}
"""Keywords that users know from other libraries -> the keywords here."""
ELSEWHERE = {
    **dict.fromkeys(
        ("grid", "sweep"),
        'ua.sweep(methods, {"lr": [0.01, 0.1]}, ...) compares at every point of a grid',
    ),
    **dict.fromkeys(
        ("target", "group", "unit", "drop", "date"),
        "name the columns of a table where it is read: data=ua.load(table, target='outcome', group='hospital')",
    ),
}
"""Keyword -> the function that takes it."""


def check_keywords(
    owner: str,
    given: Iterable[str],
    known: Collection[str],
    work: Collection[str] = (),
    kind: object = None,
) -> None:
    """Check the keywords given to a function.

    `owner` is the function as users write it ("ua.run"), `known` the keywords that it takes, `work` the fields of `ua.Work` if
    it takes `work`, `kind` the class if it makes one. Raises `InvalidValue`, which suggests the keyword that was meant.
    """
    for name in given:
        if name in known:
            continue
        if name in ELSEWHERE:
            raise InvalidValue(f"{owner} takes no keyword {name!r}; {ELSEWHERE[name]}")
        in_work = meant(name, work)
        if FOREIGN.get(name, name) in {*work} - {*known}:
            raise InvalidValue(
                f"{owner} takes no keyword {name!r}; write work=ua.Work({in_work}=...)"
            )
        raise InvalidValue(
            f"{owner} takes no keyword {name!r}; {hint(name, known, kind) or 'it takes ' + ', '.join(known)}"
        )


def fields_of(kind: type[Any]) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def hint(name: str, known: Iterable[str], kind: object = None) -> str:
    """The suggestion for a keyword that is not among the known ones; empty if none of them is close.

    An attribute without annotation of the class `kind` is no field.
    """
    value = getattr(kind, name, None)
    annotated = any(
        name in vars(base).get("__annotations__", ()) for base in getattr(kind, "__mro__", ())
    )
    if isinstance(value, bool | int | float | str) and not annotated:
        return f"a field is written with its type: {name}: {type(value).__name__} = {value!r}"
    suggestion = meant(name, known)
    return f"did you mean {suggestion!r}?" if suggestion else ""


def meant(name: str, known: Iterable[str]) -> str:
    """The known keyword that was meant; empty if none is close."""
    keyword = FOREIGN.get(name, name)
    return next(iter(difflib.get_close_matches(keyword, known, n=1, cutoff=0.6)), "")
