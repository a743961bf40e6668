"""Steps of stacked clients whose model is a chain of dense layers: gradients by hand, one solver kernel for all.

What a method adds to the gradient, its other losses and its corrections, is computed by its own code under `torch.vmap`, as
functions of the logits, the features and the parameters; a method that adds nothing costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import grad

from unalike._utils.profiler_regions import profiled
from unalike.core.types import Batch, Output, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.methods.default_parts import TaskLoss
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import Correction
from unalike.training.local_step import (
    MODEL,
    LocalStep,
    StepState,
    StepwiseTrainer,
    ViewFunction,
    functional_gradient,
    keep_unless,
    own_copy,
)

Each = Callable[..., Any]
"""`each(f, *stacked)`: f(look, *own) of every client, `view_of` being how parts look at it; stacked again."""


def supports_dense(method: Method, settings: StageSettings, x: Tensor) -> bool:
    """Whether `DenseStep` can train the method's clients on samples like `x` [B, ...]."""
    model = settings.model
    return (
        not method.trained
        and model.precision == "float32"
        and settings.work.solver.elementwise
        and all(p.work(settings.work).solver.elementwise for p in method.phases)
        and model.chain is not None
        and model.chain.takes(x)
    )


def pulls(method: Method, work: Work) -> tuple[Part, ...] | None:
    """The parts that add a pull to the gradient of the task's loss; None where anything else changes it."""
    terms = (*method.losses, *method.role(Correction))
    others = tuple(p for p in terms if type(p) is not TaskLoss)
    plain = len(others) < len(terms) and all(map(_pulls, others))
    return others if plain and work.clip is None else None


def _pulls(part: Part) -> bool:
    """Whether its `pull` says what it does: not if a class that inherits it has a loss or a correction of its own."""
    says = next(c for c in type(part).__mro__ if {"pull", "loss", "correct"} & vars(c).keys())
    return "pull" in vars(says) and says is not Part


class DenseStep(StepwiseTrainer):
    """As `LocalStep`, for stacked clients: all tensors have a leading [K], so has the value that is returned."""

    def __init__(
        self,
        method: Method,
        work: Work,
        *,
        settings: StageSettings,
        each: Each,
        params: Tree,
        client_state: Any,
        sent: list[str],
    ):
        assert settings.model.chain is not None  # `supports_dense` found it
        self.chain, self.params, self.task = settings.model.chain, params, settings.task
        self.alone = method.plain
        self.solver, self.lr, self.leaf, self.keeps = work.solver, work.lr, own_copy, False

        def ask(function: Callable[..., Any], *stacked: Any) -> Any:
            """`function(stepper, *own)` of every client, where `stepper` is its own."""

            def one(view_of: ViewFunction, params: Tree, client_state: Any, *own: Any) -> Any:
                made = LocalStep(
                    method,
                    work,
                    view_of=view_of,
                    params=params,
                    client_state=client_state,
                    sent=sent,
                    gradient=functional_gradient,
                )
                return function(made, *own)

            return each(one, params, client_state, *stacked)

        self.ask = ask
        self.corrects = bool(method.role(Correction)) or work.clip is not None

    def __call__(self, before: StepState, batch: Batch, number: int, owned: bool) -> tuple[Tensor, StepState]:
        w, state = before.variables[MODEL], before.state[MODEL]
        now = self.params | w
        with profiled("forward and backward"):
            values = self.chain.values(now, batch.x)
            value, logits, features, own = (self._task if self.alone else self._terms)(before, batch, number, values)
        direct = self.solver.direct(w, state, self.lr) if owned and not self.corrects else None
        if direct is not None:
            with profiled("forward and backward"):
                self.chain.add_gradients(direct, now, values, logits, features)
            with profiled("step"):
                for name, g in own.items():
                    direct.onto[name].add_(g)
                self.solver.collect_client_states(w, state, self.lr)
            return value, before
        with profiled("forward and backward"):
            grads = self.chain.gradients(now, values, logits, features, w)
            grads = grads | {n: grads[n] + g for n, g in own.items()}
            if self.corrects:
                grads = self.ask(lambda own, g, w: own.corrected({MODEL: g}, _moving(w), number)[MODEL], grads, w)
        with profiled("step"):
            w, state = self.solver.step(w, grads, state, self.lr, owned=owned, fused=True)
            after = StepState({MODEL: w}, {MODEL: state}, before.buffers, before.own)
            if batch.idle and batch.weight is not None:
                after = keep_unless(batch.weight.sum(1) > 0, after, before)
        return value, after

    def _task(
        self, before: StepState, batch: Batch, number: int, values: list[Tensor]
    ) -> tuple[Tensor, Tensor, None, Tree]:
        """The task's loss [K] and its gradient in the logits."""
        clients = len(batch.y)
        found = self.task.slopes(values[-1].flatten(0, 1), batch.y.flatten(0, 1))
        losses, slopes = (t.view(clients, -1, *t.shape[1:]) for t in found)
        if batch.weight is None:
            return losses.mean(1), slopes / losses.shape[1], None, {}
        weight = batch.weight / batch.weight.sum(1, keepdim=True).clamp_min(1)
        return (losses * weight).sum(1), slopes * weight.unsqueeze(2), None, {}

    def _terms(
        self, before: StepState, batch: Batch, number: int, values: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tree]:
        """All terms of the loss: the task's value, the gradients in the logits, the features, and the parameters themselves."""

        def one(own: LocalStep, w: Tree, features: Tensor, logits: Tensor, x: Tensor, y: Tensor, weight: Any) -> Any:
            batch = Batch(x, y, weight.get("weight"))

            def loss(w: Tree, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
                terms = own.terms(_moving(w), batch, number, {MODEL: w}, Output(logits, features), {})
                return sum(terms[1:], start=terms[0]), terms[0].detach()

            return grad(loss, argnums=(0, 1, 2), has_aux=True)(w, features, logits)

        weight = {} if batch.weight is None else {"weight": batch.weight}
        (direct, features, logits), value = self.ask(
            one, before.variables[MODEL], values[-2], values[-1], batch.x, batch.y, weight
        )
        return value, logits, features, direct


def _moving(w: Tree) -> StepState:
    """A client's parameters; a chain has neither buffers nor models in its parts' memories that move."""
    return StepState({MODEL: w}, {}, {}, {})
