"""Aggregators for fair objectives: clients on which the received model is bad count more."""

from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, PartLookup, ServerView
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.roles import Aggregator, ServerStep
from unalike.methods.search_space import LogRange

LOSS = "loss"
"""Name in a client's message: the mean loss of the received model over its training samples."""


@validated
class MeanByLoss(Aggregator):
    """A sum of the updates whose weights follow from the clients' losses F_k at the received model.

    Clients send F_k, and the server believes them: a client that exaggerates counts for more.
    """

    needs_data: ClassVar[bool] = True

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        return client.state, {LOSS: client.full_loss(client.initial_params)}

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.weighted_sum(cohort.update, weights)


@alias("q_ffl", "Clients with a large loss count more, by its power q (Li et al. 2020).")
@part
class PowerMean(MeanByLoss):
    """w+ = w + sum_k F_k^q u_k / sum_k (F_k^q + q F_k^(q-1) ||u_k||^2 / lr) (q-FedAvg, Li et al. 2020).

    It minimizes sum_k F_k^(q+1) / (q+1) (q-FFL). u_k is a client's update; L = 1/lr, and both sums are divided by L. All
    clients of the cohort count alike, since the paper draws them by size: q = 0 is `uniform`. F_k is 1e-10 at least, where the
    authors' code adds 1e-10. Flower's `QFedAvg` takes one loss of the global model for all clients, so that none counts more for
    its own. Float buffers have the weights of the clients, as in FedAvg.
    """

    q: Annotated[NonNegativeFloat, LogRange(0.1, 5)] = 1.0
    LEAST_LOSS: ClassVar[float] = 1e-10

    def needs_rate(self, method: PartLookup) -> bool:
        return True

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        lr = server.settings.work.lr_at(server.round)
        # float32 has no room for high powers of small losses
        losses = tree.exact(cohort.message[LOSS]).clamp_min(self.LEAST_LOSS)
        squares = tree.exact(_squared_norms(cohort)).to(losses.device)
        powers = losses**self.q
        h = powers + self.q * losses ** (self.q - 1) * squares / lr
        return tree.weighted_sum(cohort.update, powers / h.sum())


def _squared_norms(cohort: Cohort) -> Tensor:
    """||u_k||^2 of the updates, [K]."""
    squares = torch.zeros_like(cohort.sizes)
    for tensor in cohort.update.values():
        squares = squares + tree.matrix(tensor).square().sum(1)
    return squares


@alias("term", "Weights are tilted by the exponential of the clients' losses (Li et al. 2021).")
@part
class TiltedMean(MeanByLoss):
    """w+ = w + sum_k c_k u_k, c_k ~ p_k exp(t F_k), of sum 1: each client's gradient in (1/t) log sum_k p_k exp(t F_k).

    TERM (Li et al. 2021) with a tilt of clients alone. t > 0 turns to the clients of large loss, and to the
    largest alone as t grows; t < 0 away from them; t = 0 is FedAvg. p_k are shares of samples; in the paper's federated experiment
    clients count alike (add `uniform`). The authors' federated code divides by a moving average of the mean of exp(t F_k), which
    starts at 0, and once more by the number of clients. Float buffers have the weights c_k.
    """

    t: Annotated[float, LogRange(0.1, 10)] = 1.0

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        tilt = self.t * cohort.message[LOSS].to(weights)
        return torch.softmax(weights.log() + tilt, dim=0)


@alias(
    "afl",
    "The weights of the clients are the worst ones, learned with the model (Mohri et al. 2019).",
)
@part
class AgnosticMean(MeanByLoss, ServerStep):
    """w+ = w + sum_k c_k u_k, and c <- the point of the simplex nearest to c + rate F (AFL, Mohri et al. 2019, Stochastic-AFL).

    Descent in w and ascent in c on sum_k c_k F_k, so that the model is the best for the worst mixture of the clients; u_k is here
    what a client's local steps give, where the paper makes one. c starts at 1/N, and rate = 0 is `uniform`. Of a cohort only the
    clients in it change their c_k, whose sum stays; they count by their share of it (alike where it is 0). With full participation
    this is the paper's rule. The model is the last one, where the paper and the code of q-FFL's authors average those of all
    rounds. The server keeps one number for each client. Float buffers have the weights c_k.
    """

    rate: Annotated[NonNegativeFloat, LogRange(1e-3, 1)] = 0.1

    rank: ClassVar[int] = ServerStep.DYNAMIC

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        c = _mixture(server, cohort)
        return torch.where(c.sum() > 0, c / c.sum(), 1 / len(c)).to(weights)

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        c = _mixture(server, cohort)
        ascended = c + self.rate * cohort.message[LOSS]
        nearest = nearest_on_simplex(ascended, c.sum())
        learned = {str(client): c_k for client, c_k in zip(cohort.ids, nearest)}
        return update, server.state | learned


def _mixture(server: ServerView, cohort: Cohort) -> Tensor:
    """c_k of the clients of a cohort, [K]."""
    start = cohort.message[LOSS].new_tensor(1 / server.population)
    return torch.stack([server.state.get(str(client), start) for client in cohort.ids])


def nearest_on_simplex(point: Tensor, total: Tensor) -> Tensor:
    """The vector [K] without negative entries and with the sum `total` that is nearest to `point` [K].

    It is relu(point - threshold): of the K thresholds that make the sum of the k largest entries right, the largest is the one.
    """
    largest_first = point.sort(descending=True).values
    counts = torch.arange(1, len(point) + 1).to(point)
    thresholds = (largest_first.cumsum(0) - total) / counts
    return torch.relu(point - thresholds.max())
