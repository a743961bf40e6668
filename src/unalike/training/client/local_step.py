"""Steps of local training: the loss of all parts, its gradient, the corrections, the solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled
from unalike.core import tree
from unalike.core.solvers import Solver
from unalike.core.types import Batch, Output, PartTrees, Tree
from unalike.core.views import ClientView
from unalike.core.work import Work
from unalike.methods import return_checks
from unalike.methods.gradient_rule import GradientRule, StepLoss, StepValues
from unalike.methods.part import Part
from unalike.methods.roles import Correction
from unalike.training.client.client_task import ClientTask

MODEL = "model"
"""Name of the shared model among the variables of the solver; the others are models of parts, under the parts' names."""

Leaf = Callable[[Tensor], Tensor]
"""Copies a parameter, so that steps may overwrite it in place."""


@dataclass(frozen=True)
class StepState:
    """Everything that a step changes.

    `variables` are the parameters that the solver trains and `solver_state` is its state, by model (`MODEL`, or the name of a
    part); `buffers` are the shared model's, `own_buffers` those of the parts' models.
    """

    variables: PartTrees
    solver_state: dict[str, PartTrees]
    buffers: Tree
    own_buffers: PartTrees


class StepSums(NamedTuple):
    """Sums over the steps of a phase.

    Of the task's losses, of samples, and of steps with at least one sample; `added_to_model` was added to the model's parameters,
    None where the `StepState` holds the new parameters.
    """

    loss: Tensor | float = 0.0
    rows: Tensor | float = 0.0
    steps: Tensor | float = 0.0
    added_to_model: Tree | None = None


class LocalTrainer(Protocol):
    """Trains one phase, of one client or of stacked ones."""

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        """Make all steps; `before` without a solver state starts a fresh solver."""


class TrainerFactory(Protocol):
    """Makes the trainer of a phase from its work and number, and the parameters and client state at its start."""

    def __call__(
        self, work: Work, *, phase: int, params: Tree, client_state: PartTrees
    ) -> LocalTrainer: ...


