"""The class decorator under `@part`, `@staged_plan` and `@client_query`: one way to declare fields, checks and a name."""

import re
from collections.abc import Callable
from typing import TypeVar

from unalike._utils.registry import Registry
from unalike._utils.validated import validated

C = TypeVar("C", bound=type)


def snake(name: str) -> str:
    """`ControlVariates` -> `control_variates`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def declared(registry: Registry, *, repr: bool = True) -> Callable[[C], C]:
    """Class decorator: make a frozen, validated dataclass of the class and register it for spec text.

    The name in spec text is the class attribute `name`, or else the class name in snake case.

    Args:
        registry: The registry of its kind.
        repr: Write a `__repr__` with the class name and the fields; False keeps that of a base class.

    Returns:
        A decorator. The class that it makes raises `InvalidValue` for an unknown field and for a value out of range.

    Raises:
        UnalikeError: Another class or function has the same name.
    """

    def declare(cls: C) -> C:
        if "name" not in vars(cls):
            cls.name = snake(cls.__name__)  # type: ignore[attr-defined]
        checked_class = validated(cls, repr=repr)
        return registry.register(checked_class.name)(checked_class)  # type: ignore[attr-defined]

    return declare
