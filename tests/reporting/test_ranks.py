"""The critical-difference diagram: positions computed by hand; nothing is cut off or crosses."""

import io
import math

import pandas as pd
import pytest

from unalike.reporting.charts import matplotlib_figures, plotly_figures, rank_diagram
from unalike.reporting.charts.palette import looks
from unalike.statistics.ranks import Ranks

FOUR = Ranks(pd.Series({"d": 4.0, "a": 1.0, "c": 3.0, "b": 2.0}), 1.0, 10, math.nan)
"""Mean ranks 1, 2, 3, 4: only neighbours are within the critical difference."""


def test_diagram_places_better_half_left_and_stacks_bars():
    drawn = rank_diagram.diagram(FOUR)
    assert [(h.name, h.row, h.left) for h in drawn.methods] == [
        ("a", 0, True),
        ("b", 1, True),
        ("c", 1, False),
        ("d", 0, False),
    ]
    assert [(bar.names, bar.low, bar.high) for bar in drawn.bars] == [
        (["a", "b"], 1, 2),
        (["b", "c"], 2, 3),
        (["c", "d"], 3, 4),
    ]
    assert [bar.level for bar in drawn.bars] == [
        0,
        1,
        0,
    ] and drawn.levels == 2  # the third fits next to the first
    assert drawn.end == 4


def test_diagram_lines_do_not_cross():
    """A line further in turns further down; left and right lines stay on their side."""
    for k in range(2, 9):
        found = Ranks(pd.Series({f"m{i}": 1.0 + i for i in range(k)}), 2.0, 10, math.nan)
        drawn = rank_diagram.diagram(found)
        left, right = ([h.row for h in drawn.methods if h.left is side] for side in (True, False))
        assert (
            left == list(range(len(left)))
            and right == list(range(len(right)))[::-1]
            and 0 <= len(left) - len(right) <= 1
        )
        assert all(
            drawn.line(h)[1][1] < -rank_diagram.BAR_DISTANCE * drawn.levels for h in drawn.methods
        )  # every line turns below the bars


def test_diagram_critical_difference_longer_than_axis_fits():
    found = Ranks(pd.Series({"a": 1.0, "b": 2.0}), 2.5, 2, math.nan)
    assert rank_diagram.diagram(found).end == 3.5
    for figure in (
        rank_diagram.wide(found, looks(["a", "b"])),
        rank_diagram.narrow(found, looks(["a", "b"])),
    ):
        drawn = plotly_figures.draw(figure)
        low, high = drawn.layout.xaxis.range
        assert all(low < x < high for trace in drawn.data for x in trace.x)


def test_description_lists_groups_without_difference():
    assert "best first: a 1.00, b 2.00, c 3.00, d 4.00" in rank_diagram.description(FOUR)
    assert "No difference shown within: a and b; b and c; c and d." in rank_diagram.description(
        FOUR
    )
    clear = Ranks(FOUR.mean, 0.5, 40, math.nan)
    assert (
        "All methods differ." in rank_diagram.description(clear)
        and not rank_diagram.diagram(clear).bars
    )


@pytest.mark.parametrize("k", [2, 5, 20])
def test_rank_figure_names_are_inside_the_figure(k):
    names = [f"method {i} with a rather long name + lws" for i in range(k)]
    found = Ranks(pd.Series({name: 1.0 + i for i, name in enumerate(names)}), 2.0, 10, math.nan)
    figure = matplotlib_figures.draw(rank_diagram.wide(found, looks(names)))
    figure.savefig(io.BytesIO(), format="svg")
    frame = figure.bbox
    texts = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(texts) == 2 * k + 1  # a tick and a name for each, and the critical difference
    assert all(
        frame.x0 <= t.x0 and t.x1 <= frame.x1 and frame.y0 <= t.y0 and t.y1 <= frame.y1
        for t in texts
    )
    assert (
        figure.axes[0].get_window_extent().width > 0.3 * frame.width
    )  # names do not shrink the axis
