"""Clients that share a model: its state on the server, their memories, and what each of them predicts with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import select_rows
from unalike.core.types import Broadcast, ClientUpdate, Context, PartTrees, Tree
from unalike.core.views import Cohort, ServerState, StageSettings
from unalike.data.population import Population
from unalike.engine.auto import build
from unalike.engine.base import AcceptedRounds, BatchTransform, ClientPool, Executor, client_costs
from unalike.engine.multiprocess.distributed import Distributed, SharedClientStates
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.methods.plan import Stage
from unalike.methods.return_checks import untouched
from unalike.metrics.scoring import Predict, SharedModel
from unalike.training.aggregation import StreamingSum, decode_updates
from unalike.training.client_states import ClientStates
from unalike.training.client_update import BUFFERS, initial_client_state
from unalike.training.server_update import advance, advance_from_sums, initial_server_state, make_broadcast, sum_weights
from unalike.training.validation import refusals


class Diverged(UnalikeError):
    """No participant of a round sent a usable report."""


@dataclass(frozen=True)
class RoundUpdates:
    """What a group's round came to: the sound reports, the refusals, the bytes of an update as it was sent."""

    cohort: Cohort
    refused: dict[int, str]
    sent: int


class ModelGroup:
    """A group of clients that shares one model: its state on the server and its executor."""

    def __init__(
        self,
        stage: Stage,
        settings: StageSettings,
        source: Population,
        chosen: Callable[[], str],
        folder: Path | None,
        transform: BatchTransform | None,
        start: ServerState | None = None,
        worker_pool: WorkerPool | None = None,
        place: int = 0,
    ):
        self.method = stage.method
        self.settings = settings
        self.source = source
        self.state = initial_server_state(self.method, settings, start)
        self.accepted: AcceptedRounds = {}
        self.client_states = ClientStates(initial_client_state(self.method, settings), folder)
        if worker_pool is not None and worker_pool.rank == 0:
            whose = {"stage": settings.stage, "group": place}
            self.client_states = SharedClientStates(
                self.client_states, worker_pool, whose, client_costs(self.method, settings.work, source.sizes)
            )
        self.client_pool = ClientPool(self.method, settings, source, self.client_states, transform)
        self.worker_pool, self.place, self._chosen = worker_pool, place, chosen

    @cached_property
    def executor(self) -> Executor:
        """What trains the group's clients; where a team works for the run, one of these in each process."""
        inner = build(self._chosen(), self.client_pool)
        if self.worker_pool is None or self.worker_pool.rank:
            return inner
        return Distributed(self.client_pool, inner, self.worker_pool, self.place)

    @property
    def remark(self) -> str:
        """What a person should know of how training went."""
        return self.executor.remark if "executor" in vars(self) else ""

    def broadcast(self, ids: Sequence[int], population: int) -> Broadcast:
        """The order of the next round for the participants `ids`."""
        return make_broadcast(self.method, self.settings, self.state, population, ids)

    def round(self, ids: Sequence[int], population: int, single: bool = False) -> RoundUpdates:
        """Train the participants `ids`, refuse what is unusable, advance the state.

        `single`: somebody wants to see what each client sent; else a linear method's reports are added up as they come, and
        those of others are let go of when the state has advanced.
        """
        broadcast = self.broadcast(ids, population)
        with untouched(self.method, self.state.params | self.state.buffers):
            if self.method.linear and not single:
                return self._folded(broadcast, ids, population)
            trained = self._stacked(broadcast, ids, population)
        return trained if single else replace(trained, cohort=trained.cohort.numbers)

    def wait(self) -> None:
        """A round of the run in which none of its clients takes part."""
        self.state = self.state._replace(round=self.state.round + 1)

    def _stacked(self, broadcast: Broadcast, ids: Sequence[int], population: int) -> RoundUpdates:
        cohort = self.executor.run(broadcast, ids, self.accepted, population)
        refused = refusals(cohort)
        self._somebody(ids, refused)
        if refused:
            cohort = cohort.rows(torch.tensor([i for i, k in enumerate(cohort.ids) if k not in refused]))
        self.accept(cohort)
        return RoundUpdates(cohort, refused, tree.nbytes(cohort.update) // len(cohort.ids))

    def _folded(self, broadcast: Broadcast, ids: Sequence[int], population: int) -> RoundUpdates:
        expected = self.client_pool.expected(ids, population)
        given = sum_weights(self.method, self.settings, self.state, expected)
        fold = StreamingSum(self.method, broadcast.params, given, self.settings.buffers)
        self.executor.feed(broadcast, ids, self.accepted, fold)
        sums = fold.sums
        self._somebody(ids, sums.refused)
        done = advance_from_sums(self.method, self.settings, self.state, sums, given, population)
        if done is None:
            if not sums.refused:
                raise Diverged(
                    f"round {self.state.round + 1}: the weights of the reports are not finite, or follow from what is "
                    'known only after training, such as losses; a part that weighs by that must say needs = "updates" in its class'
                )
            # who was refused changes the others' weights: they answer once more, which repeats their reports
            again = self._folded(broadcast, [k for k in ids if k not in sums.refused], population)
            return replace(again, refused=sums.refused | again.refused)
        self.state, cohort = done
        if not self.client_states.empty:  # else a million clients would be counted for nothing
            self.accepted.update(dict.fromkeys(cohort.ids, broadcast.round))
        return RoundUpdates(cohort, sums.refused, sums.sent)

    def _somebody(self, ids: Sequence[int], refused: dict[int, str]) -> None:
        if len(refused) == len(ids):
            client, why = min(refused.items())
            scaled = ", or divide the target, which is not scaled" if self.settings.task.name == "regression" else ""
            raise Diverged(
                f"round {self.state.round + 1}: no participant sent a usable report; client {client}: {why}. "
                f"Training diverged: try a smaller learning rate{scaled}"
            )

    def accept(self, cohort: Cohort, read: Callable[[int], ClientUpdate] | None = None) -> None:
        """Advance the state by sound reports; those of a linear method are added up one by one, as if they had just come.

        With `read` (client -> its report along a leading [1]) such a cohort needs the numbers of its reports only.
        """
        round = self.state.round
        if self.method.linear:
            place = {client: i for i, client in enumerate(cohort.ids)}
            self.state = self._summed(cohort, read or (lambda k: select_rows(cohort.stacked, torch.tensor([place[k]]))))
        else:
            self.state = advance(self.method, self.settings, self.state, cohort)
        self.accepted.update(dict.fromkeys(cohort.ids, round))

    def _summed(self, cohort: Cohort, read: Callable[[int], ClientUpdate]) -> ServerState:
        given = sum_weights(self.method, self.settings, self.state, cohort)
        fold = StreamingSum(self.method, self.state.params, given, self.settings.buffers)
        for client in cohort.ids:
            fold.add([client], read(client))
        done = advance_from_sums(self.method, self.settings, self.state, fold.sums, given, cohort.population)
        if done is None:  # the shares are those of these very reports
            raise Diverged(f"round {self.state.round + 1}: the weights of the reports are not finite")
        return done[0]

    def client_state(self, client: int) -> PartTrees:
        """What the client remembers now."""
        return self.client_states.get(client, self.accepted.get(client))

    def belongings(self, client: int) -> tuple[Tree, Tree, Tree]:
        """What the personalizer remembers of a client, its buffers of the shared model, and those of its own."""
        client_state, part = self.client_state(client), self.method.personalizer
        if part is None:
            buffers = self._shared_buffers(client)
            return {}, buffers, buffers
        buffers = self.state.buffers | client_state.get(BUFFERS, {})
        return client_state.get(part.name, {}), buffers, buffers | client_state.get(f"{part.name}.{BUFFERS}", {})

    def context(self, client: int) -> Context:
        """The client's static facts."""
        return self.client_pool.context(client) if self.method.conditioners else {}

    def shared_model(self, client: int) -> Predict:
        """The shared model as the client uses it: fed with its own facts, and with its own buffers where none are averaged."""
        return SharedModel(self.settings.model, self.state.params, self._shared_buffers(client), self.context(client))

    def _shared_buffers(self, client: int) -> Tree:
        """Those of the shared model as the client uses it. What is fixed is as the server has it, whatever training made of it."""
        own = self.client_state(client).get(BUFFERS, {}) if self.settings.buffers == "local" else {}
        return self.state.buffers | own

    def personal_models(
        self, ids: Sequence[int], broadcast: Broadcast | None, executor: Executor | None = None
    ) -> Iterator[tuple[int, Predict]]:
        """Clients with what they predict with; where the method fine-tunes, from what `broadcast` holds, the state staying as it is."""
        if broadcast is None:
            yield from ((k, self._own_model(k)) for k in ids)
            return
        for k, tuned in (executor or self.executor).tune(broadcast, ids, self.accepted):
            yield k, SharedModel(self.settings.model, tuned, tree.only(tuned, self.state.buffers), self.context(k))

    def divided(
        self, ids: Sequence[int], broadcast: Broadcast | None, what: Message
    ) -> tuple[Iterator[tuple[int, Predict]], list[int]]:
        """The same of the clients that this process has; the others of the team, whose ranks follow, are asked to do `what`
        with theirs."""
        executor = self.executor
        assert isinstance(executor, Distributed)
        mine, others = executor.ask(broadcast, ids, self.accepted, what | {"state": self.state._asdict()})
        return self.personal_models(mine, broadcast, executor.inner), others

    def _own_model(self, client: int) -> Predict:
        model, part, params, context = (
            self.settings.model,
            self.method.personalizer,
            self.state.params,
            self.context(client),
        )
        mine, buffers, own = self.belongings(client)
        if part is None:
            return SharedModel(model, params, buffers, context)
        return lambda x: (
            part.predict(model.channels_last(x[:2], context), params | buffers, mine, own, x, context).logits
        )

    def local_model(self, client: int, before: ServerState, client_update: ClientUpdate) -> Predict:
        """The client's model after the local training from `before` that it reported: what it sent, as the server reads it, and
        what is its own."""
        model, part, client_state = self.settings.model, self.method.personalizer, self.client_state(client)
        update = tree.map(lambda u: u[None], client_update.update)
        update = tree.row(decode_updates(self.method, update, before.params), 0)
        params = before.params | tree.map(lambda u, w: w + u, update, before.params)
        mine = {} if part is None else client_state.get(part.name, {})
        params |= {n: w for n, w in mine.items() if n in params and not self.method.shares(n, model)}
        buffers = before.buffers | client_update.buffers | client_state.get(BUFFERS, {})
        return SharedModel(model, params, buffers, self.context(client))
