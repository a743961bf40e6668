import sys

import numpy as np
import pytest

from unalike.data import Dataset, partition
from unalike.data.partitioning import partition_figures


def test_bubbles_areas_are_proportional_to_counts(tmp_path):
    loaded, counts = set(sys.modules), np.array([[5, 0], [10, 20]])
    figure = partition_figures.bubbles(counts, ["cat", "dog"], title="two clients")
    (points,) = figure.axes[0].collections
    assert points.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    areas = points.get_sizes()
    assert areas[1] / areas[0] == pytest.approx(2) and areas[2] / areas[0] == pytest.approx(4)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["cat", "dog"]
    figure.savefig(tmp_path / "bubbles.png")
    assert "matplotlib.pyplot" not in set(sys.modules) - loaded


def test_bubbles_of_plan_handle_many_clients_and_regression(blobs, tmp_path):
    partition_figures.bubbles(partition(blobs, "iid", clients=200).plan).savefig(tmp_path / "many.png")
    line = Dataset("line", (np.ones((40, 1)), np.linspace(0, 1, 40)))
    bars = partition_figures.bubbles(partition(line, "quantity(min_size=1)", clients=3).plan)
    assert len(bars.axes[0].patches) == 3
