"""Clients that share a model: its state on the server, the clients' states, and the model that each of them predicts with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import select_rows
from unalike.core.types import Broadcast, ClientUpdate, Context, PartTrees, Tree
from unalike.core.views import Cohort, Members, ServerState, StageSettings
from unalike.data.population import Population
from unalike.data.transforms import TransformChain
from unalike.engine.base import AcceptedRounds, ClientPool, Executor
from unalike.engine.pooled_facts import pooled_with_facts
from unalike.methods.plan import Stage
from unalike.methods.roles import Personalizer
from unalike.metrics.failures import LESS_NOISE
from unalike.metrics.scoring import Predict, SharedModel
from unalike.training.client.client_states import ClientStateStore
from unalike.training.client.client_task import BUFFERS
from unalike.training.server.aggregation import (
    StreamingSum,
    SumWeights,
    UpdateBuffer,
    UpdateSums,
    decode_update,
    decode_updates,
)
from unalike.training.server.server_update import (
    advance,
    advance_by_nothing,
    advance_from_sums,
    initial_server_state,
    make_broadcast,
    sum_weights,
)
from unalike.training.server.update_checks import find_faults, oversized, update_norms


class Diverged(UnalikeError):
    """No client of a round sent a usable update."""


class GroupUpdates(NamedTuple):
    """The usable client updates of a round in one group: each by itself, or added up already.

    `ids` were asked; `refused` says why an update is unusable, `oversized` which ones are absurd though they can be used; `sent`
    are the bytes of one. `cohort` has the updates, or with
    `read`, which gives a client's update along a leading [1], their numbers alone; None where they are added up: then `sums`
    are the weighted sums, and `weights` what they were weighted with. `keep`: the updates are looked at after the round.
    `again` trains these clients once more, with the same updates.
    """

    ids: Sequence[int]
    refused: dict[int, str]
    sent: int = 0
    cohort: Cohort | None = None
    read: Callable[[int], ClientUpdate] | None = None
    keep: bool = False
    sums: UpdateSums | None = None
    weights: SumWeights | None = None
    again: Callable[[list[int]], GroupUpdates] | None = None
    oversized: Mapping[int, str] = MappingProxyType({})


class ModelGroup:
    """A group of clients that share one model.

    `source` has the samples that its clients train on, `members` how many clients have samples, `client_states` what the
    method's parts keep of each client between rounds; `start` is the server state that the group goes on from.
    """

    executor: Executor
    """Trains the group's clients; set when it is known which one."""

    def __init__(
        self,
        stage: Stage,
        settings: StageSettings,
        source: Population,
        members: Members,
        client_states: ClientStateStore,
        transform: TransformChain | None,
        start: ServerState | None = None,
    ):
        self.method = stage.method
        self.settings = settings
        self.source, self.members = source, members
        self.state = initial_server_state(self.method, settings, start)
        self.accepted: AcceptedRounds = {}
        self.client_states = client_states
        self._untrained = frozenset(
            () if stage.pooled else np.flatnonzero(source.sizes == 0).tolist()
        )
        self.client_pool = self._described = ClientPool(
            self.method, settings, source, client_states, transform
        )
        if stage.pooled and self.method.is_conditioned(settings.model):
            self.client_pool = pooled_with_facts(self._described)

    def broadcast(self, ids: Sequence[int]) -> Broadcast:
        """The broadcast of the next round, with the part messages addressed to the clients `ids`."""
        return make_broadcast(self.method, self.settings, self.state, self.members.clients, ids)

    def wait(self) -> None:
        """Count a round of the run in which none of the group's clients takes part; a private method adds its noise alone."""
        if self.method.privacy is None:
            self.state = self.state._replace(round=self.state.round + 1)
        else:
            self.state = advance_by_nothing(self.method, self.settings, self.state, self.members)

    def open_sink(self, ids: Sequence[int], single: bool = False) -> StreamingSum | UpdateBuffer:
        """Collects the updates of `ids`: a linear method's are added up as they come, unless each one is wanted (`single`)."""
        if single or not self.method.needs_sums_only:
            return UpdateBuffer(ids)
        expected = self.client_pool.expected(ids, self.members)
        weights = sum_weights(self.method, self.settings, self.state, expected)
        return StreamingSum(self.method, self.state, weights, self.settings.buffers)

    def collect(
        self, sink: StreamingSum | UpdateBuffer, ids: Sequence[int], single: bool = False
    ) -> GroupUpdates:
        """The usable updates in a sink. Raises `Diverged` where there is none."""
        if isinstance(sink, StreamingSum):
            sums = sink.sums
            self._check_some_usable(ids, sums.refused)
            odd = oversized(sums.norms)
            return GroupUpdates(
                ids, sums.refused, sums.sent, sums=sums, weights=sink.shares, oversized=odd
            )
        taken = sink.taken
        assert taken is not None and taken.ids == list(ids)  # all clients answered
        cohort = Cohort(tuple(ids), taken.stacked, self.members)
        refused = find_faults(cohort.ids, cohort.stacked)
        self._check_some_usable(ids, refused)
        if refused:
            cohort = cohort.rows(
                torch.tensor([i for i, k in enumerate(cohort.ids) if k not in refused])
            )
        sent = tree.nbytes(cohort.update) // len(cohort.ids)
        update = decode_updates(self.method, cohort.update, self.state)
        odd = oversized(update_norms(cohort.ids, update))
        return GroupUpdates(ids, refused, sent, cohort=cohort, keep=single, oversized=odd)

    def _check_some_usable(self, ids: Sequence[int], refused: dict[int, str]) -> None:
        if len(refused) == len(ids):
            client, why = min(refused.items())
            scaled = (
                ", or divide the target, which is not scaled"
                if self.settings.task.name == "regression"
                else ""
            )
            noise = "" if self.method.privacy is None else f"; {LESS_NOISE}"
            raise Diverged(
                f"round {self.state.round + 1}: no client sent a usable update; the first, {self.source.names[client]!r}: {why}. "
                f"Training diverged: try a smaller learning rate{scaled}{noise}"
            )

    def advance(self, updates: GroupUpdates) -> tuple[Cohort, dict[int, str]]:
        """Aggregate updates and make the server step. Raises `Diverged`.

        Returns the clients with accepted updates, and client -> why its update was refused.
        """
        if updates.cohort is not None:
            self.accept(updates.cohort, updates.read)
            return updates.cohort if updates.keep else updates.cohort.numbers, updates.refused
        assert updates.sums is not None and updates.weights is not None
        round = self.state.round
        done = advance_from_sums(
            self.method, self.settings, self.state, updates.sums, updates.weights, self.members
        )
        if done is None:
            if not updates.refused or updates.again is None:
                raise Diverged(
                    f"round {round + 1}: the weights of the updates are not finite, or follow from what is known only after "
                    'training, such as losses; a part that weighs by that must say needs = "updates" in its class'
                )
            # without the refused clients the others have other weights
            cohort, refused = self.advance(
                updates.again([k for k in updates.ids if k not in updates.refused])
            )
            return cohort, updates.refused | refused
        self.state, cohort = done
        if not self.client_states.empty:  # else a million clients would be counted for nothing
            self.accepted.update(dict.fromkeys(cohort.ids, round))
        return cohort, updates.refused

    def accept(self, cohort: Cohort, read: Callable[[int], ClientUpdate] | None = None) -> None:
        """Advance the state by usable updates; a linear method adds them up one by one, in the order of the cohort.

        With `read` (client -> its update along a leading [1]) the cohort of a linear method needs the numbers alone.
        """
        round = self.state.round
        if self.method.needs_sums_only:
            place = {client: i for i, client in enumerate(cohort.ids)}
            self.state = self._summed(
                cohort, read or (lambda k: select_rows(cohort.stacked, torch.tensor([place[k]])))
            )
        else:
            self.state = advance(self.method, self.settings, self.state, cohort)
        self.accepted.update(dict.fromkeys(cohort.ids, round))

    def _summed(self, cohort: Cohort, read: Callable[[int], ClientUpdate]) -> ServerState:
        weights = sum_weights(self.method, self.settings, self.state, cohort)
        total = StreamingSum(self.method, self.state, weights, self.settings.buffers)
        for client in cohort.ids:
            total.add([client], read(client))
        done = advance_from_sums(
            self.method, self.settings, self.state, total.sums, weights, self.members
        )
        if done is None:  # the weights are those of these very updates
            raise Diverged(
                f"round {self.state.round + 1}: the weights of the updates are not finite"
            )
        return done[0]

    def client_state(self, client: int) -> PartTrees:
        """The client's current state."""
        return self.client_states.get(client, self.accepted.get(client))

    def belongings(
        self, client: int, broadcast: Broadcast | None = None
    ) -> tuple[Tree, Tree, Tree]:
        """The personalizer's state of a client, its buffers of the shared model, and those of its own model.

        The message in the `broadcast` to the client is joined to its state where the part predicts by it.
        """
        client_state, part = self.client_state(client), self._personalizer(client)
        if part is None:
            buffers = self._shared_buffers(client)
            return {}, buffers, buffers
        buffers = self.state.buffers | client_state.get(BUFFERS, {})
        received = {} if broadcast is None else broadcast.to(client).messages.get(part.name, {})
        mine = client_state.get(part.name, {}) | (received if part.predicts_as_received else {})
        return mine, buffers, buffers | client_state.get(f"{part.name}.{BUFFERS}", {})

    def _personalizer(self, client: int) -> Personalizer | None:
        """The part that gives the client a model of its own; None also without training samples where there is a shared model."""
        shared = client in self._untrained and self.method.has_shared_model(self.settings.model)
        return None if shared else self.method.personalizer

    def context(self, client: int) -> Context:
        """The client's static facts."""
        return self._described.context(client) if self.method.conditioners else {}

    def shared_model(self, client: int) -> Predict:
        """The shared model as the client uses it: fed with its own facts, and with its own buffers where none are averaged."""
        return SharedModel(
            self.settings.model,
            self.state.params,
            self._shared_buffers(client),
            self.context(client),
        )

    def _shared_buffers(self, client: int) -> Tree:
        """The shared model's buffers as the client uses it. Fixed buffers are the server's, whatever training made of them."""
        own = self.client_state(client).get(BUFFERS, {}) if self.settings.buffers == "local" else {}
        return self.state.buffers | own

    def personal_models(
        self, ids: Sequence[int], broadcast: Broadcast | None, executor: Executor | None = None
    ) -> Iterator[tuple[int, Predict]]:
        """Each client with its model; where the method fine-tunes, tuned from `broadcast`, which changes no state, and where it
        predicts by what the server sends, with the message in it.

        The `executor` tunes them, by default that of the group.
        """
        if broadcast is None or self.method.finetuning_phase is None:
            yield from ((k, self._own_model(k, broadcast)) for k in ids)
            return
        for k, tuned in (executor or self.executor).finetune(broadcast, ids, self.accepted):
            yield (
                k,
                SharedModel(
                    self.settings.model,
                    tuned,
                    tree.only(tuned, self.state.buffers),
                    self.context(k),
                ),
            )

    def personal(self, client: int, broadcast: Broadcast | None) -> Tree:
        """The parameters and buffers of a client's model, in state-dict order; `broadcast` as for `personal_models`."""
        model, part = self.settings.model, self._personalizer(client)
        if broadcast is not None and self.method.finetuning_phase is not None:
            [(_, tuned)] = self.executor.finetune(broadcast, [client], self.accepted)
            return model.state_dict(tuned)
        mine, _, own = self.belongings(client, broadcast)
        return model.state_dict(
            (self.state.params if part is None else part.personal(model, self.state.params, mine))
            | own
        )

    def _own_model(self, client: int, broadcast: Broadcast | None) -> Predict:
        model, part = self.settings.model, self._personalizer(client)
        params, context = self.state.params, self.context(client)
        mine, buffers, own = self.belongings(client, broadcast)
        if part is None:
            return SharedModel(model, params, buffers, context)
        return lambda x: (
            part.predict(
                model.channels_last(x[:2], context), params | buffers, mine, own, x, context
            ).logits
        )

    def local_model(self, client: int, before: ServerState, client_update: ClientUpdate) -> Predict:
        """The client's model after local training from `before`: its update as the server decodes it, with its own parameters."""
        model, part, client_state = (
            self.settings.model,
            self.method.personalizer,
            self.client_state(client),
        )
        update = decode_update(self.method, client_update.update, before)
        params = before.params | tree.map(lambda u, w: w + u, update, before.params)
        mine = {} if part is None else client_state.get(part.name, {})
        params |= {
            n: w for n, w in mine.items() if n in params and not self.method.shares(n, model)
        }
        buffers = before.buffers | client_update.buffers | client_state.get(BUFFERS, {})
        return SharedModel(model, params, buffers, self.context(client))
