"""The chart of a partition, as `unalike partition --figure` and notebooks draw it."""

import sys

import numpy as np
import pytest

from unalike.data import Dataset, partition
from unalike.reporting.charts.matplotlib_figures import draw
from unalike.reporting.figures import division


def labelled(y):
    return Dataset("made", (np.ones((len(y), 1), np.float32), y))


def test_areas_of_bubbles_are_proportional_to_the_samples_of_client_and_class(tmp_path):
    loaded = set(sys.modules)
    clients = partition(
        labelled(np.repeat([0, 1], [80, 160])), "shards(per_client=1)", clients=3, split=0.75
    )
    figure = draw(division(clients, "made: shards"))
    (axes,) = figure.axes
    (points,) = axes.collections
    k, c = np.nonzero(clients.plan.counts)
    assert points.get_offsets().tolist() == [[int(j), int(i)] for i, j in zip(k, c)]
    areas = points.get_sizes()
    assert areas / areas[0] == pytest.approx(
        clients.plan.counts[k, c] / clients.plan.counts[k[0], c[0]]
    )
    assert axes.get_title() == "made: shards" and axes.get_xlabel() == "class"
    assert [t.get_text() for t in axes.get_yticklabels()] == list(clients.names)
    figure.savefig(tmp_path / "bubbles.png")
    assert "matplotlib.pyplot" not in set(sys.modules) - loaded


def test_many_clients_are_a_heat_map_and_those_of_a_regression_bars(tmp_path):
    many = draw(division(partition(labelled(np.arange(2000) % 4), "iid", clients=200)))
    assert many.axes[0].images[0].get_array().shape == (200, 4)
    many.savefig(tmp_path / "many.png")
    clients = partition(labelled(np.linspace(0, 1, 40)), "quantity(min_size=1)", clients=3)
    bars = draw(division(clients)).axes[0].patches
    assert [bar.get_width() for bar in bars] == clients.sizes.tolist()


@pytest.mark.parametrize("flags", [["--data", "digits"], ["--data", "line.npz"]])
def test_command_writes_the_chart(tmp_path, monkeypatch, flags):
    from typer.testing import CliRunner

    from unalike.cli import app

    monkeypatch.chdir(tmp_path)
    np.savez("line.npz", x=np.ones((40, 1), np.float32), y=np.linspace(0, 1, 40, dtype=np.float32))
    done = CliRunner().invoke(
        app, ["partition", *flags, "--partition", "iid", "--clients", "4", "--figure", "plan.svg"]
    )
    assert done.exit_code == 0, done.output
    assert "client-3" in (tmp_path / "plan.svg").read_text()
