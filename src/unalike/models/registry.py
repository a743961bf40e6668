"""The registry of models, and `model`, which builds one from a spec and a seed."""

import inspect
from typing import Any

from torch import nn

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike._utils.option_types import check_kinds
from unalike._utils.registry import Registry
from unalike._utils.seeds import isolated
from unalike._utils.spec import Call, parse_one
from unalike.core.inputs import is_layout_of_one_tensor

registry = Registry("model", home="unalike.models")
"""Name -> the class or function that builds the model; every file of the folder is read at the first look-up."""

ALIASES = {"2nn": "two_nn"}
"""Published names that are not Python identifiers, and their registered names."""


def model(
    name_or_spec: str,
    input_shape: tuple[int, ...] = (3, 32, 32),
    classes: int | None = 10,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Build a model with new weights.

    The same arguments give the same weights; the state of torch's global generator does not change.

    >>> sum(p.numel() for p in model("mlp(hidden=(64, 32))", (1, 8, 8), 10).parameters())
    6570

    Args:
        name_or_spec: A registered name, with options if wanted: "resnet20", "mlp(hidden=(64, 32))".
        input_shape: The shape of one sample.
        classes: The number of outputs; None for one output, for binary labels and regression.
        seed: The seed of the weights.
        options: Options of the model, as in the spec.

    Returns:
        The module. Its last layer is `head`.

    Shapes:
        The module maps [B, *input_shape] to logits [B, classes], or [B, 1] if `classes` is None.

    Raises:
        UnalikeError: A name or option is unknown, or the model cannot take inputs of this shape.
    """
    arguments = {
        "name_or_spec": name_or_spec,
        "input_shape": input_shape,
        "classes": classes,
        "seed": seed,
    }
    check_kinds(model, arguments)
    call = read(name_or_spec)
    call = Call(call.name, call.parameters | options)
    shape = tuple(int(n) for n in input_shape)
    if not shape or min(shape) < 1 or (classes is not None and classes < 1):
        raise UnalikeError(
            f"model {call}: found input_shape={shape} and classes={classes}, expected "
            "the shape of one sample, such as (1, 28, 28), and the number of classes "
            "(None for one output)"
        )
    if not 0 <= seed < 2**63:
        raise UnalikeError(
            f"model {call}: found seed={seed}, expected 0 or more and less than 2**63"
        )
    if _takes_layout(call):
        return _build(call, seed, layout=[*shape], classes=classes)
    return _build(call, seed, input_shape=shape, classes=classes)


def model_for(name_or_spec: str, layout: Any, classes: int | None, seed: int = 0) -> nn.Module:
    """Build a model for samples of this layout (`layout_of`): one array as `model` does, or a tree of arrays.

    Args:
        name_or_spec: As for `model`. The builder of a model for trees names `layout` in the place of `input_shape`.
        layout: The lengths of one array, or the type and the lengths in the place of each array of a tree.
        classes: As for `model`.
        seed: As for `model`.

    Returns:
        The module.

    Raises:
        UnalikeError: As `model` does, and for a model of one array where the samples are a tree.
    """
    if is_layout_of_one_tensor(layout):
        return model(name_or_spec, tuple(layout), classes, seed)
    call = read(name_or_spec)
    if not _takes_layout(call):
        raise UnalikeError(
            f"model={name_or_spec!r} takes one array, found samples of {layout}; give a torch.nn.Module whose forward takes the "
            "tree of arrays, or the name of a registered builder that names layout in the place of input_shape "
            f"({Limit.INPUTS})"
        )
    return _build(call, seed, layout=layout, classes=classes)


def _takes_layout(call: Call) -> bool:
    """Whether a model is built for a layout, so that its samples may be a tree of arrays."""
    return "layout" in inspect.signature(registry[call.name]).parameters


def _build(call: Call, seed: int, **context: Any) -> nn.Module:
    """Build a model with the weights of the seed. Raises `UnalikeError` where it cannot be made in this context."""
    with isolated(seed):
        try:
            return registry.build(call, **context)
        except (RuntimeError, MemoryError, OverflowError) as error:
            # torch has RuntimeError for tensors that do not fit into memory
            found = " and ".join(f"{name}={value}" for name, value in context.items())
            raise UnalikeError(
                f"model {call}: cannot be made for {found}: {_first_line(error)}"
            ) from error


def _first_line(error: Exception) -> str:
    """The first line of an error's text; torch adds the frames of its own code below."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]


def is_named(recorded: str) -> bool:
    """Whether the model that a run records is one of the catalogue; else it is the class or function of a program."""
    name = recorded.partition("(")[0]
    return ALIASES.get(name, name) in registry


def read(name_or_spec: str) -> Call:
    """Parse a model's spec; published names such as "2nn" are allowed."""
    name, bracket, options = name_or_spec.strip().partition("(")
    if ":" in name:  # a federation's sites read it, and import nothing that somebody else names
        raise UnalikeError(
            f"model {name!r}: found a module and a class, expected a registered name; "
            "give the class to Python, as in ua.run(..., model=Net), or register it by "
            "the entry-point group 'unalike.models'"
        )
    return parse_one(ALIASES.get(name, name) + bracket + options)
