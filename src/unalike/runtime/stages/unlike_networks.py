"""Exchange between groups of clients with unlike networks in a round: the seam beside the round loop."""

from collections.abc import Callable, Mapping
from functools import reduce

from torch import Tensor

from unalike.core import tree
from unalike.core.corners import corner, mean_of_corners
from unalike.core.types import PartTrees, Tree
from unalike.core.views import Cohort, Members
from unalike.runtime.stages.model_group import Gathered, ModelGroup
from unalike.training.server.kept_updates import UpdateBuffer
from unalike.training.server.server_update import Aggregate, nobody, zero_update

Exchange = Callable[[Mapping[str, Gathered]], Mapping[str, Gathered]]
"""Group -> what a round brought to it, before and after the groups exchange what they have in common."""


def separate_groups(gathered: Mapping[str, Gathered]) -> Mapping[str, Gathered]:
    """Nothing crosses between the groups."""
    return gathered


class UnlikeNetworks:
    """The groups of one method, each with a network of its own, average over all clients what they have in common.

        u[i] = sum_g p_g u_g[i] / sum_g p_g over the networks g that have entry i,    folded = sum_g folded_g

    u_g is the combined update of the shared parameters of group g, p_g the weight of its clients among those of the round, and
    `folded` what the method's parts add up, such as features by class. Buffers stay with their network. So a method whose
    networks are equal moves as in one group.
    """

    def __init__(self, groups: Mapping[str, ModelGroup]):
        self.groups = groups
        clients = sum(group.members.clients for group in groups.values())
        samples = sum(group.members.samples for group in groups.values())
        self.members = Members(clients, samples)

    def __call__(self, gathered: Mapping[str, Gathered]) -> Mapping[str, Gathered]:
        arrived = {}
        for name, of_group in gathered.items():
            if of_group.aggregate is not None:
                arrived[name] = of_group.aggregate
        if not arrived:
            return gathered
        folded = _total_folded(arrived)

        # A network of which no client takes part moves, too, where others trained what it shares with them.
        complete = {}
        for name, group in self.groups.items():
            nothing = Aggregate(nobody(group.members), zero_update(group.server_round))
            complete[name] = arrived.get(name, nothing)
        means = self._mean_updates(complete, self._shares(arrived))

        joined = {}
        for name, aggregate in complete.items():
            update = {}
            for parameter, own in aggregate.combined.update.items():
                update[parameter] = corner(means[parameter], own.shape)
            combined = aggregate.combined._replace(update=update, folded=folded)
            aggregate = aggregate._replace(combined=combined)
            joined[name] = gathered[name]._replace(aggregate=aggregate)
        return joined

    def _mean_updates(
        self, aggregates: Mapping[str, Aggregate], shares: Mapping[str, float]
    ) -> Tree:
        """The mean update of each shared parameter over the networks that have it."""
        updates: dict[str, list[Tensor]] = {}
        shares_of: dict[str, list[float]] = {}
        for name, of_group in aggregates.items():
            for parameter, update in of_group.combined.update.items():
                updates.setdefault(parameter, []).append(update)
                shares_of.setdefault(parameter, []).append(shares.get(name, 0.0))
        means = {}
        for parameter, of_networks in updates.items():
            means[parameter] = mean_of_corners(of_networks, shares_of[parameter])
        return means

    def _shares(self, arrived: Mapping[str, Aggregate]) -> dict[str, float]:
        """The weight of each group's clients among all clients of the round, as if these were one cohort."""
        ids: list[int] = []
        for aggregate in arrived.values():
            ids += aggregate.cohort.ids
        numbers = UpdateBuffer(ids)
        for aggregate in arrived.values():
            numbers.add(aggregate.cohort.ids, aggregate.cohort.stacked.numbers)
        everybody = Cohort(
            ids=tuple(ids),
            stacked=numbers.stacked(ids),
            members=self.members,
            folded=True,
        )
        first, *_ = self.groups.values()
        weights = first.server_round.weights(everybody).tolist()

        shares = {}
        begin = 0
        for name, aggregate in arrived.items():
            end = begin + len(aggregate.cohort.ids)
            shares[name] = sum(weights[begin:end])
            begin = end
        return shares


def _total_folded(arrived: Mapping[str, Aggregate]) -> PartTrees:
    """The sums of all parts over the clients of all groups."""
    parts = dict.fromkeys(part for a in arrived.values() for part in a.combined.folded)
    folded = {}
    for part in parts:
        of_networks = [a.combined.folded.get(part, {}) for a in arrived.values()]
        folded[part] = reduce(tree.total, of_networks)
    return folded
