"""The layouts of the studies on parameter skew, with made-up results and numbers computed by hand."""

import math

import pytest

from unalike.reporting.charts.figure import Points
from unalike_studies.claims import WHOLE_MODEL, recorded_mean, score
from unalike_studies.correlations import pearson_with_interval
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.gains import BesidePrinted, ExplainedGains, explained_by
from unalike_studies.layouts.parameter_values import Kernel, ParameterValues, half_sample_mode
from unalike_studies.layouts.recorded import GroupSizes, RecordedTable
from unalike_studies.layouts.scatter import ClientMap
from unalike_studies.layouts.tables import ClientSpread, Costs, MethodTable
from unalike_studies.papers.parameter_skew import PLACES, baselines, client_deviation, sized
from unalike_studies.published import Printed
from unalike_studies.results import CellResult, Results
from unalike_studies.study import Scale


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
    costs, results = Costs("t", last=2), Results((cell(rounds=rounds),))
    assert costs.table(results)[1] == ["a", "s", "2", "3", "6", "0.4", "0.2"]
    assert costs.seconds_a_round("a", "s")(results) == {0: 2} and costs.rounds_to_convergence(
        "a", "s"
    )(results) == {0: 3}


def test_client_spread_is_the_deviation_over_clients_and_the_worst_one():
    """0.5 and 0.7: deviation 10 points; 0.2 and 0.6: 20 points. The third client has no test samples."""
    cells = [cell(seed=0), cell(seed=1)]
    for one, scores in zip(cells, ([0.5, 0.7, None], [0.2, 0.6, None])):
        one.clients["accuracy"] = scores
    assert ClientSpread("t").table(Results(tuple(cells)))[1] == ["a", "15.00", "35.00"]
    assert client_deviation("a", "s")(Results(tuple(cells))) == pytest.approx({0: 0.1, 1: 0.2})


def test_explained_gains_correlate_the_gain_with_the_recorded_number():
    cells = []
    for place, (skew, accuracy) in enumerate(((0.4, 0.50), (0.5, 0.52), (0.9, 0.55))):
        setting = f"s{place}"
        cells.append(
            cell("mean", setting, recorded=numbers({"quantity": "skewness", "values": [skew]}))
        )
        cells.append(cell("median", setting, rounds={"accuracy": [0.0, accuracy]}))
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
    assert explained_by("skewness", "median", "mean", ("s0", "s1", "s2"), "mean", last=1)(
        results
    ) == {0: 1.0}
    assert recorded_mean("mean", "s2", "skewness", WHOLE_MODEL)(results) == {0: 0.9}


def test_explained_gains_without_records_have_no_numbers():
    results = Results((cell("mean"), cell("median")))
    assert ExplainedGains("t", "mean", ("skewness",), "mean", last=1).table(results)[1] == [
        "s",
        "-",
        "+0.00",
    ]


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
    found = [
        {"quantity": "parameter", "layer": w, "client": k, "values": [v]}
        for (w, k), v in values.items()
    ]
    return numbers(
        *found,
        *(
            {"quantity": "parameter", "layer": f"w[{i}]", "values": [v]}
            for i, v in enumerate(server)
        ),
    )


def test_parameter_values_show_clients_and_the_estimate_of_each_method():
    results = Results(
        (cell("mean", recorded=entries([2.0, 0.0])), cell("other", recorded=entries([0.5, 0.0])))
    )
    layout = ParameterValues("t", entries=2)
    assert [row[1:] for row in layout.table(results)[1:]] == [["mean", "0.000"], ["other", "1.500"]]
    [plot] = layout.figure(results).plots
    assert [mark.label for mark in plot.marks] == ["clients", "mean", "other"]
    assert list(plot.marks[0].y) == [-1.0, 1.0] and list(plot.marks[2].y) == [
        -1.5
    ]  # the second one has no deviation


