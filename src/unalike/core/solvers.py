"""Local solvers as pure functions: parameters and gradients in, parameters and state out.

Each solver gives its *accumulated weight* ||a||_1 after tau steps: how far it moves along a constant unit gradient at learning
rate 1 (Wang et al. 2020, FedNova). For plain SGD that is tau.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import PartTrees, Tree

FUSED_DEVICES = ("cpu", "cuda")
"""Devices on which torch has a fused SGD step."""


class Solver(Protocol):
    """A rule of local optimization."""

    def init(self, params: Tree) -> PartTrees:
        """A fresh state, slot -> tree; empty for a rule without state."""

    def step(
        self, params: Tree, grads: Tree, state: PartTrees, lr: float, *, owned: bool = False, fused: bool = False
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
        self, params: Tree, grads: Tree, state: PartTrees, lr: float, *, owned: bool = False, fused: bool = False
    ) -> tuple[Tree, PartTrees]:
        if owned and fused and _one_kernel(params):
            return params, self._fused_step(params, grads, state, lr)
        if self.weight_decay:
            grads = tree.map(lambda g, w: g.add(w, alpha=self.weight_decay), grads, params)
        if self.momentum:
            state = {
                "momentum": tree.map(
                    self._accumulated_in_place if owned else self._accumulated, state["momentum"], grads
                )
            }
            if self.nesterov:
                grads = tree.map(lambda g, m: g.add(m, alpha=self.momentum), grads, state["momentum"])
            else:
                grads = state["momentum"]
        move = Tensor.sub_ if owned else Tensor.sub
        return tree.map(lambda w, g: move(w, g, alpha=lr), params, grads), state

    def _accumulated(self, m: Tensor, g: Tensor) -> Tensor:
        return g.add(m, alpha=self.momentum)

    def _accumulated_in_place(self, m: Tensor, g: Tensor) -> Tensor:
        return m.mul_(self.momentum).add_(g)

    def _fused_step(self, params: Tree, grads: Tree, state: PartTrees, lr: float) -> PartTrees:
        """The same formula in one pass over memory, by the kernel of `torch.optim.SGD(fused=True)`; writes into `params`."""
        state = {slot: _laid_out(held, params) for slot, held in state.items()}
        torch._fused_sgd_(
            [*params.values()],
            [*_laid_out(grads, params).values()],
            [*state.get("momentum", {}).values()],
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
        tau = tree.exact(steps)  # the differences cancel: in float32 1e-4 is lost at rho = 0.99, 1e-2 at 0.999
        momentum = ((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)).to(steps)
        return steps + rho * momentum if self.nesterov else momentum


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015), betas (0.9, 0.999), weight decay added to the gradient.

    Its a_k is not defined: the accumulated weight is the number of steps, as in the FedMix paper.
    """

    weight_decay: float = 0.0
    eps: float = 1e-8

    def init(self, params: Tree) -> PartTrees:
        return {"mean": tree.zeros(params), "square": tree.zeros(params), "count": {"steps": torch.zeros(())}}

    def step(
        self, params: Tree, grads: Tree, state: PartTrees, lr: float, *, owned: bool = False, fused: bool = False
    ) -> tuple[Tree, PartTrees]:
        if self.weight_decay:
            grads = tree.map(lambda g, w: g.add(w, alpha=self.weight_decay), grads, params)
        mean = tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        square = tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["square"], grads)
        count = state["count"]["steps"] + 1
        # 1 - b**count without cancellation: in float32 the plain difference is off by 5e-5 at the first step
        rate, root = lr / -torch.expm1(count * math.log(0.9)), (-torch.expm1(count * math.log(0.999))).sqrt()
        moved = tree.map(lambda w, m, v: w - rate * m / (v.sqrt() / root + self.eps), params, mean, square)
        return moved, {"mean": mean, "square": square, "count": {"steps": count}}

    def weight(self, steps: Tensor) -> Tensor:
        return steps


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w <- (1 - lr wd) w before the Adam step (Loshchilov & Hutter 2019)."""

    def step(
        self, params: Tree, grads: Tree, state: PartTrees, lr: float, *, owned: bool = False, fused: bool = False
    ) -> tuple[Tree, PartTrees]:
        decayed = tree.scale(params, 1 - lr * self.weight_decay)
        return Adam(eps=self.eps).step(decayed, grads, state, lr)


def _one_kernel(params: Tree) -> bool:
    """Whether one fused kernel can take all of the tensors."""
    first = next(iter(params.values()))
    return first.device.type in FUSED_DEVICES and len({t.dtype for t in params.values()}) == 1


def _laid_out(values: Tree, like: Tree) -> Tree:
    """`values` in the order and the memory formats of `like`, as the fused kernel needs them: it reads memory front to back."""
    found = [(n, values[n], w) for n, w in like.items()]
    return {n: t if t.stride() == w.stride() else torch.empty_like(w).copy_(t) for n, t, w in found}
