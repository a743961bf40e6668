"""Newton's method: a linear or logistic model, fitted exactly from sums over the clients."""

from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from unalike.core import tree
from unalike.core.tasks.task import SEPARATE_LOSSES
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.core.work import Work
from unalike.methods.linear_head import LinearHead, generalized_inverse
from unalike.methods.part import Setup, part
from unalike.methods.roles import LocalWork, ServerStep, TaskObjective
from unalike.methods.search_space import OneOf

CONVERGED_MOVE = 1e-6
"""Largest move of a coefficient, relative to the largest coefficient, after which a fit has converged."""

ROUNDING = 1e-9
"""The share by which a client's sums may differ from what its other numbers say."""


@part
class Newton(TaskObjective, LocalWork, ServerStep):
    """b+ = b - (H + L)^- (g + L b), with the sums g = sum_k X_k^T (mu_k - y_k) and H = sum_k X_k^T W_k X_k over the clients: a
    linear or logistic model, fitted exactly (GLORE, Wu et al. 2012).

    The fit is that of the pooled samples. X [n, Q] are the features and a column of ones, mu the predictions, W [n, R, R] the
    second derivatives of the loss in the logits: p (1 - p) for two classes, 2 for squared errors, whose first derivatives are
    2 (mu - y). b [R, Q] are the coefficients; of C classes R is C - 1, the differences from the first one. L is `l2` for weights
    and 0 for intercepts: the loss is sum_i loss_i + l2 / 2 ||b||^2. (H + L)^- is a generalized inverse, for columns that are sums
    of others, such as all categories of a column beside an intercept; predictions do not depend on which one.

    With one client it is iteratively reweighted least squares; a regression is done in one round. All clients take part in every
    round. The stage ends after a round that moves no coefficient by more than 1e-6 of the largest one. Where features separate a
    class, none does: there is no finite fit, and `l2` above 0 makes one.

    Sent as sums, in float64: g [P], H [P, P], the loss, and the numbers of samples, of clients, and of clients with fewer samples
    than the P = R Q coefficients, whose H may tell of single samples; with `robust_errors` also the squares g g^T [P, P], for
    standard errors that are robust by client. The sum of squares over few clients shows the g of each. The local step on all
    samples, which every method makes, is not used. Layers below the head stay as they are.
    """

    l2: Annotated[NonNegativeFloat, OneOf(0.0, 0.1, 1.0, 10.0)] = 0.0
    robust_errors: bool = True

    has_own_name: ClassVar[bool] = True
    stands_alone: ClassVar[bool] = True
    needs_data: ClassVar[bool] = True
    sums_stay_alike: ClassVar[bool] = True
    needs_of_task: ClassVar[str] = SEPARATE_LOSSES
    federation_note: ClassVar[str] = (
        "newton: the second derivatives that a site sends may tell of single samples if it has fewer of them than the model has "
        "coefficients; a secure aggregation shows their sums over the sites alone"
    )

    def work(self, work: Work) -> Work:
        return Work(batch_size=None, lr=work.lr, loss=work.loss)

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        return client.task_loss(client.out(batch), batch)

    def server_open(self, settings: StageSettings) -> Tree:
        head = LinearHead.of(settings)
        start = head.coefficients(settings.model.params)
        state = no_sums(start) | {"coefficients": start, "move": torch.full_like(start, torch.inf)}
        return state | self._squares(state["gradient"])

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        head = LinearHead.of(client.settings)
        params = client.initial_params | client.received_params
        weights = head.weights(params)
        sums = no_sums(weights[head.first :])
        for batch in client.data.whole:
            design = head.design(params, client.initial_buffers, client.context, batch)
            sums |= tree.add(head.sums(weights, design, batch), sums)

        samples = sums["samples"]
        sums["clients"] = torch.ones_like(samples)
        sums["small_clients"] = (samples < head.count).to(samples)
        return client.state, sums | self._squares(sums["gradient"])

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return message

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        return server.state | folded

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        head = LinearHead.of(server.settings)
        state = server.state
        before = head.coefficients(server.params)
        penalty = penalties(before, head.features, self.l2)
        slope = state["gradient"] + penalty * before.flatten()
        inverse = generalized_inverse(state["curvature"] + penalty.diag())
        move = -(inverse @ slope).view_as(before)

        # The coefficients are kept beside the model, in which they are rounded to its precision.
        moved = tree.zeros(update) | head.moved(update, move)
        return moved, state | {"coefficients": before + move, "move": move}

    def has_converged(self, server_state: Tree) -> bool:
        largest = server_state["coefficients"].abs().max()
        return bool(server_state["move"].abs().max() <= CONVERGED_MOVE * largest)

    @property
    def sums_show_clients(self) -> str:
        if not self.robust_errors:
            return ""
        return "the squares of each site's gradient, which their sum shows, unless with robust_errors=False"

    def why_impossible(self, message: Tree, samples: int) -> str:
        parameters = len(message["gradient"])
        exact = {
            "samples": message["samples"].new_tensor(samples),
            "clients": torch.ones_like(message["clients"]),
            "small_clients": message["small_clients"].new_tensor(samples < parameters),
        }
        exact |= self._squares(message["gradient"])
        for name, expected in exact.items():
            if not torch.allclose(message[name], expected, rtol=ROUNDING):
                return f"{name} are not those of a client with {samples} samples and this gradient"

        # Rounding is less than what is added to the diagonal, by which Cholesky's factor exists.
        curvature = message["curvature"]
        rounding = ROUNDING * curvature.diagonal().abs().max().clamp_min(1)
        added = rounding * torch.eye(parameters).to(curvature)
        _, row = torch.linalg.cholesky_ex(curvature + added)
        if row or (curvature - curvature.T).abs().max() > rounding:
            return "the second derivatives are not those of a convex loss: symmetric, and nowhere negative"
        return ""

    def _squares(self, gradient: Tensor) -> Tree:
        """The squares of a client's gradient [P], if they are sent."""
        return {"squares": torch.outer(gradient, gradient)} if self.robust_errors else {}

    def shortfall(self, setup: Setup) -> str:
        model = setup.model
        if any(model.trainable(name) and not model.in_head(name) for name in model.params):
            return "layers below the head stay as they began, and the head alone is fitted; expected model='logistic' or 'linear'"
        if setup.participants < setup.clients:
            return "not all clients take part in a round, and the sums are those of some"
        return ""


def no_sums(coefficients: Tensor) -> Tree:
    """Sums over no sample and no client, for these coefficients [R, Q]."""
    gradient = torch.zeros_like(coefficients).flatten()
    number = gradient.new_zeros(())
    matrix = torch.outer(gradient, gradient)
    return {
        "loss": number,
        "gradient": gradient,
        "curvature": matrix,
        "samples": number,
        "clients": number,
        "small_clients": number,
    }


def penalties(coefficients: Tensor, features: int, l2: float) -> Tensor:
    """`l2` for the weights of the features and 0 for intercepts, [P] for coefficients [R, Q]."""
    penalty = torch.full_like(coefficients, l2)
    penalty[:, features:] = 0
    return penalty.flatten()