class LocalStep:
    """Trains one phase step by step; everything that does not change between steps is looked up once.

    `work` is the phase's and `phase` its number; `params` are all parameters and `client_state` is the client's state at the
    start of the phase. With `stacked` clients gradients are functional, and solvers use no fused kernels. `leaf` copies a
    parameter, so that steps may overwrite it in place; None: steps make new tensors.
    """

    def __init__(
        self,
        task: ClientTask,
        work: Work,
        *,
        phase: int,
        params: Tree,
        client_state: PartTrees,
        stacked: bool,
        leaf: Leaf | None = None,
    ):
        # the parts that act in a step
        self.losses = task.method.losses
        self.corrections = task.method.role(Correction)
        self.trained_parts = task.method.trained_parts
        # the client as the phase finds it
        self.view_of = task.view_of
        self.shared_names = task.sent_names
        self.params = params
        self.client_state = client_state
        # how it is trained: the learning rate of the phase's work goes to the views and to the solver
        self.phase_number = phase
        self.lr = work.lr
        self.clip = work.clip
        self.solver = work.solver
        self.fused = not stacked
        self.leaf = leaf
        self.rule = self._gradient_rule(task, work, stacked)

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        # steps overwrite the variables in place where these are copies of the caller's tensors
        variables = before.variables
        if self.leaf is not None:
            variables = {name: tree.map(self.leaf, v) for name, v in variables.items()}
        solver_state = before.solver_state or initial_solver_state(self.solver, variables)
        state = StepState(variables, solver_state, before.buffers, before.own_buffers)

        losses: list[Tensor] = []
        rows: list[Tensor | float] = []
        for number, batch in enumerate(batches):
            # without copies the first step's input is the caller's, and parts that train read the values before a step
            is_ours = self.leaf is not None or (number > 0 and not self.trained_parts)
            # a step that may be undone needs the values before it
            task_loss, state = self(state, batch, number, owned=is_ours and not batch.idle)
            losses.append(task_loss)
            rows.append(self.rule.rows_of(batch))
        return _sums_of_steps(losses, rows), state

    def __call__(
        self, before: StepState, batch: Batch, number: int, owned: bool
    ) -> tuple[Tensor, StepState]:
        """One step.

        `number` is the step's in its phase, from 0. With `owned` the tensors of `before` may be overwritten. Returns the task's
        mean loss before the step, and the values after it.
        """
        # one gradient of the sum of all terms; corrections come after it, since they may ask for other gradients
        loss = LossOfStep(self, before, number)
        with profiled("forward and backward"):
            grads, values = self.rule.gradients(loss, before.variables, batch)
            grads = self._corrected(grads, loss, batch)

        # each model has a solver of its own, with the same settings
        variables: PartTrees = {}
        solver_state: dict[str, PartTrees] = {}
        with profiled("step"):
            for name, trained in before.variables.items():
                variables[name], solver_state[name] = self.solver.step(
                    trained,
                    grads[name],
                    before.solver_state[name],
                    self.lr,
                    owned=owned,
                    fused=self.fused,
                )

        # a part constrains its own model, seeing the values before the step
        for part in self.trained_parts:
            params = self.params | before.variables[MODEL]
            client_state = merge_states(self.client_state, before.variables)
            view = self.view(part, params, before.buffers, client_state, number)
            variables[part.name] = part.project(view, grads[part.name], variables[part.name])

        # a client that has finished before those stacked with it stays as it is
        after = StepState(variables, solver_state, values.buffers, values.own_buffers)
        if batch.idle and not self.rule.counts_empty_batches:
            after = _unless_padding(batch, after, before)
        return values.task_loss, after

    def view(
        self,
        part: Part,
        params: Tree,
        buffers: Tree,
        client_state: PartTrees,
        number: int,
        output: Output | None = None,
        cache: dict[str, Any] | None = None,
        gradient_at: Callable[[Tree], Tree] | None = None,
    ) -> ClientView:
        """A part's view in step `number` of the phase."""
        return self.view_of(
            part,
            params,
            buffers,
            client_state,
            lr=self.lr,
            phase=self.phase_number,
            step=number,
            output=output,
            cache=cache,
            gradient_at=gradient_at,
        )

    def _gradient_rule(self, task: ClientTask, work: Work, stacked: bool) -> GradientRule:
        """The method's own rule, or the fastest ordinary one."""
        part = task.method.local_gradient
        if part is not None:
            view = self.view(part, self.params, task.buffers, self.client_state, number=0)
            return part.gradient_rule(view, work, task.size)
        if stacked:
            return StackedRule()
        # another loss may hold a model of its own, whose parameters would be further leaves
        has_no_other_leaves = task.method.has_task_loss_only and not callable(work.loss)
        return AutogradRule(by_backward if has_no_other_leaves else by_grad)

    def _corrected(self, grads: PartTrees, loss: LossOfStep, batch: Batch) -> PartTrees:
        """The gradients after the method's corrections and clipping."""
        before = loss.before
        for place, correction in enumerate(self.corrections):
            gradient_at = None
            if place and correction.rank >= 0:
                gradient_at = partial(_undo_corrections, correction)
            elif self.rule.allows_more_gradients:
                gradient_at = partial(self._gradient_at, loss, batch)
            view = self.view(
                correction,
                self.params | before.variables[MODEL],
                before.buffers,
                self.client_state,
                loss.number,
                gradient_at=gradient_at,
            )
            # private parameters keep their gradient: a correction knows what clients have in common
            shared = tree.shared(grads[MODEL], self.shared_names)
            with (
                return_checks.errors_name_hook(correction, "correct"),
                _inputs_unchanged(correction, "correct", view, batch),
            ):
                corrected = correction.correct(view, shared, batch)
                corrected = return_checks.check_shapes(correction, "correct", corrected, shared)
            grads = grads | {MODEL: grads[MODEL] | corrected}
        if self.clip is None:
            return grads
        return {
            name: gradient | tree.clipped(tree.shared(gradient, self.params), self.clip)
            for name, gradient in grads.items()
        }

    def _gradient_at(self, loss: LossOfStep, batch: Batch, params: Tree) -> Tree:
        """The gradient of the local loss with `params` in place of the current parameters of these names."""
        current = loss.before.variables
        moved = current | {MODEL: current[MODEL] | tree.detach(params)}
        grads, _ = self.rule.gradients(loss, moved, batch)
        return tree.only(grads[MODEL], params)


def _undo_corrections(correction: Correction, at: Tree) -> Tree:
    """Raise `UnalikeError`: another gradient in the place of the given one would leave out the corrections before."""
    raise UnalikeError(
        f"{correction.name} asks for another gradient after other corrections have acted, which that gradient does not have; write "
        "rank: ClassVar[int] = -1 in the class, so that it acts before them"
    )


def _inputs_unchanged(
    part: Part, hook: str, view: ClientView, batch: Batch
) -> AbstractContextManager[None]:
    """`inputs_unchanged` in the first step of a phase: a hook does in each step what it does there."""
    # a step that is recorded for replays shows no numbers of rounds and later steps
    has_numbers = isinstance(view.step, int) and isinstance(view.round, int)
    if not has_numbers or view.step > 0:
        return nullcontext()
    return return_checks.inputs_unchanged(part, hook, view, batch)


class LossOfStep:
    """The local loss of step `number` of a phase, which starts from `before`."""

    __slots__ = ("before", "number", "step")

    def __init__(self, step: LocalStep, before: StepState, number: int):
        self.step = step
        self.before = before
        self.number = number

    @property
    def buffers(self) -> Tree:
        return self.before.buffers

    @property
    def own_buffers(self) -> PartTrees:
        return self.before.own_buffers

    def __call__(self, variables: PartTrees, batch: Batch) -> tuple[Tensor, StepValues]:
        step, before = self.step, self.before
        params = step.params | variables[MODEL]
        client_state = merge_states(step.client_state, variables)

        # one pass through the model serves all parts; what they compute besides it once is in the cache
        first = step.view(step.losses[0], params, before.buffers, client_state, self.number)
        output = first.at(batch, params)
        cache = first.cache

        terms = []
        for part in step.losses:
            buffers = before.own_buffers.get(part.name, before.buffers)
            view = step.view(part, params, buffers, client_state, self.number, output, cache)
            with (
                return_checks.errors_name_hook(part, "loss"),
                _inputs_unchanged(part, "loss", view, batch),
            ):
                terms.append(return_checks.check_scalar(part, "loss", part.loss(view, batch)))

        # a part's own model has left its new buffers in the cache
        own_buffers = {name: cache.get(name, old) for name, old in before.own_buffers.items()}
        # the first term is that of the task
        values = StepValues(terms[0].detach(), output.buffers, own_buffers)
        return sum(terms[1:], start=terms[0]), values


