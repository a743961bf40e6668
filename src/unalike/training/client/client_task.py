"""A client's task in a round: everything that goes into its local training, and the views that parts get of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from unalike.core import tree
from unalike.core.types import Broadcast, Context, PartTrees, Tree
from unalike.core.views import ClientBatches, ClientView, StageSettings
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import Personalizer
from unalike.training.client.local_step import ViewFunction

BUFFERS = "buffers"
"""Key of a client's own buffers in its state (`buffers="local"`); a part's model keeps its buffers under `<part>.buffers`."""


@dataclass(frozen=True, eq=False)
class ClientTask:
    """The training of one client in a round. Of stacked clients every tensor but the broadcast's has a leading [K].

    `client_state` is what the client kept since its last participation, or after `begin` what parts made of it there; `data`
    are its batches of this round by phase, `context` its static facts, `size` the number of its training samples, a scalar.
    `begun` are the parameters that training starts from; None before `begin`.
    """

    method: Method
    settings: StageSettings
    broadcast: Broadcast
    client_state: PartTrees
    data: ClientBatches
    context: Context
    size: Tensor
    begun: Tree | None = None

    def begin(self) -> ClientTask:
        """The task after the parts' `begin`; the task itself if the executor has called that already."""
        if self.begun is not None:
            return self
        params, client_state = self.broadcast.params, self.client_state
        for part in self.method.role(Personalizer):
            params, mine = part.begin(self.view_of(part, params, self.buffers, client_state))
            client_state = client_state | {part.name: mine}
        return replace(self, begun=params, client_state=client_state)

    @property
    def start(self) -> Tree:
        """The parameters that training starts from, once it has begun."""
        assert self.begun is not None, "the task has not begun"
        return self.begun

    @cached_property
    def sent(self) -> list[str]:
        """The shared parameters."""
        return self.method.shared_names(self.broadcast.params, self.settings.model)

    @cached_property
    def buffers(self) -> Tree:
        """The buffers that training starts from: those received, and the client's own."""
        return self.broadcast.buffers | self.client_state.get(BUFFERS, {})

    @cached_property
    def view_of(self) -> ViewFunction:
        """Makes a part's view of the client from its current parameters, buffers and state.

        Parts get a view in every step, so what does not change is looked up here and not there.
        """
        broadcast, begun = self.broadcast, self.begun is not None
        view = partial(
            ClientView,
            settings=self.settings,
            received_params=tree.only(broadcast.params, self.sent) if begun else broadcast.params,
            initial_params=self.start if begun else broadcast.params,
            initial_buffers=self.buffers,
            context=self.context,
            round=broadcast.round,
            data=self.data,
        )

        def view_of(
            part: Part,
            params: Tree,
            buffers: Tree,
            client_state: PartTrees,
            lr: float = broadcast.lr,
            cache: dict[str, Any] | None = None,
            **now: Any,
        ) -> ClientView:
            return view(
                part=part.name,
                params=params,
                buffers=buffers,
                message=broadcast.messages.get(part.name, {}),
                state=client_state.get(part.name, {}),
                lr=lr,
                cache={} if cache is None else cache,
                **now,
            )

        return view_of
