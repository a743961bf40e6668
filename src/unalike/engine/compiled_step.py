"""The step of stacked clients as one compiled function: the ordinary step under `torch.vmap`, traced and handed to `torch.compile`.

The trace is a plain list of tensor operations, so a method's code need not be anything that a compiler can read. What is
not a tensor is a constant of the trace and part of its key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled
from unalike.core.nests import map_tensors, tensors_of
from unalike.core.types import Batch, Broadcast, PartTrees, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import Work
from unalike.engine.client_chunk import ClientChunk, ClientInputs, out_of_client_state
from unalike.methods.method import Method
from unalike.training.client_update import view_function
from unalike.training.local_step import LocalStep, StepState, StepwiseTrainer, functional_gradient, own_copy

LIMIT = 8
"""Kinds of steps that are compiled for a stage; clients that make more of them are better trained without."""

Program = Callable[[list[Tensor], list[Tensor]], list[Tensor]]
"""From what stays the same during a phase, and what changes in every step."""


class NotCompiled(Exception):
    """A step could not be compiled; `CompiledPrograms.problem` says why."""


@dataclass
class CompiledPrograms:
    """The compiled steps of a stage by kind, how long compiling took, and what prevents it."""

    problem: str = ""
    seconds: float = 0.0
    known: dict[Any, Program] = field(default_factory=dict)

    @property
    def remark(self) -> str:
        """What became of compiling."""
        if self.problem:
            return f"not compiled: {self.problem}"
        return f"compiled in {self.seconds:.1f} s (kinds of steps: {len(self.known)})" if self.known else ""

    def run(self, key: Any, function: Program, fixed: list[Tensor], now: list[Tensor]) -> list[Tensor]:
        """`function(fixed, now)`, compiled the first time that a key is seen. Raises `NotCompiled`.

        What is looked at of `fixed` is replaced there by a contiguous copy, so that it is copied once.
        """
        key = key, tuple((t.shape, t.dtype) for t in (*fixed, *now))
        if key in self.known:
            return self.known[key](fixed, now)
        if len(self.known) == LIMIT:
            self.problem = (
                f"the clients make more than {LIMIT} kinds of steps, of different numbers of clients or samples"
            )
            raise NotCompiled
        started = time.perf_counter()
        try:
            program = _compiled(function, fixed, now)
            outputs = program(fixed, now)
        except UnalikeError:
            raise
        except Exception as error:  # whatever the tracer, the compiler or a stranger's model cannot do
            if isinstance(error, RuntimeError) and out_of_client_state(error):
                raise
            self.problem = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0][:200]
            raise NotCompiled from None
        self.known[key] = program
        self.seconds += time.perf_counter() - started
        return outputs


def _compiled(function: Program, fixed: list[Tensor], now: list[Tensor]) -> Program:
    """The function as a compiled graph that is given only what it looks at, each of it as it would lie in memory by itself."""
    inputs, count = [t.contiguous() for t in (*fixed, *now)], len(fixed)
    with seeds.isolated(0, inputs[0].device):  # tracing draws numbers, and is not done again where a run goes on
        graph = make_fx(lambda *own: function(list(own[:count]), list(own[count:])))(*inputs)
    places = [n for n in graph.graph.nodes if n.op == "placeholder"]
    used = [i for i, node in enumerate(places) if node.users]
    for node in places:
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    quick = torch.compile(graph, dynamic=False, fullgraph=True)
    mine, own = [i for i in used if i < count], [i - count for i in used if i >= count]

    def run(fixed: list[Tensor], now: list[Tensor]) -> list[Tensor]:
        for i in mine:
            fixed[i] = fixed[i].contiguous()
        found: list[Tensor] = quick(*(fixed[i] for i in mine), *(now[i].contiguous() for i in own))
        return found

    return run


class CompiledStep(StepwiseTrainer):
    """As `LocalStep`, for the stacked clients of a chunk: all tensors have a leading [K], so has the value that is returned.

    A part's step sees no batch but its own and, where it asks for them, all local samples. Python that decides by the number of
    the step cannot be compiled.
    """

    def __init__(
        self,
        method: Method,
        work: Work,
        *,
        settings: StageSettings,
        chunk: ClientChunk,
        begun: tuple[Tree, PartTrees],
        programs: CompiledPrograms,
        params: Tree,
        client_state: PartTrees,
        sent: list[str],
    ):
        self.method, self.work, self.settings, self.chunk = method, work, settings, chunk
        self.programs, self.sent = programs, sent
        self.solver, self.leaf, self.keeps = work.solver, own_copy, bool(method.trained)
        given = {name: chunk.given[name] for name in ("messages", "context", "size")}
        broadcast = {name: getattr(chunk.broadcast, name) for name in ("params", "buffers", "messages")}
        self.fixed = {
            "given": given,
            "broadcast": broadcast,
            "whole": dict(chunk.whole),
            "params": params,
            "client_state": client_state,
        }
        self.fixed |= {"origin": begun[0], "opened": begun[1]}
        self.leaves = tensors_of(self.fixed)

    def __call__(self, before: StepState, batch: Batch, number: int, owned: bool) -> tuple[Tensor, StepState]:
        clients = len(self.chunk)
        state = map_tensors(
            lambda t: t if t.dim() else t.expand(clients), before.state
        )  # a solver's count of its steps
        rows = {"x": batch.x, "y": batch.y} | ({} if batch.weight is None else {"weight": batch.weight})
        moves: dict[str, Any] = {
            "step_state": vars(before) | {"state": state},
            "rows": rows,
            "number": torch.tensor(number),
        }
        key = (
            repr(self.work),
            tuple(self.chunk.kinds[-1]),
            batch.idle,
            tuple(before.variables),
            *_names(before.variables),
        )

        def flat(fixed: list[Tensor], now: list[Tensor]) -> list[Tensor]:
            value, after = self._step(_nest(self.fixed, fixed), _nest(moves, now), batch.idle)
            return [t.contiguous() for t in tensors_of({"value": value} | vars(after))]

        with profiled("forward and backward"):
            value, *made = self.programs.run(key, flat, self.leaves, tensors_of(moves))
        return value, StepState(**_nest(moves["step_state"], made))

    def _step(self, fixed: dict[str, Any], now: dict[str, Any], idle: bool) -> tuple[Tensor, StepState]:
        number = now["number"]
        broadcast = self.chunk.broadcast._replace(**fixed["broadcast"], own={})
        chunk = replace(self.chunk, broadcast=broadcast, given=fixed["given"], phases=[], whole=fixed["whole"])
        chunk = replace(chunk, kinds=self.chunk.kinds[-1:])
        own = [fixed[name] for name in ("origin", "opened", "params", "client_state")]

        def one(
            given: ClientInputs,
            broadcast: Broadcast,
            data: ClientBatches,
            origin: Tree,
            opened: PartTrees,
            *of_phase: Any,
        ) -> Any:
            params, client_state, step_state, rows = of_phase
            seen = ClientBatches(_Unseen(), data.whole)
            view_of = view_function(self.method, self.settings, broadcast, origin, opened, seen, given["context"])
            step = LocalStep(
                self.method,
                self.work,
                view_of=view_of,
                params=params,
                client_state=client_state,
                sent=self.sent,
                gradient=functional_gradient,
            )
            value, after = step(StepState(**step_state), Batch(**rows, idle=idle), number, False)
            return value, vars(after)

        value, after = chunk.each(one, *own, now["step_state"], now["rows"])
        return value, StepState(**after)


class _Unseen(Sequence[Any]):
    """Batches that a step must not look at."""

    def __getitem__(self, _: Any) -> NoReturn:
        raise LookupError("a part looks at other batches than its own")

    def __len__(self) -> int:
        return self[0]

    def __iter__(self) -> Iterator[Any]:
        return self[0]


def _nest(like: Any, leaves: Sequence[Tensor]) -> Any:
    """A nest like another one, of these tensors."""
    rest = iter(leaves)
    return map_tensors(lambda _: next(rest), like)


def _names(part_trees: PartTrees) -> list[str]:
    return [name for d in part_trees.values() for name in d]
