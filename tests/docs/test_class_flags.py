"""Every class flag says what happens without it."""

from __future__ import annotations

import inspect

from docs_scripts import script


def test_every_flag_says_what_happens_without_it():
    made = script("site_flags")
    told = {(flag.owner, flag.name) for flag in made.flags()}
    missing = []
    for module in made.MODULES:
        for owner in vars(module).values():
            if inspect.isclass(owner) and owner.__module__ == module.__name__:
                names = declared_flags(owner)
                missing += [
                    f"{owner.__name__}.{n}" for n in names if (owner.__name__, n) not in told
                ]
    assert missing == []


def declared_flags(owner: type) -> list[str]:
    """The class attributes and the yes-or-no properties that a class declares first, constants apart."""
    above = {name for base in owner.__mro__[1:] for name in (*vars(base), *annotations(base))}
    names = [n for n, kind in annotations(owner).items() if "ClassVar" in str(kind) and n.islower()]
    for name, member in vars(owner).items():
        is_question = isinstance(member, property) and member.fget.__annotations__["return"] is bool
        if is_question:
            names.append(name)
    return [n for n in names if n not in above]


def annotations(owner: type) -> dict[str, object]:
    return vars(owner).get("__annotations__", {})
