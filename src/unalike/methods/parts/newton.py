"""Newton's method: a generalized linear or Cox model, fitted exactly from sums over the clients."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.core.work import Work
from unalike.methods.linear_head import LinearHead, generalized_inverse, newton_move
from unalike.methods.part import Setup, part
from unalike.methods.parts.personalizers import OwnParameters
from unalike.methods.roles import LocalWork, ServerStep, TaskObjective
from unalike.methods.search_space import OneOf

CONVERGED_MOVE = 1e-6
"""Largest move of a coefficient, relative to the largest coefficient, after which a fit has converged."""
MOST_RISE = 1e-6
"""Largest rise of the loss in a round, relative to it, that counts as rounding."""
INTERCEPT_MOVES = 10
"""Moves of a client's own intercept in a round, from where the last round left it."""
ALL = slice(None)
"""All columns of a design."""
INTERCEPT = slice(-1, None)
"""The last column of a design with an intercept, which is its ones."""
ROUNDING = 1e-9
"""The share by which a client's sums may differ from what its other numbers say."""


@part
class Newton(TaskObjective, LocalWork, ServerStep):
    """b+ = b - (H + L)^- (g + L b), with the sums g = sum_k X_k^T (mu_k - y_k) and H = sum_k X_k^T W_k X_k over the clients: a
    linear, logistic or Poisson model, fitted exactly (GLORE, Wu et al. 2012), or a Cox model stratified by client.

    The fit is that of the pooled samples. X [n, Q] are the features and a column of ones, mu the predictions, W [n, R, R] the
    second derivatives of the loss in the logits: p (1 - p) for two classes, mu for counts, 2 for squared errors, whose first
    derivatives are 2 (mu - y). b [R, Q] are the coefficients; of C classes R is C - 1, the differences from the first one. L is
    `l2` for weights and 0 for intercepts: the loss is sum_i loss_i + l2 / 2 ||b||^2. (H + L)^- is a generalized inverse, for
    columns that are sums of others, such as all categories of a column beside an intercept; predictions do not depend on which one.

    For `survival`, g and H are those of the partial likelihood of each client's own samples: the Cox model with one baseline hazard
    for each client, whose risk sets have no sample of another one. It has no intercept, so X has no column of ones, and the head's
    bias stays as it began.

    The first round begins at coefficients of 0, whatever the model began with: from others Newton's method may overshoot. A move
    is shortened where the loss, which is at least 0, cannot fall as far as its quadratic model says, and half of it is taken back
    after a round in which the loss rose and still rises along the move: a convex loss does both, and a client with a false loss
    alone cannot end the fit. With one client and without these it is iteratively reweighted least squares; a regression is done in
    one round. All clients take part in every round. The stage ends after a round that moves no coefficient by more than 1e-6 of the
    largest one. Where features separate a class, none does: there is no finite fit, and `l2` above 0 makes one.

    Sent as sums, in float64: g [P], H [P, P], the loss, and the numbers of samples, of clients, and of clients with fewer samples
    than the P = R Q coefficients, whose H may tell of single samples; with `robust_errors` also the squares g g^T [P, P], for
    standard errors that are robust by client: over few clients they show the g of each. Layers below the head stay as they are.
    """

    l2: Annotated[NonNegativeFloat, OneOf(0.0, 0.1, 1.0, 10.0)] = 0.0
    robust_errors: bool = True

    has_own_name: ClassVar[bool] = True
    stands_alone: ClassVar[bool] = True
    needs_data: ClassVar[bool] = True
    sums_are_exact: ClassVar[bool] = True
    sums_stay_alike: ClassVar[bool] = True
    has_own_intercepts: ClassVar[bool] = False
    """Whether each client has an intercept of its own, which is no coefficient in common."""
    federation_note: ClassVar[str] = (
        "newton: the second derivatives that a site sends may tell of single samples if it has fewer of them than the model has "
        "coefficients; a secure aggregation shows their sums over the sites alone"
    )

    def work(self, work: Work) -> Work:
        return Work(batch_size=None, lr=work.lr, loss=work.loss)

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        return client.task_loss(client.out(batch), batch)

    def head(self, settings: StageSettings) -> LinearHead:
        """The coefficients that clients have in common."""
        return LinearHead.of(settings)

    def server_open(self, settings: StageSettings) -> Tree:
        start = self.head(settings).coefficients(settings.model.params)
        state = no_sums(start)
        first_move = {
            "coefficients": start,
            "move": torch.full_like(start, torch.inf),
            "stride": torch.zeros_like(start),
            "objective": start.new_tensor(torch.inf),
            "objective_samples": start.new_zeros(()),
        }
        return state | first_move | self._squares(state["gradient"])

    def fitted(self, client: ClientView) -> tuple[Tree, Tree]:
        """The client state after a look at all samples, and their sums at the received coefficients."""
        head = self.head(client.settings)
        params = client.initial_params | client.received_params
        samples = Samples.of(head, params, client)
        return client.state, samples.sums(of_round(client.round, head.weights(params)))

    def least_samples(self, settings: StageSettings) -> int:
        return LinearHead.of(settings).count

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        state, sums = self.fitted(client)
        gradient = sums["gradient"]
        samples = sums["samples"]
        sums["clients"] = torch.ones_like(samples)
        sums["small_clients"] = (samples < len(gradient)).to(samples)
        return state, sums | self._squares(gradient)

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return message

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        return server.state | folded

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        head = self.head(server.settings)
        state = server.state
        received = head.coefficients(server.params)
        before = of_round(server.round, received)
        penalty = penalties(before, head.features, self.l2)
        objective = state["loss"] + penalty @ before.flatten().square() / 2
        slope = state["gradient"] + penalty * before.flatten()
        move = newton_move(state["curvature"] + penalty.diag(), slope, objective).view_as(before)

        # Where the loss of the same samples rose, half of the last stride is taken back; what it began with stays the measure.
        # A convex loss that rose still rises here: without this a false loss would take every move back.
        samples = state["samples"]
        is_comparable = samples == state["objective_samples"]
        is_above = objective > (1 + MOST_RISE) * state["objective"]
        still_rises = slope @ state["stride"].flatten() > 0
        has_risen = is_comparable & is_above & still_rises
        stride = torch.where(has_risen, state["stride"] / 2, move)
        move = torch.where(has_risen, -stride, move)
        measure = {
            "stride": stride,
            "objective": torch.where(has_risen, state["objective"], objective),
            "objective_samples": samples,
        }

        # The coefficients are kept beside the model, in which they are rounded to its precision.
        moved = tree.zeros(update) | head.moved(update, before - received + move)
        return moved, state | measure | {"coefficients": before + move, "move": move}

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

        if message["loss"] < 0:
            return f"a loss of {float(message['loss']):.4g}; expected 0 or more"

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


