"""A client's task in a round: everything that goes into its local training, and the views that parts get of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor

from unalike.core import tree
from unalike.core.types import Broadcast, Context, Output, PartTrees, Tree
from unalike.core.views import ClientBatches, ClientView, StageSettings, UnseenSamples
from unalike.methods import return_checks
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import Personalizer

BUFFERS = "buffers"
"""Key of a client's own buffers in its state (`buffers="local"`); a part's model keeps its buffers under `<part>.buffers`."""


class ViewFunction(Protocol):
    """Makes a part's view of a client; `ClientView` says what the arguments are, and when they are set."""

    def __call__(
        self,
        part: Part,
        params: Tree,
        buffers: Tree,
        client_state: PartTrees,
        *,
        lr: float = ...,
        cache: dict[str, Any] | None = None,
        phase: int = 0,
        step: int = 0,
        steps: Tensor | float = 0.0,
        output: Output | None = None,
        gradient_at: Callable[[Tree], Tree] | None = None,
    ) -> ClientView: ...


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
            view = self.view_of(part, params, self.buffers, client_state)
            with return_checks.inputs_unchanged(part, "begin", view):
                params, mine = return_checks.returned_pair(part, "begin", part.begin, view)
            client_state = client_state | {part.name: mine}
        return replace(self, begun=params, client_state=client_state)

    @property
    def start(self) -> Tree:
        """The parameters that training starts from, once it has begun."""
        assert self.begun is not None, "the task has not begun"
        return self.begun

    @cached_property
    def sent_names(self) -> list[str]:
        """The names of the parameters that are sent, which are the shared ones."""
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
        settings, broadcast, context, data = self.settings, self.broadcast, self.context, self.data
        received_params = initial_params = broadcast.params
        if self.begun is not None:
            received_params = tree.only(broadcast.params, self.sent_names)
            initial_params = self.begun
        initial_buffers = self.buffers
        data_of = {p.name: _data_of(p, data) for p in self.method.parts}

        def view_of(
            part: Part,
            params: Tree,
            buffers: Tree,
            client_state: PartTrees,
            *,
            lr: float = broadcast.lr,
            cache: dict[str, Any] | None = None,
            phase: int = 0,
            step: int = 0,
            steps: Tensor | float = 0.0,
            output: Output | None = None,
            gradient_at: Callable[[Tree], Tree] | None = None,
        ) -> ClientView:
            return ClientView(
                settings=settings,
                part=part.name,
                received_params=received_params,
                initial_params=initial_params,
                initial_buffers=initial_buffers,
                params=params,
                buffers=buffers,
                message=broadcast.messages.get(part.name, {}),
                state=client_state.get(part.name, {}),
                context=context,
                lr=lr,
                round=broadcast.round,
                data=data_of[part.name],
                cache={} if cache is None else cache,
                phase=phase,
                step=step,
                steps=steps,
                output=output,
                gradient_at=gradient_at,
            )

        return view_of


def _data_of(part: Part, data: ClientBatches) -> ClientBatches:
    """The client's samples as a part sees them."""
    # a step that is recorded for replays shows no samples to any part
    are_hidden = not isinstance(data, ClientBatches)
    if part.needs_data or are_hidden:
        return data
    return data._replace(whole=UnseenSamples(part.name))
