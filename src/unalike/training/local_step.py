"""One step of local training: the loss of all parts, its gradient, the corrections, the solver."""

from __future__ import annotations

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
from unalike.methods.roles import Correction

MODEL = "model"
"""The drawer of the shared model among the variables that the solver moves."""

Loss = Callable[[PartTrees], tuple[Tensor, Any]]
Gradient = Callable[[Loss], Callable[[PartTrees], tuple[PartTrees, Any]]]
ViewFunction = Callable[..., "ClientView"]
Leaf = Callable[[Tensor], Tensor]
TrainerFactory = Callable[..., "LocalTrainer"]
"""What makes the practice of a phase, from its work and, by name, the `params` and the `client_state` at its start."""


@dataclass(frozen=True)
class StepState:
    """What a step changes: the variables of the solver by drawer, its state, the model's buffers, the parts' own buffers."""

    variables: PartTrees
    state: dict[str, PartTrees]
    buffers: Tree
    own: PartTrees


class StepSums(NamedTuple):
    """What steps add up to: the task's losses of their samples, the samples, the steps that were not of padding alone.

    `gained` is what they added to the model's parameters, where a practice tells that instead of what has become of them.
    """

    loss: Tensor | float = 0.0
    rows: Tensor | float = 0.0
    steps: Tensor | float = 0.0
    gained: Tree | None = None


class LocalTrainer(Protocol):
    """All steps of a phase, of one client or of stacked ones."""

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        """What the steps add up to, and what has moved. Without a state it starts fresh."""


class StepwiseTrainer:
    """A practice that makes one step after the other. `leaf` copies a parameter, so that steps may overwrite it."""

    solver: Solver
    leaf: Leaf | None
    keeps: bool
    """Whether somebody still looks at the values before a step."""

    def __call__(self, before: StepState, batch: Batch, number: int, owned: bool) -> tuple[Tensor, StepState]:
        """The task's loss before the step, and what has moved. `owned`: `before` may be overwritten."""
        raise NotImplementedError

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        variables = before.variables
        if self.leaf is not None:
            variables = {name: tree.map(self.leaf, v) for name, v in variables.items()}
        state = before.state or initial_solver_state(self.solver, variables)
        step_state = StepState(variables, state, before.buffers, before.own)
        means: list[Tensor] = []
        rows: list[Tensor | float] = []
        for i, batch in enumerate(batches):
            # else it is common to all, or still needed
            owned = not batch.idle and (self.leaf is not None or (i > 0 and not self.keeps))
            mean, step_state = self(step_state, batch, i, owned)
            means.append(mean)
            rows.append(batch.rows)
        return _tally(means, rows), step_state


def _tally(means: list[Tensor], rows: list[Tensor | float]) -> StepSums:
    """What steps add up to, from their mean losses and the rows that counted."""
    if not means:
        return StepSums()
    losses = torch.stack(means)
    if all(isinstance(n, float) for n in rows):
        counts = torch.tensor(rows, dtype=losses.dtype, device=losses.device).reshape(-1, *[1] * (losses.dim() - 1))
    else:
        each = [torch.as_tensor(n, dtype=losses.dtype, device=losses.device).expand(losses.shape[1:]) for n in rows]
        counts = torch.stack(each)
    return StepSums((counts * losses).sum(0), sum(rows, 0.0), sum((n > 0 for n in rows), 0.0))


def own_copy(t: Tensor) -> Tensor:
    """A copy with memory of its own for every entry, where those of `t` may be shared by stacked clients."""
    return t.clone(memory_format=torch.contiguous_format)


def initial_solver_state(solver: Solver, variables: PartTrees) -> dict[str, PartTrees]:
    """The solver's state before its first step, by drawer."""
    return {name: solver.init(v) for name, v in variables.items()}


