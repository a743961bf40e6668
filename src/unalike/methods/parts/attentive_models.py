"""FedAMP: each client is held near a mixture of all clients' models, in which similar ones count more."""

from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import Setup, part
from unalike.methods.roles import Objective, Personalizer, ServerStep
from unalike.methods.search_space import LogRange

MODEL = "model of "
"""Prefix of the names of a client's parameters in its message."""
INITIAL = "initial"
"""Name of the initial model in the server state, beside the numbers of clients."""


class ClientModels(Personalizer, ServerStep):
    """The server keeps the model that each client sent last, and sends each client a mixture of them to start from.

    The initial model is that of a client that sent none yet.
    """

    needs = "updates"
    rank: ClassVar[int] = ServerStep.DYNAMIC

    def server_init(self, params: Tree) -> Tree:
        return tree.pack({INITIAL: params})

    def shortfall(self, setup: Setup) -> str:
        if setup.clients > 1:
            return ""
        return "there is one client, whose model is mixed with no other"

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        return client.params | client.message, client.state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        return client.state, {MODEL + n: client.params[n] for n in client.message}

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        models = tree.under(cohort.message, MODEL)
        sent = {str(client): tree.row(models, row) for row, client in enumerate(cohort.ids)}
        return update, server.state | tree.pack(sent)


@part
class AttentiveModels(ClientModels, Objective):
    """Local loss + lam/2 ||v - u_k||^2 from v = u_k on, u_k = sum_j xi_kj w_j (FedAMP, Huang et al. 2021, algorithm 1).

    w_j is the model that client j sent last, xi_kj = (alpha / sigma) exp(-||w_k - w_j||^2 / sigma) for j != k, and xi_kk the rest
    of 1. Clients keep their models (`private(select='all')`, as in `fedamp`) and are evaluated with them; the server keeps one of
    each client. Where the xi_kj, j != k, add up to more than 1, which a small alpha in the paper excludes, they are divided by
    their sum. lam is the paper's lambda / alpha. alpha = lam = 0 is `local_only`. Before client k sent a model, u_k is the initial
    one.

    In PFLlib's code the term is a norm that is not squared, of values without gradient: it trains as without it, like `local_only`.
    fluke begins from the client's own model, and mixes the models of the last cohort alone.
    """

    alpha: Annotated[NonNegativeFloat, LogRange(0.01, 10)] = 0.1
    sigma: Annotated[PositiveFloat, LogRange(0.01, 100)] = 1.0
    lam: Annotated[NonNegativeFloat, LogRange(1e-3, 10)] = 0.1

    def address(self, server: ServerView, client: int) -> Tree:
        models = tree.unpack(server.state)
        initial = models.pop(INITIAL)
        own = models.pop(str(client), initial)
        if not models or own is initial:
            return own
        others = tree.stack([*models.values()])
        gaps = tree.map(lambda w, w_j: w_j - w, own, others)
        squares = torch.zeros(len(models))
        for gap in gaps.values():
            squares = squares.to(gap) + tree.matrix(gap).square().sum(1)
        xi = self.alpha / self.sigma * torch.exp(-squares / self.sigma)
        xi = xi / xi.sum().clamp_min(1)
        return tree.add(own, tree.weighted_sum(gaps, xi))

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        drift = tree.sub(client.message, client.params)
        return self.lam / 2 * tree.dot(drift, drift)
