"""Scatter plots and histograms of stored results."""

import math

import pytest
import torch

import unalike as ua
from unalike.reporting.charts.figure import Points
from unalike_studies.claims import recorded_mean
from unalike_studies.correlations import pearson
from unalike_studies.layouts.figures import ParameterHistogram
from unalike_studies.layouts.scatter import (
    DataAgainstUpdates,
    RecordedScatter,
    TransportAgainstUpdates,
)
from unalike_studies.result_of_run import transport_costs
from unalike_studies.results import CellResult, Results


def cell(seed=0, **more):
    return CellResult("a", "s", seed, "", "", more.pop("options", {}), 1.0, "", {}, {}, **more)


def noted(rounds, *series):
    names = ("quantity", "layer", "values")
    return {"rounds": rounds, "series": [dict(zip(names, one)) for one in series], "thinned": ""}


def test_pearson_of_points_on_a_line_is_one():
    assert pearson([(0, 1), (1, 3), (2, 5)]) == pytest.approx(1)
    assert pearson([(0, 0), (1, 1), (2, 0), (3, 1)]) == pytest.approx(1 / math.sqrt(5))
    assert math.isnan(pearson([(0, 1), (1, 2)])) and math.isnan(pearson([(0, 1), (1, 1), (2, 1)]))


def test_recorded_scatter_has_a_point_for_each_round():
    """tau is the mean over layers, and a round without one of the numbers has no point."""
    recorded = noted(
        [1, 2, 3],
        ("tau", "w", [1.0, 2.0, 3.0]),
        ("tau", "v", [3.0, 4.0, None]),
        ("ratio", "", [0.1, None, 0.3]),
    )
    scatter = RecordedScatter("ratio", "tau", "ratio")
    assert scatter.points(cell(recorded=recorded)) == [(2.0, 0.1), (3.0, 0.3)]
    recorded = noted([1, 2, 3], ("tau", "w", [1.0, 2.0, 3.0]), ("ratio", "", [3.0, 2.0, 1.0]))
    results = Results((cell(recorded=recorded), cell(1)))
    assert scatter.correlation("a", "s")(results) == {0: pytest.approx(-1)}
    assert scatter.table(results)[1:] == [["a", "s", "0", "3", "-1.00"]]
    [plot] = scatter.figure(results).plots
    [points] = plot.marks
    assert isinstance(points, Points) and points.x == [1.0, 2.0, 3.0]


def test_data_against_updates_has_a_point_for_every_two_clients():
    series = [
        {"quantity": "cosine", "client": 0, "other": 1, "values": [0.5, 0.7]},
        {"quantity": "cosine", "client": 2, "other": 0, "values": [-1.0, None]},
        {"quantity": "update_norm", "client": 0, "values": [1.0, 1.0]},
    ]
    found = cell(
        label_counts=[[2, 2], [4, 0], [0, 3]], recorded={"rounds": [1, 2], "series": series}
    )
    # labels 1/2 1/2, 1 0 and 0 1; cosines 0.6 and -1; nothing is known of clients 1 and 2
    assert DataAgainstUpdates("d").points(found) == [(0.5, pytest.approx(0.4)), (0.5, 2.0)]


def test_recorded_mean_is_over_rounds_and_layers():
    recorded = noted(
        [1, 2], ("gamma", "w", [0.8, 0.9]), ("gamma", "v", [1.0, 1.0]), ("tau", "w", [5.0, 5.0])
    )
    quantity = recorded_mean("a", "s", "gamma")
    assert quantity(Results((cell(recorded=recorded), cell(1)))) == {0: pytest.approx(0.925)}


def test_parameter_histogram_is_the_mean_share_over_seeds():
    options = {"histogram": {"limit": 2.0, "bins": 4}}
    results = Results(
        (
            cell(parameters=[1, 1, 1, 1], options=options),
            cell(1, parameters=[0, 4, 4, 0], options=options),
        )
    )
    [plot] = ParameterHistogram("share").figure(results).plots
    [line] = plot.marks
    assert (line.x, line.y) == ([-1.5, -0.5, 0.5, 1.5], [0.125, 0.375, 0.375, 0.125])


def test_optimal_transport_of_two_points_each_equals_hand_numbers():
    """One input, values 0 and 1 everywhere: its variance is s. Between (0, 1) and (1, 0) nothing is moved but labels count; from
    (0, 1) to (1, 1) one of two samples moves by 1."""
    pytest.importorskip("ot")
    clients = [([0.0, 1.0], [0, 0]), ([1.0, 0.0], [1, 1]), ([1.0, 1.0], [0, 0])]
    population = ua.Population.of(
        [ua.ClientData(train=(torch.tensor(x)[:, None], torch.tensor(y))) for x, y in clients],
        classes=["a", "b"],
    )
    variance = torch.tensor([0.0, 1, 1, 0, 1, 1]).double().var().item()
    costs = transport_costs(population, samples=10, seed=0)
    assert costs[0][1] == pytest.approx(1) and costs[0][2] == pytest.approx(0.5 / variance)
    assert (
        costs[1][2] == pytest.approx(1 + 0.5 / variance)
        and costs[2][1] == costs[1][2]
        and costs[0][0] == 0
    )
    assert transport_costs(population, samples=1, seed=0)[0][1] >= 1  # one sample of each client
    found = TransportAgainstUpdates("d")
    series = [{"quantity": "cosine", "client": 0, "other": 1, "values": [0.25]}]
    assert found.points(cell(transport=costs, recorded={"rounds": [1], "series": series})) == [
        (costs[0][1], 0.75)
    ]
    assert found.points(cell()) == []
