"""Recorded numbers of cells: what a result keeps of them, and their figures."""

import math

import pandas as pd
import pytest

from unalike import UnalikeError
from unalike.runtime.records.recording import COLUMNS
from unalike_studies import recorded_numbers
from unalike_studies.layouts.looks import write
from unalike_studies.layouts.recorded import RecordedCurves, RecordedMap
from unalike_studies.recorded_numbers import MEAN, by_round, keep
from unalike_studies.result_files import read
from unalike_studies.results import CellResult, Results
from unalike_studies.run_study import run_cells
from unalike_studies.study import Scale

COMMON = {
    "data": "quadratic",
    "partition": "natural",
    "split": 1.0,
    "merge": False,
    "protocol": "server",
}
COMMON |= {
    "model": "linear",
    "rounds": 4,
    "evaluate_every": 2,
    "work": {"batch_size": 60, "lr": 0.001},
}


def table(*entries):
    return pd.DataFrame([COLUMNS | entry for entry in entries], columns=list(COLUMNS))


def numbers(rounds=4, clients=2):
    """One number a layer, one a client, and one cosine a pair in every round; the value tells the round and the client."""
    return table(
        *(
            {"round": r, "quantity": "gamma", "layer": layer, "value": r}
            for r in range(1, rounds + 1)
            for layer in "ab"
        ),
        *(
            {"round": r, "quantity": "weight", "client": k, "value": r + k}
            for r in range(1, rounds + 1)
            for k in range(clients)
        ),
        *(
            {"round": r, "quantity": "cosine", "client": i, "other": j, "value": i + j}
            for r in range(1, rounds + 1)
            for i in range(clients)
            for j in range(i + 1, clients)
        ),
    )


def test_keep_holds_one_series_for_each_number_of_the_evaluated_rounds():
    found = keep(numbers(), [0, 2, 4])
    assert found["rounds"] == [2, 4] and found["thinned"] == ""
    assert found["series"] == [
        {"quantity": "gamma", "layer": "a", "values": [2.0, 4.0]},
        {"quantity": "gamma", "layer": "b", "values": [2.0, 4.0]},
        {"quantity": "weight", "client": 0, "values": [2.0, 4.0]},
        {"quantity": "weight", "client": 1, "values": [3.0, 5.0]},
        {"quantity": "cosine", "client": 0, "other": 1, "values": [1.0, 1.0]},
    ]


def test_keep_averages_pairs_before_it_leaves_out_rounds(monkeypatch):
    monkeypatch.setattr(recorded_numbers, "MOST_NUMBERS", 40)
    found = keep(numbers(rounds=5, clients=4), range(1, 6))
    assert found["rounds"] == [1, 2, 3, 4, 5] and found["thinned"] == "means over pairs of clients"
    assert found["series"][-1] == {"quantity": "cosine", "client": MEAN, "values": [3.0] * 5}


def test_keep_leaves_out_rounds_and_then_averages_clients(monkeypatch):
    monkeypatch.setattr(recorded_numbers, "MOST_NUMBERS", 60)
    few = keep(numbers(rounds=20, clients=1), range(1, 21))  # 60 numbers
    assert len(few["rounds"]) == 20
    monkeypatch.setattr(recorded_numbers, "MOST_NUMBERS", 40)
    half = keep(numbers(rounds=20, clients=1), range(1, 21))
    assert (
        half["rounds"] == list(range(2, 21, 2)) and half["thinned"] == "one of 2 evaluated rounds"
    )
    many = keep(numbers(rounds=20, clients=8), range(1, 21))
    assert many["rounds"] == list(range(2, 21, 2))
    assert (
        many["thinned"]
        == "means over pairs of clients; one of 2 evaluated rounds; means over clients"
    )
    assert many["series"][-2]["client"] == many["series"][-1]["client"] == MEAN
    assert by_round(many, "weight") == {"": {r: r + 3.5 for r in range(2, 21, 2)}}


def test_keep_has_no_number_where_a_client_was_not_in_the_cohort():
    found = keep(numbers().drop(index=[9]), [1, 2])  # client 1 of round 1
    assert found["series"][3]["client"] == 1 and math.isnan(found["series"][3]["values"][0])


def test_by_round_is_the_mean_over_what_differs_besides():
    found = keep(numbers(), range(1, 5))
    assert by_round(found, "weight", "client") == {
        "0": {r: r for r in range(1, 5)},
        "1": {r: r + 1 for r in range(1, 5)},
    }
    assert by_round(found, "weight")[""][2] == 2.5 and by_round(found, "tau") == {}


def test_cell_with_record_keeps_its_numbers_and_has_another_digest(tmp_path):
    def cell(**options):
        [one] = Scale({"FedLWS": "fedavg + lws"}, {"all": options}, COMMON, seeds=(0,)).cells
        return one

    [result] = run_cells({tmp_path: [cell(record="server")]})
    assert not len(read(tmp_path, [cell()]))
    [found] = [cell.recorded for cell in read(tmp_path, [cell(record="server")]).cells]
    assert found["rounds"] == [2, 4]
    layers = by_round(found, "gamma")
    assert len(layers) == 1 and all(
        0 < value < 1 for own in layers.values() for value in own.values()
    )
    assert by_round(result.recorded, "gamma") == {
        k: pytest.approx(v, rel=1e-6) for k, v in layers.items()
    }


def test_cell_that_records_parameters_is_refused():
    [cell] = Scale(
        {"a": "fedavg"},
        {"all": {}},
        COMMON | {"record": "server + clients(layers='head')"},
        seeds=(0,),
    ).cells
    with pytest.raises(UnalikeError, match="leave out clients"):
        cell.prepare()


def results():
    def cell(method, seed, factor):
        entries = (
            {"round": r, "quantity": "gamma", "layer": x, "value": factor * r}
            for r in (1, 2)
            for x in "ab"
        )
        recorded = keep(table(*entries), [1, 2])
        return CellResult(method, "s", seed, "", "", {}, 1.0, "", {}, {}, recorded=recorded)

    return Results(
        (cell("x", 0, 1.0), cell("x", 1, 3.0), CellResult("y", "s", 0, "", "", {}, 1.0, "", {}, {}))
    )


def test_recorded_curves_have_a_line_for_each_layer_with_a_band_over_seeds():
    layout = RecordedCurves("gamma", "gamma")
    [plot] = layout.figure(results()).plots
    assert plot.title == "x" and [line.label for line in plot.marks] == ["a", "b"]
    assert plot.marks[0].y == [2.0, 4.0] and plot.marks[0].high[0] == pytest.approx(
        2 + math.sqrt(2)
    )
    assert layout.table(results())[1] == ["x", "s", "2", "a", "2", "4", "3"]


def test_recorded_map_has_layers_as_rows_and_rounds_as_columns(tmp_path):
    layout = RecordedMap("gamma", "gamma")
    figure = layout.figure(results())
    [plot] = figure.plots
    [squares] = plot.marks
    assert squares.values.tolist() == [[2.0, 4.0], [2.0, 4.0]] and squares.bar == "gamma"
    assert (list(plot.y.ticks.values()), list(plot.x.ticks.values())) == (["a", "b"], ["1", "2"])
    svg, _ = write(figure, layout.name, tmp_path)
    assert svg.name == "gamma.svg" and "gamma" in svg.read_text()
