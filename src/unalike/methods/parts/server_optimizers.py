"""Server optimizers: they use the combined update as a gradient."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor

from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.roles import ServerOptimizer
from unalike.methods.search_space import LinearRange, LogRange


@alias("fedavgm", "Momentum on the server (Hsu et al. 2019).")
@part
class ServerMomentum(ServerOptimizer):
    """v <- momentum v + (1 - dampening) d, v = d at the first step; w+ = w + lr v (FedAvgM, Hsu et al. 2019).

    d is the combined update; with `nesterov` w+ = w + lr (d + momentum v). momentum = 0 and lr = 1 is FedAvg.
    """

    lr: Annotated[NonNegativeFloat, LogRange(0.1, 3)] = 1.0
    momentum: Annotated[float, LinearRange(0, 0.97)] = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    dampening: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _as_in_torch(self) -> ServerMomentum:
        if self.nesterov and self.dampening:
            raise ValueError("nesterov goes without dampening")
        return self

    def server_init(self, params: Tree) -> Tree:
        return tree.zeros(params)

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        # not at the first step, at which v = d
        dampened = self.dampening and any(v.any() for v in server.state.values())
        share = 1 - self.dampening if dampened else 1.0
        velocity = tree.map(lambda d, v: self.momentum * v + share * d, update, server.state)
        direction = velocity
        if self.nesterov:
            direction = tree.map(lambda d, v: d + self.momentum * v, update, velocity)
        return tree.scale(direction, self.lr), server.state | velocity


@validated
class Adaptive(ServerOptimizer):
    """m <- b1 m + (1 - b1) d, v by the rule, w+ = w + lr m / (sqrt(v) + tau) (Reddi et al. 2021, algorithm 2).

    d is the combined update, m and v start at 0 (the paper: v at tau^2 or more). `bias_correction` multiplies lr by
    sqrt(1 - b2^t) / (1 - b1^t) in the server's step t = 1, 2, ... and leaves tau as it is; the paper has none.
    """

    lr: Annotated[NonNegativeFloat, LogRange(1e-3, 1)] = 0.1
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.99, ge=0, lt=1)
    tau: Annotated[PositiveFloat, LogRange(1e-5, 0.1)] = 1e-3
    bias_correction: bool = False

    def square(self, v: Tensor, d2: Tensor) -> Tensor:
        """The new v from the old one and the squared update."""
        raise NotImplementedError

    def correction(self, t: int) -> float:
        """The factor on lr of `bias_correction`: sqrt(1 - b2^t) / (1 - b1^t)."""
        return math.sqrt(1 - self.b2**t) / (1 - self.b1**t)

    def server_init(self, params: Tree) -> Tree:
        t = torch.zeros((), dtype=tree.dtype(params))
        return tree.pack({"m": tree.zeros(params), "v": tree.zeros(params), "steps": {"t": t}})

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        if not update:
            return update, server.state
        old = tree.unpack(server.state)
        m = tree.map(lambda d, m: self.b1 * m + (1 - self.b1) * d, update, old["m"])
        v = tree.map(lambda d, v: self.square(v, d.square()), update, old["v"])
        t = old["steps"]["t"] + 1
        lr = self.lr
        if self.bias_correction:
            lr = lr * self.correction(int(t))
        update = tree.map(lambda m, v: lr * m / (v.sqrt() + self.tau), m, v)
        return update, server.state | tree.pack({"m": m, "v": v, "steps": {"t": t}})


@alias("fedadam", "Adam on the server (Reddi et al. 2021).")
@part
class ServerAdam(Adaptive):
    """v <- b2 v + (1 - b2) d^2: FedAdam (Reddi et al. 2021)."""

    def square(self, v: Tensor, d2: Tensor) -> Tensor:
        return self.b2 * v + (1 - self.b2) * d2


@alias("fedyogi", "Yogi on the server (Reddi et al. 2021).")
@part
class ServerYogi(Adaptive):
    """v <- v - (1 - b2) d^2 sign(v - d^2): FedYogi (Reddi et al. 2021); v follows d^2 at a bounded pace in both directions."""

    def square(self, v: Tensor, d2: Tensor) -> Tensor:
        return v - (1 - self.b2) * d2 * (v - d2).sign()


@alias("fedadagrad", "Adagrad on the server (Reddi et al. 2021).")
@part
class ServerAdagrad(Adaptive):
    """v <- v + d^2: FedAdagrad (Reddi et al. 2021). The squares are summed, so b2 has no effect and v no bias."""

    b1: float = Field(default=0.0, ge=0, lt=1)

    def square(self, v: Tensor, d2: Tensor) -> Tensor:
        return v + d2

    def correction(self, t: int) -> float:
        return 1 / (1 - self.b1**t)


@alias(
    "fedexp",
    "The mean update is extended, the further the more the clients' updates differ (Jhunjhunwala et al. 2023).",
)
@part
class Extrapolation(ServerOptimizer):
    """w+ = w + eta u, eta = max(1, sum_k p_k ||u_k||^2 / (2 (||u||^2 + epsilon))) (FedExP, Jhunjhunwala et al. 2023, algorithm 1).

    u = sum_k p_k u_k is the combined update. Orthogonal updates of K clients of equal size and length give eta = K/2, equal updates
    give 1, which is FedAvg. Clients count by their samples as in the authors' code; with `uniform` alike, as in the paper. The
    code multiplies epsilon by 0.998^2 in each round and by the number of clients, takes 0.001 or, on EMNIST, 0.1, and evaluates
    the mean of the last two models, as the paper advises; here it is the last one.
    """

    epsilon: Annotated[PositiveFloat, LogRange(1e-4, 0.1)] = 1e-3

    def server_init(self, params: Tree) -> Tree:
        zero = torch.zeros((), dtype=tree.dtype(params))
        return {"squares": zero, "importance": torch.ones_like(zero)}

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        square = tree.norm(update).square()
        return {"squares": importance * square, "importance": importance}

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        return server.state | folded

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        mean_square = server.state["squares"] / server.state["importance"]
        eta = mean_square / (2 * (tree.norm(update).square() + self.epsilon))
        return tree.scale(update, eta.clamp_min(1)), server.state
