"""AdaBest: estimates of client drift that fade, on the client and on the server."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat

from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import Pull, part
from unalike.methods.roles import Correction, ServerStep
from unalike.methods.search_space import LinearRange, LogRange


@part
class AdaptiveBias(Correction, ServerStep):
    """g <- g - h_k on the client; w+ = mean + beta (mean - last mean) on the server (AdaBest, Varno et al. 2022, algorithm 1).

    After training h_k <- h_k / (t - t_k) + mu (w - v_k), t the round and t_k that of the client's last participation: an estimate
    grows old. The mean is w + u, that of the clients' models, and the last one is that of the round before, at first the initial
    model; the paper writes h = beta (last mean - mean), w+ = mean - h. mu = beta = 0 is FedAvg, all h start at 0. In the paper
    clients count alike (`adabest` brings `uniform`). The authors' code multiplies mu by the mean number of samples over that of the
    client; for equal sizes it is the same. v_k - w counts as it is sent: shortened, compressed, withheld.
    """

    sums_sent: ClassVar[bool] = True
    rank: ClassVar[int] = ServerStep.DYNAMIC

    mu: Annotated[NonNegativeFloat, LogRange(1e-3, 1)] = 0.02
    beta: Annotated[float, LinearRange(0, 0.98)] = Field(default=0.96, ge=0, le=1)

    def server_init(self, params: Tree) -> Tree:
        return params

    def client_init(self, params: Tree) -> Tree:
        last_round = torch.tensor(-1.0, dtype=tree.dtype(params))
        return tree.pack({"h": tree.zeros(params), "last": {"round": last_round}})

    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        return tree.map(lambda g, h: g - h, grads, tree.unpack(client.state)["h"])

    def pull(self, client: ClientView) -> Pull:
        h = tree.unpack(client.state)["h"]
        constant = tree.map(lambda _, h: -h, client.received_params, h)
        return Pull(strength=0.0, constant=constant)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        old = tree.unpack(client.state)
        last_round = old["last"]["round"]
        age = client.round - last_round
        h = tree.map(
            lambda w, v, h: h / age + self.mu * (w - v),
            client.received_params,
            client.params,
            old["h"],
        )
        this_round = torch.full_like(last_round, client.round)
        return tree.pack({"h": old["h"] | h, "last": {"round": this_round}}), {}

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        mean = tree.add(update, server.params)
        moved = tree.map(
            lambda u, mean, last: u + self.beta * (mean - last), update, mean, server.state
        )
        return moved, server.state | mean
