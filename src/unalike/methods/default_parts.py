"""The three parts of FedAvg (McMahan et al. 2017). A method has them unless another part takes their role."""

from typing import ClassVar

from torch import Tensor

from unalike.core.types import Batch
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.roles import BaseWeights, LinearAggregator, TaskObjective


@part
class TaskLoss(TaskObjective):
    """The mean loss of the task over the batch: cross-entropy, binary cross-entropy or squared error, by the labels.

    With `loss=` of the work it is that loss.
    """

    takes_loss: ClassVar[bool] = True
    unlike_networks = "equal shapes"

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        return client.task_loss(client.out(batch), batch)


@part
class BySize(BaseWeights):
    """p_k = n_k / sum_j n_j over the clients of the round: every sample counts the same."""

    unlike_networks = "equal shapes"

    def weights(self, cohort: Cohort) -> Tensor:
        return cohort.sizes / cohort.sizes.sum()

    def importance(self, cohort: Cohort) -> Tensor:
        return cohort.relative_sizes


@part
class Mean(LinearAggregator):
    """w+ = w + sum_k p_k (w_k - w): the weighted mean of the clients' models."""

    unlike_networks = "equal shapes"

    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        return weights
