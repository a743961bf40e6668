"""Values that the client and the server half of a round exchange. A tree maps a parameter's name to its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import Inputs

Tree = dict[str, Tensor]
"""Parameter name -> tensor, in state-dict order; in a cohort with a leading [K]."""

PartTrees = dict[str, Tree]
"""Part name -> tree of that part: its state, or its message."""

Context = Mapping[str, Tree]
"""Name of a fact -> tree, computed from a client's training data once."""


class Batch(NamedTuple):
    """Samples of one step.

    Attributes:
        x: Inputs [B, ...]: float images, rows of a table or integer tokens; or a tree of such tensors (`core/inputs.py`).
        y: Labels [B, ...].
        weight: [B], 0 for a row of padding and 1 otherwise; None if every row counts.
        idle: True if the batch may be padding alone, for a client that has finished before others of its chunk; its step is
            undone.
    """

    x: Inputs
    y: Tensor
    weight: Tensor | None = None
    idle: bool = False

    @property
    def rows(self) -> Tensor | float:
        """Number of rows that count, a scalar."""
        return float(self.y.shape[0]) if self.weight is None else self.weight.sum()

    def sum(self, per_sample: Tensor) -> Tensor:
        """Sum over the rows that count.

        Args:
            per_sample: Values [B, ...].

        Returns:
            A tensor [...].
        """
        if self.weight is None:
            return per_sample.sum(0)
        return torch.tensordot(self.weight.to(per_sample), per_sample, dims=1)

    def mean(self, per_sample: Tensor) -> Tensor:
        """Mean over the rows that count.

        Args:
            per_sample: Values [B].

        Returns:
            A scalar; 0 for a batch of padding alone.

        Raises:
            UnalikeError: The values have another shape, such as [B, D].
        """
        if per_sample.dim() != 1:
            raise UnalikeError(
                f"batch.mean was given values of shape {list(per_sample.shape)}; expected one for each sample, [B]: take the "
                "mean over the other dimensions first, as in values.flatten(1).mean(1)"
            )
        if self.weight is None:
            return per_sample.mean()
        return (per_sample * self.weight).sum() / self.weight.sum().clamp_min(1)


class Output(NamedTuple):
    """Output of a model.

    Attributes:
        logits: [B, C], or [B] for a model with one output.
        features: Input of the head, [B, D]; None if the model has no head.
        buffers: Buffers after the call (running statistics in training mode).
    """

    logits: Tensor
    features: Tensor | None = None
    buffers: Tree = {}  # noqa: RUF012  (a NamedTuple field is immutable by use)


class Broadcast(NamedTuple):
    """The message of the server to the clients of a round: the same to all of the cohort, except for `own`.

    Attributes:
        round: Index of the round, from 0.
        params: Parameters of the model.
        buffers: Buffers of the model.
        messages: Message of each part, by the part's name.
        lr: Local learning rate of this round.
        own: Client number -> messages of parts to this client alone.
    """

    round: int
    params: Tree
    buffers: Tree
    messages: PartTrees
    lr: float
    own: Mapping[int, PartTrees] = {}

    def to(self, client: int) -> Broadcast:
        """The broadcast as this client receives it."""
        return self.with_messages(self.own.get(client, {}))

    def with_messages(self, own: PartTrees) -> Broadcast:
        """The broadcast with the messages `own` to one client merged into `messages`."""
        messages = dict(self.messages)
        for part, message in own.items():
            messages[part] = self.messages.get(part, {}) | message
        return self._replace(messages=messages, own={})


class ClientUpdate(NamedTuple):
    """The message of a client to the server after its training. In a cohort every tensor has a leading [K].

    Attributes:
        update: w_k - w of the shared parameters, as the uploads encoded it.
        buffers: Buffers that are averaged.
        messages: Message of each part, by the part's name.
        size: Number of training samples n_k, [].
        steps: Number of local steps tau_k that moved shared parameters, [].
        weight: Accumulated weight ||a_k||_1 of the local solver (FedNova), [].
        loss: Mean task loss over the steps, [].
        shared: Facts that the client shares with the server: name -> tree.
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
        """The client update without its update, buffers and messages."""
        return self._replace(update={}, buffers={}, messages={})
