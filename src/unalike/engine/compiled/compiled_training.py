"""Training of stacked clients in compiled loops: whether they can be used, the local training of a chunk, and its fine-tuning.

The loops are for models that follow the gradient of the task's loss, perhaps taken at the end of an inner loop (`Part.inner_loop`),
and at most a pull beside it, strength (v - w) + constant (`Part.pull`): the shared model, and a personal one that trains beside
it. Everything around the steps is the method's own code, as in `training.client.client_update.train`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.profiler_regions import profiled
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.solvers import SGD
from unalike.core.types import Batch, ClientUpdate, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.engine.client_chunk import BatchSequence, ClientChunk, StackedBatches
from unalike.engine.compiled.layer_chain import chain_of, chain_or_reason
from unalike.engine.compiled.layout import Layout, layout_of, padded
from unalike.loops import crew as compiled_loops
from unalike.methods.default_parts import TaskLoss
from unalike.methods.method import Method
from unalike.methods.part import InnerLoop, Part, Pull, overrides
from unalike.methods.roles import Correction, Phase
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import TrainedClient, trained_names
from unalike.training.client.local_step import (
    MODEL,
    LocalTrainer,
    StepState,
    StepSums,
    TrainerFactory,
)

TILE = 2**17
"""Samples that are computed at a time, in floats of their widest linear layer: a part of the second-level cache. On larger batches
of dense models torch is as fast."""
IMAGES = 2**20
"""The same in floats of their images before and after all convolutions: a part of the cache."""

SUMS = 8
"""Number of partial sums of updates: fixed, so that up to half as many threads give the same bits. More threads get two each."""


def kernels() -> ModuleType | None:
    """The compiled loops; None without numba."""
    return compiled_loops.loops("unalike.loops.kernels")


def obstacle(
    method: Method, phases: Sequence[Phase], settings: StageSettings, x: Tensor, rows: int
) -> str | None:
    """The reason why the loops cannot train clients; None if they can.

    The method's parts may add pulls to the gradient of a model, one may have an inner loop, and nothing else. The model is a
    chain of layers in float32, the solver SGD; `rows` are samples of the largest batch.
    """
    return next(_obstacles(method, phases, settings, x, rows), None)


def _obstacles(
    method: Method, phases: Sequence[Phase], settings: StageSettings, x: Tensor, rows: int
) -> Iterator[str]:
    """All reasons; those after the first are not looked for."""
    work, model = settings.work, settings.model
    chain = chain_or_reason(model)
    phased = [phase.work(work) for phase in phases]
    if isinstance(chain, str):
        yield chain
        return
    if kernels() is None:
        yield "numba is not installed"
    if not chain.takes(x):
        yield f"samples of shape {list(x.shape[1:])} do not suit its layers"
    if model.precision != "float32":
        yield f"it trains in {model.precision}"
    if not all(
        t.dtype is torch.float32 and t.device.type == "cpu" for t in (x, *model.params.values())
    ):
        yield "its tensors are not float32 on a CPU"
    if method.local_gradient is not None:
        yield "they have no gradient of a single sample"
    if work.loss is not None:
        yield "they have no loss but the task's"
    if work.keep_optimizer_state:
        yield "they keep no state of an optimizer"
    if not all(isinstance(w.solver, SGD) for w in phased):
        yield "they have no optimizer but SGD"
    if any(pulling_parts(method, w) is None for w in phased):
        yield "the method changes its gradients"
    if inner_loop(method) is not None and not _moves_shared(method, phases, model):
        yield "the method's inner loop moves parameters that stay at the client"
    if not model.convolutional and rows > _at_a_time(model, x.shape[1:]):
        yield f"torch is as fast in batches of {rows}"


def _at_a_time(model: Model, sample: tuple[int, ...]) -> int:
    """Samples of this shape that are computed at a time."""
    chain = chain_of(model)
    assert chain is not None  # see `obstacle`
    widest = max(max(model.params[layer.weight].shape) for layer in chain.layers)
    return max(1, min(TILE // widest, IMAGES // max(1, chain.activations(sample))))


def pulling_parts(method: Method, work: Work) -> tuple[Part, ...] | None:
    """The parts that add a pull to the gradient of the local loss; None where anything else changes a model."""
    terms = (*method.losses, *method.role(Correction))
    others = tuple(p for p in terms if type(p) is not TaskLoss and not _has_inner_loop(p))
    plain = len(others) < len(terms) and all(_stands_for_loss(p, "pull") for p in others)
    free = all(not overrides(p, "project") for p in method.trained_parts)
    return others if plain and free and work.clip is None else None


def inner_loop(method: Method) -> InnerLoop | None:
    """The inner loop of the method's loss; None for the task's loss."""
    return next((p.inner_loop for p in method.losses if _has_inner_loop(p)), None)


def _moves_shared(method: Method, phases: Sequence[Phase], model: Model) -> bool:
    """Whether each phase trains the shared parameters and no others, which are those that an inner loop moves."""
    shared = set(method.shared_names(model.params, model))
    return all(set(trained_names(method, phase, model)) == shared for phase in phases)


def passes(method: Method) -> int:
    """The number of gradients that the loops compute of each sample in an epoch."""
    inner = inner_loop(method)
    return (
        1 + len(method.trained_parts) + (0 if inner is None else 2 * inner.steps)
    )  # twice: `_finished` repeats them


def _has_inner_loop(part: Part) -> bool:
    return part.inner_loop is not None and _stands_for_loss(part, "inner_loop")


def _stands_for_loss(part: Part, hook: str) -> bool:
    """Whether this hook of the part stands for its loss or correction; not if a subclass changes these and inherits the hook."""
    definer = next(c for c in type(part).__mro__ if {hook, "loss", "correct"} & vars(c).keys())
    return hook in vars(definer) and definer is not Part


def train(
    chunk: ClientChunk, factors: Tensor | None = None
) -> tuple[ClientUpdate, PartTrees, bool]:
    """The clients' round, as `training.client.client_update.train` computes it for one client.

    `factors` are weights [K] of the updates in the server's sum; None keeps every update. Returns the client updates and states
    [K, ...], and whether the updates were summed: then `update` is the sum with these factors, [1, ...].
    """
    method, chunk = chunk.method, chunk.begin()
    summed = factors is not None and method.returns_update_only
    trained = _run(chunk, method.phases, method.returns_update_only, factors if summed else None)
    if method.parts_after_training:
        trained = trained._replace(finished=_finished(chunk, trained))
    return *chunk.client_updates(trained), summed


def tune(chunk: ClientChunk) -> Tree:
    """The parameters and buffers of clients after the method's fine-tuning, [K, ...]."""
    assert chunk.method.finetuning_phase is not None
    trained = _run(chunk.tuner.begin(), (chunk.method.finetuning_phase,))
    return trained.params | trained.buffers


