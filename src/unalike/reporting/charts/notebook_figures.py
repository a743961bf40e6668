"""Figures for notebooks: Plotly's, and beside it an image for exports that run no script, such as HTML and PDF."""

from base64 import b64encode
from typing import Any

import plotly.graph_objects as go

from unalike.reporting.charts import matplotlib_figures, plotly_figures
from unalike.reporting.charts.figure import Figure


class NotebookFigure(go.Figure):
    """A Plotly figure that shows an image where Plotly does not run.

    A figure that was changed after it was drawn shows none, since the image is drawn of the same data, not of Plotly's figure.
    """

    _source: Figure | None = None
    _as_drawn: str = ""
    _ipython_display_ = _repr_html_ = None  # IPython then asks for the bundle

    def _repr_mimebundle_(self, *args: Any, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(*args, **options)
        if self._source is None or self.to_json() != self._as_drawn:
            return bundle
        if "application/vnd.plotly.v1+json" in bundle:
            # exports prefer HTML to an image, but its script needs the network
            bundle.pop("text/html", None)
        return bundle | {"image/png": b64encode(matplotlib_figures.png(self._source)).decode()}


def notebook_figure(figure: Figure) -> NotebookFigure:
    """Draw a figure for a notebook."""
    drawn = NotebookFigure(plotly_figures.draw(figure))
    drawn._source = figure
    drawn._as_drawn = drawn.to_json()
    return drawn
