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
from unalike.core.client import Learnt, begin, conclude, learn, view
from unalike.core.local import Data, Setting
from unalike.core.method import Method
from unalike.core.part import Personaliser, Phase, Pull
from unalike.core.stacked import StackedStepper, pulls
from unalike.core.stepping import Look, Make, Practice, copied
from unalike.core.types import Drawers, Order, Report, Tree
from unalike.core.work import Work
from unalike.executors.chunk import Chunk, Given, Lot
from unalike.executors.compiled import CompiledStepper, Programs
from unalike.executors.fused import Fused, fusible


@dataclass(frozen=True)
class Course:
    """What `train` does: only the steps are made for stacked clients, all else is the method's own code.

    `programs` keeps compiled steps; without it the method `suits` steps by hand, `fused` into compiled loops where they can be.
    `factors` [K]: nothing is kept of the updates but their sum with these factors.
    """

    method: Method
    phases: Sequence[Phase]
    setting: Setting
    chunk: Chunk
    programs: Programs | None = None
    fused: bool = True
    factors: Tensor | None = None

    @property
    def summed(self) -> bool:
        """Whether the update in `reports` is that sum, along a leading [1]: compiled loops add it up."""
        return self.factors is not None and self.method.only_adds and self.programs is None and self._fusible

    @property
    def reports(self) -> tuple[Report, Drawers]:
        """The clients' reports and what they remember."""
        sizes, contexts = self.chunk.given["size"], self.chunk.given["context"]
        if not self.method.closing:  # nobody looks at what a client's parameters have become
            learnt = self._learnt(self.method.only_adds)
            return conclude(self.method, self.setting, self.chunk.order, sizes, contexts, _blind, learnt)

        def one(look: Look, order: Order, size: Tensor, context: Any, learnt: Learnt) -> tuple[Report, Drawers]:
            return conclude(self.method, self.setting, order, size, context, look, learnt)

        return self._each(one, sizes, contexts, self.learnt)

    @cached_property
    def learnt(self) -> Learnt:
        """The clients after their training."""
        return self._learnt()

    def _learnt(self, apart: bool = False) -> Learnt:
        """The same; `apart`: compiled loops tell what they added to the parameters instead."""
        params, memory = self._begun
        sent = self.method.sent(params, self.setting.model)

        order = self.chunk.order._replace(buffers=tree.map(self._stacked, self.chunk.order.buffers))
        lessons = (self.chunk if self.programs is None else self.chunk.alike).lessons
        if self.programs is not None:
            make = self._compiled(self.programs, sent)
        elif self._fusible:
            make = partial(self._fused, sent, apart)
        else:
            make = self._by_hand(sent)
        learnt = learn(self.method, self.phases, self.setting, order, params, memory, lessons, make)
        device = self.chunk.given["size"].device
        steps, loss = (torch.as_tensor(t, device=device).expand(len(self.chunk)) for t in (learnt.steps, learnt.loss))
        return learnt._replace(steps=steps, loss=loss)

    @cached_property
    def _fusible(self) -> bool:
        lots = [rows for rows in self.chunk.phases if rows and isinstance(rows, Lot)]
        if not self.fused or not lots:
            return False
        return fusible(self.method, self.phases, self.setting, lots[0].samples, max(lot.index.shape[2] for lot in lots))

    def _fused(self, sent: list[str], apart: bool, work: Work, params: Tree, memory: Drawers) -> Practice:
        parts, strengths, total = pulls(self.method, work) or (), list[float](), dict[str, Tensor]()

        def drawn(look: Look, _: Order, params: Tree, memory: Drawers) -> list[Tree]:
            found = [p.pull(look(p, params, {}, memory, lr=work.lr)) for p in parts]
            strengths[:] = [pull.strength for pull in found]
            return [pull.constant for pull in found]

        for constant in self._each(drawn, params, memory) if parts else []:
            total = tree.add(total, constant) if total and constant else total or constant
        start = tree.only(self.chunk.order.params, sent)
        factors = self.factors if self.summed else None
        return Fused(self.setting, work, params, start, Pull(sum(strengths), total), apart, factors)

    def _by_hand(self, sent: list[str]) -> Make:
        def each(function: Callable[..., Any], *stacked: Any) -> Any:
            return self._each(lambda look, _order, *own: function(look, *own), *stacked)

        return partial(StackedStepper, self.method, setting=self.setting, each=each, sent=sent)

    def _compiled(self, programs: Programs, sent: list[str]) -> Make:
        return partial(
            CompiledStepper,
            self.method,
            setting=self.setting,
            chunk=self.chunk,
            begun=self._begun,
            programs=programs,
            sent=sent,
        )

    def _stacked(self, t: Tensor) -> Tensor:
        return copied(t.expand(len(self.chunk), *t.shape))

    @property
    def _as_received(self) -> bool:
        """Whether nobody changes anything of what was received before the first step."""
        return not self.method.role(Personaliser)

    @cached_property
    def _begun(self) -> tuple[Tree, Drawers]:
        """The parameters that each client's training starts from, and its memory by then."""

        given, received = self.chunk.given, self.chunk.order.params
        if "begun" in given:
            return given["begun"], given["memory"]
        if self._as_received:
            return tree.map(lambda w: w.expand(len(self.chunk), *w.shape), received), given["memory"]

        def one(given: Given, order: Order, data: Data) -> tuple[Tree, Drawers]:
            return begin(self.method, self.setting, order, given["memory"], data, given["context"])

        return self.chunk.each(one)

    def _each(self, function: Callable[..., Any], *stacked: Any) -> Any:
        """`function(look, order, *own)` of every client."""

        def one(given: Given, order: Order, data: Data, params: Tree, memory: Drawers, *own: Any) -> Any:
            look = view(self.method, self.setting, order, params, memory, data, given["context"])
            return function(look, order, *own)

        return self.chunk.each(one, *self._begun, *stacked)


def _blind(*_: Any, **__: Any) -> NoReturn:
    raise LookupError("nothing looks at a client once it has been trained")
