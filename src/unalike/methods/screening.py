"""The role that changes what the aggregator sees."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from unalike.core.views import Cohort, ServerView
from unalike.methods.part import Part


class Screening(Part):
    """A change of what the aggregator sees, chained by rank. All other parts see the updates as they came."""

    has_own_name: ClassVar[bool] = True
    needs = "updates"

    @abstractmethod
    def screen(self, server: ServerView, cohort: Cohort, weights: Tensor) -> tuple[Cohort, Tensor]:
        """Client updates and weights of `rows(K)` rows, from the decoded ones of K. Called once a round, by rank. No default.

        Args:
            server: View of the server before the round's update.
            cohort: The client updates, as parts of lower rank changed them; not empty.
            weights: Their weights [K], of sum 1.
        """

    def rows(self, clients: int) -> int:
        """Number of updates that the aggregator sees of so many clients. Default: of each its own."""
        return clients
