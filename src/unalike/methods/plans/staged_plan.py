"""The base of plans with several stages: a frozen, validated dataclass with spec text, and a generator of stages."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, TypeVar, dataclass_transform

import pydantic

from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.methods.method import Method
from unalike.methods.part import registry, snake, spec_text
from unalike.methods.plan import PlanInputs, PlanSteps

R = TypeVar("R", bound=type)
Groups = dict[str, tuple[int, ...]]


def _readable(text: str) -> str:
    """The text of a method, parsed once so that a mistake is reported when the plan is built."""
    Method.parse(text)
    return text


MethodText = Annotated[str, pydantic.AfterValidator(_readable)]
"""Spec text of the method that a plan runs in its stages."""


class StagedPlan:
    """A plan with fields. Its repr is its spec text; equal fields are equal plans."""

    name: ClassVar[str]
    needs_products: ClassVar[bool] = False
    """Whether the run records the inner products of the clients' updates."""
    useful_untrained: ClassVar[bool] = False
    """Whether the plan has results without a round."""

    divides: ClassVar[bool] = False
    """Whether it divides the clients into groups with a model each; a run notes where one group is left."""

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        """The stages and client queries; see `StagePlan.stages`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return spec_text(self)


@dataclass_transform(frozen_default=True)
def staged_plan(cls: R) -> R:
    """Class decorator: make a frozen, validated dataclass of a plan and register it under its name for spec text.

    The name is the class attribute `name`, or the class name in snake case.
    """
    if "name" not in vars(cls):
        cls.name = snake(cls.__name__)  # type: ignore[attr-defined]
    made = pydantic.dataclasses.dataclass(
        frozen=True, repr=False, config=pydantic.ConfigDict(extra="forbid")
    )(cls)
    return registry.register(made.name)(made)  # type: ignore[attr-defined]


def of_samples_alone(plan: StagedPlan, model: Model) -> None:
    """Raise `UnalikeError` for a model with a client's facts as input: queries and derived models give it samples only."""
    if model.takes_context:
        raise UnalikeError(
            f"{plan.name} found a model with facts of its client; expected one whose only input is the samples"
        )


def grouped(clusters: Iterable[int]) -> Groups:
    """Groups from the cluster number of each client, in the order of these numbers."""
    of = [int(c) for c in clusters]
    return {
        f"cluster-{c}": tuple(k for k, mine in enumerate(of) if mine == c) for c in sorted(set(of))
    }
