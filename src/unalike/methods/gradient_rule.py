"""How the gradient of a local step is found, and what its batch counts as.

A local step knows no more of it than `GradientRule`. Where no part of the method brings a rule (role `LocalGradient`), the
executor chooses an ordinary one, of one client or of stacked ones (`AutogradRule`, `StackedRule` in `training.client.local_step`).
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from unalike.core.types import Batch, PartTrees, Tree


class StepValues(NamedTuple):
    """The values that a step gives beside the gradients.

    `task_loss` is the mean of the task's loss before the step, `buffers` are the shared model's after it, `own_buffers` those of
    the parts' models.
    """

    task_loss: Tensor
    buffers: Tree
    own_buffers: PartTrees


class StepLoss(Protocol):
    """The local loss of one step, the sum of all parts' terms, as a function of the solver's variables and the samples."""

    @property
    def buffers(self) -> Tree:
        """Buffers of the shared model before the step."""

    @property
    def own_buffers(self) -> PartTrees:
        """Buffers of the parts' models before the step."""

    def __call__(self, variables: PartTrees, batch: Batch) -> tuple[Tensor, StepValues]:
        """The loss, differentiable in the variables; beside it the step's values, without a graph."""


class GradientRule(Protocol):
    """Finds the gradients in the steps of one phase, of one client or of stacked ones."""

    @property
    def allows_more_gradients(self) -> bool:
        """Whether a correction may ask for gradients of the same samples at other parameters."""

    @property
    def counts_empty_batches(self) -> bool:
        """Whether a batch without a row that counts is a step as well; else the step on it is undone."""

    def gradients(
        self, loss: StepLoss, variables: PartTrees, batch: Batch
    ) -> tuple[PartTrees, StepValues]:
        """The gradients of the loss at these variables, and the step's values, as far as they may leave it."""

    def rows_of(self, batch: Batch) -> Tensor | float:
        """The number of samples that a batch counts as, a scalar."""
