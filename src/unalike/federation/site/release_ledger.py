"""A site's ledger of epsilon: the releases of private methods about its samples, over all runs."""

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unalike._utils.errors import require_extra
from unalike._utils.journal import Journal, entries
from unalike._utils.tensor_files import writing
from unalike.core.privacy import Release, epsilon_of_all
from unalike.core.views import StageSettings
from unalike.federation.protocol.messages import Declined
from unalike.methods.method import Method

RELEASED = "released"
"""The event of an entry: what a private method releases with one update."""


class ReleaseLedger:
    """The releases of a site, an entry of a journal for each update, whatever run, method or seed it belongs to.

    An entry is on disk before the site trains: a crash may count an update that never left, and loses none. `limit` is the
    largest epsilon that all of them may have together, at the smallest of their deltas; 0: none.
    """

    def __init__(self, path: Path, limit: float):
        if limit:
            require_extra("privacy", "dp_accounting", what="a limit of epsilon (site.toml)")
        self.limit = limit
        self._journal = Journal(path)
        self._counts: Counter[Release] = Counter()
        """Release -> number of updates."""
        self._delta = 1.0
        for entry in entries(path):
            if entry["event"] == RELEASED:
                self._count(Release(**entry["release"]), entry["delta"])

    @property
    def epsilon(self) -> float:
        """The epsilon of all releases so far. Raises `UnalikeError` without the extra `privacy`."""
        return epsilon_of_all(self._counts, self._delta)

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return self._counts.total()

    @property
    def summary(self) -> str:
        """A line that says what is spent of the limit."""
        spent = f"epsilon {self.epsilon:.3g} of {self.limit:g} (site.toml)"
        return f"{spent} is spent, by {self.updates} updates of private methods"

    def add_update(self, method: Method, settings: StageSettings, **where: Any) -> None:
        """Write down what an update of a private method releases, as `add`, before it is made."""
        privacy = method.privacy
        assert privacy is not None
        self.add(privacy.release_of_round(settings), privacy.delta, **where)

    def add(self, release: Release, delta: float, **where: Any) -> None:
        """Write down the release of one update before it is made. Raises `Declined` where it would exceed the limit.

        Args:
            release: What the update releases.
            delta: The delta of its method.
            where: The run and the round, for readers of the file.
        """
        if self.limit:
            after = self._counts + Counter([release])
            epsilon = epsilon_of_all(after, min(self._delta, delta))
            if epsilon > self.limit:
                raise Declined(
                    "spent",
                    f"with another update all private runs here would have epsilon {epsilon:.4g}; site.toml allows {self.limit:g} "
                    f"(epsilon), and {self.updates} updates are in the ledger",
                )
        self._journal.add(RELEASED, release=asdict(release), delta=delta, **where)
        self._flush()
        self._count(release, delta)

    def _count(self, release: Release, delta: float) -> None:
        self._counts[release] += 1
        self._delta = min(self._delta, delta)

    def _flush(self) -> None:
        """The entry reaches the disk before the update is made: a power cut does not lose it."""
        path = self._journal.path
        with writing(path):
            for place in (path, path.parent):
                opened = os.open(place, os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)
