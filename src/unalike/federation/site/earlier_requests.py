"""The requests that a site was sent before, by its journal: what its own rules count."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from unalike._utils.journal import entries
from unalike.federation.protocol.envelope import Head

Round = tuple[str, int, int, bool]
"""Run, step, round, and whether requests of secure aggregation are meant, or the others."""


class EarlierRequests:
    """The time at which each run began, its rounds, and the different requests of each of them, answered or declined.

    `masking` are the kinds of requests of secure aggregation, which are counted for themselves. The journal is read once.
    """

    def __init__(self, journal: Path, site: str, masking: Iterable[str]):
        self.begun: dict[str, float] = {}
        """Run -> when its first request was answered."""
        self._masking = frozenset(masking)
        self._digests: dict[Round, set[str]] = {}
        self._rounds = defaultdict[str, list[int]](list)
        """Run -> the different rounds of all its steps for which there was a request to evaluate, train or answer."""
        for entry in entries(journal):
            if entry["event"] == "answered":
                self.begun.setdefault(entry["run"], entry["time"])
            # What was meant for another site, or not signed, counts for nothing: anybody on the way could repeat it here.
            if entry.get("request") and entry.get("site", site) == site:
                is_masking = entry["kind"] in self._masking
                of_round = (entry["run"], entry["step"], entry["round"], is_masking)
                self._add(of_round, entry["request"])

    def count(self, head: Head, digest: str) -> int:
        """Count a request; returns the number of other requests of its round."""
        of_round = (head.run, *head.place, head.kind in self._masking)
        self._add(of_round, digest)
        return len(self._digests[of_round]) - 1

    def rounds(self, run: str, last: int) -> int:
        """The rounds of all steps of a run, up to round `last` of each, for which there was a request.

        What is asked for later rounds is declined, and does not use up the others.
        """
        return sum(round <= last for round in self._rounds[run])

    def _add(self, of_round: Round, digest: str) -> None:
        run, step, round, is_masking = of_round
        is_new = of_round not in self._digests
        # step 0 is the admission
        if is_new and step and not is_masking:
            self._rounds[run].append(round)
        self._digests.setdefault(of_round, set()).add(digest)
