"""Models by name, built the same from the same seed."""

from __future__ import annotations

from typing import Any

from torch import nn

from unalike._utils.errors import UnalikeError
from unalike._utils.option_types import check_kinds
from unalike._utils.registry import Registry
from unalike._utils.seeds import isolated
from unalike._utils.spec import Call, parse_one

registry = Registry("model", home="unalike.models")

ALIASES = {"2nn": "two_nn"}
"""Published names that are no identifiers, and the registered names they stand for."""


def model(
    name_or_spec: str,
    input_shape: tuple[int, ...] = (3, 32, 32),
    classes: int | None = 10,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """A freshly initialized model for samples of `input_shape` and `classes` outputs (None: one, binary or regression).

    The same arguments give the same weights; torch's global generator is as it was afterwards.

    >>> sum(p.numel() for p in model("mlp(hidden=(64, 32))", (1, 8, 8), 10).parameters())
    6570

    Raises `UnalikeError` for an unknown name or option, and for inputs the model cannot take.
    """
    asked = {"name_or_spec": name_or_spec, "input_shape": input_shape, "classes": classes, "seed": seed}
    check_kinds(model, asked)
    call = read(name_or_spec)
    shape = tuple(int(n) for n in input_shape)
    if not shape or min(shape) < 1 or (classes is not None and classes < 1):
        raise UnalikeError(
            f"model {call}: found input_shape={shape} and classes={classes}, expected the shape of one sample, such as "
            "(1, 28, 28), and the number of classes (None for one output)"
        )
    if not 0 <= seed < 2**63:
        raise UnalikeError(f"model {call}: found seed={seed}, expected 0 or more and less than 2**63")
    with isolated(seed):
        return registry.build(Call(call.name, call.parameters | options), input_shape=shape, classes=classes)


def read(name_or_spec: str) -> Call:
    """The call that a model's text stands for, published names such as "2nn" included."""
    name, bracket, options = name_or_spec.strip().partition("(")
    return parse_one(ALIASES.get(name, name) + bracket + options)
