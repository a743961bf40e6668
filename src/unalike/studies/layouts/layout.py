"""The protocol of layouts."""

from __future__ import annotations

from typing import Protocol

from unalike.studies.results import Results


class Layout(Protocol):
    """A table or figure of stored results. Every layout gives a table."""

    @property
    def title(self) -> str:
        """The heading."""

    def table(self, results: Results) -> list[list[str]]:
        """The rows of a table as text, its heading first."""
