"""Steps of local training: the loss of all parts, its gradient, the corrections, the solver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from unalike._utils.profiler_regions import profiled
from unalike.core import tree
from unalike.core.solvers import Solver
from unalike.core.types import Batch, Output, PartTrees, Tree
from unalike.core.views import ClientView
from unalike.core.work import Work
from unalike.methods import return_checks
from unalike.methods.method import Method
from unalike.methods.privacy import Privacy
from unalike.methods.roles import Correction
from unalike.training.client.sample_gradients import clipped_sum, private_mean

MODEL = "model"
"""Name of the shared model among the variables of the solver; the others are models of parts, under the parts' names."""

ViewFunction = Callable[..., "ClientView"]
Leaf = Callable[[Tensor], Tensor]
TrainerFactory = Callable[..., "LocalTrainer"]
"""Makes the trainer of a phase from its work and, by name, its number `phase`, and `params` and `client_state` at its start."""


@dataclass(frozen=True)
class StepState:
    """Everything that a step changes.

    `variables` are the parameters that the solver trains and `state` is its state, by model (`MODEL`, or the name of a part);
    `buffers` are the shared model's, `own` those of the parts' models.
    """

    variables: PartTrees
    state: dict[str, PartTrees]
    buffers: Tree
    own: PartTrees


class StepSums(NamedTuple):
    """Sums over the steps of a phase.

    Of the task's losses, of samples, and of steps with at least one sample; `gained` was added to the model's parameters, None
    where the `StepState` holds the new parameters.
    """

    loss: Tensor | float = 0.0
    rows: Tensor | float = 0.0
    steps: Tensor | float = 0.0
    gained: Tree | None = None


class LocalTrainer(Protocol):
    """Trains one phase, of one client or of stacked ones."""

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        """Make all steps; `before` without a solver state starts a fresh solver."""