@part
class NewtonOwnIntercepts(Newton, OwnParameters):
    """`newton` with an intercept of each client's own, a_k, beside the coefficients b in common: fixed effects by client.

    The fit is that of the pooled samples with a column of ones for each client in the place of the intercept. a_k(b) minimizes the
    loss of the client's samples at b, by Newton's method at the client, and stays there. What is sent are the derivatives of the
    loss at a_k(b) in b alone,

        g = g_b - H_ba H_aa^- g_a,   H = H_bb - H_ba H_aa^- H_ab,

    whose sums over the clients are those of the pooled model with all a_k eliminated (the Schur complement). Of C classes a_k has
    C - 1 entries. The personal model of a client has its own intercept; a client that never trained has that of the initial model.
    A client whose samples are all of one class has no finite intercept, and adds next to nothing to the sums.
    """

    has_own_name: ClassVar[bool] = True
    has_own_intercepts: ClassVar[bool] = True

    def head(self, settings: StageSettings) -> LinearHead:
        head = LinearHead.of(settings)
        if not head.has_intercept:
            raise UnalikeError(
                f"{self.name} fits an intercept for each client and found a task or a model without intercepts; expected a head "
                "with biases, and another task than survival, whose baseline hazards are each client's own: use newton"
            )
        return head.without_intercept

    def keeps(self, name: str, model: Model) -> bool:
        return name == f"{model.head_path}.bias"

    def shared(self, name: str, model: Model) -> bool:
        return not self.keeps(name, model)

    def fitted(self, client: ClientView) -> tuple[Tree, Tree]:
        head = LinearHead.of(client.settings)
        params = client.initial_params | client.received_params | client.state
        samples = Samples.of(head, params, client)
        weights = of_round(client.round, head.weights(params))
        for _ in range(INTERCEPT_MOVES):
            sums = samples.sums(weights, INTERCEPT)
            move = newton_move(sums["curvature"], sums["gradient"], sums["loss"])
            moves = torch.zeros_like(weights)
            moves[head.first :, -1] = move
            weights = weights + moves

        # The intercept comes last in each output's coefficients [R, Q].
        sums = samples.sums(weights)
        places = torch.arange(head.count).view(head.shape)
        shared = places[:, :-1].flatten()
        own = places[:, -1]
        gradient = sums["gradient"]
        curvature = sums["curvature"]
        mixed = curvature[shared][:, own]
        answer = mixed @ generalized_inverse(curvature[own][:, own])
        reduced = curvature[shared][:, shared] - answer @ mixed.T
        sums |= {
            "gradient": gradient[shared] - answer @ gradient[own],
            # symmetric but for rounding, which an inverse of nearly dependent rows makes large
            "curvature": (reduced + reduced.T) / 2,
        }
        kept = client.state[head.bias]
        bias = weights[:, -1].reshape(kept.shape)
        return {head.bias: bias.to(kept.dtype).to(kept.device)}, sums


@dataclass(frozen=True)
class Samples:
    """All samples of a client, as its head reads them: the designs [B, Q] and the batches that they are made of."""

    head: LinearHead
    batches: list[tuple[Tensor, Batch]]

    @classmethod
    def of(cls, head: LinearHead, params: Tree, client: ClientView) -> Self:
        batches = []
        for batch in client.data.whole:
            design = head.design(params, client.initial_buffers, client.context, batch)
            batches.append((design, batch))
        return cls(head, batches)

    def sums(self, weights: Tensor, columns: slice = ALL) -> Tree:
        """The sums of `LinearHead.sums` at weights [C, Q], with 0 for those that the part adds.

        Derivatives are in the coefficients of these `columns` of Q alone.
        """
        sums = no_sums(weights[self.head.first :, columns])
        for design, batch in self.batches:
            sums |= tree.add(self.head.sums(design @ weights.T, design[:, columns], batch), sums)
        return sums


def of_round(round: int, received: Tensor) -> Tensor:
    """The coefficients at which the sums of a round are taken: those received, and 0 in the first one."""
    return received if round else torch.zeros_like(received)


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
