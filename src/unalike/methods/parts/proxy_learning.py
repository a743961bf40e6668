"""Aggregation weights and shrinking that are learned on samples of the server (FedLAW), and trust in updates (FLTrust)."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Protocol

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.inputs import Inputs
from unalike.core.types import Tree
from unalike.core.views import Cohort, PartLookup, ServerView
from unalike.methods.method import alias
from unalike.methods.notes import note
from unalike.methods.part import part
from unalike.methods.roles import Aggregator, ServerStep
from unalike.methods.search_space import LogRange

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda variables, lr: torch.optim.Adam(variables, lr, betas=(0.5, 0.999)),
    "sgd": torch.optim.SGD,
}
HALVING_EPOCHS = 20
"""Epochs after which the server's learning rate is halved, again and again (the authors' StepLR)."""


class Mapping(Protocol):
    """From unconstrained numbers g [] and x [K] to gamma lambda_k, [K]."""

    def start(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """g and x before the first step, from the weights p [K]."""

    def __call__(self, g: Tensor, x: Tensor) -> Tensor:
        """gamma lambda_k, [K]."""


class Exponential:
    """gamma = exp(g), lambda = softmax(x); starts at gamma = 1, lambda = p."""

    def start(self, p: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(p[0]), p.clamp_min(torch.finfo(p.dtype).tiny).log()

    def __call__(self, g: Tensor, x: Tensor) -> Tensor:
        return g.exp() * x.softmax(0)


class Quadratic:
    """gamma = g^2, lambda = x^2 / sum x^2; starts at gamma = 1, lambda uniform."""

    def start(self, p: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(p[0]), torch.ones_like(p)

    def __call__(self, g: Tensor, x: Tensor) -> Tensor:
        return g.square() * x.square() / x.square().sum()


MAPPINGS: dict[str, Mapping] = {"exp": Exponential(), "quadratic": Quadratic()}


@alias("fedlaw", "Weights and shrinking learned on samples of the server (Li et al. 2023).")
@part
class LearnedMean(Aggregator):
    """w+ = gamma sum_k lambda_k w_k, gamma and lambda of least task loss on the server's samples (FedLAW, Li et al. 2023).

    They are found by `epochs` steps on all these samples at once (the authors' code: mini-batches), the learning rate halved
    every 20; `optimizer` "sgd" is plain, with momentum 0.9 in the authors' code. gamma may exceed 1. The model predicts in
    training mode, so norms use the statistics of the samples; buffers are averaged with lambda. epochs = 0 is FedAvg, or its
    uniform mean with the quadratic mapping. Private parameters stand at their initial values there.
    """

    epochs: NonNegativeInt = 100
    lr: Annotated[PositiveFloat, LogRange(1e-3, 0.1)] = 0.01
    optimizer: Literal["adam", "sgd"] = "adam"
    mapping: Literal["exp", "quadratic"] = "exp"
    needs_proxy: ClassVar[bool] = True

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        mapping = MAPPINGS[self.mapping]
        g, x = mapping.start(weights.detach())
        variables = [g.requires_grad_(), x.requires_grad_()]

        def model() -> Tree:
            return tree.add(server.params, self.combine(server, cohort, mapping(g, x)))

        _fit(server, OPTIMIZERS[self.optimizer](variables, lr=self.lr), self.epochs, model)
        return mapping(g, x).detach()

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        # sum_k c_k w_k - w, and the coefficients c_k = gamma lambda_k sum to gamma
        update = tree.weighted_sum(cohort.update, weights)
        return tree.map(lambda u, w: u + (weights.sum() - 1).to(w.dtype) * w, update, server.params)

    def combine_buffers(self, buffers: Tree, weights: Tensor) -> Tree:
        return tree.weighted_sum(buffers, weights / weights.sum())


@alias(
    "fltrust",
    "Updates count by their direction towards one that the server trained itself (Cao et al. 2021).",
)
@part
class TrustedMean(Aggregator):
    """sum_k t_k (||g|| / ||u_k||) u_k / sum_k t_k, t_k = max(0, cos(u_k, g)), g the server's own update (FLTrust, Cao et al. 2021).

    g comes of `steps` gradient steps on all the server's samples with the clients' learning rate (the paper: mini-batches, as many
    steps as a client makes). The clients' weights do not matter. It bears any number of malicious clients, as far as the server's
    samples are like the clients'. Without a client of t_k > 0 the model stays. Buffers are averaged as in the base method.
    """

    steps: PositiveInt = 5
    needs_proxy: ClassVar[bool] = True

    def needs_rate(self, method: PartLookup) -> bool:
        return True

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        # g: what the server's own training makes of the model
        params = tree.map(lambda w: w.detach().clone().requires_grad_(), server.params)
        lr = server.settings.work.lr_at(server.round)
        optimizer = torch.optim.SGD([*params.values()], lr=lr)
        _fit(server, optimizer, self.steps, lambda: params)
        step = tree.sub(tree.detach(params), server.params)
        g = tree.only(step, cohort.update)

        # t_k: how far each update points where g does; all updates count with the norm of g
        norms, products = torch.vmap(lambda u: (tree.norm(u), tree.dot(u, g)))(cohort.update)
        scales = tree.norm(g) / norms.clamp_min(1e-12)
        trust = (products * scales).clamp_min(0)  # ||g||^2 t_k
        coefficients = scales * trust / trust.sum().clamp_min(1e-12)
        return tree.weighted_sum(cohort.update, coefficients)


@part
class LearnedShrinking(ServerStep):
    """w+ = gamma w^, gamma = exp(g) of least task loss on the server's samples: FedLAW's gamma alone (the FedLWS paper).

    w^ is the model of the base method. g starts at 0 and is learned by Adam as in `LearnedMean`; gamma may exceed 1. The noted
    ratio (1 - gamma) ||w|| / (gamma ||u||), u = w^ - w, is that of regularization to optimization. epochs = 0 changes nothing.
    """

    has_own_name: ClassVar[bool] = True

    epochs: NonNegativeInt = 100
    lr: Annotated[PositiveFloat, LogRange(1e-3, 0.1)] = 0.01
    needs_proxy: ClassVar[bool] = True
    rank: ClassVar[int] = ServerStep.SHRINKING

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        if not (update and self.epochs):
            return update, server.state
        combined = tree.add(server.params, update)  # w^
        g = tree.norm(update).new_zeros(()).requires_grad_()

        def model() -> Tree:
            return tree.map(lambda w: g.exp() * w, combined)

        _fit(server, OPTIMIZERS["adam"]([g], lr=self.lr), self.epochs, model)
        gamma = g.detach().exp()
        ratio = (1 - gamma) * tree.norm(server.params) / (gamma * tree.norm(update))
        note("gamma", gamma, part=self.name)
        note("ratio", ratio, part=self.name)
        # gamma w^ - w, so that gamma = 1 leaves the update as it is
        update = tree.map(lambda u, w: u + (gamma - 1) * w, update, combined)
        return update, server.state


def _fit(
    server: ServerView, optimizer: torch.optim.Optimizer, epochs: int, params: Callable[[], Tree]
) -> None:
    """Minimize the task's loss at `params()` on all the server's samples, the learning rate halved every 20 epochs."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, HALVING_EPOCHS, 0.5)
    batch = server.proxy
    buffers = server.settings.model.buffers
    with seeds.isolated(seed_of_round(server), batch.y.device), torch.enable_grad():
        for _ in range(epochs):
            z = model_logits(server, params(), batch.x, buffers, training=True)
            loss = batch.mean(server.settings.task.losses(z, batch.y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def model_logits(
    server: ServerView, params: Tree, x: Inputs, buffers: Tree, *, training: bool
) -> Tensor:
    """Logits for samples x [B, ...]; private and frozen parameters have their initial values."""
    model = server.settings.model
    return model(model.params | params, x, buffers=buffers, training=training).logits


def seed_of_round(server: ServerView) -> int:
    """Seed of torch's default generators in a round: dropout, and the order of the samples."""
    return seeds.number(server.settings.seed, f"server.{server.part}", server.round)
