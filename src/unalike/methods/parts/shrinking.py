"""Weight decay on the server, after aggregation."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.method import alias
from unalike.methods.notes import note
from unalike.methods.part import Setup, part
from unalike.methods.roles import ServerStep
from unalike.methods.search_space import LogRange

ONE_LAYER = "the model has one layer, so there is one factor for all of it"


@alias(
    "fedlws",
    "Layer-wise weight shrinking after aggregation (Shi et al. 2025); the add-on alone is `lws`.",
)
@part
class LayerwiseShrinking(ServerStep):
    """w+_l = gamma_l w^_l, gamma_l = ||w_l|| / (beta tau_l ||u_l|| + ||w_l||) (FedLWS, Shi et al. 2025).

    For each layer l: u_l = w^_l - w_l is the combined update and tau_l = 1/K sum_k ||g_kl - mean_j g_jl|| how much the clients'
    updates g_k = w_k - w differ. As in the authors' code a layer ends at a parameter called `bias`: a weight without one belongs to
    the layer that follows it. `scope` shrinks by layer, by tensor or the model as one; `clamp` = (lo, hi) bounds the product
    beta tau_l (the authors' code: (0.01, 0.2)). With `mode` "only_reg" w+ = w^ - (1 - gamma) w, with "only_opt" w+ = w + gamma u;
    full = only_reg + only_opt - w^. beta = 0 changes nothing, nor does one client, nor ||w_l|| = 0.

    By default buffers are averaged. With `buffers`, as in the authors' code, running mean and variance, and the counter of batches,
    belong to the layer that follows them in the state dict, count in its norms and in tau, and shrink with it (the counter does
    not).
    """

    needs = "spread"

    name = "lws"
    has_own_name: ClassVar[bool] = True
    rank: ClassVar[int] = ServerStep.SHRINKING

    beta: Annotated[NonNegativeFloat, LogRange(0.01, 1)] = 0.1
    scope: Literal["layer", "model", "tensor"] = "layer"
    mode: Literal["full", "only_reg", "only_opt"] = "full"
    clamp: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    buffers: bool = False

    @property
    def moves_buffers(self) -> bool:
        return self.buffers

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        shrunk: Tree = {}
        squares = cohort.spread
        for names in tree.scopes(self.scope, _whole(server, update), update):
            w = tree.only(server.params, names)
            u = tree.only(update, names)
            tau = torch.stack([squares[name] for name in names]).sum(0).sqrt().mean()
            gamma = self._gamma(tree.norm(w), tree.norm(u), tau)
            note("tau", tau, part=self.name, layer=names[0])
            note("gamma", gamma, part=self.name, layer=names[0])
            # the new update is a u - b w
            a = torch.ones_like(gamma) if self.mode == "only_reg" else gamma
            b = torch.zeros_like(gamma) if self.mode == "only_opt" else 1 - gamma
            shrunk |= tree.map(lambda u, w, a=a, b=b: (a * u).addcmul_(-b, w), u, w)
        return shrunk, server.state

    def shortfall(self, setup: Setup) -> str:
        if self.scope == "layer" and len(tree.layers(setup.model.params)) == 1:
            return ONE_LAYER
        return ""

    def _gamma(self, w: Tensor, u: Tensor, tau: Tensor) -> Tensor:
        """gamma_l from the norms ||w_l|| and ||u_l||, and tau_l; 1 where ||w_l|| = 0."""
        strength = self.beta * tau
        if self.clamp is not None:
            strength = torch.where(strength > 0, strength.clamp(*self.clamp), strength)
        gamma = w / (strength * u + w)
        return torch.where(w > 0, gamma, 1.0)


@part
class FixedShrinking(ServerStep):
    """w+_l = gamma_l w^_l with gamma_l = max(0, first - rate l) for the layers l = 0, 1, ... in model order (the FedLWS paper).

    w^ is the model of the base method. rate = 0 is one constant factor for the model; with first = 1 it changes nothing.
    """

    rank: ClassVar[int] = ServerStep.SHRINKING

    rate: Annotated[NonNegativeFloat, LogRange(1e-3, 0.1)] = 0.01
    first: float = Field(default=1.0, gt=0, le=1)

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        shrunk: Tree = {}
        for layer, whole in enumerate(tree.layers(_whole(server, update))):
            names = [n for n in whole if n in update]  # none of a layer that is frozen or private
            u = tree.only(update, names)
            w = tree.only(server.params, names)
            a = min(1.0, 1 - self.first + self.rate * layer)  # 1 - gamma_l
            shrunk |= tree.map(lambda u, w, a=a: (1 - a) * u - a * w, u, w)
        return shrunk, server.state

    def shortfall(self, setup: Setup) -> str:
        if self.rate and len(tree.layers(setup.model.params)) == 1:
            return f"the model has one layer, whose factor is {self.first:g}"
        return ""


@part
class AdaptiveDecay(ServerStep):
    """w+ = w^ - d w, d <- 0.1 d + 0.9 lam ||u|| / ||w||: adaptive weight decay (Ghiasi et al. 2023) with u = w^ - w as gradient.

    Our adaptation to the server: the norms are those of the whole model, d starts at 0 and lives there. lam = 0 changes nothing,
    nor does ||w|| = 0.
    """

    has_own_name: ClassVar[bool] = True
    name = "awd"
    rank: ClassVar[int] = ServerStep.SHRINKING

    lam: Annotated[NonNegativeFloat, LogRange(1e-3, 0.1)] = 0.02

    def server_init(self, params: Tree) -> Tree:
        return {"decay": torch.zeros((), dtype=tree.dtype(params))}

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        w = tree.norm(server.params)
        u = tree.norm(update)
        now = torch.where(w > 0, self.lam * u / w, 0.0)
        decay = 0.1 * server.state["decay"].to(now) + 0.9 * now
        return tree.map(lambda u, w: u - decay * w, update, server.params), {"decay": decay}


@part
class ElementwiseDecay(ServerStep):
    """w+ = w^ - lam theta w, theta = 2 / (1 + exp(-alpha z)), z = (|u| - mean) / std within each tensor, u = w^ - w.

    AdaDecay (Nakamura & Hong 2019) adapted to the server: what moves most decays most. std is that of the population; where it
    is 0, or rounding noise, z = 0 and theta = 1. lam = 0 changes nothing.
    """

    has_own_name: ClassVar[bool] = True
    name = "adadecay"
    rank: ClassVar[int] = ServerStep.SHRINKING

    lam: Annotated[NonNegativeFloat, LogRange(1e-5, 1e-2)] = 5e-4
    alpha: float = 4.0

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        update = tree.map(
            lambda u, w: u - self.lam * self._theta(u.abs()) * w, update, server.params
        )
        return update, server.state

    def _theta(self, u: Tensor) -> Tensor:
        """theta of one tensor, from |u|."""
        mean = u.mean()
        std = u.std(correction=0)
        z = torch.where(std > 1e-6 * mean, (u - mean) / std, 0.0)
        return 2 * torch.sigmoid(self.alpha * z)


def _whole(server: ServerView, update: Tree) -> Tree:
    """The parameters of the model; with its buffers, in the order of the state dict, if the update has some of them."""
    model = server.settings.model
    if update.keys() <= model.params.keys():
        return model.params
    return model.state_dict(model.params | model.buffers)
