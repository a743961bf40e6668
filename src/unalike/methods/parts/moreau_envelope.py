"""pFedMe: the shared model is trained on the clients' Moreau envelopes; each client is evaluated with its own minimizer."""

from collections.abc import Callable, Iterable
from typing import Annotated

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad

from unalike._utils.errors import warn
from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, PartLookup
from unalike.core.work import Work
from unalike.methods.part import InnerLoop, part
from unalike.methods.parts.personalizers import OwnParameters
from unalike.methods.roles import TaskObjective
from unalike.methods.search_space import LogRange


@part
class MoreauEnvelope(TaskObjective, OwnParameters):
    """min over theta of F(theta) + lam/2 ||theta - w||^2 as the local loss of w (pFedMe, Dinh et al. 2020, eq. 3).

    theta is found by `steps` gradient steps of size `rate` from w, on the step's batch; then w <- w - lr lam (w - theta), eq. 4.
    After its training a client finds theta once more, by full gradients on all of its data, keeps it as its state and is evaluated
    with it, with a batch norm's statistics of w. steps = 1 is FedAvg with the learning rate lr lam rate. The public code goes on
    from the theta of the step before, and evaluates with that of the last batch.
    """

    lam: Annotated[PositiveFloat, LogRange(1, 50)] = 15.0
    steps: PositiveInt = 5
    rate: Annotated[PositiveFloat, LogRange(1e-3, 0.1)] = 0.01

    needs_data = True
    takes_loss = True

    @property
    def inner_loop(self) -> InnerLoop:
        return InnerLoop(self.steps, self.rate, self.lam)

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        def task(theta: Tree) -> Tensor:
            return client.task_loss(client.at(batch, theta), batch)

        w = tree.detach(client.params)
        theta = tree.detach(self._minimizer(grad(task), w, client.received_params))
        drift = tree.sub(client.params, theta)
        return task(theta) + self.lam / 2 * tree.dot(drift, drift)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        theta = self._minimizer(client.full_gradient, client.params, client.received_params)
        return tree.only(theta, client.state), {}

    def check(self, method: PartLookup, work: Work) -> None:
        if work.optimizer == "sgd" and work.lr * self.lam >= 2:
            warn(
                f"lr={work.lr:g} and lam={self.lam:g}: w overshoots theta more in each step, as lr lam >= 2; lower one of them",
            )

    def _minimizer(self, gradient: Callable[[Tree], Tree], w: Tree, moving: Iterable[str]) -> Tree:
        """theta after the inner steps from w; `moving` are the names of the parameters that move."""
        theta = w
        for _ in range(self.steps):
            g = tree.only(gradient(theta), moving)
            theta = theta | tree.map(
                lambda g, t, w: t - self.rate * (g + self.lam * (t - w)), g, theta, w
            )
        return theta
