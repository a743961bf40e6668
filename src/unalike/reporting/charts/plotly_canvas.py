"""What all charts share: the bare canvas, rows with a name above them, thinning and safe text."""

from __future__ import annotations

import html
from collections.abc import Iterable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from unalike.reporting import wording

MOST_POINTS = 150
"""Points per line: more than a line of 1,200 pixels can show."""


def canvas(height: int, **layout: object) -> go.Figure:
    """An empty figure without a theme; the page's script gives it the colours of light or dark."""
    margin = {"l": 12, "r": 14, "t": 12, "b": 46}
    base = {"template": "none", "height": height, "margin": margin, "showlegend": False}
    return go.Figure(layout=base | layout)


def named_rows(names: list[str], row_height: int, **layout: object) -> go.Figure:
    """A canvas with one row per name, top to bottom at y = n - 1 .. 0.

    A name stands above its row, not beside it: the plot then keeps its width on a phone however long the name is.
    """
    n = len(names)
    margin = {"l": 12, "r": 14, "t": 6, "b": 50}
    figure = canvas(56 + row_height * n, margin=margin, **layout)
    figure.update_yaxes(range=[-0.55, n - 0.35], tickvals=[], showgrid=False, zeroline=False)
    for i, name in enumerate(names):
        label = {"text": text(wording.short(name)), "x": 0, "xref": "paper", "xanchor": "left"}
        figure.add_annotation(**label, y=n - 1 - i, yshift=row_height * 0.38, showarrow=False)
    return figure


def text(raw: object) -> str:
    """Text for a chart, whose renderer reads a few tags such as `<a>` and `<b>`."""
    return html.escape(str(raw), quote=False)


def thin(frame: pd.DataFrame, limit: int = MOST_POINTS) -> pd.DataFrame:
    """At most `limit` rows at even distances, the first and the last included."""
    if len(frame) <= limit:
        return frame
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, limit).round().astype(int))]


def numbers(values: Iterable[float]) -> list[float | None]:
    """Six digits are more than a chart can show; NaN becomes null, a gap."""
    return [None if pd.isna(value) else float(f"{value:.6g}") for value in values]
