"""The protocol of layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from unalike_studies.results import Results

if TYPE_CHECKING:
    from unalike.reporting.charts.figure import Figure


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

    @property
    def name(self) -> str:
        """The name of the figure's files."""

    def figure(self, results: Results) -> Figure:
        """The figure."""
