"""SCAFFOLD: control variates correct the local gradient for client drift."""

from typing import Annotated, ClassVar, Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from unalike._utils.errors import UnalikeError, warn
from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, PartLookup, ServerView
from unalike.core.work import Work
from unalike.methods.part import Pull, Setup, part
from unalike.methods.roles import Correction, ServerStep
from unalike.methods.search_space import LogRange


@part
class ControlVariates(Correction, ServerStep):
    """g <- g - c_i + c (SCAFFOLD, Karimireddy et al. 2020, algorithm 1).

    After K steps from x to y the client's variate becomes, by `option` 2, c_i+ = c_i - c + (x - y) / (K lr), or, by option 1,
    c_i+ = the gradient of its local data at x. The server then moves by server_lr times the update, and
    c <- c + sum_P p_i (c_i+ - c_i), p_i the weights of all N clients in the objective: 1/N in the paper (`scaffold` brings
    `uniform`), shares of samples with `weighted=True`. All variates start at 0, so round 1 is FedAvg; sum_i p_i c_i is c at any
    time. Only parameters have variates, buffers have none.

    Option 2 assumes plain SGD: with local momentum, or Adam, (x - y) / (K lr) is no mean gradient, and training can diverge, which
    is warned of; `control_variates_after_momentum` corrects steps with momentum.
    """

    sends_changes: ClassVar[bool] = True
    update_again: ClassVar[Literal["", "as it is", "by steps"]] = "by steps"
    updates_point_alike: ClassVar[bool] = True

    option: Literal[1, 2] = 2
    server_lr: Annotated[NonNegativeFloat, LogRange(0.1, 3)] = 1.0
    rank: ClassVar[int] = ServerStep.DYNAMIC

    @property
    def needs_data(self) -> bool:
        return self.option == 1

    def server_init(self, params: Tree) -> Tree:
        return tree.zeros(params)

    def client_init(self, params: Tree) -> Tree:
        return tree.zeros(params)

    def broadcast(self, server: ServerView) -> Tree:
        return server.state

    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        return tree.map(lambda g, c_i, c: g - c_i + c, grads, client.state, client.message)

    def pull(self, client: ClientView) -> Pull:
        correction = tree.map(
            lambda _, c_i, c: c - c_i, client.received_params, client.state, client.message
        )
        return Pull(strength=0.0, constant=correction)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        gradient = self._mean_gradient(client)
        new = client.state | tree.only(gradient, client.received_params)
        change = tree.sub(tree.only(new, client.received_params), client.state)
        return new, change

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return tree.scale(message, importance)

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        c = tree.map(lambda d, c: c + d / server.population, folded, server.state)
        return server.state | c

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return tree.scale(update, self.server_lr), server.state

    def check(self, method: PartLookup, work: Work) -> None:
        if self.option == 2 and (work.momentum or work.optimizer != "sgd"):
            warn(
                "control_variates(option=2) takes (x - y) / (K lr) for the mean gradient, which holds for plain SGD only; "
                f"found optimizer={work.optimizer!r}, momentum={work.momentum}. With momentum, scaffold(after_momentum=True) "
                "corrects the step instead of the gradient",
            )

    def shortfall(self, setup: Setup) -> str:
        if setup.steps[1] > 1 or setup.participants < setup.clients:
            return ""
        return "all clients take part with one local step, so that the variates cancel in the mean"

    def _mean_gradient(self, client: ClientView) -> Tree:
        """The new variate: the gradient of the local data at x, or c_i - c + (x - y) / (K lr)."""
        if self.option == 1:
            return client.full_gradient(client.initial_params)
        scale = 1 / (client.steps * client.lr)
        x = tree.only(client.initial_params, client.received_params)
        y, c_i, c = client.params, client.state, client.message
        return tree.map(lambda x, y, c_i, c: c_i - c + (x - y) * scale, x, y, c_i, c)


@part
class ControlVariatesAfterMomentum(ControlVariates):
    """SCAFFOLD that corrects the step instead of the gradient: v <- v - lr (m - c_i + c), m the momentum of the gradients.

    This is what NIID-Bench's code does (Li et al. 2022). Variates are means of momentum steps, (x - y) / (K lr), and so is
    what they correct. The same as a gradient, since the momentum rho of a constant a is a at every step if the gradient adds
    a at the first step, and (1 - rho) a at each later one. Without momentum it is `control_variates`. Everything else is, too.

    Raises `UnalikeError` for Nesterov's momentum, for Adam, and for an optimizer state that is kept between rounds.
    """

    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        share = 1 - client.settings.work.momentum if client.step else 1.0
        return tree.map(
            lambda g, c_i, c: g + share * (c - c_i), grads, client.state, client.message
        )

    def pull(self, client: ClientView) -> Pull:
        share = 1 - client.settings.work.momentum
        correction = super().pull(client).constant
        constant = tree.map(lambda a: share * a, correction)
        return Pull(strength=0.0, constant=constant, momentum=correction)

    def check(self, method: PartLookup, work: Work) -> None:
        if work.optimizer != "sgd" or work.nesterov or work.keep_optimizer_state:
            raise UnalikeError(
                f"{self.name} expects SGD, with or without momentum, that starts anew in every round; found "
                f"optimizer={work.optimizer!r}, nesterov={work.nesterov}, keep_optimizer_state={work.keep_optimizer_state}"
            )
