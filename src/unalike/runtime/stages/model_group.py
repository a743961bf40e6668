"""Clients that share a model: its state on the server, the clients' states, and the model that each of them predicts with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.client_devices.simulated_clock import ShareOfWork
from unalike.core import tree
from unalike.core.inputs import Inputs, first_rows
from unalike.core.model import Model
from unalike.core.types import Broadcast, ClientUpdate, Context, PartTrees, Tree
from unalike.core.views import Cohort, Members, ServerState, StageSettings
from unalike.data.population import Population
from unalike.data.transforms import TransformChain
from unalike.engine.base import AcceptedRounds, ClientPool, Executor
from unalike.engine.pooled_facts import pooled_with_facts
from unalike.methods.plan import Stage
from unalike.methods.roles import Personalizer
from unalike.metrics.scoring import Predict, SharedModel
from unalike.training.client.client_states import ClientStateStore
from unalike.training.client.client_task import BUFFERS
from unalike.training.server.kept_updates import KeptUpdates, UpdateBuffer
from unalike.training.server.server_round import ServerRound
from unalike.training.server.server_update import (
    Aggregate,
    gather,
    initial_server_state,
    make_broadcast,
    move,
)
from unalike.training.server.summed_updates import (
    OtherWeights,
    StreamingSum,
    SummedUpdates,
    add_up,
)
from unalike.training.server.updates import Updates, decode_update

NOBODY_LATE: Mapping[int, int] = MappingProxyType({})
"""The clients of a round that trained an earlier model, where all trained the current one."""


class Diverged(UnalikeError):
    """No client of a round sent a usable update."""


class PersonalState(NamedTuple):
    """Everything that a client has of its own beside the shared parameters.

    Attributes:
        of_personalizer: State of the part that gives the client a model, joined by the message that it predicts by.
        shared_buffers: Buffers of the shared model as the client uses it.
        own_buffers: Buffers of the client's own model; the same ones where it has none.
    """

    of_personalizer: Tree
    shared_buffers: Tree
    own_buffers: Tree


class GroupRound(NamedTuple):
    """The outcome of a round in a group.

    Attributes:
        cohort: The clients with accepted updates: their numbers, or with `ModelGroup.keeps_updates` the whole updates.
        refused: Client -> why its update was refused.
        oversized: Client -> what is absurd about its update, which counted.
    """

    cohort: Cohort
    refused: Mapping[int, str]
    oversized: Mapping[int, str]


class Gathered(NamedTuple):
    """The combined update of a group in a round, and where it comes from.

    Attributes:
        aggregate: The combined update, before the server step; None where the group stands still.
        updates: The updates that count; None: no client of the group took part.
        outcome: The outcome of the round; None: no client of the group took part.
    """

    aggregate: Aggregate | None
    updates: Updates | None = None
    outcome: GroupRound | None = None


def _of_clients(started_from: Mapping[int, int], ids: Sequence[int]) -> dict[int, int]:
    """The rounds of these clients alone, of those that trained an earlier model."""
    return {client: started_from[client] for client in ids if client in started_from}


class ModelGroup:
    """A group of clients that share one model, whose architecture is in the group's `settings`.

    `source` has the samples that its clients train on, `members` how many clients have samples, `client_states` what the
    method's parts keep of each client between rounds; `start` is the server state that the group goes on from. With
    `keeps_updates` each client's update is looked at after its round. `share_of_work` as in `ClientPool`.
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
        keeps_updates: bool = False,
        share_of_work: ShareOfWork | None = None,
    ):
        self.method = stage.method
        self.settings = settings
        self.source = source
        self.members = members
        self.keeps_updates = keeps_updates
        self.state = initial_server_state(self.method, settings, start)
        self.versions: dict[int, ServerState] = {}
        """Round -> the state that it began with, of the rounds whose model clients still train, where updates may be late."""
        self.accepted: AcceptedRounds = {}
        self.client_states = client_states
        without_samples = () if stage.pooled else np.flatnonzero(source.sizes == 0).tolist()
        self._untrained = frozenset(without_samples)
        # the facts of a client are its own, also where the samples of all clients are pooled
        self._described = ClientPool(
            self.method, settings, source, client_states, transform, share_of_work
        )
        self.client_pool = self._described
        if stage.pooled and self.is_conditioned:
            self.client_pool = pooled_with_facts(self._described)

    # a round ------------------------------------------------------------------------------------------------------------

    @property
    def server_round(self) -> ServerRound:
        """The method on the server in the current round."""
        return ServerRound(self.method, self.settings, self.state, self.members.clients)

    def broadcast(self, ids: Sequence[int], state: ServerState | None = None) -> Broadcast:
        """The broadcast of the next round, or that of an earlier `state`, with the part messages addressed to the clients `ids`."""
        state = self.state if state is None else state
        return make_broadcast(self.method, self.settings, state, self.members.clients, ids)

    def keep_versions(self, rounds: Collection[int]) -> None:
        """Keep the states that these rounds began with, and drop all others: there are no more than clients under way."""
        known = self.versions | {self.state.round: self.state}
        self.versions = {number: known[number] for number in rounds}

    def train(self, ids: Sequence[int], started_from: Mapping[int, int] = NOBODY_LATE) -> Updates:
        """Train the model at the clients `ids`; returns their usable updates. Raises `Diverged` where there is none.

        `started_from` as in `Updates`: these clients train one of the `versions`.
        """
        sink: UpdateBuffer | StreamingSum = UpdateBuffer(ids)
        if self.method.needs_sums_only and not self.keeps_updates:
            # The weights follow from numbers that are known before the clients answer, so their updates are added up as they come.
            sink = StreamingSum(
                self.method,
                self.state,
                self.server_round.sum_weights(self._expected(ids, started_from)),
                self.settings.buffers,
            )

        # Each client trains the model that it was sent, those of the same model together.
        for number, clients in self._by_version(ids, started_from).items():
            broadcast = self.broadcast(clients, self.versions.get(number, self.state))
            self.executor.feed(broadcast, clients, self.accepted, sink)

        updates = self._received(sink, ids, started_from)
        if not updates.ids:
            raise self._diverged(updates.refused)
        return updates

    def _received(
        self,
        sink: UpdateBuffer | StreamingSum,
        ids: Sequence[int],
        started_from: Mapping[int, int],
    ) -> Updates:
        """The usable updates of the clients `ids`."""
        if isinstance(sink, UpdateBuffer):
            kept = KeptUpdates.checked(ids, sink.stacked(ids), self.method, self.state)
            return replace(kept, started_from=_of_clients(started_from, kept.ids))
        summed = sink.updates
        late = _of_clients(started_from, summed.ids)
        if self.method.mixes_models:
            summed = self._sum_of_models(summed, late)
        return replace(summed, started_from=late)

    def _sum_of_models(self, summed: SummedUpdates, late: Mapping[int, int]) -> SummedUpdates:
        """The sum of the clients' models less the current one, from that of their models less those they were sent."""
        update = summed.update
        coefficients = summed.used_weights.of(summed.ids).coefficients.tolist()
        for client, factor in zip(summed.ids, coefficients, strict=True):
            if client in late:
                sent = self.versions[late[client]].params
                moved = {name: sent[name] - self.state.params[name] for name in update}
                update = tree.map(lambda u, m, c=factor: u + c * m, update, moved)
        return replace(summed, update=update)

    def _by_version(
        self, ids: Sequence[int], started_from: Mapping[int, int]
    ) -> dict[int, Sequence[int]]:
        """Round -> the clients that train its model, the earliest first."""
        if not started_from:
            return {self.state.round: ids}
        by_version: dict[int, list[int]] = {}
        for client in ids:
            number = started_from.get(client, self.state.round)
            by_version.setdefault(number, []).append(client)
        return dict(sorted(by_version.items()))

    def _expected(self, ids: Sequence[int], started_from: Mapping[int, int]) -> Cohort:
        """The clients of a round, as far as they are known before training."""
        pool = self.client_pool
        shares = pool.shares(ids, self.state.round)
        if shares is not None and started_from:
            # a late client has made the share of its own round
            share_of: dict[int, float] = {}
            for number, clients in self._by_version(ids, started_from).items():
                shares = pool.shares(clients, number)
                assert shares is not None
                share_of |= dict(zip(clients, shares.tolist(), strict=True))
            shares = np.array([share_of[client] for client in ids])
        expected = pool.expected(ids, self.members, shares=shares)
        return replace(expected, rounds_late=self.server_round.rounds_since(started_from))

    def gather(self, updates: Updates | None) -> Gathered:
        """Aggregate the updates of a round, without a server step; None: no client of the group takes part. Raises `Diverged`."""
        if updates is None:
            return Gathered(gather(self.method, self.settings, self.state, None, self.members))
        counted = updates
        if self.method.needs_sums_only and isinstance(updates, KeptUpdates):
            counted = add_up(updates, self.server_round, self.members)
            if self.method.mixes_models:
                counted = self._sum_of_models(counted, counted.started_from)
        try:
            aggregate = gather(self.method, self.settings, self.state, counted, self.members)
        except OtherWeights:
            return self._gather_without_refused(updates)
        cohort = self._recorded_cohort(updates)
        return Gathered(aggregate, updates, GroupRound(cohort, updates.refused, updates.oversized))

    def move(self, gathered: Gathered) -> None:
        """Make the server step of a round."""
        round_number = self.state.round
        self.state = move(self.method, self.settings, self.state, gathered.aggregate, self.members)
        # Where no states are kept here, a million clients would be counted for nothing.
        if gathered.updates is not None and not self.client_states.empty:
            self.accept(gathered.updates, round_number)

    def accept(self, updates: Updates, round_number: int) -> None:
        """The states that clients made with these updates of the round are their current ones from now on."""
        self.accepted.update(dict.fromkeys(updates.ids, round_number))
        # a client's state has the number of the round that it trained in, however late its update came
        self.accepted.update(updates.started_from)

    def _gather_without_refused(self, updates: Updates) -> Gathered:
        """Without the refused clients the others have other weights: they train again, from the same model."""
        if not updates.refused:
            raise Diverged(
                f"round {self.state.round + 1}: the weights of the updates are not finite, or follow from what is known only after "
                'training, such as losses; a part that weighs by that must say needs = "updates" in its class'
            )
        again = self.gather(self.train(updates.ids, updates.started_from))
        assert again.outcome is not None
        outcome = again.outcome._replace(
            refused={**updates.refused, **again.outcome.refused}, oversized=updates.oversized
        )
        return again._replace(outcome=outcome)

    def _recorded_cohort(self, updates: Updates) -> Cohort:
        if self.keeps_updates and isinstance(updates, KeptUpdates):
            return Cohort(ids=updates.ids, stacked=updates.stacked, members=self.members)
        return Cohort(ids=updates.ids, stacked=updates.numbers, members=self.members, folded=True)

    def _diverged(self, refused: Mapping[int, str]) -> Diverged:
        """The error for a round in which all updates are refused."""
        client, why = min(refused.items())
        advice = "try a smaller learning rate"
        if self.settings.task.advice_if_diverged:
            advice += f", or {self.settings.task.advice_if_diverged}"
        advice = "; ".join([advice, *self.method.advice_if_diverged])
        return Diverged(
            f"round {self.state.round + 1}: no client sent a usable update; the first, {self.source.names[client]!r}: {why}. "
            f"Training diverged: {advice}"
        )

    # the model ----------------------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The model as a function of its parameters; its own values are those before training."""
        return self.settings.model

    @property
    def server_model(self) -> SharedModel:
        """The predictions of the server's model, without anything of a client."""
        return SharedModel(self.model, self.state.params, self.state.buffers)

    @property
    def state_dict(self) -> Tree:
        """The parameters and buffers of the server's model, in state-dict order."""
        return self.model.state_dict(self.state.params | self.state.buffers)

    @property
    def has_shared_model(self) -> bool:
        """Whether clients share a model at all."""
        return self.method.has_shared_model(self.model)

    @property
    def is_personal(self) -> bool:
        """Whether clients are evaluated with something of their own."""
        return self.method.is_personal(self.model)

    @property
    def is_conditioned(self) -> bool:
        """Whether the shared model is fed facts of the client it predicts for."""
        return self.method.is_conditioned(self.model)

    @property
    def predicts_the_same_for_all(self) -> bool:
        """Whether the shared model predicts the same for every client: it is fed no client's facts and no client's buffers."""
        has_own_buffers = self.settings.buffers == "local" and bool(self.model.buffers)
        return not self.is_conditioned and not has_own_buffers

    # clients and their models -------------------------------------------------------------------------------------------

    def client_state(self, client: int) -> PartTrees:
        """The client's current state."""
        return self.client_states.get(client, self.accepted.get(client))

    def personal_state(self, client: int, broadcast: Broadcast | None = None) -> PersonalState:
        """Everything that the client has of its own beside the shared parameters.

        The message in the `broadcast` to the client is joined to its state where the part predicts by it.
        """
        part = self._personalizer(client)
        if part is None:
            buffers = self._shared_buffers(client)
            return PersonalState({}, shared_buffers=buffers, own_buffers=buffers)
        client_state = self.client_state(client)
        of_personalizer = client_state.get(part.name, {})
        if part.predicts_as_received and broadcast is not None:
            message = broadcast.to(client).messages.get(part.name, {})
            of_personalizer = of_personalizer | message
        buffers = self.state.buffers | client_state.get(BUFFERS, {})
        own_buffers = buffers | client_state.get(f"{part.name}.{BUFFERS}", {})
        return PersonalState(of_personalizer, shared_buffers=buffers, own_buffers=own_buffers)

    def _personalizer(self, client: int) -> Personalizer | None:
        """The part that gives the client a model of its own; None also without training samples where there is a shared model."""
        is_untrained = client in self._untrained
        if is_untrained and self.has_shared_model:
            return None
        return self.method.personalizer

    def context(self, client: int) -> Context:
        """The client's static facts."""
        return self._described.context(client) if self.method.conditioners else {}

    def shared_model(self, client: int) -> Predict:
        """The shared model as the client uses it: fed with its own facts, and with its own buffers where none are averaged."""
        return SharedModel(
            self.model,
            self.state.params,
            self._shared_buffers(client),
            self.context(client),
        )

    def _shared_buffers(self, client: int) -> Tree:
        """The shared model's buffers as the client uses it. Fixed buffers are the server's, whatever training made of them."""
        if self.settings.buffers != "local":
            return self.state.buffers
        return self.state.buffers | self.client_state(client).get(BUFFERS, {})

    def personal_models(
        self, ids: Sequence[int], broadcast: Broadcast | None, executor: Executor | None = None
    ) -> Iterator[tuple[int, Predict]]:
        """Each client with its model; where the method fine-tunes, tuned from `broadcast`, which changes no state, and where it
        predicts by what the server sends, with the message in it.

        The `executor` tunes them, by default that of the group.
        """
        if broadcast is None or self.method.finetuning_phase is None:
            for client in ids:
                yield client, self._own_model(client, broadcast)
            return
        executor = executor or self.executor
        for client, tuned in executor.finetune(broadcast, ids, self.accepted):
            buffers = tree.only(tuned, self.state.buffers)
            yield client, SharedModel(self.model, tuned, buffers, self.context(client))

    def personal(self, client: int, broadcast: Broadcast | None) -> Tree:
        """The parameters and buffers of a client's model, in state-dict order; `broadcast` as for `personal_models`."""
        model = self.model
        if broadcast is not None and self.method.finetuning_phase is not None:
            [(_, tuned)] = self.executor.finetune(broadcast, [client], self.accepted)
            return model.state_dict(tuned)
        mine = self.personal_state(client, broadcast)
        part = self._personalizer(client)
        params = self.state.params
        if part is not None:
            params = part.personal(model, params, mine.of_personalizer)
        return model.state_dict(params | mine.own_buffers)

    def _own_model(self, client: int, broadcast: Broadcast | None) -> Predict:
        model = self.model
        params = self.state.params
        context = self.context(client)
        mine = self.personal_state(client, broadcast)
        part = self._personalizer(client)
        if part is None:
            return SharedModel(model, params, mine.shared_buffers, context)
        shared = params | mine.shared_buffers

        def predict(x: Inputs) -> Tensor:
            laid_out = model.channels_last(first_rows(x, 2), context)
            output = part.predict(
                laid_out, shared, mine.of_personalizer, mine.own_buffers, x, context
            )
            return output.logits

        return predict

    def local_model(self, client: int, before: ServerState, client_update: ClientUpdate) -> Predict:
        """The client's model after local training from `before`: its update as the server decodes it, with its own parameters."""
        model = self.model
        part = self.method.personalizer
        client_state = self.client_state(client)
        update = decode_update(self.method, client_update.update, before)
        params = before.params | tree.map(lambda u, w: w + u, update, before.params)
        # parameters that are never sent are in the state of the part that keeps them
        mine = {} if part is None else client_state.get(part.name, {})
        params |= {
            name: w
            for name, w in mine.items()
            if name in params and not self.method.shares(name, model)
        }
        buffers = before.buffers | client_update.buffers | client_state.get(BUFFERS, {})
        buffers |= model.singular_vectors(params, buffers)
        return SharedModel(model, params, buffers, self.context(client))
