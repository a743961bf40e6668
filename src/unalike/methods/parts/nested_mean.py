"""HeteroFL: clients with wider and narrower copies of one network."""

from torch import Tensor

from unalike.core.views import Cohort, ServerView
from unalike.methods.method import alias
from unalike.methods.part import Setup, part
from unalike.methods.roles import LinearAggregator


@alias(
    "heterofl",
    "Narrow networks are corners of wide ones, and each entry the mean of those that have it (Diao et al. 2021).",
)
@part
class NestedMean(LinearAggregator):
    """w[i] <- w[i] + sum_k p_k u_k[i] / sum_k p_k over the clients k whose network has entry i (HeteroFL, Diao et al. 2021, eq. 2).

    Clients may have unlike networks: a narrower one holds the leading rows and columns of the parameters of a wider one. With
    one network for all it is FedAvg. Three things of the paper are left out: the scaler by which a narrow network multiplies its
    activations in training, the cross-entropy over the client's own classes alone, and batch norm without running statistics (here
    each network averages its own). The paper counts clients alike: add `uniform`.
    """

    unlike_networks = "corners"

    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        return weights

    def shortfall(self, setup: Setup) -> str:
        return (
            ""
            if setup.networks > 1
            else "all clients have one network, which the plain mean averages, too"
        )
