"""All steps of a phase in compiled loops, for stacked clients that follow the gradient of the task's loss and at most a pull."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from unalike._utils import compiled_loops
from unalike._utils.profiler_regions import profiled
from unalike.core.dense_chain import ACTIVATIONS, DenseChain
from unalike.core.solvers import SGD
from unalike.core.types import Batch, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.engine.client_chunk import BatchSequence, StackedBatches
from unalike.engine.dense.step import pulls
from unalike.methods.method import Method
from unalike.methods.part import Pull
from unalike.methods.roles import Phase
from unalike.training.local_step import MODEL, StepState, StepSums

TILE = 2**17
"""Floats of a batch up to which the loops are fast: a part of the second cache. Beyond it torch's products are as fast."""

SUMS = 8
"""Sums of some clients each, which then are added up; more threads than half of that get two each. Up to there all give the same
bits."""


def kernels() -> ModuleType | None:
    """The compiled loops, if there are any."""
    return compiled_loops.loops("unalike.engine.dense.kernels")


def supports_compiled(method: Method, phases: Sequence[Phase], settings: StageSettings, x: Tensor, rows: int) -> bool:
    """Whether `CompiledTrainer` can train stacked clients, for which `core.stacked.suits` holds, on batches of `rows` samples like `x`."""
    work, chain, params = settings.work, settings.model.chain, settings.model.params
    phased = [phase.work(work) for phase in phases]
    if chain is None or work.keep_optimizer_state or any(pulls(method, w) is None for w in phased):
        return False
    widest = max(max(params[layer.weight].shape) for layer in chain.layers)
    return (
        rows * widest <= TILE
        and all(isinstance(w.solver, SGD) for w in phased)
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (x, *params.values()))
        and kernels() is not None
    )


@dataclass(frozen=True)
class CompiledTrainer:
    """The practice of a phase; all tensors have a leading [K]. `pull` is what all parts together add to the gradient.

    `start` are the shared parameters as received, [...]. `apart`: the tally says what was added to the parameters, which stay;
    with `factors` [K] it says the sum of that over the clients, along a leading [1].
    """

    settings: StageSettings
    work: Work
    params: Tree
    start: Tree
    pull: Pull
    apart: bool
    factors: Tensor | None

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        loops, chain, solver = kernels(), self.settings.model.chain, self.work.solver
        assert (
            loops and chain and isinstance(solver, SGD) and isinstance(batches, BatchSequence)
        )  # `supports_compiled` found them
        if not batches:
            return StepSums(), before
        lot, moves = batches.rows, before.variables[MODEL]
        assert isinstance(lot, StackedBatches)
        params = self.params | moves
        layout = _layout(chain, tuple((n, w.shape[1:]) for n, w in params.items()), frozenset(moves))
        with profiled("forward and backward"):
            start = layout.flat(params)
            tally = np.zeros((3, len(lot.sizes)))
            kind, classes = self.settings.task.name, self.settings.task.name == "classification"
            factors = torch.empty(0) if self.factors is None else self.factors
            given = (
                start.numpy(),
                lot.samples.flatten(1).numpy(),
                lot.index.numpy(),
                lot.labels.long().contiguous().numpy() if classes else np.empty(0, np.int64),
                np.empty(0, np.float32) if classes else lot.y.float().flatten().numpy(),
                lot.sizes,
                layout.table,
                layout.held,
                layout.strengths(solver.weight_decay, self.pull.strength, self.start),
                self._pulls(layout, params).numpy(),
                loops.LOSSES[kind],
                np.float32(self.work.lr),
                np.float32(solver.momentum),
                solver.nesterov,
                self.apart,
                factors.float().numpy(),
            )
            trained = self._apiece(partial(loops.train, *given), tally, _up(start.shape[1], loops.LANES))
        made = {n: w for n, w in layout.views(trained).items() if n in moves}
        loss, rows, steps = torch.from_numpy(tally).float().unbind()
        if self.apart:
            return StepSums(loss, rows, steps, made), replace(before, state={})
        return StepSums(loss, rows, steps), replace(before, variables=before.variables | {MODEL: made}, state={})

    def _apiece(self, train: Callable[..., None], tally: np.ndarray, width: int) -> Tensor:
        """What `train` writes of each client, [K, P], or adds up of all, [1, P], in rows of `width` floats."""
        clients, summed = tally.shape[1], self.factors is not None
        bounds = np.array(
            compiled_loops.bounds(
                clients, max(SUMS, 2 * compiled_loops.threads()) if summed else compiled_loops.pieces()
            )
        )
        rows = torch.empty(len(bounds) - 1 if summed else clients, width, dtype=torch.float32)
        compiled_loops.share_out(partial(train, bounds, tally, rows.numpy()), len(bounds) - 1)
        return rows.sum(0, keepdim=True) if summed else rows

    def _pulls(self, layout: Layout, params: Tree) -> Tensor:
        """What is added to the gradients beside strength v: constant - strength w, [1 or K, P]; nothing of no pull, [0, P]."""
        strength, constant = self.pull
        if not strength and not constant:
            return torch.empty(0, 0, dtype=torch.float32)
        shared = {n: (constant.get(n, 0.0) - strength * w).expand_as(params[n]) for n, w in self.start.items()}
        zeros = {n: w.new_zeros(()).expand_as(w) for n, w in params.items()}
        return layout.flat(zeros | shared)


