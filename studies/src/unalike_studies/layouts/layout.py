"""The protocol of layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from unalike_studies.results import Results

if TYPE_CHECKING:
    from unalike_studies.layouts.panels import Picture


class Layout(Protocol):
    """A table or figure of stored results. Every layout gives a table."""

    @property
    def title(self) -> str:
        """The heading."""

    def table(self, results: Results) -> list[list[str]]:
        """The rows of a table as text, its heading first."""


@runtime_checkable
class Drawn(Protocol):
    """A layout that is also drawn."""

    def picture(self, results: Results) -> Picture:
        """The figure."""