def _finished(chunk: ClientChunk, trained: TrainedClient) -> PartTrees:
    """The new state of the part whose inner loop has a strength: the end of that loop, with the gradient of all local samples."""
    inner = inner_loop(chunk.method)
    if inner is None or not inner.strength:
        return {}
    work, batches = (
        Work(steps=inner.steps, batch_size=None, lr=inner.rate),
        chunk.whole.at_once(inner.steps),
    )
    params, pulls = trained.params, {MODEL: Pull(inner.strength)}
    trainer = CompiledTrainer(
        chunk.settings, work, params, params, params, pulls, None, False, None
    )
    start = StepState({MODEL: tree.only(params, chunk.task.sent)}, {}, {}, {})
    _, end = trainer.phase(start, BatchSequence(batches, batches.paddings))
    return {p.name: end.variables[MODEL] for p in chunk.method.losses if _has_inner_loop(p)}


def _run(
    chunk: ClientChunk,
    phases: Sequence[Phase],
    differences: bool = False,
    factors: Tensor | None = None,
) -> TrainedClient:
    """The clients after their training; `differences` and `factors` as in `CompiledTrainer`."""
    shared, inner = tree.only(chunk.broadcast.params, chunk.task.sent), inner_loop(chunk.method)

    def trainers(task: ClientTask) -> TrainerFactory:
        def make(work: Work, *, phase: int, params: Tree, client_state: PartTrees) -> LocalTrainer:
            pulls = _pulls(chunk, work, phase, params, client_state)
            return CompiledTrainer(
                chunk.settings, work, task.start, params, shared, pulls, inner, differences, factors
            )

        return make

    return chunk.run(phases, trainers)


def _pulls(
    chunk: ClientChunk, work: Work, phase: int, params: Tree, client_state: PartTrees
) -> dict[str, Pull]:
    """The sum of the parts' pulls on each trained model: the strength, the same for all clients, and the constants [K, ...]."""
    parts = pulling_parts(chunk.method, work)
    sums = {name: Pull() for name in (MODEL, *(p.name for p in chunk.method.trained_parts))}
    if not parts:
        return sums

    def one(
        task: ClientTask, params: Tree, client_state: PartTrees
    ) -> list[tuple[Tensor, Tree, Tree]]:
        pulls = [
            p.pull(task.view_of(p, params, {}, client_state, lr=work.lr, phase=phase))
            for p in parts
        ]
        return [
            (torch.tensor(pull.strength, dtype=torch.float64), pull.constant, pull.momentum)
            for pull in pulls
        ]

    for part, (strengths, *trees) in zip(parts, chunk.each(one, params, client_state), strict=True):
        name = part.name if part.trains else MODEL
        strength, *before = sums[name]
        sums[name] = Pull(strength + float(strengths[0]), *map(tree.total, before, trees))
    return sums