@dataclass(frozen=True)
class Layout:
    """Where each parameter is among the floats of a client, and the table that `kernels.train` reads; `held` as it says."""

    names: tuple[tuple[str, str | None], ...]
    places: dict[str, tuple[int, torch.Size]]
    table: np.ndarray
    held: int

    def flat(self, params: Tree) -> Tensor:
        """Stacked parameters side by side, [K, P]; [1, P] where all clients have the same."""
        if all(params[n].stride(0) == 0 for n in self.places):
            return torch.cat([params[n][0].flatten() for n in self.places])[None]
        return torch.cat([params[n].flatten(1) for n in self.places], 1)

    def strengths(self, decay: float, pull: float, shared: Collection[str]) -> np.ndarray:
        """What each layer's weight and bias are multiplied with in their gradients, [L, 2]."""
        rows = [[decay + pull * (n in shared) for n in names] for names in self.names]
        return np.array(rows, np.float32)

    def views(self, flat: Tensor) -> Tree:
        """Each parameter of such rows."""
        return {n: flat.narrow(1, at, shape.numel()).view(-1, *shape) for n, (at, shape) in self.places.items()}


@lru_cache(64)
def _layout(chain: DenseChain, shapes: tuple[tuple[str, torch.Size], ...], moves: frozenset[str]) -> Layout:
    loops, shape = kernels(), dict(shapes)
    assert loops
    codes = {None: loops.IDENTITY, ACTIVATIONS[nn.ReLU]: loops.RELU}
    codes |= {ACTIVATIONS[nn.Tanh]: loops.TANH, ACTIVATIONS[nn.Sigmoid]: loops.SIGMOID}
    places, table, taken, held = {}, [], 0, 0
    for layer in chain.layers:
        out, wide = shape[layer.weight]
        for name in (layer.weight, layer.bias):
            if name is not None:
                places[name] = (taken, shape[name])
                taken += shape[name].numel()
        even, columns = _up(out, 2), _up(wide, loops.PAIR)
        source = places[layer.weight][0]
        own = -1 if layer.bias is None else source + out * wide
        bias, trained = held + even * columns, (layer.weight in moves, layer.bias in moves)
        table.append((wide, out, columns, even, held, bias, source, own, codes[layer.activation], *trained))
        held = bias + _up(even, loops.LANES)
    names = tuple((layer.weight, layer.bias) for layer in chain.layers)
    return Layout(names, places, np.array(table, np.int64), held)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to
