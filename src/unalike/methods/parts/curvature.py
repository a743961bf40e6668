"""FedCurv: each client is held near the models that the others ended with, most where these are sure."""

from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.func import grad, vmap

from unalike.core import tree
from unalike.core.inputs import Inputs, map_inputs
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, ServerView
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.roles import Objective
from unalike.methods.search_space import LogRange


@alias(
    "fedcurv",
    "Clients are held near the others' last models, most where these are sure (Shoham et al. 2019).",
)
@part
class Curvature(Objective):
    """lam sum_{j != k} (v - v_j)^T diag(I_j) (v - v_j) (FedCurv, Shoham et al. 2019).

    v_j is client j's model after its last participation, and I_j [P] the diagonal of its Fisher information there: the mean over
    its samples of the squared gradient of a sample's loss. Clients send the changes of I_j and I_j v_j, so that the server knows
    their sums over all clients, U and W, and no single one: up to a constant the term is lam sum (U - I_k) v^2 - 2 (W - I_k v_k) v.
    The first round is that of FedAvg, and lam = 0 is FedAvg. Clients that are not in a round count by their last message (in the
    paper all take part). OpenFL squares the gradient of the mean loss of each batch, which shrinks as batches grow.
    """

    needs_data: ClassVar[bool] = True
    sends_changes: ClassVar[bool] = True

    lam: Annotated[NonNegativeFloat, LogRange(1e-3, 10)] = 0.1

    def server_init(self, params: Tree) -> Tree:
        return tree.pack({"u": tree.zeros(params), "w": tree.zeros(params)})

    def client_init(self, params: Tree) -> Tree:
        return self.server_init(params)

    def broadcast(self, server: ServerView) -> Tree:
        return server.state

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        others = tree.unpack(tree.sub(client.message, client.state))
        v = tree.only(client.params, client.received_params)
        terms = tree.map(_distance, v, others["u"], others["w"])
        return self.lam * sum(terms.values(), start=torch.zeros(()))

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        u = information(client)
        w = tree.map(torch.mul, u, client.params)
        new = tree.pack({"u": u, "w": w})
        return client.state | new, tree.sub(new, client.state)

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return message

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        return server.state | tree.add(folded, server.state)


def _distance(v: Tensor, u: Tensor, w: Tensor) -> Tensor:
    """sum (v - v_j)^T diag(I_j) (v - v_j) over the others, of one tensor, without what does not depend on v."""
    return (u * v * v - 2 * w * v).sum()


def information(client: ClientView) -> Tree:
    """The mean over all local samples of the squared gradient of a sample's loss, [*shape] each."""

    def loss(params: Tree, x: Inputs, y: Tensor) -> Tensor:
        values = client.params | params
        sample = Batch(map_inputs(lambda t: t[None], x), y[None])
        output = client.model(values, sample.x, buffers=client.buffers, context=client.context)
        return client.task_loss(output, sample)

    trained = tree.only(client.params, client.received_params)
    total = tree.zeros(trained)
    rows: Tensor | float = 0.0
    for batch in client.data.whole:
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(trained, batch.x, batch.y)
        sums = tree.map(lambda g, batch=batch: batch.sum(g.square()), gradients)
        total = tree.add(total, sums)
        rows = rows + batch.rows
    return tree.scale(total, 1 / rows) if client.data.whole else total
