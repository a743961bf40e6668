"""MimeLite: clients step with the momentum of the server."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, ServerView
from unalike.methods.part import part
from unalike.methods.roles import Correction
from unalike.methods.search_space import LinearRange


@part
class SharedMomentum(Correction):
    """g <- (1 - beta) g + beta m, m the server's momentum, the same in all steps (MimeLite, Karimireddy et al. 2021, algorithm 1).

    After training the server takes m <- beta m + (1 - beta) sum_k p_k grad F_k(w), the gradients of all local samples at the model
    w that clients received. The base optimizer is SGD with momentum; m starts at 0. In the paper clients count alike (`mimelite`
    brings `uniform`), with `weighted=True` by their samples. beta = 0 is FedAvg. Sent: one more model down, one more up.

    FedJAX lets any optimizer be the base; its heavy ball is g + beta m. Mime itself subtracts a batch's gradient at w and adds that
    of all clients at w in the same round, which clients have to be asked for before they train: one exchange more than a round
    has.
    """

    needs_data: ClassVar[bool] = True
    sends_changes: ClassVar[bool] = True
    update_again: ClassVar[Literal["", "as it is", "by steps"]] = "by steps"

    beta: Annotated[float, LinearRange(0, 0.97)] = Field(default=0.9, ge=0, lt=1)

    def server_init(self, params: Tree) -> Tree:
        return tree.zeros(params)

    def broadcast(self, server: ServerView) -> Tree:
        return server.state

    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        return tree.map(lambda g, m: (1 - self.beta) * g + self.beta * m, grads, client.message)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        gradient = client.full_gradient(client.initial_params)
        return client.state, tree.only(gradient, client.received_params)

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        gradients = tree.scale(message, importance)
        return tree.pack({"gradients": gradients, "clients": {"importance": importance}})

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        if not folded:  # clients send nothing of their model
            return server.state
        sums = tree.unpack(folded)
        total = sums["clients"]["importance"]
        m = tree.map(
            lambda g, m: self.beta * m + (1 - self.beta) * g / total,
            sums.get("gradients", {}),
            server.state,
        )
        return server.state | m
