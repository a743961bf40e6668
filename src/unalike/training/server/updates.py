"""The client updates of a round, as the server half takes them: `KeptUpdates` each by itself, `SummedUpdates` added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import Cohort, Members, ServerState
from unalike.methods.method import Method
from unalike.methods.part import Part, overrides
from unalike.methods.roles import Upload
from unalike.training.server.server_round import ServerRound

NO_CLIENT_UPDATE = ClientUpdate(
    update={},
    buffers={},
    messages={},
    size=torch.zeros(0),
    steps=torch.zeros(0),
    weight=torch.zeros(0),
    loss=torch.zeros(0),
    shared={},
)
"""The client updates of no client, stacked: K = 0."""


class Updates(Protocol):
    """The client updates of a group in a round: all that the server half learns from clients."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The K clients whose updates count."""

    @property
    def numbers(self) -> ClientUpdate:
        """Their updates [K] without tensors of the model and messages."""

    @property
    def refused(self) -> Mapping[int, str]:
        """Client -> why its update does not count."""

    @property
    def oversized(self) -> Mapping[int, str]:
        """Client -> what is absurd about its update, which counts."""

    @property
    def started_from(self) -> Mapping[int, int]:
        """Client -> round whose model it trained, of those clients among `ids` that trained an earlier model than the current."""

    @property
    def bytes_each(self) -> int:
        """Bytes of one update as it is sent, of several the mean; 0 where replies are weighed instead."""

    def cohort(self, server: ServerRound, members: Members) -> Cohort:
        """The clients as parts of the server see them: their updates decoded, or where these are added up their numbers."""

    def combined(
        self, server: ServerRound, cohort: Cohort, screened: Cohort, weights: Tensor
    ) -> Combined:
        """The updates as one.

        Args:
            server: The method in this round.
            cohort: What `cohort` returned, after the cohort steps of the method.
            screened: The same, after its screenings: what the aggregator sees.
            weights: The weights of the rows of `screened`, of sum 1.
        """


class Combined(NamedTuple):
    """The client updates of a round as one.

    `folded` has the sum of `fold` of each part that folds something; `spread` is that of the cohort, if it was measured on the way.
    """

    update: Tree
    buffers: Tree
    folded: PartTrees
    spread: Tree = {}  # noqa: RUF012  (a NamedTuple field is immutable by use)


class UpdateSink(Protocol):
    """Takes client updates as they arrive from an executor."""

    def factors(self, ids: Sequence[int]) -> Tensor | None:
        """Coefficients [k] of the updates of `ids` in the sum, if the sink keeps their sum only; else None."""

    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None:
        """Add the stacked updates of `ids`.

        Every tensor is [k, ...]. `summed`: the executor has multiplied the updates by `factors` and summed them; then
        `client_update.update` is this sum, [1, ...], and everything in `client_update` is finite.
        """


def decode_updates(method: Method, update: Tree, sent: Broadcast | ServerState) -> Tree:
    """The stacked updates as they were before the uploads encoded them; `sent` has the round, and names and shapes."""
    for upload in reversed(method.role(Upload)):
        update = upload.decode(update, sent.params, sent.round)
    return update


def decode_update(method: Method, update: Tree, sent: Broadcast | ServerState) -> Tree:
    """`decode_updates` for the update of one client."""
    stacked = tree.map(lambda t: t[None], update)
    return tree.row(decode_updates(method, stacked, sent), 0)


def sum_of_folds(part: Part, update: Tree, message: Tree, importance: Tensor) -> Tree:
    """The sum of the part's `fold` over the clients of this importance [K]; empty where it has none, or nothing to read."""
    if not overrides(part, "fold") or not (update or message):
        return {}
    some_tensor = next(iter((update or message).values()))
    importance = importance.to(some_tensor.device)
    if len(importance) == 1:
        return part.fold(tree.row(update, 0), tree.row(message, 0), importance[0])
    summands = torch.vmap(part.fold)(update, message, importance)
    return tree.map(lambda t: t.sum(0), summands)
