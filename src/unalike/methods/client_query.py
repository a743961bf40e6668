"""What a plan may ask of clients between its stages. A question is the only way to their data, and its answer is on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, dataclass_transform

import pydantic

from unalike._utils import spec
from unalike._utils.registry import Registry
from unalike.core.model import Model
from unalike.core.tasks import Task
from unalike.core.types import Batch, Tree
from unalike.methods.part import parameters

registry = Registry("query", home="unalike.methods.plans.queries", group="unalike.queries")
"""Questions by name: an order of a survey names its question, and a client answers those that it knows."""

Q = TypeVar("Q", bound=type)


@dataclass(frozen=True)
class QueryInputs:
    """What a client looks at to answer: a model with its values, and its training samples once, in batches.

    An answer must have its shape even where there is no batch.
    """

    model: Model
    task: Task
    params: Tree
    buffers: Tree
    batches: Sequence[Batch]


class ClientQuery:
    """A pure function of a client's training data and of a model. Everything that it returns leaves the client."""

    name: ClassVar[str]
    needs_model: ClassVar[bool] = True
    """Whether clients must be sent the values of the model to answer."""

    def answer(self, asked: QueryInputs) -> Tree:
        """The answer of one client."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(spec.Call(self.name, parameters(self)))  # type: ignore[arg-type]


@dataclass_transform(frozen_default=True)
def client_query(cls: Q) -> Q:
    """Class decorator: make a frozen, validated dataclass of a question and register it under its `name`."""
    made = pydantic.dataclasses.dataclass(frozen=True, repr=False, config=pydantic.ConfigDict(extra="forbid"))(cls)
    return registry.register(made.name)(made)  # type: ignore[attr-defined]
