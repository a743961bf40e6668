"""Training of stacked clients in compiled loops: whether they can be used, the local training of a chunk, and its fine-tuning.

The loops are for models that follow the gradient of the task's loss, perhaps taken at the end of an inner loop (`Part.inner_loop`),
and at most a pull beside it, strength (v - w) + constant (`Part.pull`): the shared model, and a personal one that trains beside
it. Everything around the steps is the method's own code, as in `training.client.client_update.train`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike._utils.profiler_regions import profiled
from unalike.core import tree
from unalike.core.inputs import Inputs, is_one_tensor
from unalike.core.model import Model
from unalike.core.solvers import SGD
from unalike.core.types import Batch, ClientUpdate, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.engine.client_chunk import BatchSequence, ClientChunk, StackedBatches
from unalike.engine.compiled.layer_chain import chain_of, chain_or_reason
from unalike.engine.compiled.layout import Layout, layout_of, padded
from unalike.engine.obstacles import obstacles
from unalike.loops import crew as compiled_loops
from unalike.methods.default_parts import TaskLoss
from unalike.methods.method import Method
from unalike.methods.part import InnerLoop, Part, Pull, overrides
from unalike.methods.roles import Correction
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import TrainedClient, trained_names
from unalike.training.client.local_step import (
    MODEL,
    StepState,
    StepSums,
    TrainerFactory,
)

LINEAR_TILE_FLOATS = 2**17
"""Samples that are computed at a time, in floats of their widest linear layer: a part of the second-level cache. On larger batches
of dense models torch is as fast."""
IMAGE_TILE_FLOATS = 2**20
"""The same in floats of their images before and after all convolutions: a part of the cache."""

MIN_PARTIAL_SUMS = 8
"""Number of partial sums of updates: fixed, so that up to half as many threads give the same bits. More threads get two each."""


def kernels() -> ModuleType | None:
    """The compiled loops; None without numba."""
    return compiled_loops.loops("unalike.loops.kernels")


def obstacle(method: Method, settings: StageSettings, x: Inputs, rows: int) -> str | None:
    """The reason why the loops cannot train clients; None if they can.

    The method's parts may add pulls to the gradient of a model, one may have an inner loop, and nothing else. The model is a
    chain of layers in float32, the solver SGD; `rows` are samples of the largest batch.
    """
    return next(_obstacles(method, settings, x, rows), None)


def _obstacles(method: Method, settings: StageSettings, x: Inputs, rows: int) -> Iterator[str]:
    """All reasons; those after the first are not looked for."""
    work, model = settings.work, settings.model
    chain = chain_or_reason(model)

    # the model and the samples
    if isinstance(chain, str):
        yield chain
        return
    if kernels() is None:
        yield "numba is not installed"
    if settings.task.compiled_loss is None:
        yield f"they have no loss of the task {settings.task.name}"
    if not is_one_tensor(x):
        yield "its samples are several tensors"
        return
    if not chain.takes(x):
        yield f"samples of shape {list(x.shape[1:])} do not suit its layers"
    if model.precision != "float32":
        yield f"it trains in {model.precision}"
    tensors = (x, *model.params.values())
    if not all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors):
        yield "its tensors are not float32 on a CPU"

    # the method and its work
    yield from obstacles("compiled", method, work)
    if any(pulling_parts(method, phase.work(work)) is None for phase in method.phases):
        yield "the method changes its gradients"
    if inner_loop(method) is not None and not _moves_shared(method, model):
        yield "the method's inner loop moves parameters that stay at the client"

    # they can, but gain nothing
    if not model.convolutional and rows > _samples_at_a_time(model, x.shape[1:]):
        yield f"torch is as fast in batches of {rows}"


def _samples_at_a_time(model: Model, sample: tuple[int, ...]) -> int:
    """Samples of this shape that are computed at a time."""
    chain = chain_of(model)
    assert chain is not None  # see `obstacle`
    widest = max(max(model.params[layer.weight].shape) for layer in chain.layers)
    image_floats = max(1, chain.activations(sample))
    return max(1, min(LINEAR_TILE_FLOATS // widest, IMAGE_TILE_FLOATS // image_floats))


def pulling_parts(method: Method, work: Work) -> tuple[Part, ...] | None:
    """The parts that add a pull to the gradient of the local loss; None where anything else changes a model."""
    terms = (*method.losses, *method.role(Correction))
    others = tuple(p for p in terms if type(p) is not TaskLoss and not _has_inner_loop(p))
    has_objective = len(others) < len(terms)
    has_pulls_only = all(_stands_for_loss(p, "pull") for p in others)
    has_constraints = any(overrides(p, "project") for p in method.trained_parts)
    if has_objective and has_pulls_only and not has_constraints and work.clip is None:
        return others
    return None


def inner_loop(method: Method) -> InnerLoop | None:
    """The inner loop of the method's loss; None for the task's loss."""
    return next((p.inner_loop for p in method.losses if _has_inner_loop(p)), None)


def _moves_shared(method: Method, model: Model) -> bool:
    """Whether each phase trains the shared parameters and no others, which are those that an inner loop moves."""
    shared = set(method.shared_names(model.params, model))
    return all(set(trained_names(method, phase, model)) == shared for phase in method.phases)


def passes(method: Method) -> int:
    """The number of gradients that the loops compute of each sample in an epoch."""
    inner = inner_loop(method)
    # `_finished` repeats the inner steps
    inner_passes = 0 if inner is None else 2 * inner.steps
    return 1 + len(method.trained_parts) + inner_passes


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
    # a sum has room for updates alone: no part may look at a client afterwards
    is_sum = factors is not None and method.returns_update_only
    trained = _run(
        chunk,
        differences=method.returns_update_only,
        factors=factors if is_sum else None,
    )
    if method.parts_after_training:
        trained = trained._replace(finished=_finished(chunk, trained))
    update, states = chunk.client_updates(trained)
    return update, states, is_sum


def finetune(chunk: ClientChunk) -> Tree:
    """The parameters and buffers of clients after the same training, of which nothing is sent, [K, ...]."""
    return _run(chunk.begin()).model


def _finished(chunk: ClientChunk, trained: TrainedClient) -> PartTrees:
    """The new state of the part whose inner loop has a strength: the end of that loop, with the gradient of all local samples."""
    inner = inner_loop(chunk.method)
    if inner is None or not inner.strength:
        return {}
    work = Work(steps=inner.steps, batch_size=None, lr=inner.rate)
    batches = chunk.whole.at_once(inner.steps)
    params = trained.params
    trainer = CompiledTrainer(
        settings=chunk.settings,
        work=work,
        origin=params,
        params=params,
        shared=params,
        pulls={MODEL: Pull(inner.strength)},
        inner=None,
        differences=False,
        factors=None,
    )
    start = StepState({MODEL: tree.only(params, chunk.task.sent_names)}, {}, {}, {})
    _, end = trainer.phase(start, BatchSequence(batches, batches.paddings))
    return {p.name: end.variables[MODEL] for p in chunk.method.losses if _has_inner_loop(p)}


def _run(
    chunk: ClientChunk, differences: bool = False, factors: Tensor | None = None
) -> TrainedClient:
    """The clients after their training; `differences` and `factors` as in `CompiledTrainer`."""
    shared = tree.only(chunk.broadcast.params, chunk.task.sent_names)
    inner = inner_loop(chunk.method)

    def trainers(task: ClientTask) -> TrainerFactory:
        def make(
            work: Work, *, phase: int, params: Tree, client_state: PartTrees
        ) -> CompiledTrainer:
            return CompiledTrainer(
                settings=chunk.settings,
                work=work,
                origin=task.start,
                params=params,
                shared=shared,
                pulls=_pulls(chunk, work, phase, params, client_state),
                inner=inner,
                differences=differences,
                factors=factors,
            )

        return make

    return chunk.run(trainers)


def _pulls(
    chunk: ClientChunk, work: Work, phase: int, params: Tree, client_state: PartTrees
) -> dict[str, Pull]:
    """The sum of the parts' pulls on each trained model: the strength, the same for all clients, and the constants [K, ...]."""
    parts = pulling_parts(chunk.method, work)
    models = [MODEL, *[p.name for p in chunk.method.trained_parts]]
    sums = {name: Pull() for name in models}
    if not parts:
        return sums

    def pulls_of_client(
        task: ClientTask, params: Tree, client_state: PartTrees
    ) -> list[tuple[Tensor, Tree, Tree]]:
        pulls = []
        for part in parts:
            view = task.view_of(part, params, {}, client_state, lr=work.lr, phase=phase)
            pull = part.pull(view)
            strength = torch.tensor(pull.strength, dtype=torch.float64)
            pulls.append((strength, pull.constant, pull.momentum))
        return pulls

    by_part = chunk.each(pulls_of_client, params, client_state)
    for part, (strengths, constant, momentum) in zip(parts, by_part, strict=True):
        name = part.name if part.trains else MODEL
        before = sums[name]
        sums[name] = Pull(
            strength=before.strength + float(strengths[0]),
            constant=tree.total(before.constant, constant),
            momentum=tree.total(before.momentum, momentum),
        )
    return sums