@dataclass(frozen=True)
class CompiledTrainer:
    """Trains one phase of stacked clients in the loops; all tensors have a leading [K].

    `origin` has all parameters where training starts, `params` those of the model at the start of the phase, `shared` those
    that pulls lead to: the shared ones as received, without a leading [K]. `pulls` is the sum of the parts' pulls on each
    trained model, `inner` the inner loop of the shared model's loss; None for the task's loss. `differences`: return what was
    added to the parameters (`StepSums.added_to_model`) instead of the new ones. With `factors` [K] return the sum of these
    differences with these factors, [1, ...], and no client's own.
    """

    settings: StageSettings
    work: Work
    origin: Tree
    params: Tree
    shared: Tree
    pulls: dict[str, Pull]
    inner: InnerLoop | None
    differences: bool
    factors: Tensor | None

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        assert isinstance(batches, BatchSequence)  # see `obstacle`
        if not batches:
            return StepSums(), before
        assert isinstance(batches.rows, StackedBatches)
        variables = dict(before.variables)
        with profiled("forward and backward"):
            data, sample = self._data(batches.rows), tuple(batches.rows.samples.shape[1:])
            for part in variables.keys() - {MODEL}:
                own = self.origin | variables[part]
                _, variables[part] = self._train(
                    own, variables[part].keys(), self.pulls[part], None, data, sample
                )
            moves = variables[MODEL].keys()
            sums, made = self._train(
                self.params | variables[MODEL], moves, self.pulls[MODEL], self.inner, data, sample
            )
        loss, samples, steps = torch.from_numpy(sums).float().unbind()
        if self.differences:
            return StepSums(loss, samples, steps, made), replace(before, solver_state={})
        return StepSums(loss, samples, steps), replace(
            before, variables=variables | {MODEL: made}, solver_state={}
        )

    def _data(self, rows: StackedBatches) -> Any:
        """The samples and batches as the loops take them (`kernels.Data`)."""
        loops, classes = kernels(), self.settings.task.name == "classification"
        assert loops  # see `obstacle`
        return loops.Data(
            rows.samples.flatten(1).numpy(),
            rows.index.numpy(),
            rows.sizes,
            rows.labels.long().contiguous().numpy() if classes else np.empty(0, np.int64),
            np.empty(0, np.float32) if classes else rows.y.float().flatten().numpy(),
            _at_a_time(self.settings.model, rows.samples.shape[1:]),
        )

    def _train(
        self,
        params: Tree,
        moves: Collection[str],
        pull: Pull,
        inner: InnerLoop | None,
        data: Any,
        sample: tuple[int, ...],
    ) -> tuple[np.ndarray, Tree]:
        """Train one model of each client: the sums [3, K] of losses, samples and steps, and the new values of `moves`."""
        loops, solver = kernels(), self.work.solver
        chain = chain_of(self.settings.model)
        assert loops and chain and isinstance(solver, SGD)  # see `obstacle`
        shapes = tuple((n, w.shape[1:]) for n, w in params.items())
        layout = layout_of(chain, shapes, frozenset(moves), sample)
        start = layout.flat(params)
        step = loops.Step(
            loops.LOSSES[self.settings.task.name],
            np.float32(self.work.lr),
            np.float32(solver.momentum),
            solver.nesterov,
            layout.decays(solver.weight_decay, pull.strength, self.shared),
            self._pull_rows(layout, params, pull).numpy(),
            self._rows(layout, params, pull.momentum).numpy(),
            *(
                ()
                if inner is None
                else (inner.steps, np.float32(inner.rate), np.float32(inner.strength))
            ),
        )
        model = loops.Model(layout.layers, layout.convolutions, layout.runs, layout.floats)
        run = partial(loops.train, start.numpy(), data, model, step)
        sums, trained = self._share_out(
            loops, run, len(data.sizes), padded(start.shape[1], loops.LANES)
        )
        return sums, {n: w for n, w in layout.views(trained).items() if n in moves}

    def _share_out(
        self, loops: ModuleType, run: Callable[..., None], clients: int, width: int
    ) -> tuple[np.ndarray, Tensor]:
        """The sums [3, K] of losses, samples and steps, and the trained rows [K or 1, width], computed on all threads."""
        summed = self.factors is not None
        pieces = max(SUMS, 2 * compiled_loops.threads()) if summed else compiled_loops.pieces()
        bounds = np.array(compiled_loops.bounds(clients, pieces))
        rows = torch.empty(len(bounds) - 1 if summed else clients, width, dtype=torch.float32)
        factors = torch.empty(0) if self.factors is None else self.factors
        results = loops.Results(
            self.differences, factors.float().numpy(), bounds, np.zeros((3, clients)), rows.numpy()
        )
        compiled_loops.share_out(partial(run, results), len(bounds) - 1)
        return results.sums, rows.sum(0, keepdim=True) if summed else rows

    def _pull_rows(self, layout: Layout, params: Tree, pull: Pull) -> Tensor:
        """The part of a pull that does not change, constant - strength w: rows [1 or K, P]; [0, 0] without a pull."""
        strength, constant, _ = pull
        if not strength:
            return self._rows(layout, params, constant)
        return self._rows(
            layout, params, {n: constant.get(n, 0.0) - strength * w for n, w in self.shared.items()}
        )

    def _rows(self, layout: Layout, params: Tree, values: Tree) -> Tensor:
        """Values of the shared parameters as rows [1 or K, P], with 0 for all others; [0, 0] without values."""
        if not values:
            return torch.empty(0, 0, dtype=torch.float32)
        found = {n: w.expand_as(params[n]) for n, w in values.items()}
        return layout.flat({n: w.new_zeros(()).expand_as(w) for n, w in params.items()} | found)
