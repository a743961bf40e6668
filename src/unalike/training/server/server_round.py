"""A round on the server, as all phases of the server half see it: the view of each part, and the weights of the clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import index_of
from unalike.core.views import Cohort, ServerState, ServerView, StageSettings
from unalike.methods import return_checks
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import BaseWeights, LinearAggregator, Weighting


@dataclass(frozen=True)
class SumWeights:
    """Factors of the clients' updates and buffers in the sums of a linear method.

    Of K clients: `weights` [K] are the factors of their buffers, `coefficients` [K] those of their updates;
    `fold` is given their `importance` [K] in the objective.
    """

    ids: tuple[int, ...]
    weights: Tensor
    coefficients: Tensor
    importance: Tensor

    @cached_property
    def places(self) -> dict[int, int]:
        """Client -> its index among `ids`."""
        return {client: place for place, client in enumerate(self.ids)}

    def of(self, ids: Sequence[int]) -> SumWeights:
        """The factors of some of the clients."""
        ids = tuple(ids)
        if ids == self.ids:
            return self
        rows = index_of([self.places[client] for client in ids])
        return SumWeights(ids, self.weights[rows], self.coefficients[rows], self.importance[rows])


@dataclass(frozen=True)
class ServerRound:
    """A method on the server in one round, before the round changes its `state`; `population` clients have training samples."""

    method: Method
    settings: StageSettings
    state: ServerState
    population: int

    def view(self, part: Part, names: Iterable[str]) -> ServerView:
        """The view of a part, with the parameters of these names."""
        return ServerView(
            settings=self.settings,
            method=self.method,
            params=tree.only(self.state.params, names),
            state=self.state.part_states.get(part.name, {}),
            round=self.state.round,
            population=self.population,
            part=part.name,
        )

    def rounds_since(self, started_from: Mapping[int, int]) -> dict[int, int]:
        """Client -> number of rounds since the one whose model it trained."""
        return {client: self.state.round - number for client, number in started_from.items()}

    def weights(self, cohort: Cohort) -> Tensor:
        """The weights of the clients [K], of sum 1, before the aggregator has a say. Raises `UnalikeError` without any sample."""
        if not float(cohort.sizes.sum()) > 0:
            raise UnalikeError(
                "no client of this round has training samples; the model stays as it is"
            )
        count = len(cohort.ids)
        [base] = self.method.role(BaseWeights)
        with return_checks.errors_name_hook(base, "weights"):
            weights = base.weights(seen_by(base, cohort))
        weights = return_checks.check_weights(base, "weights", weights, count)
        for part in self.method.role(Weighting):
            with return_checks.errors_name_hook(part, "weigh"):
                weights = part.weigh(seen_by(part, cohort), weights / weights.sum())
            weights = return_checks.check_weights(part, "weigh", weights, count)
        return weights / weights.sum()

    def coefficients(self, cohort: Cohort, weights: Tensor) -> Tensor:
        """The factors [K] of the updates in the sum that a linear aggregator makes of them."""
        rule = cast(LinearAggregator, self.method.aggregator)
        view = self.view(rule, cohort.stacked.update)
        return rule.coefficients(view, seen_by(rule, cohort), weights)

    def importance(self, cohort: Cohort) -> Tensor:
        """N p_k [K], p_k the weight of a client in the objective over all N clients."""
        [base] = self.method.role(BaseWeights)
        importance = base.importance(seen_by(base, cohort))
        return return_checks.check_weights(base, "importance", importance, len(cohort.ids))

    @profiled_function("aggregation")
    def sum_weights(self, expected: Cohort) -> SumWeights:
        """The factors of the sums of a linear method, from the numbers of the `expected` client updates alone."""
        weights = self.weights(expected)
        return SumWeights(
            ids=expected.ids,
            weights=weights,
            coefficients=self.coefficients(expected, weights),
            importance=self.importance(expected),
        )


def seen_by(part: Part, cohort: Cohort) -> Cohort:
    """The cohort as a part sees it, with its own messages."""
    return replace(cohort, part=part.name)
