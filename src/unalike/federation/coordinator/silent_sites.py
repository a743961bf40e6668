"""Sites that stay connected and do not answer: requests wait for them ever more rarely."""

from collections import Counter

MISSES_WAITED_FOR = 3
"""Requests that a site may leave unanswered before one does not wait for it; each one that it answers makes up for one."""
MAX_DOUBLINGS = 10
"""Doublings of the number of requests that do not wait for a site, at most."""


class SilentSites:
    """Counts the requests that connected sites left unanswered.

    A site with m misses, `MISSES_WAITED_FOR` or more, is still asked each time, and its answer counts if it comes before those of
    the others. After each further miss 2^k requests do not wait for it, k = m - `MISSES_WAITED_FOR` + 1. Neither a new connection
    nor a late answer shortens that: a site that is silent in R requests costs about log2 R deadlines, whatever else it does.
    """

    def __init__(self) -> None:
        self._misses = Counter[str]()
        self._skips = Counter[str]()
        """Site -> further requests that do not wait for it."""

    def is_waited_for(self, site: str) -> bool:
        return not self._skips[site]

    def note_answer(self, site: str) -> None:
        """Note that a site answered in time."""
        self._misses[site] = max(0, self._misses[site] - 1)
        if self._misses[site] < MISSES_WAITED_FOR:
            self._skips[site] = 0

    def note_silence(self, site: str) -> int:
        """Note that a request waited for a site in vain. Returns the number of further ones that do not wait for it."""
        self._misses[site] += 1
        doublings = min(self._misses[site] - MISSES_WAITED_FOR + 1, MAX_DOUBLINGS)
        if doublings > 0:
            self._skips[site] = 2**doublings
        return self._skips[site]

    def note_skip(self, site: str) -> None:
        """Note that a request did not wait for a site."""
        self._skips[site] -= 1