def test_kernel_draws_the_distance_of_new_values_from_the_mean_up_to_the_limit():
    results = Results(
        (cell("mean", recorded=entries([2.0, 0.0])), cell("other", recorded=entries([0.5, 0.0])))
    )
    layout = Kernel("t", "s", side=1)
    assert [plot.marks[0].values.tolist() for plot in layout.figure(results).plots] == [
        [[0.0]],
        [[-0.5]],
    ]
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
    assert RecordedTable("t", "high").table(Results(tuple(cells))) == [
        ["layer", "a, s"],
        ["w", "0.3 (0.2 to 0.4)"],
    ]


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


def test_quantities_stand_beside_printed_numbers_with_their_correlation_over_settings():
    """Ours 10, 20, 40, 30 % and printed 1, 2, 3, 4: r = 0.8; artanh 0.8 = 1.0986, and 1.96 / sqrt(1) to both sides."""
    scores = {"s1": 0.1, "s2": 0.2, "s3": 0.4, "s4": 0.3, "s5": 0.9}
    results = Results(
        tuple(
            cell("a", where, rounds={"accuracy": [0.0, value]}) for where, value in scores.items()
        )
    )
    printed = {f"s{i}": Printed(i, f"{i}, table 1") for i in range(1, 5)}
    layout = BesidePrinted(
        "t", {"ours": lambda setting: score("a", setting)}, {"theirs": printed}, "theirs"
    )
    head, *rows, r, interval = layout.table(results)
    assert head == ["setting", "ours", "theirs, printed"]
    assert rows[0] == ["s1", "10.00", "1.00"] and rows[4] == ["s5", "90.00", "-"]
    assert r == ["correlation with theirs, printed", "0.80", ""]
    assert interval == ["its 95 % interval", "-0.70 to 1.00", ""]
    [points] = layout.figure(results).plots[0].marks
    assert (points.x, points.y) == ((1, 2, 3, 4), pytest.approx((10, 20, 40, 30)))


@pytest.mark.parametrize("pairs", [([1, 2, 3], [1, 2, 4]), ([1, 2, 3, 4], [5, 5, 5, 5])])
def test_correlation_of_few_or_constant_numbers_is_not_known(pairs):
    assert all(math.isnan(number) for number in pearson_with_interval(list(zip(*pairs))))


def test_main_peak_is_in_the_narrowest_half_of_the_narrowest_half():
    assert half_sample_mode([0.0, 5.0, 1.0, 1.1, 1.2, 9.0, 1.15, -4.0]) == pytest.approx(1.125)


def test_distance_from_the_peak_is_in_deviations_over_clients():
    """Values 0, 0, 0, 4 have mean 1 and deviation sqrt(3); their peak is at 0, a value of 2 is 2 / sqrt(3) from it."""
    place = {"quantity": "parameter", "layer": "head.weight[0]"}
    values = [{**place, "client": k, "values": [v]} for k, v in enumerate((0.0, 0.0, 0.0, 4.0))]
    results = Results((cell(recorded=numbers(*values, {**place, "values": [2.0]})),))
    assert ParameterValues.from_peak("a", "s")(results) == {0: pytest.approx(2 / 3**0.5)}


def test_rules_have_as_many_classes_as_the_papers_have_for_the_data():
    rule = sized(
        "fedpake(threshold=0.1)",
        ("CIFAR-10, 2 classes", "CIFAR-100, Dir(1)", "Dir(0.1)"),
        " + own_statistics",
    )
    scale = Scale(
        {"rule": rule}, {"CIFAR-100, Dir(1)": {}, "Dir(0.1)": {}}, {"data": "digits"}, seeds=(0,)
    )
    assert [cell.spec for cell in scale.cells] == [
        "fedpake(threshold=0.1, micro=5, macro=5) + own_statistics",
        "fedpake(threshold=0.1) + own_statistics",
    ]
    assert sized("fedsa", ["Tiny-ImageNet, 20 classes"]).elsewhere == {
        "Tiny-ImageNet, 20 classes": "fedsa(micro=8, macro=8)"
    }


def test_places_are_the_papers_16_settings_with_a_gain_of_4_67_over_the_mean_of_eight_baselines():
    gains = [
        place.printed("FedPake") - Printed.mean(*map(place.printed, baselines(1000, 1000)))
        for place in PLACES.values()
    ]
    assert len(PLACES) == 16 and Printed.mean(*gains).value == pytest.approx(4.67, abs=0.005)
