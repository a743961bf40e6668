"""Tables and figures of stored results."""

import pytest

from unalike.reporting.charts import matplotlib_figures, plotly_figures
from unalike_studies.layouts.figures import ClassScores, ClientCurves, Curves, LabelBubbles
from unalike_studies.layouts.looks import write
from unalike_studies.layouts.sweeps import MethodSweep, Sweep
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.results import CellResult, Results


def cell(method, setting, seed, values, **more):
    rounds = {"round": list(range(len(values))), "accuracy": values}
    return CellResult(method, setting, seed, "", "", {}, 1.0, "", {}, {}, rounds=rounds, **more)


RESULTS = Results(
    (
        cell(
            "a",
            "few",
            0,
            [0.1, 0.5],
            curves=[[0.0, 0.2], [0.4, None]],
            label_counts=[[3, 0], [1, 1]],
        ),
        cell("a", "few", 1, [0.3, 0.7]),
        cell("b", "few", 0, [0.1, 0.4]),
        cell("a", "many", 0, [0.1, 0.9]),
    )
)


def test_curves_are_means_over_seeds_with_a_band_of_one_deviation():
    few, many = Curves("accuracy, %").figure(RESULTS).plots
    a, b = few.marks
    assert (a.label, list(a.x), a.y) == ("a", [0, 1], pytest.approx([20.0, 60.0]))
    assert a.high[1] - a.y[1] == pytest.approx(14.142, abs=1e-3)  # the deviation of 50 and 70
    assert b.y == pytest.approx([10.0, 40.0]) and [line.label for line in many.marks] == ["a"]


def test_curves_by_logarithm_of_rounds_in_both_figures():
    figure = Curves("accuracy, %", log_rounds=True).figure(RESULTS)
    assert {axes.get_xscale() for axes in matplotlib_figures.draw(figure).axes} == {"log"}
    assert {axis.type for axis in plotly_figures.draw(figure).select_xaxes()} == {"log"}
    lines = [line for plot in figure.plots for line in plot.marks]
    assert [list(line.x) for line in lines] == [[1], [1], [1]]  # round 0 has no logarithm


def test_client_curves_leave_out_rounds_without_a_value():
    few, _ = ClientCurves("accuracy, %", "a").figure(RESULTS).plots
    assert [(line.label, list(line.x), line.y) for line in few.marks] == [
        ("client 0", [0, 1], pytest.approx([0.0, 40.0])),
        ("client 1", [0], pytest.approx([20.0])),
    ]


def test_sweep_has_the_parameter_as_x_axis():
    sweep = Sweep("accuracy, %", "clusters", {"few": 3.0, "many": 8.0}, last=1)
    a, b = sweep.figure(RESULTS).plots[0].marks
    assert (list(a.x), a.y, list(b.x)) == ([3.0, 8.0], pytest.approx([60.0, 90.0]), [3.0])
    assert sweep.table(RESULTS) == [["clusters", "a", "b"], ["3", "60", "40"], ["8", "90", "-"]]


def test_class_scores_are_one_point_for_each_class_that_is_shown():
    found = cell("a", "few", 0, [0.1, 0.5])
    found.rounds.update(
        {"accuracy_of_0": [None, 0.25], "accuracy_of_O": [None, 0.75], "accuracy_of_1": [None, 1.0]}
    )
    layout = ClassScores("accuracy, %", "few", ("0", "O"))
    [plot] = layout.figure(Results((found,))).plots
    assert list(plot.x.ticks.values()) == ["0", "O"] and plot.marks[0].y == pytest.approx(
        [25.0, 75.0]
    )
    assert layout.table(Results((found,))) == [["class", "a"], ["0", "25.0"], ["O", "75.0"]]


def test_label_counts_say_how_skewed_each_client_is():
    assert LabelBubbles("labels").table(RESULTS)[1:] == [
        ["few", "0", "3", "1", "1.00"],
        ["few", "1", "2", "2", "0.50"],
    ]


@pytest.mark.parametrize(
    "layout", [Curves("accuracy, %"), ClientCurves("accuracy, %", "a"), LabelBubbles("labels")]
)
def test_figure_is_written_as_svg_and_pdf(layout, tmp_path):
    svg, pdf = write(layout.figure(RESULTS), layout.name, tmp_path)
    assert svg.read_text().lstrip().startswith("<?xml") and pdf.read_bytes().startswith(b"%PDF")
    before = svg.read_bytes()
    write(layout.figure(RESULTS), layout.name, tmp_path)
    assert svg.read_bytes() == before


def test_method_sweep_shows_gains_over_the_baseline_under_the_same_seeds():
    results = Results(
        (
            cell("base", "few", 0, [0.1, 0.5]),
            cell("base", "few", 1, [0.1, 0.7]),
            cell("weak", "few", 0, [0.1, 0.6]),
            cell("weak", "few", 1, [0.1, 0.9]),
            cell("strong", "few", 0, [0.1, 0.4]),
        )
    )
    sweep = MethodSweep(
        "accuracy, %", "beta", {"own": {"weak": 0.1, "strong": 10.0}}, "base", last=1
    )
    assert sweep.table(results) == [
        ["setting", "beta", "own less base"],
        ["few", "0.1", "+15.00 ± 7.07 (2)"],  # 10 and 20
        ["few", "10", "-10.00"],
    ]
    [plot] = sweep.figure(results).plots
    own, base = plot.marks
    assert plot.x.log and plot.x.title == "beta"
    assert (own.x, own.y) == (pytest.approx([0.1, 10]), pytest.approx([75, 40]))
    assert (base.x, base.y) == (pytest.approx([0.1, 10]), pytest.approx([60, 60]))


def test_method_table_leaves_out_methods_and_seeds_without_the_column():
    results = Results(
        (
            cell("shared", "few", 0, [0.1, 0.5]),
            cell("both", "few", 0, [0.1, 0.5]),
            cell("both", "few", 1, [0.1, 0.7]),
            cell("both", "many", 0, [0.1, 0.5]),
        )
    )
    for result, values in zip(results.cells[1:], ([0.0, 0.6], [0.0, 0.8], [None, None])):
        result.rounds["personal_accuracy"] = values
    assert MethodTable("personal", "personal_accuracy", last=1).table(results) == [
        ["method", "few", "many"],
        ["both", "70.00 ± 14.14 (2)", "-"],
    ]


def test_logarithmic_axis_of_less_than_a_decade_has_no_tex(tmp_path):
    sweep = MethodSweep(
        "accuracy, %", "beta", {"own": {"weak": 0.03, "strong": 0.1}}, "base", last=1
    )
    results = Results(
        tuple(cell(method, "few", 0, [0.1, 0.5]) for method in ("base", "weak", "strong"))
    )
    svg, *_ = write(sweep.figure(results), "sweep", tmp_path)
    assert "mathdefault" not in svg.read_text()
