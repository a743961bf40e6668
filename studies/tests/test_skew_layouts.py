"""The layouts of the studies on parameter skew, with made-up results and numbers computed by hand."""

import pytest

from unalike.reporting.charts.figure import Points
from unalike_studies.claims import WHOLE_MODEL, recorded_mean
from unalike_studies.layouts.client_map import ClientMap
from unalike_studies.layouts.explained_gains import ExplainedGains, explained_by
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.parameter_values import Kernel, ParameterValues
from unalike_studies.layouts.recorded import GroupSizes, RecordedTable
from unalike_studies.layouts.tables import ClientSpread, Costs, MethodTable
from unalike_studies.results import CellResult, Results


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
    [plot] = layout.figure(results).plots
    assert list(plot.marks[0].x) == [0.4, 0.5, 0.9]
    assert explained_by("skewness", "median", "mean", ("s0", "s1", "s2"), "mean", last=1)(results) == {0: 1.0}
    assert recorded_mean("mean", "s2", "skewness", WHOLE_MODEL)(results) == {0: 0.9}


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
    [plot] = layout.figure(results).plots
    assert [(type(mark), len(mark.x)) for mark in plot.marks] == [(Points, 2), (Points, 1)]


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
    [plot] = layout.figure(results).plots
    assert [mark.label for mark in plot.marks] == ["clients", "mean", "other"]
    assert list(plot.marks[0].y) == [-1.0, 1.0] and list(plot.marks[2].y) == [-1.5]  # the second one has no deviation


def test_kernel_draws_the_distance_of_new_values_from_the_mean_up_to_the_limit():
    results = Results((cell("mean", recorded=entries([2.0, 0.0])), cell("other", recorded=entries([0.5, 0.0]))))
    layout = Kernel("t", "s", side=1)
    assert [plot.marks[0].values.tolist() for plot in layout.figure(results).plots] == [[[0.0]], [[-0.5]]]
    assert layout.table(results)[1:] == [["mean", "0.000"], ["other", "1.500"]]


def test_group_sizes_count_clients_by_layer_and_round():
    """Four clients in groups 0, 0, 1, 0 of one layer, and 0, 0, 1 and none of another one: sizes 3, 1 and 2, 1."""
    groups = {"w": (0, 0, 1, 0), "b": (0, 0, 1, -1)}
    series = [
        {"quantity": "macro_class", "layer": layer, "client": k, "values": [group]}
        for layer, own in groups.items()
        for k, group in enumerate(own)
    ]
    results, layout = Results((cell(recorded=numbers(*series)),)), GroupSizes("t", "macro_class")
    assert layout.table(results)[1:] == [["a", "s", "2", "3, 1", "50.0", "2, 1", "50.0"]]
    assert layout.share("a", "s", (3, 1))(results) == {0: 0.5}


def test_recorded_table_has_means_and_ranges_by_layer():
    cells = [
        cell(seed=seed, recorded=numbers({"quantity": "high", "layer": "w", "values": [v]}))
        for seed, v in enumerate((0.2, 0.4))
    ]
    assert RecordedTable("t", "high").table(Results(tuple(cells))) == [["layer", "a, s"], ["w", "0.3 (0.2 to 0.4)"]]


def test_costs_count_the_last_stage_alone_and_no_convergence_without_learning():
    """The first stage reaches more than the final mean of 0.5, the second one does in round 3. The second method ends where it
    began."""
    rounds = {"round": [0, 1, 2, 3], "seconds": [0.0, 1.0, 1.0, 1.0], "stage": [1, 1, 2, 2]}
    first = cell("a", rounds=rounds | {"accuracy": [0.1, 0.8, 0.3, 0.5]})
    second = cell("b", rounds=rounds | {"accuracy": [0.1, 0.2, 0.1, 0.11]})
    [_, one, other] = Costs("t", last=1).table(Results((first, second)))
    assert one[3:5] == ["3", "3"] and other[3:5] == ["-", "-"]


def test_layouts_show_another_column_where_a_setting_has_one():
    results = Results((cell(rounds={"local_accuracy": [0.0, 0.9]}),))
    shown = results.instead({"s": {"accuracy": "local_accuracy", "loss": "local_loss"}})
    assert MethodTable("t", last=1).table(shown)[1] == ["a", "90.00"]
    assert Curves("t").table(shown)[1][-1] == "90.00" and len(Curves("t", "loss").table(shown)) == 1
    assert results.instead({"other": {"accuracy": "local_accuracy"}}) == results


@pytest.mark.parametrize("layout", [ClientMap("t", "a"), ParameterValues("t"), Kernel("t", "s")])
def test_layouts_of_records_without_records_have_a_heading_alone(layout):
    assert len(layout.table(Results((cell(),)))) == 1
