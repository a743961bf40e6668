"""Whether an update points against the others of its round, or those of a site against the others in round after round."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from math import sqrt
from statistics import median_low

from unalike.core import tree
from unalike.core.types import Tree
from unalike.training.server.norm_guard import Norms, Objects

LEAST_COMPARED_SITES = 5
"""With fewer sites in a group the directions of the others say little: an honest one of three points against both now and then."""

LEAST_COMPARED_ROUNDS = 3
"""Rounds before the mean of a site's cosines says anything: in the first one drift is not yet taken out."""

REMEMBERED_SHARE = 0.8
"""The share of the rounds before that still counts after each round: a site that was honest for long may not oppose for long."""

OPPOSED_COSINE = -0.25
"""The mean cosine below which a site opposes the others where honest updates point alike."""

Cosines = Mapping[str, Mapping[str, float]]
"""Object -> site -> the cosine between what it sent and the sum of the others' directions."""


class OpposingSites:
    """Sites whose updates, or changes, point against those of the others over the rounds.

    A site opposes where the mean of its cosines is below `OPPOSED_COSINE` after `LEAST_COMPARED_ROUNDS` rounds, and below the
    median of all sites by as much: in the first rounds all control variates may point against each other. Earlier rounds count
    ever less.

    This holds for methods whose parts take drift out (`updates_point_alike`) alone: without, the updates of a model that has
    converged add up to zero, so that each honest one points against the sum of the others.
    """

    def __init__(self) -> None:
        self.cosines: dict[str, dict[str, list[float]]] = {}
        """Object -> site -> the number of its rounds, and the sums of their weights and of the weighted cosines."""

    def add(self, cosines: Cosines) -> None:
        """Take in a round."""
        for what, cosine_of in cosines.items():
            sums = dict(self.cosines.get(what, {}))
            for site, cosine in cosine_of.items():
                rounds, weight, total = sums.get(site, [0, 0.0, 0.0])
                sums[site] = [
                    rounds + 1,
                    REMEMBERED_SHARE * weight + 1,
                    REMEMBERED_SHARE * total + cosine,
                ]
            self.cosines[what] = sums

    def mean_cosine(self, what: str, site: str) -> float:
        """The mean cosine of what a site that opposes sent; 0 for one that does not, or not yet."""
        means = {}
        for other, (rounds, weight, total) in self.cosines.get(what, {}).items():
            if rounds >= LEAST_COMPARED_ROUNDS:
                means[other] = total / weight
        if site not in means:
            return 0.0
        # Where most sites point against the others, as control variates do at first, nobody stands out.
        usual = min(median_low(means.values()), 0.0)
        return means[site] if means[site] < usual + OPPOSED_COSINE else 0.0


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

    def cosines(self, whats: Collection[str]) -> Cosines:
        """The cosines between u_k and sum over the other sites j of u_j / ||u_j||, of sites in groups of `LEAST_COMPARED_SITES`."""
        cosines: dict[str, dict[str, float]] = defaultdict(dict)
        for what in whats:
            squares: dict[tuple[str, ...], float] = {}
            for site, group in self._group_of.items():
                norm = self._norms[site].get(what, 0.0)
                if len(group) < LEAST_COMPARED_SITES or not norm:
                    continue
                total = self._sum(group, what)
                members = tuple(group)
                if members not in squares:
                    squares[members] = float(tree.dot(total, total))
                with_all = float(tree.dot(self._object(site, what), total)) / norm
                # Without the site's own direction, which has length 1.
                square = squares[members] - 2 * with_all + 1
                cosines[what][site] = (with_all - 1) / sqrt(square) if square > 0 else 0.0
        return cosines

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