class LocalStep:
    """Trains one phase step by step; everything that does not change between steps is computed once.

    `work` is the phase's, `view_of` is `ClientTask.view_of`; `params` are all parameters and `client_state` is the client's
    state at the start of the phase, `sent` names the shared parameters, `size` is the number of samples. With `stacked` clients
    gradients are functional, and solvers use no fused kernels. `leaf` copies a parameter, so that steps may overwrite it in place;
    None: steps make new tensors.
    """

    def __init__(
        self,
        method: Method,
        work: Work,
        *,
        phase: int,
        view_of: ViewFunction,
        params: Tree,
        client_state: PartTrees,
        sent: list[str],
        size: Tensor,
        stacked: bool,
        leaf: Leaf | None = None,
    ):
        self.solver, self.leaf = work.solver, leaf
        self.losses, self.trained, self.corrections = (
            method.losses,
            method.trained_parts,
            method.role(Correction),
        )
        self.params, self.client_state, self.sent = params, client_state, sent
        self.view_of, self.clip = partial(view_of, lr=work.lr, phase=phase), work.clip
        self.stacked = stacked
        self.privacy = method.sample_privacy
        self.batches = (
            (size / (work.batch_size or size)).ceil()
            if method.draws_poisson_batches
            else torch.ones_like(size)
        )
        self.expected_rows = size / self.batches if method.draws_poisson_batches else None
        self.find = (
            _backward if method.has_task_loss_only and not callable(work.loss) else _gradients_of
        )
        self.solve = partial(work.solver.step, lr=work.lr, fused=not self.stacked)

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        variables = before.variables
        if self.leaf is not None:
            variables = {name: tree.map(self.leaf, v) for name, v in variables.items()}
        state = before.state or initial_solver_state(self.solver, variables)
        step_state = StepState(variables, state, before.buffers, before.own)
        means: list[Tensor] = []
        rows: list[Tensor | float] = []
        for i, batch in enumerate(batches):
            # without copies the first step's input belongs to the caller, and parts that train read the values before a step
            owned = not batch.idle and (self.leaf is not None or (i > 0 and not self.trained))
            mean, step_state = self(step_state, batch, i, owned)
            means.append(mean)
            rows.append(batch.rows if self.expected_rows is None else self.expected_rows)
        return _sums(means, rows), step_state

    def __call__(
        self, before: StepState, batch: Batch, number: int, owned: bool
    ) -> tuple[Tensor, StepState]:
        """One step.

        `number` is the step's in its phase, from 0. With `owned` the tensors of `before` may be overwritten. Returns the task's
        mean loss before the step, and the values after it.
        """
        with profiled("forward and backward"):
            grads, (value, buffers, own) = self._gradients(before, batch, number, before.variables)
            grads = self._corrected(grads, before, batch, number)
        with profiled("step"):
            done = {
                name: self.solve(v, grads[name], before.state[name], owned=owned)
                for name, v in before.variables.items()
            }
        variables = {name: v for name, (v, _) in done.items()}
        for member in self.trained:
            now, part_trees = (
                self.params | before.variables[MODEL],
                merge_states(self.client_state, before.variables),
            )
            view = self.view_of(member, now, before.buffers, part_trees, step=number)
            variables[member.name] = member.project(
                view, grads[member.name], variables[member.name]
            )
        after = StepState(variables, {name: s for name, (_, s) in done.items()}, buffers, own)
        return value, _unless_padding(
            batch, after, before
        ) if batch.idle and self.expected_rows is None else after

    def _gradients(
        self, before: StepState, batch: Batch, number: int, variables: PartTrees
    ) -> tuple[PartTrees, tuple[Tensor, Tree, PartTrees]]:
        """The gradients of the local loss at these values of the solver's variables; the task's loss and the new buffers."""
        if self.privacy is not None:
            found = self._private_gradients(before, batch, number, variables, self.privacy)
            return found, (torch.zeros((), device=batch.x.device), before.buffers, before.own)
        if self.stacked:
            grads, (_, rest) = grad_and_value(
                partial(self._loss, before, batch, number), has_aux=True
            )(variables)
            return grads, rest
        leaves = _leaves_of(variables)  # ordinary autograd is faster for one client
        with torch.enable_grad():
            total, rest = self._loss(before, batch, number, leaves)
        return _gradients(total, leaves, self.find), rest

    def _private_gradients(
        self, before: StepState, batch: Batch, number: int, variables: PartTrees, privacy: Privacy
    ) -> PartTrees:
        """The gradients of the local loss by DP-SGD; no other value of a step leaves it."""

        def loss(packed: Tree, row: Batch) -> Tensor:
            return self._loss(before, row, number, tree.unpack(packed))[0]

        client = self.view_of(privacy, self.params, before.buffers, self.client_state)
        total = clipped_sum(loss, tree.pack(variables), batch, privacy.clip)
        deviation = privacy.noise_multiplier_at(client, self.batches) * privacy.clip
        rows = batch.rows if self.expected_rows is None else self.expected_rows
        return tree.unpack(private_mean(total, rows, deviation, client.settings.secret_noise))

    def _gradient_at(self, before: StepState, batch: Batch, number: int, params: Tree) -> Tree:
        """The gradient of the local loss with `params` in place of the current parameters of these names."""
        variables = before.variables | {MODEL: before.variables[MODEL] | tree.detach(params)}
        grads, _ = self._gradients(before, batch, number, variables)
        return tree.only(grads[MODEL], params)

    def _corrected(
        self, grads: PartTrees, before: StepState, batch: Batch, number: int
    ) -> PartTrees:
        """The gradients after the method's corrections and clipping."""
        for correction in self.corrections:
            now = self.params | before.variables[MODEL]
            # another gradient of the same samples would be another release
            gradient_at = (
                None if self.privacy else partial(self._gradient_at, before, batch, number)
            )
            view = self.view_of(
                correction,
                now,
                before.buffers,
                self.client_state,
                step=number,
                gradient_at=gradient_at,
            )
            own = tree.shared(grads[MODEL], self.sent)
            with return_checks.errors_name_hook(correction, "correct"):
                made = return_checks.check_shapes(
                    correction, "correct", correction.correct(view, own, batch), own
                )
            grads = grads | {MODEL: grads[MODEL] | made}
        if self.clip is not None:
            grads = {
                name: g | tree.clipped(tree.shared(g, self.params), self.clip)
                for name, g in grads.items()
            }
        return grads

    def _loss(
        self, before: StepState, batch: Batch, number: int, variables: PartTrees
    ) -> tuple[Tensor, Any]:
        """The local loss as a function of the solver's variables; beside it the task's loss and the new buffers."""
        views, output, cache = self._views(before, batch, number, variables)
        terms = []
        for part, view in zip(self.losses, views, strict=True):
            with return_checks.errors_name_hook(part, "loss"):
                terms.append(return_checks.check_scalar(part, "loss", part.loss(view, batch)))
        own = {
            name: cache.get(name, old) for name, old in before.own.items()
        }  # buffers of the parts' models
        return sum(terms[1:], start=terms[0]), (terms[0].detach(), output.buffers, own)

    def _views(
        self, before: StepState, batch: Batch, number: int, variables: PartTrees
    ) -> tuple[list[ClientView], Output, dict[str, Any]]:
        """The views of the parts with a loss, after one pass through the model; its output, and the cache of the views."""
        now, part_trees = self.params | variables[MODEL], merge_states(self.client_state, variables)
        whole = self.view_of(self.losses[0], now, before.buffers, part_trees, step=number)
        output, cache = whole.at(batch, now), whole.cache
        view_of = partial(self.view_of, step=number, output=output, cache=cache)
        views = [
            view_of(p, now, before.own.get(p.name, before.buffers), part_trees) for p in self.losses
        ]
        return views, output, cache


