"""Tools for plans of several stages: their class decorator, a field for a method, and groups of clients."""

from collections.abc import Iterable
from typing import Annotated, TypeVar, dataclass_transform

import pydantic

from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.methods.declared import declared
from unalike.methods.method import Method
from unalike.methods.part import registry
from unalike.methods.plan import StagedPlan

R = TypeVar("R", bound=type)
Groups = dict[str, tuple[int, ...]]


def _readable(text: str) -> str:
    """The text of a method, parsed once so that a mistake is reported when the plan is built."""
    Method.parse(text)
    return text


MethodText = Annotated[str, pydantic.AfterValidator(_readable)]
"""Spec text of the method that a plan runs in its stages."""


@dataclass_transform(frozen_default=True)
def staged_plan(cls: R) -> R:
    """Class decorator: make a frozen, validated dataclass of a plan and register it under its name for spec text.

    The name is the class attribute `name`, or the class name in snake case. Raises `UnalikeError` for a class that does not extend
    `StagedPlan`.
    """
    if not issubclass(cls, StagedPlan):
        raise UnalikeError(
            f"{cls.__name__} does not extend StagedPlan; write class {cls.__name__}(StagedPlan)"
        )
    return declared(registry, repr=False)(cls)


def of_samples_alone(plan: StagedPlan, model: Model) -> None:
    """Raise `UnalikeError` for a model with a client's facts as input: queries and derived models give it samples only."""
    if model.takes_context:
        raise UnalikeError(
            f"{plan.name} found a model with facts of its client; expected one whose only input is the samples"
        )


def grouped(clusters: Iterable[int]) -> Groups:
    """Groups from the cluster number of each client, in the order of these numbers."""
    numbers = [int(c) for c in clusters]
    groups: Groups = {}
    for number in sorted(set(numbers)):
        groups[f"cluster-{number}"] = tuple(k for k, c in enumerate(numbers) if c == number)
    return groups
