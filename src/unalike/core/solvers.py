"""Local solvers as pure functions: parameters and gradients in, parameters and state out.

Each solver gives its *accumulated weight* ||a||_1 after tau steps: how far it moves along a constant unit gradient at learning
rate 1 (Wang et al. 2020, FedNova). For plain SGD that is tau.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry
from unalike._utils.spec import Call
from unalike.core import tree
from unalike.core.types import PartTrees, Tree

registry = Registry("optimizer", home="unalike.core.solvers")
"""Name of a local optimizer -> the function that makes its solver from weight decay, momentum and options of its own."""

FUSED_DEVICES = ("cpu", "cuda")
"""Devices on which torch has a fused SGD step."""


class Solver(Protocol):
    """A rule of local optimization."""

    def init(self, params: Tree) -> PartTrees:
        """A fresh state, slot -> tree; empty for a rule without state."""

    def step(
        self,
        params: Tree,
        grads: Tree,
        state: PartTrees,
        lr: float,
        *,
        owned: bool = False,
        fused: bool = False,
    ) -> tuple[Tree, PartTrees]:
        """One step.

        `owned`: `params` and `state` may be overwritten, which saves memory traffic. `fused`: one fused kernel may update all
        tensors; it cannot be stacked by `torch.vmap`. Returns the parameters and the state after the step.
        """

    def weight(self, steps: Tensor) -> Tensor:
        """The accumulated weight ||a||_1 after `steps` steps from a fresh state."""


@dataclass(frozen=True)
class SGD:
    """g <- g + wd w;  m <- rho m + g;  w <- w - lr m  (Nesterov: w <- w - lr (g + rho m)). rho = 0 keeps no state.

    ||a||_1 = tau without momentum, [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) with it.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def init(self, params: Tree) -> PartTrees:
        return {"momentum": tree.zeros(params)} if self.momentum else {}

    def step(
        self,
        params: Tree,
        grads: Tree,
        state: PartTrees,
        lr: float,
        *,
        owned: bool = False,
        fused: bool = False,
    ) -> tuple[Tree, PartTrees]:
        if owned and fused and _one_kernel(params):
            return params, self._fused_step(params, grads, state, lr)
        if self.weight_decay:
            grads = tree.map(lambda g, w: g.add(w, alpha=self.weight_decay), grads, params)
        if self.momentum:
            rho = self.momentum
            add = (
                (lambda m, g: m.mul_(rho).add_(g)) if owned else (lambda m, g: g.add(m, alpha=rho))
            )
            state = {"momentum": tree.map(add, state["momentum"], grads)}
            if self.nesterov:
                grads = tree.map(
                    lambda g, m: g.add(m, alpha=self.momentum), grads, state["momentum"]
                )
            else:
                grads = state["momentum"]
        move = Tensor.sub_ if owned else Tensor.sub
        return tree.map(lambda w, g: move(w, g, alpha=lr), params, grads), state

    def _fused_step(self, params: Tree, grads: Tree, state: PartTrees, lr: float) -> PartTrees:
        """The same formula in one pass over memory, by the kernel of `torch.optim.SGD(fused=True)`; writes into `params`."""
        state = {slot: _laid_out(held, params) for slot, held in state.items()}
        trees = (params, _laid_out(grads, params), state.get("momentum", {}))
        torch._fused_sgd_(
            *([tree.in_memory_order(t) for t in values.values()] for values in trees),
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )
        return state

    def weight(self, steps: Tensor) -> Tensor:
        rho = self.momentum
        if not rho:
            return steps
        tau = tree.exact(
            steps
        )  # the differences cancel: in float32 1e-4 is lost at rho = 0.99, 1e-2 at 0.999
        momentum = ((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)).to(steps)
        return steps + rho * momentum if self.nesterov else momentum


