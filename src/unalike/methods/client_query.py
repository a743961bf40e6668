"""Client queries: questions that a plan asks clients between its stages.

A query is a plan's only access to the data of clients. `wire` lists its answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, dataclass_transform

from unalike._utils.registry import Registry
from unalike.core.model import Model
from unalike.core.tasks.task import Task
from unalike.core.types import Batch, Tree
from unalike.methods.declared import declared
from unalike.methods.part import spec_text

registry = Registry("query", home="unalike.methods.plans.queries", group="unalike.queries")
"""Client queries by name. A request names its query; a client answers only queries in its own registry."""

Q = TypeVar("Q", bound=type)


@dataclass(frozen=True)
class QueryInputs:
    """Inputs of a client query.

    `params` and `buffers` are those of a state of the plan or the initial ones. `batches` hold the client's training samples
    once; they may be empty. From `secret`, bytes that only the client knows, a query draws noise.
    """

    model: Model
    task: Task
    params: Tree
    buffers: Tree
    batches: Sequence[Batch]
    secret: bytes = b""


class ClientQuery:
    """A pure function of a client's training data and of a model. Everything that it returns leaves the client."""

    name: ClassVar[str]
    """Name in spec text.

    Without it: the class name in snake case.
    """
    needs_model: ClassVar[bool] = True
    """Whether the server has to send the model to the clients.

    Without it: it does.
    """

    def answer(self, inputs: QueryInputs) -> Tree:
        """The answer of one client.

        Returns a tree with the same names and shapes on all clients, also on one without batches.
        """
        raise NotImplementedError

    def why_impossible(self, answer: Tree, samples: int) -> str:
        """The reason why no client with so many training samples gives this answer; empty if one may. Default: empty.

        A server refuses such an answer. It has the names, shapes and types of `answer`, and finite numbers.
        """
        return ""

    def __repr__(self) -> str:
        return spec_text(self)


@dataclass_transform(frozen_default=True)
def client_query(cls: Q) -> Q:
    """Class decorator: make a frozen, validated dataclass of a client query and register it under its `name`."""
    return declared(registry, repr=False)(cls)