class LeafGradients(Protocol):
    """Computes the gradients of a value in the leaves of its graph; None for a leaf that it does not depend on."""

    def __call__(self, value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]: ...


def by_grad(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The gradients of these leaves alone: a part may bring a model of its own, whose parameters must get none."""
    return torch.autograd.grad(value, leaves, allow_unused=True)


def by_backward(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The same where the graph has no other leaves: `backward` does not search the graph first (3 % of a recurrent step)."""
    value.backward()
    grads = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return grads


@dataclass(frozen=True)
class AutogradRule:
    """Ordinary autograd, which is faster than functional gradients for one client."""

    gradients_of: LeafGradients

    allows_more_gradients: ClassVar[bool] = True
    counts_empty_batches: ClassVar[bool] = False

    def gradients(
        self, loss: StepLoss, variables: PartTrees, batch: Batch
    ) -> tuple[PartTrees, StepValues]:
        leaves = _leaves_of(variables)
        with torch.enable_grad():
            total, values = loss(leaves, batch)
        flat = [leaf for model in leaves.values() for leaf in model.values()]
        gradients = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for gradient, leaf in zip(self.gradients_of(total, flat), flat, strict=True)
        ]
        rest = iter(gradients)
        grads = {}
        for model, tensors in leaves.items():
            grads[model] = {name: next(rest) for name in tensors}
        return grads, values

    def rows_of(self, batch: Batch) -> Tensor | float:
        return batch.rows


@dataclass(frozen=True)
class StackedRule:
    """Functional gradients, which `torch.vmap` can stack."""

    allows_more_gradients: ClassVar[bool] = True
    counts_empty_batches: ClassVar[bool] = False

    def gradients(
        self, loss: StepLoss, variables: PartTrees, batch: Batch
    ) -> tuple[PartTrees, StepValues]:
        loss_of_variables = partial(loss, batch=batch)
        grads, (_, values) = grad_and_value(loss_of_variables, has_aux=True)(variables)
        return grads, values

    def rows_of(self, batch: Batch) -> Tensor | float:
        return batch.rows


def _leaves_of(variables: PartTrees) -> PartTrees:
    """The variables as leaves of a new graph."""
    leaves: PartTrees = {}
    for model, tensors in variables.items():
        leaves[model] = {name: _leaf_of(t) for name, t in tensors.items()}
    return leaves


def _leaf_of(t: Tensor) -> Tensor:
    return t if t.requires_grad else t.detach().requires_grad_()


def _sums_of_steps(losses: list[Tensor], rows: list[Tensor | float]) -> StepSums:
    """The sums over steps with these mean losses and numbers of samples."""
    if not losses:
        return StepSums()
    means = torch.stack(losses)
    if all(isinstance(n, float) for n in rows):
        counts = torch.tensor(rows, dtype=means.dtype, device=means.device)
    else:
        # a fill does not wait for the device, a copy does
        counts = torch.stack([n if isinstance(n, Tensor) else means.new_full((), n) for n in rows])
    return StepSums(
        loss=(counts * means).sum(0),
        rows=sum(rows, 0.0),
        steps=sum((n > 0 for n in rows), 0.0),
    )


def initial_solver_state(solver: Solver, variables: PartTrees) -> dict[str, PartTrees]:
    """The solver's state before its first step, by model."""
    return {name: solver.init(v) for name, v in variables.items()}


def merge_states(client_state: PartTrees, variables: PartTrees) -> PartTrees:
    """The client state with the solver's current variables of the parts' models."""
    if len(variables) == 1:
        return client_state
    own_models = {name: v for name, v in variables.items() if name != MODEL}
    return client_state | {name: client_state[name] | v for name, v in own_models.items()}


def _unless_padding(batch: Batch, new: StepState, old: StepState) -> StepState:
    """`new`, or `old` after a batch of padding alone.

    The whole step is undone and not just its gradient set to zero, or momentum would move clients that have finished.
    """
    if batch.weight is None:
        return new
    is_real = batch.weight.sum() > 0
    return StepState(
        variables=_choose(is_real, new.variables, old.variables),
        solver_state=_choose(is_real, new.solver_state, old.solver_state),
        buffers=_choose(is_real, new.buffers, old.buffers),
        own_buffers=_choose(is_real, new.own_buffers, old.own_buffers),
    )


def _choose(condition: Tensor, new: Any, old: Any) -> Any:
    if isinstance(new, Tensor):
        return torch.where(condition, new, old)
    return {name: _choose(condition, new[name], old[name]) for name in new}
