"""Shared by all Plotly charts: the empty canvas, rows with names, thinning of lines, safe text."""

from __future__ import annotations

import html
from collections.abc import Iterable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from unalike.reporting import wording

MOST_POINTS = 150
"""Most points of a line; a line of 1,200 pixels cannot show more."""


def canvas(height: int, **layout: object) -> go.Figure:
    """An empty figure without a theme; the page's script gives it the colors of light or dark."""
    margin = {"l": 12, "r": 14, "t": 12, "b": 46}
    base = {"template": "none", "height": height, "margin": margin, "showlegend": False}
    return go.Figure(layout=base | layout)


def named_rows(names: list[str], row_height: int, **layout: object) -> go.Figure:
    """A canvas with one row per name, top to bottom at y = n - 1 .. 0.

    The name is above its row, not beside it, so that a long name does not narrow the plot on a phone.
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
    """Escape text for Plotly, which interprets some tags such as `<a>` and `<b>`."""
    return html.escape(str(raw), quote=False)


def thin(frame: pd.DataFrame, limit: int = MOST_POINTS) -> pd.DataFrame:
    """At most `limit` evenly spaced rows, including the first and the last."""
    if len(frame) <= limit:
        return frame
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, limit).round().astype(int))]


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers rounded to six digits, more than a chart can show; NaN becomes null, a gap."""
    return [None if pd.isna(value) else float(f"{value:.6g}") for value in values]
