"""The pages of results. A result is plain data; its page is registered by its module and looked up by the kind of result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import plotly.graph_objects as go

from unalike._utils.errors import UnalikeError, refuse_empty_path, unknown
from unalike._utils.registry import Registry
from unalike._utils.tensor_files import writing
from unalike.reporting.charts.figure import Figure
from unalike.reporting.charts.notebook_figures import notebook_figure
from unalike.reporting.html import write_text
from unalike.reporting.panels import Panel

pages = Registry(
    "page",
    home=[
        "unalike.comparison.sweep.page",
        "unalike.diagnosis.page",
        "unalike.tuning.page",
    ],
)
"""Kind of result -> its `Page`."""


@dataclass(frozen=True)
class Page:
    """The page of a kind of result.

    `render` makes the HTML document (the same result gives the same text), `panels` the panels by kind of figure; None where
    there is nothing to draw.
    """

    render: Callable[[Any], str]
    panels: Callable[[Any], Mapping[str, Panel | None]]


class Result(Protocol):
    """A result that has a page."""

    def to_json(self) -> str:
        """All numbers as JSON text."""


def save(kind: str, result: Result, folder: str | Path) -> Path:
    """Write the page of a result as `<kind>.html` and its numbers as `<kind>.json`.

    The folder is made if it does not exist. Returns the path of the page. Raises `UnalikeError` if it cannot be written.
    """
    refuse_empty_path("the folder", folder)
    target = Path(folder)
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    write_text(result.to_json() + "\n", target / f"{kind}.json")
    return write_text(_page(kind).render(result), target / f"{kind}.html")


def plot(kind: str, result: Result, figure: str, remedy: str) -> go.Figure:
    """Draw one of the figures of a result's page, for a notebook.

    Raises `UnalikeError` without such a figure, or with nothing to draw for it; `remedy` says what to do then.
    """
    panels = _page(kind).panels(result)
    if figure not in panels:
        raise unknown(f"figure of a {kind}", figure, panels)
    panel = panels[figure]
    if panel is None:
        raise UnalikeError(f"there is nothing to draw for {figure!r} in this {kind}; {remedy}")
    return notebook_figure(panel.views[0].figure)


def figures(kind: str, result: Result) -> dict[str, Figure]:
    """Kind of figure -> the figure that its panel on the page shows first, of those with something to draw."""
    panels = _page(kind).panels(result)
    return {name: panel.views[0].figure for name, panel in panels.items() if panel is not None}


def _page(kind: str) -> Page:
    page: Any = pages[kind]
    return page
