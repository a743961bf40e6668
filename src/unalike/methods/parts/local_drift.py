"""FedDC: each client keeps its drift from the shared model, and the loss and the server correct for it."""

from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, PartLookup, ServerView
from unalike.methods.part import Pull, part
from unalike.methods.roles import BaseWeights, Objective, ServerStep
from unalike.methods.search_space import LogRange


@part
class LocalDrift(Objective, ServerStep):
    """Local loss + alpha/2 ||h_k + v - w||^2 + <v, c_k - c> (FedDC, Gao et al. 2022, eqs. 2 to 5, algorithm 1).

    h_k is the client's drift, h_k <- h_k + (v_k - w) after every participation. c_k = (v_k - w) / (lr tau_k) is what it moved per
    step when it last took part, and c the mean of that over the last cohort. The server takes the drift out again:
    w+ = mean_P v_k + sum_k p_k h_k over all N clients, which it knows from the updates alone, as in the authors' code (the paper
    averages v_k + h_k over P; the same when all take part). p_k are the weights in the objective: shares of samples, or 1/N with
    `weighted=False`; all means have them. All start at 0. In the authors' code c_k is SCAFFOLD's recursion and c a mean over all
    clients; here they are the paper's, in units of a step. Where an upload changes or withholds updates, v_k - w is what was sent.
    """

    sums_sent: ClassVar[bool] = True
    needs = "updates"
    needs_steps: ClassVar[bool] = True

    alpha: Annotated[NonNegativeFloat, LogRange(1e-3, 1)] = 0.01
    rank: ClassVar[int] = ServerStep.DYNAMIC

    def needs_rate(self, method: PartLookup) -> bool:
        return True

    def server_init(self, params: Tree) -> Tree:
        return tree.pack({"drift": tree.zeros(params), "pace": tree.zeros(params)})

    def client_init(self, params: Tree) -> Tree:
        return self.server_init(params)

    def broadcast(self, server: ServerView) -> Tree:
        return tree.unpack(server.state)["pace"]

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        h, c_k = _drift_and_pace(client.state)
        c = client.message
        back = tree.sub(client.received_params, client.params)  # w - v
        away = tree.map(lambda b, h: h - b, back, h)
        turn = tree.map(lambda _, c_k, c: c_k - c, back, c_k, c)
        return self.alpha / 2 * tree.dot(away, away) - tree.dot(back, turn)

    def pull(self, client: ClientView) -> Pull:
        h, c_k = _drift_and_pace(client.state)
        constant = tree.map(
            lambda _, h, c_k, c: self.alpha * h + c_k - c,
            client.received_params,
            h,
            c_k,
            client.message,
        )
        return Pull(self.alpha, constant)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        old_h, old_c_k = _drift_and_pace(client.state)
        update = tree.map(lambda w, v: v - w, client.received_params, client.params)
        h = tree.map(lambda u, h: h + u, update, old_h)
        tau_k = torch.as_tensor(client.steps).clamp_min(1)
        c_k = tree.scale(update, 1 / (client.lr * tau_k))
        return tree.pack({"drift": old_h | h, "pace": old_c_k | c_k}), {}

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        old_drift, old_c = _drift_and_pace(server.state)
        [base] = server.method.role(BaseWeights)
        importance = base.importance(cohort)

        # c: the mean over the cohort of what a client moved per step
        lr = server.settings.work.lr_at(server.round)
        c = tree.weighted_sum(cohort.update, importance / importance.sum() / (lr * cohort.steps))

        # sum_k p_k h_k over all clients grows by the updates of the cohort
        added = tree.weighted_sum(cohort.update, importance / server.population)
        drift = tree.add(added, old_drift)
        return tree.add(update, drift), tree.pack({"drift": old_drift | drift, "pace": old_c | c})


def _drift_and_pace(state: Tree) -> tuple[Tree, Tree]:
    """h_k and c_k of a client state; of the server state sum_k p_k h_k and c."""
    packed = tree.unpack(state)
    return packed["drift"], packed["pace"]