def _sums(means: list[Tensor], rows: list[Tensor | float]) -> StepSums:
    """The sums over steps with these mean losses and numbers of samples."""
    if not means:
        return StepSums()
    losses = torch.stack(means)
    if all(isinstance(n, float) for n in rows):
        counts = torch.tensor(rows, dtype=losses.dtype, device=losses.device)
    else:  # a fill does not wait for the device, a copy does
        counts = torch.stack([n if isinstance(n, Tensor) else losses.new_full((), n) for n in rows])
    return StepSums((counts * losses).sum(0), sum(rows, 0.0), sum((n > 0 for n in rows), 0.0))


def initial_solver_state(solver: Solver, variables: PartTrees) -> dict[str, PartTrees]:
    """The solver's state before its first step, by model."""
    return {name: solver.init(v) for name, v in variables.items()}


def _gradients_of(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The gradients of these leaves alone: a part may bring a model of its own, whose parameters must get none."""
    return torch.autograd.grad(value, leaves, allow_unused=True)


def _backward(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The same where the graph has no other leaves: `backward` does not search the graph first (3 % of a recurrent step)."""
    value.backward()
    found = [t.grad for t in leaves]
    for t in leaves:
        t.grad = None
    return found


def _leaves_of(variables: PartTrees) -> PartTrees:
    """The variables as leaves of a new graph."""
    return {
        d: {n: t if t.requires_grad else t.detach().requires_grad_() for n, t in v.items()}
        for d, v in variables.items()
    }


def _gradients(
    value: Tensor,
    leaves: PartTrees,
    find: Callable[[Tensor, list[Tensor]], Sequence[Tensor | None]],
) -> PartTrees:
    """The gradients of the leaves; zeros where the value does not depend on one."""
    flat = [t for v in leaves.values() for t in v.values()]
    grads = (
        torch.zeros_like(t) if g is None else g
        for g, t in zip(find(value, flat), flat, strict=True)
    )
    return {d: {n: next(grads) for n in v} for d, v in leaves.items()}


def merge_states(client_state: PartTrees, variables: PartTrees) -> PartTrees:
    """The client state with the solver's current variables of the parts' models."""
    if len(variables) == 1:
        return client_state
    return client_state | {
        name: client_state[name] | v for name, v in variables.items() if name != MODEL
    }


def _unless_padding(batch: Batch, new: StepState, old: StepState) -> StepState:
    """`new`, or `old` after a batch of padding alone.

    The whole step is undone and not just its gradient set to zero, or momentum would move clients that have finished.
    """
    if batch.weight is None:
        return new
    real = batch.weight.sum() > 0
    return StepState(
        *(_choose(real, getattr(new, f.name), getattr(old, f.name)) for f in fields(StepState))
    )


def _choose(condition: Tensor, new: Any, old: Any) -> Any:
    if isinstance(new, Tensor):
        return torch.where(condition, new, old)
    return {name: _choose(condition, new[name], old[name]) for name in new}
