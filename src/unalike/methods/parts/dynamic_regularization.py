"""FedDyn: a linear and a quadratic term in the local loss align local optima with the global one."""

from typing import Annotated, ClassVar, Literal

from pydantic import PositiveFloat
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import Pull, part
from unalike.methods.roles import Objective, ServerStep
from unalike.methods.search_space import LogRange


@part
class DynamicRegularizer(Objective, ServerStep):
    """Local loss + alpha/2 ||v - w||^2 - <h_k, v> (FedDyn, Acar et al. 2021, algorithm 1).

    Afterwards h_k <- h_k - alpha (v_k - w) on the client; on the server h <- h - alpha sum_P p_k (v_k - w) and
    w+ = mean_P v_k - h / alpha, p_k the weights of all N clients in the objective: 1/N in the paper (`feddyn` brings `uniform`),
    shares of samples with `weighted=True`. All h start at 0, and count updates as they are sent: shortened, compressed, withheld.
    The authors' code divides alpha by n_k N / sum_j n_j on client k, the same for equal sizes, and clips gradients at norm 10
    (`clip` of the work). Where the clients' gradients at v_k vanish, w is a stationary point of sum_k p_k F_k.
    """

    sums_sent: ClassVar[bool] = True
    alpha: Annotated[PositiveFloat, LogRange(1e-3, 1)] = 0.1
    rank: ClassVar[int] = ServerStep.DYNAMIC
    update_again: ClassVar[Literal["", "as it is", "by steps"]] = "as it is"

    def server_init(self, params: Tree) -> Tree:
        return tree.zeros(params)

    def client_init(self, params: Tree) -> Tree:
        return tree.zeros(params)

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        # with w - v, as -<h, v> is <h, w - v> but for a constant
        drift = tree.sub(client.received_params, client.params)
        return self.alpha / 2 * tree.dot(drift, drift) + tree.dot(drift, client.state)

    def pull(self, client: ClientView) -> Pull:
        constant = tree.map(lambda _, h: -h, client.received_params, client.state)
        return Pull(self.alpha, constant)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        w, v = client.received_params, client.params
        h = tree.map(lambda w, v, h: h - self.alpha * (v - w), w, v, client.state)
        return client.state | h, {}

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return tree.scale(update, importance)

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        share = self.alpha / server.population
        h = tree.map(lambda d, h: h - share * d, folded, server.state)
        return server.state | h

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        update = tree.map(lambda u, h: u - h / self.alpha, update, server.state)
        return update, server.state
