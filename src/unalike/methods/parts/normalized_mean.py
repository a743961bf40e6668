"""Means with further weights: FedNova by the clients' solver weights, L-DAWA by the direction of each tensor."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from unalike._utils.errors import UnalikeError, warn
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, PartLookup, ServerView
from unalike.core.work import Work
from unalike.methods.method import alias
from unalike.methods.part import Setup, part
from unalike.methods.parts.objectives import Proximal
from unalike.methods.roles import Aggregator, LinearAggregator


@alias(
    "fednova",
    "Updates normalized by the clients' local progress (Wang et al. 2020), or by their steps alone.",
)
@part
class NormalizedMean(LinearAggregator):
    """w+ = w + tau_eff sum_k p_k (w_k - w) / ||a_k||_1, tau_eff = sum_k p_k ||a_k||_1 (FedNova, Wang et al. 2020).

    ||a_k||_1 is the accumulated weight of the local solver: the steps tau_k for plain SGD, the momentum series with momentum.
    With `normalize_by` "steps" it is tau_k under every solver (the FedMix paper, figure 1). The proximal term does not enter it
    (the form of the FedMix paper) unless `prox_aware`: then, with alpha = lr mu, ||a_k||_1 = (1 - (1 - alpha)^tau_k) / alpha and
    tau_eff = sum_k p_k tau_k, as in the authors' code. Equal steps give FedAvg.
    """

    needs_steps: ClassVar[bool] = True

    prox_aware: bool = False
    normalize_by: Literal["series", "steps"] = "series"

    @model_validator(mode="after")
    def _one_rule(self) -> NormalizedMean:
        if self.prox_aware and self.normalize_by == "steps":
            raise ValueError(
                "prox_aware=True has a series of its own, which normalize_by='steps' would leave out"
            )
        return self

    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        a = cohort.steps if self.normalize_by == "steps" else cohort.solver_weights
        tau = a
        if self.prox_aware:
            a = self._proximal_weight(server, cohort.steps)
            tau = cohort.steps
        tau_eff = (weights * tau).sum()
        return tau_eff * torch.where(a > 0, weights / a, 0.0)

    def needs_rate(self, method: PartLookup) -> bool:
        return self.prox_aware and any(p.mu for p in method.role(Proximal))

    def check(self, method: PartLookup, work: Work) -> None:
        if self.prox_aware and work.momentum:
            raise UnalikeError(
                f"normalized_mean(prox_aware=True) with momentum={work.momentum} would count the momentum twice; "
                "set momentum to 0 or prox_aware to False"
            )
        if self.normalize_by == "steps":
            return
        if work.momentum and work.keep_optimizer_state:
            warn(
                "normalized_mean: the accumulated weight of steps is that of a momentum buffer which starts at 0, and "
                "keep_optimizer_state=True goes on with the last round's; clients of few steps count for too much",
            )
        if work.optimizer != "sgd":
            warn(
                f"normalized_mean: the accumulated weight of optimizer={work.optimizer!r} is not defined; "
                "the number of steps stands in for it, as in the FedMix paper",
            )

    def shortfall(self, setup: Setup) -> str:
        least, most = setup.steps
        if least < most:
            return ""
        steps = "local steps" if most > 1 else "local step"
        return f"all clients make {most} {steps}, so it is the plain mean"

    def _proximal_weight(self, server: ServerView, steps: Tensor) -> Tensor:
        """||a_k||_1 = (1 - (1 - alpha)^tau_k) / alpha with alpha = lr mu, [K]; tau_k where alpha is 0."""
        mu = sum(p.mu for p in server.method.role(Proximal))
        alpha = server.settings.work.lr_at(server.round) * mu
        if not alpha:
            return steps
        # in float32 the difference would lose alpha, 1e-5 with the defaults, to rounding
        return ((1 - (1 - alpha) ** tree.exact(steps)) / alpha).to(steps)


@part
class CosineMean(Aggregator):
    """w+_l = sum_k p_k min(cos(w_kl, w_l), 1) w_kl for each tensor l (L-DAWA, Rehman et al. 2023).

    The coefficients are not renormalized: where clients diverge the norm shrinks, and a client that turned round counts with a
    negative sign. The cosine is taken as 1 for scalars, for w_kl = 0 and for w_l = 0 (where the authors' code gives NaN). Clients
    that did not move leave w as it is. The mean is uniform in the paper (`ldawa` brings `uniform`). Float buffers are averaged
    with the same weights; the authors' code scales them too.
    """

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.map(
            lambda u, w: self._tensor(w, u, weights.to(u.dtype)), cohort.update, server.params
        )

    def _tensor(self, w: Tensor, u: Tensor, weights: Tensor) -> Tensor:
        models = w + u
        rows = tree.matrix(models)
        lengths = rows.norm(dim=1) * w.norm()
        cosine = (rows @ w.flatten() / lengths).clamp_max(1.0)
        factor = torch.where((lengths > 0) & (w.dim() > 0), cosine, 1.0)
        coefficients = weights * factor
        # sum_k c_k w_k - w, so that clients that did not move give 0 but for the rounding of the cosines
        return torch.tensordot(coefficients, u, dims=1) + (coefficients.sum() - 1) * w