class LoopFunction(Protocol):
    """Trains the clients of one piece after the other, until the counter `turns` says that none is left."""

    def __call__(self, results: Any, turns: np.ndarray) -> None: ...


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
        data = self._data(batches.rows)
        sample = tuple(batches.rows.samples.shape[1:])
        variables = dict(before.variables)
        with profiled("forward and backward"):
            # the clients' own models do not depend on the shared one: their pulls are constant
            for part in variables.keys() - {MODEL}:
                own_params = self.origin | variables[part]
                moves = variables[part].keys()
                _, variables[part] = self._train(
                    own_params, moves, self.pulls[part], None, data, sample
                )
            params = self.params | variables[MODEL]
            moves = variables[MODEL].keys()
            sums, trained = self._train(params, moves, self.pulls[MODEL], self.inner, data, sample)
        loss, rows, steps = torch.from_numpy(sums).float().unbind()
        # solvers begin each round afresh, see `obstacle`
        if self.differences:
            step_sums = StepSums(loss, rows, steps, added_to_model=trained)
            return step_sums, replace(before, solver_state={})
        variables[MODEL] = trained
        after = replace(before, variables=variables, solver_state={})
        return StepSums(loss, rows, steps), after

    @property
    def _loss(self) -> int:
        """The loss of the task, as the loops number it."""
        loops, name = kernels(), self.settings.task.compiled_loss
        assert loops and name  # see `obstacle`
        return loops.LOSSES[name]

    def _data(self, rows: StackedBatches) -> Any:
        """The samples and batches as the loops take them (`kernels.Data`)."""
        loops = kernels()
        assert loops  # see `obstacle`
        classes = np.empty(0, np.int64)
        targets = np.empty(0, np.float32)
        if self._loss == loops.CLASSES:
            classes = rows.labels.long().contiguous().numpy()
        else:
            targets = rows.y.float().flatten().numpy()
        return loops.Data(
            rows.samples.flatten(1).numpy(),
            rows.index.numpy(),
            rows.sizes,
            classes,
            targets,
            _samples_at_a_time(self.settings.model, rows.samples.shape[1:]),
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
            loss=self._loss,
            lr=np.float32(self.work.lr),
            momentum=np.float32(solver.momentum),
            nesterov=solver.nesterov,
            decays=layout.decays(solver.weight_decay, pull.strength, self.shared),
            pulls=self._pull_rows(layout, params, pull).numpy(),
            starts=self._rows(layout, params, pull.momentum).numpy(),
        )
        if inner is not None:
            step = step._replace(
                inner_steps=inner.steps,
                rate=np.float32(inner.rate),
                strength=np.float32(inner.strength),
            )
        model = loops.Model(layout.layers, layout.convolutions, layout.runs, layout.floats)
        train_pieces = partial(loops.train, start.numpy(), data, model, step)
        width = padded(start.shape[1], loops.LANES)
        sums, trained = self._share_out(loops, train_pieces, len(data.sizes), width)
        return sums, {n: w for n, w in layout.views(trained).items() if n in moves}

    def _share_out(
        self, loops: ModuleType, train_pieces: LoopFunction, clients: int, width: int
    ) -> tuple[np.ndarray, Tensor]:
        """The sums [3, K] of losses, samples and steps, and the trained rows [K or 1, width], computed on all threads."""
        # a row for each client, or one for the sum of each piece
        if self.factors is None:
            pieces, factors = compiled_loops.pieces(), torch.empty(0)
        else:
            pieces, factors = max(MIN_PARTIAL_SUMS, 2 * compiled_loops.threads()), self.factors
        bounds = np.array(compiled_loops.bounds(clients, pieces))
        written = clients if self.factors is None else len(bounds) - 1
        rows = torch.empty(written, width, dtype=torch.float32)
        results = loops.Results(
            self.differences, factors.float().numpy(), bounds, np.zeros((3, clients)), rows.numpy()
        )
        compiled_loops.share_out(partial(train_pieces, results), len(bounds) - 1)
        # the order of the pieces is fixed, so that any number of threads gives the same bits
        trained = rows if self.factors is None else rows.sum(0, keepdim=True)
        return results.sums, trained

    def _pull_rows(self, layout: Layout, params: Tree, pull: Pull) -> Tensor:
        """The part of a pull that does not change, constant - strength w: rows [1 or K, P]; [0, 0] without a pull."""
        strength, constant, _ = pull
        if not strength:
            return self._rows(layout, params, constant)
        values = {n: constant.get(n, 0.0) - strength * w for n, w in self.shared.items()}
        return self._rows(layout, params, values)

    def _rows(self, layout: Layout, params: Tree, values: Tree) -> Tensor:
        """Values of the shared parameters as rows [1 or K, P], with 0 for all others; [0, 0] without values."""
        if not values:
            return torch.empty(0, 0, dtype=torch.float32)
        all_values = {n: w.new_zeros(()).expand_as(w) for n, w in params.items()}
        for name, value in values.items():
            all_values[name] = value.expand_as(params[name])
        return layout.flat(all_values)
