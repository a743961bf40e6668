"""The norm guard: scales down an update that is much larger than the others, and names the sender of a round that is discarded."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite
from statistics import median_low
from types import MappingProxyType

from unalike.core import tree
from unalike.core.types import ClientUpdate, Tree
from unalike.training.server.update_checks import MIN_SUSPICIOUS_LOSS, OVERSIZED_MULTIPLE

MAX_KEPT_NORMS = 20
"""Norms of a site's accepted updates that are kept."""

LEAST_SITES = 3
"""With fewer sites in a round the median is the smaller norm of two, and nobody knows which one is wrong."""

MULTIPLE_OF_TWO = 10.0
"""The least multiple of the median that is scaled down there."""

OPPOSED_MULTIPLE = 1.5
"""The multiple of the median above which an update that points against the others is scaled down."""

MESSAGE_ALLOWANCE = 10.0
"""Messages and buffers may differ so many times more than updates."""

MESSAGE_SHARE = 0.01
"""Messages and buffers whose norm is below this share of that of the parameters are never scaled down."""

Norms = Mapping[str, float]
"""Object (the update, a part's message, the buffers) -> its norm."""
Objects = Mapping[str, Tree]
"""Object -> its floating-point values."""
Opposes = Callable[[str, str], bool]
"""Whether a site's object points against those of the others; by site and object."""

MIN_OUTLIER_MULTIPLE = 2.0
"""The least multiple of the usual norm by which a site is named for a round that had to be discarded."""


def opposes_nobody(site: str, what: str) -> bool:
    """The answer where directions are not compared."""
    return False


@dataclass
class NormGuard:
    """Scales an update of more than `multiple` times the median norm down to the median; 0 scales nothing.

    u <- u median / ||u|| where ||u|| > multiple * median, of the norms of this round and the last accepted ones, as they were
    sent. In the median each site has the same weight: one that answers more often counts no more. An update that is far too large
    counts as a usual one, and a site that is honestly larger still counts. Scaled to the bound itself, it would count as `multiple`
    usual ones. The median is the lower one of two middle norms, so that of two sites the smaller update is the measure. A site with
    k times the usual number of steps may send k times as much. With fewer than `LEAST_SITES` sites the multiple is
    `MULTIPLE_OF_TWO` at least.

    An update that points against the others counts so above `OPPOSED_MULTIPLE` times the median: it takes the model back, which
    an honest one of ordinary size does, too, where sites differ. The same holds for `changes`.

    Messages and buffers have `MESSAGE_ALLOWANCE` times as much room, and are never scaled below `MESSAGE_SHARE` of the norm of the
    model's parameters.

    The server adds up `changes`, so that what is wrong in one stays. They have the room of updates; what is usual of them is at
    least `MESSAGE_SHARE`, since the control variates of a model that has converged are tiny, and honest ones then differ much. A
    site that was away sends the change of k rounds, which may be k times as large, for `MESSAGE_ALLOWANCE` rounds at most.

    The median of a minority's exaggerations is the majority's. A scaled-up update is bounded by this, one of ordinary size that
    points somewhere else (sign flip, label flip) is not: that takes a robust aggregator. An update of zero is refused where others
    move: a site that returns the model unchanged has trained nothing.

    Source: norm clipping (Sun et al. 2019, "Can you really backdoor federated learning?", section 4), here with a median.
    """

    multiple: float
    changes: Collection[str] = ()
    seen: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Object -> site -> the norms of its last accepted ones."""

    def faults(self, client_updates: Mapping[str, Norms]) -> dict[str, str]:
        """Site -> why it is refused."""
        faults: dict[str, str] = {}
        norm_of = _by_object(client_updates).get("update", {})
        if not self.multiple or not self._usual("update", norm_of) > 0:
            return faults
        for site, norm in norm_of.items():
            if not norm:
                faults[site] = "its update is zero where others move: it trained nothing"
        return faults

    def scaled_norms(
        self,
        client_updates: Mapping[str, Norms],
        steps: Mapping[str, float] = MappingProxyType({}),
        params_norm: float = 0.0,
        rounds: Mapping[str, int] = MappingProxyType({}),
        opposes: Opposes = opposes_nobody,
    ) -> dict[str, dict[str, float]]:
        """Site -> object -> the norm that it is scaled down to, for those that are larger.

        `steps` are the sites' local steps, `params_norm` is the norm of the parameters that they were sent, `rounds` are those
        since a site's last update that counted. `opposes` is asked where the answer decides.
        """
        scaled: dict[str, dict[str, float]] = {}
        if not self.multiple:
            return scaled
        usual_steps = median_low(steps.values()) if steps else 1.0
        for what, norm_of in _by_object(client_updates).items():
            usual = self._usual(what, norm_of)
            if not usual > 0:
                continue
            multiple = self.multiple
            if len(norm_of) < LEAST_SITES:
                multiple = max(multiple, MULTIPLE_OF_TWO)
            for site, norm in norm_of.items():
                # who makes k times as many steps may move k times as far
                expected = usual * max(1.0, steps.get(site, usual_steps) / usual_steps)
                limit = multiple * expected
                floor = MESSAGE_SHARE * params_norm
                if what in self.changes:
                    expected = max(expected * min(rounds.get(site, 1), MESSAGE_ALLOWANCE), floor)
                    limit = multiple * expected
                elif what != "update":
                    expected = max(expected, floor)
                    limit = max(MESSAGE_ALLOWANCE * limit, floor)
                is_summed = what == "update" or what in self.changes
                may_oppose = is_summed and OPPOSED_MULTIPLE * expected < norm <= limit
                if norm > limit or (may_oppose and opposes(site, what)):
                    scaled.setdefault(site, {})[what] = expected
        return scaled

    def _usual(self, what: str, norm_of: Mapping[str, float]) -> float:
        """The lower median of this object's norms, in which each site has the weight 1; 0 without any."""
        norms_of = dict(self.seen.get(what, {}))
        for site, norm in norm_of.items():
            norms_of[site] = [*norms_of.get(site, []), norm]
        weighted = []
        for norms in norms_of.values():
            weighted += [(norm, Fraction(1, len(norms))) for norm in norms]

        # the least norm up to which half of the weight lies
        below = Fraction(0)
        for norm, weight in sorted(weighted):
            below += weight
            if 2 * below >= len(norms_of):
                return norm
        return 0.0

    def accept(self, client_updates: Mapping[str, Norms]) -> None:
        """Keep the norms, as they were sent, of updates that counted."""
        for site, norms in client_updates.items():
            for what, norm in norms.items():
                of_sites = self.seen.setdefault(what, {})
                of_sites[site] = [*of_sites.get(site, []), norm][-MAX_KEPT_NORMS:]


