"""The local training of a chunk, step by step for all of its clients at once instead of in one `torch.vmap`.

The steps are made by hand (`core.stacked`), or compiled where `programs` keeps what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import Work
from unalike.engine.client_chunk import ClientChunk, ClientInputs, StackedBatches
from unalike.engine.compiled_step import CompiledPrograms, CompiledStep
from unalike.engine.dense.compiled_training import CompiledTrainer, supports_compiled
from unalike.engine.dense.step import DenseStep, pulls
from unalike.methods.method import Method
from unalike.methods.part import Pull
from unalike.methods.roles import Personalizer, Phase
from unalike.training.client_update import TrainedClient, begin_training, make_client_update, run_phases, view_function
from unalike.training.local_step import LocalTrainer, TrainerFactory, ViewFunction, own_copy


@dataclass(frozen=True)
class StackedTraining:
    """What `train` does: only the steps are made for stacked clients, all else is the method's own code.

    `programs` keeps compiled steps; without it the method `suits` steps by hand, `fused` into compiled loops where they can be.
    `factors` [K]: nothing is kept of the updates but their sum with these factors.
    """

    method: Method
    phases: Sequence[Phase]
    settings: StageSettings
    chunk: ClientChunk
    programs: CompiledPrograms | None = None
    fused: bool = True
    factors: Tensor | None = None

    @property
    def summed(self) -> bool:
        """Whether the update in `client_updates` is that sum, along a leading [1]: compiled loops add it up."""
        return self.factors is not None and self.method.only_adds and self.programs is None and self._fusible

    @property
    def client_updates(self) -> tuple[ClientUpdate, PartTrees]:
        """The clients' reports and what they remember."""
        sizes, contexts = self.chunk.given["size"], self.chunk.given["context"]
        if not self.method.closing:  # nobody looks at what a client's parameters have become
            trained = self._learnt(self.method.only_adds)
            return make_client_update(
                self.method, self.settings, self.chunk.broadcast, sizes, contexts, _blind, trained
            )

        def one(
            view_of: ViewFunction, broadcast: Broadcast, size: Tensor, context: Any, trained: TrainedClient
        ) -> tuple[ClientUpdate, PartTrees]:
            return make_client_update(self.method, self.settings, broadcast, size, context, view_of, trained)

        return self._each(one, sizes, contexts, self.trained)

    @cached_property
    def trained(self) -> TrainedClient:
        """The clients after their training."""
        return self._learnt()

    def _learnt(self, apart: bool = False) -> TrainedClient:
        """The same; `apart`: compiled loops tell what they added to the parameters instead."""
        params, client_state = self._begun
        sent = self.method.sent(params, self.settings.model)

        broadcast = self.chunk.broadcast._replace(buffers=tree.map(self._stacked, self.chunk.broadcast.buffers))
        schedules = (self.chunk if self.programs is None else self.chunk.alike).schedules
        if self.programs is not None:
            make = self._compiled(self.programs, sent)
        elif self._fusible:
            make = partial(self._fused, sent, apart)
        else:
            make = self._by_hand(sent)
        trained = run_phases(self.method, self.phases, self.settings, broadcast, params, client_state, schedules, make)
        device = self.chunk.given["size"].device
        steps, loss = (torch.as_tensor(t, device=device).expand(len(self.chunk)) for t in (trained.steps, trained.loss))
        return trained._replace(steps=steps, loss=loss)

    @cached_property
    def _fusible(self) -> bool:
        lots = [rows for rows in self.chunk.phases if rows and isinstance(rows, StackedBatches)]
        if not self.fused or not lots:
            return False
        return supports_compiled(
            self.method, self.phases, self.settings, lots[0].samples, max(lot.index.shape[2] for lot in lots)
        )

    def _fused(self, sent: list[str], apart: bool, work: Work, params: Tree, client_state: PartTrees) -> LocalTrainer:
        parts, strengths, total = pulls(self.method, work) or (), list[float](), dict[str, Tensor]()

        def drawn(view_of: ViewFunction, _: Broadcast, params: Tree, client_state: PartTrees) -> list[Tree]:
            found = [p.pull(view_of(p, params, {}, client_state, lr=work.lr)) for p in parts]
            strengths[:] = [pull.strength for pull in found]
            return [pull.constant for pull in found]

        for constant in self._each(drawn, params, client_state) if parts else []:
            total = tree.add(total, constant) if total and constant else total or constant
        start = tree.only(self.chunk.broadcast.params, sent)
        factors = self.factors if self.summed else None
        return CompiledTrainer(self.settings, work, params, start, Pull(sum(strengths), total), apart, factors)

    def _by_hand(self, sent: list[str]) -> TrainerFactory:
        def each(function: Callable[..., Any], *stacked: Any) -> Any:
            return self._each(lambda view_of, _order, *own: function(view_of, *own), *stacked)

        return partial(DenseStep, self.method, settings=self.settings, each=each, sent=sent)

    def _compiled(self, programs: CompiledPrograms, sent: list[str]) -> TrainerFactory:
        return partial(
            CompiledStep,
            self.method,
            settings=self.settings,
            chunk=self.chunk,
            begun=self._begun,
            programs=programs,
            sent=sent,
        )

    def _stacked(self, t: Tensor) -> Tensor:
        return own_copy(t.expand(len(self.chunk), *t.shape))

    @property
    def _as_received(self) -> bool:
        """Whether nobody changes anything of what was received before the first step."""
        return not self.method.role(Personalizer)

    @cached_property
    def _begun(self) -> tuple[Tree, PartTrees]:
        """The parameters that each client's training starts from, and its memory by then."""

        given, received = self.chunk.given, self.chunk.broadcast.params
        if "begun" in given:
            return given["begun"], given["client_state"]
        if self._as_received:
            return tree.map(lambda w: w.expand(len(self.chunk), *w.shape), received), given["client_state"]

        def one(given: ClientInputs, broadcast: Broadcast, data: ClientBatches) -> tuple[Tree, PartTrees]:
            return begin_training(self.method, self.settings, broadcast, given["client_state"], data, given["context"])

        return self.chunk.each(one)

    def _each(self, function: Callable[..., Any], *stacked: Any) -> Any:
        """`function(view_of, broadcast, *own)` of every client."""

        def one(
            given: ClientInputs,
            broadcast: Broadcast,
            data: ClientBatches,
            params: Tree,
            client_state: PartTrees,
            *own: Any,
        ) -> Any:
            view_of = view_function(self.method, self.settings, broadcast, params, client_state, data, given["context"])
            return function(view_of, broadcast, *own)

        return self.chunk.each(one, *self._begun, *stacked)


def _blind(*_: Any, **__: Any) -> NoReturn:
    raise LookupError("nothing looks at a client once it has been trained")
