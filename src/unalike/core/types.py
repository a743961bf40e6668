"""The values that travel between the procedures. Trees are mappings from a parameter's name to its tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

Tree = dict[str, Tensor]
"""Parameter name -> tensor, in state-dict order. In a cohort every tensor has a leading dimension K, one row per client."""

PartTrees = dict[str, Tree]
"""Part name -> that part's tree: its memory, or its letter."""

Context = Mapping[str, Tree]
"""Name of a fact -> what the parts found in a client's training data, once and for all rounds."""


class Batch(NamedTuple):
    """Samples of one step: `x` [B, ...] (float images, rows or integer tokens), `y` [B, ...], `weight` [B] or None.

    Weight 0 marks a row of padding; None means that every row counts. `idle`: it may hold padding alone, for a client that is
    finished while others, stacked with it, still train; then its step is undone.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    idle: bool = False

    @property
    def rows(self) -> Tensor | float:
        """Rows that count, a scalar."""
        return float(self.y.shape[0]) if self.weight is None else self.weight.sum()

    def mean(self, per_sample: Tensor) -> Tensor:
        """Mean over the rows that count; `per_sample` has shape [B]. A batch of padding alone gives 0."""
        if self.weight is None:
            return per_sample.mean()
        return (per_sample * self.weight).sum() / self.weight.sum().clamp_min(1)


class StackedBatch(Batch):
    """The same step of stacked clients: `x` [K, B, ...], `y` [K, B, ...], `weight` [K, B] or None; `rows` has shape [K]."""

    @property
    def rows(self) -> Tensor | float:
        return float(self.y.shape[1]) if self.weight is None else self.weight.sum(1)


class Output(NamedTuple):
    """What a model returns: `logits` [B, C], `features` [B, D] or None, and the `buffers` after the call."""

    logits: Tensor
    features: Tensor | None = None
    buffers: Tree = {}  # noqa: RUF012  (a NamedTuple field is immutable by use)


class Broadcast(NamedTuple):
    """What the server sends in a round; `lr` is the local learning rate of this round.

    It is the same to every participant but for `own`: what parts address to a client, by its number.
    """

    round: int
    params: Tree
    buffers: Tree
    messages: PartTrees
    lr: float
    own: Mapping[int, PartTrees] = {}

    def to(self, client: int) -> Broadcast:
        """The order as this client receives it."""
        return self.with_messages(self.own.get(client, {}))

    def with_messages(self, own: PartTrees) -> Broadcast:
        """The order with what is addressed to one client among its mail."""
        return self._replace(
            messages=self.messages | {name: self.messages.get(name, {}) | t for name, t in own.items()}, own={}
        )


class ClientUpdate(NamedTuple):
    """What leaves a client; stacked, with a leading [K] everywhere, it is the body of a cohort.

    `size` counts its training samples, `steps` the optimizer steps it made, `weight` is the accumulated weight ||a||_1 of
    its solver (FedNova), `loss` the mean task loss over its steps, `shared` the context entries that may leave it.
    """

    update: Tree
    buffers: Tree
    messages: PartTrees
    size: Tensor
    steps: Tensor
    weight: Tensor
    loss: Tensor
    shared: PartTrees

    @property
    def numbers(self) -> ClientUpdate:
        """What is left of it without its update, its buffers and its letters."""
        return self._replace(update={}, buffers={}, messages={})

    def map(self, f: Callable[[Tensor], Tensor]) -> ClientUpdate:
        """The report with `f` of each of its tensors."""
        messages, shared = (
            {p: {n: f(t) for n, t in d.items()} for p, d in g.items()} for g in (self.messages, self.shared)
        )
        update, buffers = ({n: f(t) for n, t in d.items()} for d in (self.update, self.buffers))
        return ClientUpdate(
            update, buffers, messages, f(self.size), f(self.steps), f(self.weight), f(self.loss), shared
        )