class LocalStep(StepwiseTrainer):
    """The steps of one phase; what does not change from step to step is found once.

    `params` and `client_state` are those at the start of the phase, `sent` names the parameters that are shared.
    """

    def __init__(
        self,
        method: Method,
        work: Work,
        *,
        view_of: ViewFunction,
        params: Tree,
        client_state: PartTrees,
        sent: list[str],
        gradient: Gradient,
        leaf: Leaf | None = None,
    ):
        self.solver, self.leaf, self.keeps = work.solver, leaf, bool(method.trained)
        self.losses, self.trained, self.corrections = method.losses, method.trained, method.role(Correction)
        self.params, self.client_state, self.sent = params, client_state, sent
        self.view_of, self.clip = partial(view_of, lr=work.lr), work.clip
        self.gradient = (
            partial(autograd_gradient, find=_everywhere) if gradient is autograd_gradient and method.plain else gradient
        )
        self.solve = partial(work.solver.step, lr=work.lr, fused=gradient is autograd_gradient)

    def __call__(self, before: StepState, batch: Batch, number: int, owned: bool) -> tuple[Tensor, StepState]:
        with profiled("forward and backward"):
            find = self.gradient(partial(self._loss, before, batch, number))
            grads, (_, (value, buffers, own)) = find(before.variables)
            grads = self.corrected(grads, before, number)
        with profiled("step"):
            done = {
                name: self.solve(v, grads[name], before.state[name], owned=owned)
                for name, v in before.variables.items()
            }
        variables = {name: v for name, (v, _) in done.items()}
        for member in self.trained:
            now, part_trees = self.params | before.variables[MODEL], merge_states(self.client_state, before.variables)
            view = self.view_of(member, now, before.buffers, part_trees, step=number)
            variables[member.name] = member.project(view, grads[member.name], variables[member.name])
        after = StepState(variables, {name: s for name, (_, s) in done.items()}, buffers, own)
        return value, _unless_padding(batch, after, before) if batch.idle else after

    def corrected(self, grads: PartTrees, before: StepState, number: int) -> PartTrees:
        """The gradients that the solver sees."""
        for correction in self.corrections:
            now = self.params | before.variables[MODEL]
            view = self.view_of(correction, now, before.buffers, self.client_state, step=number)
            own = tree.shared(grads[MODEL], self.sent)
            made = return_checks.like(correction, "correct", correction.correct(view, own), own)
            grads = grads | {MODEL: grads[MODEL] | made}
        if self.clip is not None:
            grads = {name: g | _clipped(tree.shared(g, self.params), self.clip) for name, g in grads.items()}
        return grads

    def _loss(self, step_state: StepState, batch: Batch, number: int, variables: PartTrees) -> tuple[Tensor, Any]:
        """The local loss as a function of what moves; beside it the task's value and the new buffers."""
        now, part_trees = self.params | variables[MODEL], merge_states(self.client_state, variables)
        whole = self.view_of(self.losses[0], now, step_state.buffers, part_trees, step=number)
        output, cache = whole.at(batch, now), whole.cache
        values = self.terms(step_state, batch, number, variables, output, cache)
        own = {name: cache.get(name, old) for name, old in step_state.own.items()}
        return sum(values[1:], start=values[0]), (values[0].detach(), output.buffers, own)

    def terms(
        self,
        step_state: StepState,
        batch: Batch,
        number: int,
        variables: PartTrees,
        output: Output,
        cache: dict[str, Any],
    ) -> list[Tensor]:
        """The terms of the loss, the task's first, where the model gives `output`."""
        now, part_trees = self.params | variables[MODEL], merge_states(self.client_state, variables)
        view_of = partial(self.view_of, step=number, output=output, cache=cache)
        return [
            member.loss(view_of(member, now, step_state.own.get(member.name, step_state.buffers), part_trees), batch)
            for member in self.losses
        ]


def _asked(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The gradients of these leaves, whatever else of the graph asks for some: a part may have a model of its own."""
    return torch.autograd.grad(value, leaves, allow_unused=True)


def _everywhere(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The same where nothing else does: the graph is not searched for the leaves first, which takes 3 % of a recurrent step."""
    value.backward()
    found = [t.grad for t in leaves]
    for t in leaves:
        t.grad = None
    return found


def autograd_gradient(
    function: Loss, find: Callable[[Tensor, list[Tensor]], Sequence[Tensor | None]] = _asked
) -> Callable[[PartTrees], tuple[PartTrees, Any]]:
    """`torch.func.grad_and_value(function, has_aux=True)` by the ordinary autograd: faster for one client at a time."""

    def run(variables: PartTrees) -> tuple[PartTrees, Any]:
        leaves = {d: {n: t if t.requires_grad else _leaf(t) for n, t in v.items()} for d, v in variables.items()}
        with torch.enable_grad():
            value, aux = function(leaves)
        flat = [t for v in leaves.values() for t in v.values()]
        grads = (torch.zeros_like(t) if g is None else g for g, t in zip(find(value, flat), flat, strict=True))
        return {d: {n: next(grads) for n in v} for d, v in leaves.items()}, (value.detach(), aux)

    return run


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_()


def functional_gradient(function: Loss) -> Callable[[PartTrees], tuple[PartTrees, Any]]:
    """The gradient that can be stacked with `torch.vmap`."""
    return grad_and_value(function, has_aux=True)


def merge_states(client_state: PartTrees, variables: PartTrees) -> PartTrees:
    """The memories with what moves in them up to date."""
    if len(variables) == 1:
        return client_state
    return client_state | {name: client_state[name] | v for name, v in variables.items() if name != MODEL}


def keep_unless(keep: Tensor, new: StepState, old: StepState) -> StepState:
    """`new` where clients `keep` it, else `old`."""
    return StepState(*(_choose(keep, getattr(new, f.name), getattr(old, f.name)) for f in fields(StepState)))


def _unless_padding(batch: Batch, new: StepState, old: StepState) -> StepState:
    """`new`, or `old` for a batch of padding: the step is masked, not its gradient, or momentum would move finished clients."""
    return new if batch.weight is None else keep_unless(batch.weight.sum() > 0, new, old)


def _choose(condition: Tensor, new: Any, old: Any) -> Any:
    if isinstance(new, Tensor):
        return torch.where(condition.reshape(condition.shape + (1,) * (new.dim() - condition.dim())), new, old)
    return {name: _choose(condition, new[name], old[name]) for name in new}


def _clipped(grads: Tree, limit: float) -> Tree:
    return tree.scale(grads, (limit / tree.norm(grads).clamp_min(1e-12)).clamp_max(1.0))