def outlier(client_updates: Mapping[str, Norms]) -> tuple[str, float] | None:
    """The site with the largest norm and how many times the usual it is; None if no site stands out."""
    times_usual = dict.fromkeys(client_updates, 0.0)
    for norm_of in _by_object(client_updates).values():
        usual = median_low(norm_of.values())
        for site, norm in norm_of.items():
            if usual > 0:
                times_usual[site] = max(times_usual[site], norm / usual)
    site = max(times_usual, key=times_usual.__getitem__, default="")
    if times_usual.get(site, 0.0) > MIN_OUTLIER_MULTIPLE:
        return site, times_usual[site]
    return None


def _by_object(client_updates: Mapping[str, Norms]) -> dict[str, dict[str, float]]:
    """Object -> site -> its norm, in the order of the objects' names."""
    names = sorted({what for norms in client_updates.values() for what in norms})
    by_object: dict[str, dict[str, float]] = {what: {} for what in names}
    for site, norms in client_updates.items():
        for what, norm in norms.items():
            by_object[what][site] = norm
    return by_object


def why_implausible(losses: Collection[float], best: float) -> str:
    """The reason why a model cannot be used, by the losses that clients report of it; empty if it can.

    The lower middle of the losses counts, so that no client alone can speak against a model. `best` is the least such loss yet.
    """
    loss = median_low(losses)
    if not isfinite(loss):
        return "the model gives losses that are not finite"
    if loss > OVERSIZED_MULTIPLE * best + MIN_SUSPICIOUS_LOSS:
        return f"the loss at most clients is {loss:.3g}; the best so far was {best:.3g}"
    return ""


def objects(client_update: ClientUpdate, update: Tree) -> Objects:
    """The objects of a client update; `update` is its decoded update."""
    found = {"update": update, "buffers": _floats(client_update.buffers)}
    for part, message in client_update.messages.items():
        found[message_of(part)] = _floats(message)
    return found


def norms(client_update: ClientUpdate, update: Tree) -> Norms:
    """The norms of a client update; `update` is its decoded update."""
    norm_of: dict[str, float] = {}
    for what, values in objects(client_update, update).items():
        if values:
            exact = tree.map(lambda t: t.double(), values)
            norm_of[what] = float(tree.norm(exact))
    return norm_of


def message_of(part: str) -> str:
    """The object that a part's message is."""
    return f"message of {part}"


def _floats(values: Tree) -> Tree:
    return {name: t for name, t in values.items() if t.is_floating_point()}
