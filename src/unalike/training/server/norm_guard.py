"""The norm guard: refuses an update that is much larger than the others, and names the sender of a round that is discarded."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import median_low
from types import MappingProxyType

from unalike.core import tree
from unalike.core.types import ClientUpdate, Tree
from unalike.training.server.update_checks import OVERSIZED, SUSPECT

WINDOW = 100
"""Norms of accepted updates that the median includes."""

LOOSE = 10.0
"""Messages and buffers may differ so many times more than updates: a client's control variates honestly do."""

Norms = Mapping[str, float]
"""Object (the update, a part's message, the buffers) -> its norm."""


STANDS_OUT = 2.0
"""The least multiple of the usual norm by which a site is named for a round that had to be discarded."""


@dataclass
class NormGuard:
    """Refuses a norm above `multiple` times the median of this round's and the last accepted ones; 0 refuses nothing.

    The median is the lower one of two middle norms, so that of two sites the smaller update is the measure. A site with k times
    the usual number of steps may send k times as much. The median of a minority's exaggerations is the majority's. A scaled-up
    update is bounded by this, one of ordinary size that points somewhere else (sign flip, label flip) is not: that takes a robust
    aggregator. An update of zero is refused, too, where others move: a site that returns the model unchanged has trained nothing.
    """

    multiple: float
    seen: dict[str, list[float]] = field(default_factory=dict)

    def faults(
        self, client_updates: Mapping[str, Norms], steps: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, str]:
        """Site -> why it is refused. `steps` are the sites' local steps."""
        faults: dict[str, str] = {}
        if not self.multiple:
            return faults
        usual_steps = median_low(steps.values()) if steps else 1.0
        for what in sorted({what for norms in client_updates.values() for what in norms}):
            now = [norms[what] for norms in client_updates.values() if what in norms]
            usual = median_low(now + self.seen.get(what, []))
            for site, norms in client_updates.items():
                if not usual > 0 or what not in norms:
                    continue
                if what == "update" and not norms[what]:
                    faults.setdefault(
                        site, "its update is zero where others move: it trained nothing"
                    )
                multiple = self.multiple * (1.0 if what == "update" else LOOSE)
                multiple *= max(1.0, steps.get(site, usual_steps) / usual_steps)
                if norms[what] > multiple * usual:
                    limit = f"{multiple:g} times the median {usual:.4g}"
                    faults.setdefault(
                        site,
                        f"the norm of its {what} is {norms[what]:.4g}; expected at most {limit}",
                    )
        return faults

    def accept(self, client_updates: Mapping[str, Norms]) -> None:
        """Keep the norms of updates that counted."""
        for norms in client_updates.values():
            for what, norm in norms.items():
                self.seen[what] = [*self.seen.get(what, []), norm][-WINDOW:]


def standing_out(client_updates: Mapping[str, Norms]) -> tuple[str, float] | None:
    """The site with the largest norm and how many times the usual it is; None if no site stands out."""
    found: dict[str, float] = {}
    for what in {what for norms in client_updates.values() for what in norms}:
        values = {site: norms[what] for site, norms in client_updates.items() if what in norms}
        usual = median_low(values.values())
        for site, norm in values.items():
            found[site] = max(found.get(site, 0.0), norm / usual if usual > 0 else 0.0)
    site = max(found, key=found.__getitem__, default="")
    return (site, found[site]) if found.get(site, 0.0) > STANDS_OUT else None


def absurd(losses: Collection[float], best: float) -> str:
    """The reason why a model cannot be used, by the losses that clients report of it; empty if it can.

    The lower middle of the losses counts, so that no client alone can speak against a model. `best` is the least such loss yet.
    """
    loss = median_low(losses)
    if not isfinite(loss):
        return "the model gives losses that are not finite"
    if loss > OVERSIZED * best + SUSPECT:
        return f"the loss at most clients is {loss:.3g}; the best so far was {best:.3g}"
    return ""


def norms(client_update: ClientUpdate, update: Tree) -> Norms:
    """The norms of a client update; `update` is its decoded update."""
    parts = {"update": update, "buffers": _floats(client_update.buffers)}
    parts |= {
        f"message of {name}": _floats(message) for name, message in client_update.messages.items()
    }
    return {
        what: float(tree.norm(tree.map(lambda t: t.double(), t))) for what, t in parts.items() if t
    }


def _floats(values: Tree) -> Tree:
    return {n: t for n, t in values.items() if t.is_floating_point()}
