"""Late updates that count less the older the model is that their clients trained: FedBuff and FedAsync."""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Gt, Le
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from unalike.core.views import Cohort, ServerView
from unalike.methods.part import Setup, part
from unalike.methods.roles import LinearAggregator
from unalike.methods.search_space import LogRange


def discounts(cohort: Cohort, staleness: float) -> Tensor:
    """(1 + a_k)^-staleness [K], a_k the age of an update (Xie et al. 2019, section 5.2, "polynomial"). 1 for staleness = 0."""
    return (1 + cohort.ages).pow(-staleness)


class ArrivedFirst(LinearAggregator):
    """An aggregator that awaits a number of updates, not those of all clients."""

    def shortfall(self, setup: Setup) -> str:
        if setup.participants <= self.updates_awaited:
            return f"a round has no more clients than the server awaits ({setup.participants}), so that no update is late"
        if not setup.updates_may_be_late:
            return (
                "no update counts late without simulated devices, or where late ones are dropped; give "
                "devices='lognormal(sigma=1)'"
            )
        return ""


@part
class DiscountedMean(ArrivedFirst):
    """w+ = w + server_lr sum_k p_k (1 + a_k)^-staleness (w_k - v_k), of the first `buffer` updates that arrive.

    v_k is the model that client k was sent, a_k the rounds of the server since then. The discounts are not normalized: old updates
    make a short step. Where the server awaits all clients of a round, ages are 0, and with server_lr = 1 it is FedAvg; so it is
    in a simulation without devices, where no update is late. Float buffers are the plain mean of the clients'.

    A client that has answered is asked again after the server's step, not at once: with equal devices the paper's clients would
    train the same model twice.

    Source: FedBuff (Nguyen et al. 2022, algorithm 1).
    """

    buffer: PositiveInt = 10
    server_lr: Annotated[PositiveFloat, LogRange(0.1, 1)] = 1.0
    staleness: NonNegativeFloat = 0.5

    @property
    def updates_awaited(self) -> float:
        return self.buffer

    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        return self.server_lr * weights * discounts(cohort, self.staleness)


@part
class ModelMixing(ArrivedFirst):
    """w+ = (1 - alpha) w + alpha w_k, alpha = mixing (1 + a_k)^-staleness, of each model w_k when it arrives.

    a_k is the number of rounds of the server since the model that client k was sent; others have moved w since then, which mixing
    takes back in part. mixing = 1 with a single client in a round, of age 0, is FedAvg. In a simulation without devices no model is
    late, and w is mixed with the mean of the models. Float buffers are those of the client.

    Source: FedAsync (Xie et al. 2019, algorithm 1).
    """

    mixes_models: ClassVar[bool] = True

    mixing: Annotated[float, Gt(0), Le(1), LogRange(0.1, 1)] = 0.6
    staleness: NonNegativeFloat = 0.5

    @property
    def updates_awaited(self) -> float:
        return 1

    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        return self.mixing * weights * discounts(cohort, self.staleness)
