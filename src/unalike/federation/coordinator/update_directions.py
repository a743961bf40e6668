"""Whether an update points against the others of its round, by which the norm guard gives it less room."""

from collections.abc import Callable, Collection, Mapping

from unalike.core import tree
from unalike.core.types import Tree
from unalike.training.server.norm_guard import Norms, Objects

LEAST_COMPARED_SITES = 5
"""With fewer sites in a group the directions of the others say little: an honest one of three points against both now and then."""


class UpdateDirections:
    """The directions u_k / ||u_k|| of the updates of a round, and of their messages.

    `groups` are the sites that train one model each: others cannot be compared. `read` gives what a site sent, as it counts. It is
    on disk, and read when an update is asked about, which is in few rounds.
    """

    def __init__(
        self,
        groups: Collection[Collection[str]],
        norms: Mapping[str, Norms],
        read: Callable[[str], Objects],
    ):
        self._norms = norms
        self._read = read
        self._group_of = {site: group for group in groups for site in group}
        self._sums: dict[tuple[str, ...], Tree] = {}

    def opposes(self, site: str, what: str) -> bool:
        """Whether <u_k, sum over the other sites j of u_j / ||u_j||> < 0; of fewer sites than `LEAST_COMPARED_SITES` none is."""
        group = self._group_of[site]
        if len(group) < LEAST_COMPARED_SITES:
            return False
        # The sum over all sites has the site's own direction, whose inner product with its update is the update's norm.
        with_all = tree.dot(self._object(site, what), self._sum(group, what))
        return float(with_all) < self._norms[site][what]

    def _sum(self, group: Collection[str], what: str) -> Tree:
        """The sum of the directions of a group's sites."""
        key = (what, *group)
        if key not in self._sums:
            total: Tree = {}
            for site in group:
                norm = self._norms[site].get(what, 0.0)
                if norm:
                    total = tree.total(total, tree.scale(self._object(site, what), 1 / norm))
            self._sums[key] = total
        return self._sums[key]

    def _object(self, site: str, what: str) -> Tree:
        return tree.map(tree.exact, self._read(site)[what])
