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
        if not self.momentum:
            return {}
        return {"momentum": tree.zeros(params)}

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

        # from here on `grads` is the direction of the step
        if self.momentum:
            rho = self.momentum
            momentum = state["momentum"]
            if owned:
                momentum = tree.map(lambda m, g: m.mul_(rho).add_(g), momentum, grads)
            else:
                momentum = tree.map(lambda m, g: g.add(m, alpha=rho), momentum, grads)
            state = {"momentum": momentum}
            if self.nesterov:
                grads = tree.map(lambda g, m: g.add(m, alpha=rho), grads, momentum)
            else:
                grads = momentum

        move = Tensor.sub_ if owned else Tensor.sub
        return tree.map(lambda w, g: move(w, g, alpha=lr), params, grads), state

    def _fused_step(self, params: Tree, grads: Tree, state: PartTrees, lr: float) -> PartTrees:
        """The same formula in one pass over memory, by the kernel of `torch.optim.SGD(fused=True)`; writes into `params`."""
        # the kernel goes through memory front to back: gradients and momentum must lie as the parameters do
        grads = _in_layout_of(params, grads)
        state = {slot: _in_layout_of(params, values) for slot, values in state.items()}
        torch._fused_sgd_(
            _in_memory_order(params),
            _in_memory_order(grads),
            _in_memory_order(state.get("momentum", {})),
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
        # the differences cancel: in float32 1e-4 is lost at rho = 0.99, 1e-2 at 0.999
        tau = tree.exact(steps)
        geometric_sum = rho * (1 - rho**tau) / (1 - rho)
        momentum_weight = ((tau - geometric_sum) / (1 - rho)).to(steps)
        if self.nesterov:
            return steps + rho * momentum_weight
        return momentum_weight


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
        betas_in_range = all(0 <= beta < 1 for beta in self.betas)
        if not betas_in_range or not self.eps > 0:
            raise UnalikeError(
                f"found betas={self.betas}, eps={self.eps}; expected 0 <= beta < 1 and eps > 0"
            )

    def init(self, params: Tree) -> PartTrees:
        # the counter lies where the parameters lie
        steps = torch.zeros(())
        if params:
            steps = next(iter(params.values())).new_zeros(())
        return {
            "mean": tree.zeros(params),
            "square": tree.zeros(params),
            "count": {"steps": steps},
        }

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

        # both moments began at 0: their bias is corrected in two scalars instead of in every entry
        rate = lr / _bias_correction(first, count)
        root = _bias_correction(second, count).sqrt()

        def moved(w: Tensor, m: Tensor, v: Tensor) -> Tensor:
            return w - rate * m / (v.sqrt() / root + self.eps)

        params = tree.map(moved, params, mean, square)
        return params, {"mean": mean, "square": square, "count": {"steps": count}}

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
        adam = Adam(betas=self.betas, eps=self.eps)
        return adam.step(decayed, grads, state, lr)


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
        # the optimizer holds tensors of its own, which stay the same objects in all steps
        if not state:
            leaves = tree.map(lambda w: w.detach().clone().requires_grad_(), params)
            state = {"leaves": leaves, "optimizer": self._make_optimizer([*leaves.values()], lr)}
        leaves = state["leaves"]
        optimizer = state["optimizer"]

        # corrections and projections may have changed the parameters since the last step
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.copy_(params[name])
                leaf.grad = grads[name].detach().clone()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        return tree.map(lambda w: w.detach().clone(), leaves), state

    def _make_optimizer(self, leaves: list[Tensor], lr: float) -> torch.optim.Optimizer:
        """The factory's optimizer of these tensors. Raises `UnalikeError` where it makes none that can be used."""
        advice = "expected a function of parameters and lr, such as functools.partial(torch.optim.RMSprop, alpha=0.9)"
        try:
            optimizer = self.factory(leaves, lr=lr)
        except TypeError as error:
            raise UnalikeError(f"optimizer={self.factory!r}: {error}; {advice}") from None
        if not isinstance(optimizer, torch.optim.Optimizer):
            type_name = type(optimizer).__name__
            raise UnalikeError(f"optimizer={self.factory!r} gives {type_name}; {advice}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnalikeError(
                f"optimizer={self.factory!r}: LBFGS computes losses in each of its steps; {advice}"
            )
        return optimizer

    def weight(self, steps: Tensor) -> Tensor:
        return steps


def solver(
    optimizer: Call | Callable[..., torch.optim.Optimizer],
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> Solver:
    """The solver of an optimizer. Raises `UnalikeError` for an unknown name or option."""
    if not isinstance(optimizer, Call):
        return GivenSolver(optimizer)

    # what is an option of the run has one place: two values of it could differ
    run_options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    misplaced = optimizer.parameters.keys() & {*run_options, "lr"}
    if misplaced:
        name = min(misplaced)
        value = optimizer.parameters[name]
        raise UnalikeError(
            f"{optimizer}: {name} is an option of its own; write {name}={value!r} beside it"
        )

    accepted = signature(registry[optimizer.name]).parameters
    if momentum and "momentum" not in accepted:
        raise UnalikeError(
            f"momentum={momentum} goes with optimizer='sgd', found {str(optimizer)!r}"
        )
    options = {name: value for name, value in run_options.items() if name in accepted}
    return registry.build(optimizer, **options)


@registry.register("sgd")
def _sgd(momentum: float, nesterov: bool, weight_decay: float) -> SGD:
    """Stochastic gradient descent, with `momentum`, `nesterov` and `weight_decay`."""
    return SGD(momentum, nesterov, weight_decay)


def _bias_correction(beta: float, count: Tensor) -> Tensor:
    """1 - beta**count without cancellation: in float32 the plain difference is off by 5e-5 at the first step."""
    if not beta:
        return torch.ones_like(count)
    return -torch.expm1(count * math.log(beta))


def _one_kernel(params: Tree) -> bool:
    """Whether one fused kernel can take all of the tensors."""
    first = next(iter(params.values()))
    if first.device.type not in FUSED_DEVICES:
        return False
    dtypes = {t.dtype for t in params.values()}
    return len(dtypes) == 1


def _in_layout_of(params: Tree, values: Tree) -> Tree:
    """`values` in the order and the memory formats of `params`, as the fused kernel needs them: it reads memory front to back."""
    laid_out = {}
    for name, w in params.items():
        t = values[name]
        if t.stride() != w.stride():
            t = torch.empty_like(w).copy_(t)
        laid_out[name] = t
    return laid_out


def _in_memory_order(values: Tree) -> list[Tensor]:
    """The tensors as the fused kernel takes them."""
    return [tree.in_memory_order(t) for t in values.values()]