@registry.register("adam")
@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015), weight decay added to the gradient.

    Its a_k is not defined: the accumulated weight is the number of steps, as in the FedMix paper.
    """

    weight_decay: float = 0.0
    betas: tuple[float, float] = field(default=(0.9, 0.999), kw_only=True)
    eps: float = field(default=1e-8, kw_only=True)

    def __post_init__(self) -> None:
        if not (all(0 <= beta < 1 for beta in self.betas) and self.eps > 0):
            raise UnalikeError(
                f"found betas={self.betas}, eps={self.eps}; expected 0 <= beta < 1 and eps > 0"
            )

    def init(self, params: Tree) -> PartTrees:
        steps = next(iter(params.values())).new_zeros(()) if params else torch.zeros(())
        return {"mean": tree.zeros(params), "square": tree.zeros(params), "count": {"steps": steps}}

    def step(
        self,
        params: Tree,
        grads: Tree,
        state: PartTrees,
        lr: float,
        *,
        owned: bool = False,
        fused: bool = False,
    ) -> tuple[Tree, PartTrees]:
        if self.weight_decay:
            grads = tree.map(lambda g, w: g.add(w, alpha=self.weight_decay), grads, params)
        first, second = self.betas
        mean = tree.map(lambda m, g: first * m + (1 - first) * g, state["mean"], grads)
        square = tree.map(lambda v, g: second * v + (1 - second) * g * g, state["square"], grads)
        count = state["count"]["steps"] + 1
        rate, root = lr / _bias(first, count), _bias(second, count).sqrt()
        moved = tree.map(
            lambda w, m, v: w - rate * m / (v.sqrt() / root + self.eps), params, mean, square
        )
        return moved, {"mean": mean, "square": square, "count": {"steps": count}}

    def weight(self, steps: Tensor) -> Tensor:
        return steps


@registry.register("adamw")
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w <- (1 - lr wd) w before the Adam step (Loshchilov & Hutter 2019)."""

    def step(
        self,
        params: Tree,
        grads: Tree,
        state: PartTrees,
        lr: float,
        *,
        owned: bool = False,
        fused: bool = False,
    ) -> tuple[Tree, PartTrees]:
        decayed = tree.scale(params, 1 - lr * self.weight_decay)
        return Adam(betas=self.betas, eps=self.eps).step(decayed, grads, state, lr)


@dataclass(frozen=True)
class GivenSolver:
    """An optimizer of torch, made by `factory(parameters, lr=...)` at the first step; it is told the learning rate of each step.

    Its state holds the optimizer itself, so it trains one client after another. The accumulated weight is the number of steps.
    """

    factory: Callable[..., torch.optim.Optimizer]

    def init(self, params: Tree) -> PartTrees:
        return {}

    def step(
        self,
        params: Tree,
        grads: Tree,
        state: Any,
        lr: float,
        *,
        owned: bool = False,
        fused: bool = False,
    ) -> tuple[Tree, Any]:
        if not state:
            leaves = tree.map(lambda w: w.detach().clone().requires_grad_(), params)
            state = {"leaves": leaves, "optimizer": self._made([*leaves.values()], lr)}
        leaves, optimizer = state["leaves"], state["optimizer"]
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.copy_(params[name])
                leaf.grad = grads[name].detach().clone()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        return tree.map(lambda w: w.detach().clone(), leaves), state

    def _made(self, leaves: list[Tensor], lr: float) -> torch.optim.Optimizer:
        advice = "expected a function of parameters and lr, such as functools.partial(torch.optim.RMSprop, alpha=0.9)"
        try:
            made = self.factory(leaves, lr=lr)
        except TypeError as error:
            raise UnalikeError(f"optimizer={self.factory!r}: {error}; {advice}") from None
        if not isinstance(made, torch.optim.Optimizer):
            raise UnalikeError(f"optimizer={self.factory!r} gives {type(made).__name__}; {advice}")
        if isinstance(made, torch.optim.LBFGS):
            raise UnalikeError(
                f"optimizer={self.factory!r}: LBFGS computes losses in each of its steps; {advice}"
            )
        return made

    def weight(self, steps: Tensor) -> Tensor:
        return steps


def solver(
    given: Call | Callable[..., torch.optim.Optimizer],
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> Solver:
    """The solver of an optimizer. Raises `UnalikeError` for an unknown name or option."""
    if not isinstance(given, Call):
        return GivenSolver(given)
    declared = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    if own := given.parameters.keys() & {*declared, "lr"}:
        name = min(own)
        raise UnalikeError(
            f"{given}: {name} is an option of its own; write {name}={given.parameters[name]!r} beside it"
        )
    taken = signature(registry[given.name]).parameters
    if momentum and "momentum" not in taken:
        raise UnalikeError(f"momentum={momentum} goes with optimizer='sgd', found {str(given)!r}")
    return registry.build(
        given, **{name: value for name, value in declared.items() if name in taken}
    )


@registry.register("sgd")
def _sgd(momentum: float, nesterov: bool, weight_decay: float) -> SGD:
    """Stochastic gradient descent, with `momentum`, `nesterov` and `weight_decay`."""
    return SGD(momentum, nesterov, weight_decay)


def _bias(beta: float, count: Tensor) -> Tensor:
    """1 - beta**count without cancellation: in float32 the plain difference is off by 5e-5 at the first step."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)


def _one_kernel(params: Tree) -> bool:
    """Whether one fused kernel can take all of the tensors."""
    first = next(iter(params.values()))
    return first.device.type in FUSED_DEVICES and len({t.dtype for t in params.values()}) == 1


def _laid_out(values: Tree, like: Tree) -> Tree:
    """`values` in the order and the memory formats of `like`, as the fused kernel needs them: it reads memory front to back."""
    found = [(n, values[n], w) for n, w in like.items()]
    return {n: t if t.stride() == w.stride() else torch.empty_like(w).copy_(t) for n, t, w in found}
