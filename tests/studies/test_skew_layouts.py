"""The layouts of the studies on parameter skew, with made-up results and numbers computed by hand."""

import pytest

from unalike.studies.layouts.client_map import ClientMap
from unalike.studies.layouts.client_spread import ClientSpread
from unalike.studies.layouts.costs import Costs
from unalike.studies.layouts.explained_gains import ExplainedGains, explained_by, recorded
from unalike.studies.layouts.parameter_values import Kernel, ParameterValues
from unalike.studies.results import CellResult, Results


def cell(method="a", setting="s", seed=0, rounds=None, recorded=None, label_counts=()):
    rounds = {"round": [0, 1], "accuracy": [0.0, 0.5]} | (rounds or {})
    found = {"rounds": rounds, "recorded": recorded or {}, "label_counts": list(label_counts)}
    return CellResult(method, setting, seed, "", "", {}, 1.0, "all rounds done", {}, {}, **found)


def numbers(*series):
    return {"rounds": [1], "series": list(series), "thinned": ""}


def test_costs_count_rounds_until_the_final_mean_is_reached_within_the_margin():
    """The last two scores have mean 0.60; 0.596 in round 3 is within 0.5 points. Rounds 2 to 5 take 2 seconds each; 10
    participants get 400 and send 200 parameters each."""
    rounds = {
        "round": [0, 1, 2, 3, 4, 5],
        "accuracy": [0.1, 0.3, 0.5, 0.596, 0.61, 0.59],
        "seconds": [0.0, 9.0, 2.0, 2.0, 2.0, 2.0],
        "participants": [0, 10, 10, 10, 10, 10],
        "bytes_down": [0, *[16000] * 5],
        "bytes_up": [0, *[8000] * 5],
    }
    [_, row] = Costs("t", last=2).table(Results((cell(rounds=rounds),)))
    assert row == ["a", "s", "2", "3", "6", "0.4", "0.2"]


def test_client_spread_is_the_deviation_over_clients_and_the_worst_one():
    """0.5 and 0.7: deviation 10 points; 0.2 and 0.6: 20 points. The third client has no test samples."""
    cells = [cell(seed=0), cell(seed=1)]
    for one, scores in zip(cells, ([0.5, 0.7, None], [0.2, 0.6, None])):
        one.clients["accuracy"] = scores
    assert ClientSpread("t").table(Results(tuple(cells)))[1] == ["a", "15.00", "35.00"]


def test_explained_gains_correlate_the_gain_with_the_recorded_number():
    cells = []
    for place, (skew, score) in enumerate(((0.4, 0.50), (0.5, 0.52), (0.9, 0.55))):
        setting = f"s{place}"
        cells.append(cell("mean", setting, recorded=numbers({"quantity": "skewness", "values": [skew]})))
        cells.append(cell("median", setting, rounds={"accuracy": [0.0, score]}))
    results = Results(tuple(cells))
    layout = ExplainedGains("t", "mean", ("skewness",), "mean", last=1)
    assert layout.table(results) == [
        ["setting", "skewness", "median less mean"],
        ["s0", "0.4", "+0.00"],
        ["s1", "0.5", "+2.00"],
        ["s2", "0.9", "+5.00"],
        ["correlation with skewness", "", "+1.00"],
    ]
    [panel] = layout.picture(results).panels
    assert list(panel.lines[0].x) == [0.4, 0.5, 0.9]
    assert explained_by("skewness", "median", "mean", ("s0", "s1", "s2"), "mean", last=1)(results) == {0: 1.0}
    assert recorded("mean", "s2", "skewness")(results) == {0: 0.9}


def test_explained_gains_without_records_have_no_numbers():
    results = Results((cell("mean"), cell("median")))
    assert ExplainedGains("t", "mean", ("skewness",), "mean", last=1).table(results)[1] == ["s", "-", "+0.00"]


def test_client_map_distances_are_those_of_norms_and_cosines():
    """Updates (1, 0), (0, 1) and (1, 0): distances 2^0.5, 0, 2^0.5, mean norm 1. Clients 0 and 2 have the same class."""
    series = [{"quantity": "update_norm", "client": k, "values": [1.0]} for k in range(3)]
    series += [
        {"quantity": "cosine", "client": a, "other": b, "values": [c]}
        for a, b, c in ((0, 1, 0.0), (0, 2, 1.0), (1, 2, 0.0))
    ]
    results = Results((cell(recorded=numbers(*series), label_counts=[[5, 1], [1, 5], [5, 0]]),))
    layout = ClientMap("t", "a")
    assert layout.table(results)[1:] == [["s", "1", "0.000", "1.414"]]
    [panel] = layout.picture(results).panels
    assert panel.points and [len(line.x) for line in panel.lines] == [2, 1]


def entries(server):
    """Two parameters at the clients 0 and 1: 1 and 3 (mean 2, deviation 1), 0 and 0."""
    values = {("w[0]", 0): 1.0, ("w[0]", 1): 3.0, ("w[1]", 0): 0.0, ("w[1]", 1): 0.0}
    found = [{"quantity": "parameter", "layer": w, "client": k, "values": [v]} for (w, k), v in values.items()]
    return numbers(
        *found, *({"quantity": "parameter", "layer": f"w[{i}]", "values": [v]} for i, v in enumerate(server))
    )


def test_parameter_values_show_clients_and_the_estimate_of_each_method():
    results = Results((cell("mean", recorded=entries([2.0, 0.0])), cell("other", recorded=entries([0.5, 0.0]))))
    layout = ParameterValues("t", entries=2)
    assert [row[1:] for row in layout.table(results)[1:]] == [["mean", "0.000"], ["other", "1.500"]]
    [panel] = layout.picture(results).panels
    assert [line.label for line in panel.lines] == ["clients", "mean", "other"]
    assert list(panel.lines[0].y) == [1.0, 3.0, 0.0, 0.0] and list(panel.lines[2].y) == [0.5, 0.0]


def test_kernel_draws_the_new_values_of_each_method():
    results = Results((cell("mean", recorded=entries([2.0, 0.0])),))
    [panel] = Kernel("t", "s", side=1).picture(results).panels
    assert panel.grid.values == ((2.0,),)
    assert Kernel("t", "s").table(results)[1:] == [["mean", "0.000"]]


@pytest.mark.parametrize("layout", [ClientMap("t", "a"), ParameterValues("t"), Kernel("t", "s")])
def test_layouts_of_records_without_records_have_a_heading_alone(layout):
    assert len(layout.table(Results((cell(),)))) == 1
