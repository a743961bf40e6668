"""Sweeps: a comparison at every point of a grid, from one store of cells; tables, heat maps and the page."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.comparison.comparison import Comparison
from unalike.comparison.sweep.grid import Arguments, label_of, read_grid
from unalike.metrics.columns import TIMES
from unalike.reporting.charts import matplotlib_figures, plotly_figures
from unalike.reporting.pages import figures

pytestmark = pytest.mark.slow

METHODS = ["fedavg", "fedprox(mu=0.1)"]


@pytest.fixture
def swept(dataset):
    """`ua.sweep` on the tiny model."""

    def sweep(grid, methods=METHODS, clients=4, **options):
        defaults = {
            "data": dataset,
            "model": "linear",
            "rounds": 2,
            "seeds": 2,
            "partition": "dirichlet(alpha=0.5)",
        }
        return ua.sweep(methods, grid, clients, **defaults | options)

    return sweep


def at(sweep, **point):
    """The rows of the table of a sweep at a point."""
    table = sweep.table
    for name, value in point.items():
        table = table[table[name] == value]
    return table


def test_every_point_is_the_comparison_with_its_arguments(swept, dataset, tmp_path):
    found = swept({"lr": [0.01, 0.1], "alpha": [0.1, 1.0]}, out=tmp_path)
    assert list(found.comparisons) == [("0.01", "0.1"), ("0.01", "1"), ("0.1", "0.1"), ("0.1", "1")]
    for (lr, alpha), comparison in found.comparisons.items():
        expected = ua.compare(
            METHODS,
            4,
            data=dataset,
            partition=f"dirichlet(alpha={alpha})",
            model="linear",
            rounds=2,
            seeds=2,
            work=ua.Work(lr=float(lr)),
        )
        pd.testing.assert_frame_equal(
            comparison.rounds.drop(columns=[*TIMES]),
            expected.rounds.drop(columns=[*TIMES]),
            check_exact=True,
        )
        rows = expected.summary.set_index("method")
        for _, row in at(found, lr=lr, alpha=alpha).iterrows():
            assert row["accuracy"] == rows["accuracy"][row["method"]]
        opened = ua.open_comparison(tmp_path / "points" / f"lr-{lr}-alpha-{alpha}")
        pd.testing.assert_frame_equal(opened.rounds, comparison.rounds)


def test_cells_are_shared_and_only_added_values_are_trained(swept, trained, tmp_path):
    """FedAvg has no mu, so one cell for each seed serves all values of mu."""
    first = swept({"mu": [0.1, 1.0]}, out=tmp_path)
    assert first.methods == ["fedavg", "fedprox"] and len(trained) == 2 * 2 * (1 + 2)
    trained.clear()
    more = swept({"mu": [0.1, 1.0, 5.0]}, out=tmp_path)
    assert len(trained) == 2 * 2 and {method for method, _ in trained} == {
        repr(ua.Method.parse("fedprox(mu=5.0)"))
    }
    kept = more.table[more.table["mu"] != "5"].reset_index(drop=True).drop(columns="best")
    pd.testing.assert_frame_equal(kept, first.table.drop(columns="best"))
    trained.clear()
    longer = swept({"mu": [0.1, 1.0, 5.0]}, out=tmp_path, rounds=3)
    assert len(trained) == 2 * (1 + 3) and {number for _, number in trained} == {2}
    whole = swept({"mu": [0.1, 1.0, 5.0]}, rounds=3)
    pd.testing.assert_frame_equal(longer.table, whole.table)
    with pytest.raises(ua.UnalikeError, match=r"holds a sweep, whose page is sweep\.html"):
        Comparison.load(tmp_path)
    assert len(Comparison.load(tmp_path / "points" / "mu-5").rounds) == 2 * 2 * 4


def test_interrupted_sweep_goes_on(swept, trained, tmp_path):
    def interrupt(row):
        if row["run"] == "fedavg (seed 1) at lr=0.1" and row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept({"lr": [0.01, 0.1]}, out=tmp_path, progress=interrupt)
    done = len(trained)
    found = swept({"lr": [0.01, 0.1]}, out=tmp_path)
    assert len(trained) == 2 * 2 * 2 * 2 and done < len(trained)
    pd.testing.assert_frame_equal(found.table, swept({"lr": [0.01, 0.1]}).table)


class Listed:
    """A tracker that keeps the names of the runs that it follows, with their learning rates."""

    def __init__(self):
        self.runs = []

    def begin(self, run):
        self.runs.append((run.name, run.config.get("work.lr"), run.group))
        return ""

    def log(self, row):
        pass

    def end(self, files, finished):
        pass


def test_sweep_is_tracked_as_one_group(swept, tmp_path):
    tracker = Listed()
    swept({"lr": [0.1, 0.2]}, seeds=1, out=tmp_path / "grid", track=tracker)
    assert {group for _, _, group in tracker.runs} == {"grid"}
    cells = [(name, lr) for name, lr, _ in tracker.runs if "seed" in name]
    assert len(cells) == 4 and {lr for _, lr in cells} == {0.1, 0.2}
    assert [name for name, _, _ in tracker.runs].count("comparison") == 2


def test_sweep_in_several_processes_equals_one(swept):
    grid, options = {"lr": [0.1, 0.2]}, {"seeds": 1, "executor": "loop"}
    shared, alone = swept(grid, jobs=2, **options), swept(grid, **options)
    ignored = {"columns": [*TIMES], "errors": "ignore"}
    pd.testing.assert_frame_equal(shared.table.drop(**ignored), alone.table.drop(**ignored))


def test_best_point_is_that_of_choices_within_the_same_data(swept):
    found = swept({"lr": [0.001, 0.2], "alpha": [0.1, 1.0]})
    assert found.choices == ["lr"] and list(found.data_axes) == ["alpha"]
    assert len(found.best) == 4 and found.best.groupby(["alpha", "method"]).size().eq(1).all()
    for _, row in found.best.iterrows():
        others = at(found, alpha=row["alpha"], method=row["method"])
        assert row["accuracy"] == others["accuracy"].max()
    best, chosen, *_ = found.findings
    assert "fedavg at alpha=0.1, lr=" in best and "chosen by the test samples" in chosen
    only_data = swept({"alpha": [0.1, 1.0]})
    assert not only_data.table["best"].any() and only_data.findings[0].startswith(
        "Every point is another task"
    )


def test_best_value_at_the_end_of_the_grid_is_noted(swept):
    found = swept({"lr": [1e-5, 1e-4, 1e-3]}, methods=["fedavg"])
    assert (
        found.findings[-1]
        == "The best lr of fedavg is at the end of the grid: wider values may be better."
    )


def test_a_metric_where_less_is_better_has_the_least_as_best(swept):
    found = swept({"lr": [0.001, 0.2]}, methods=["fedavg"], metric="brier_score")
    scores = found.table.set_index("lr")
    assert found.metric.sign == -1
    name = found.metric.name
    assert scores["best"][scores[name].idxmin()] and not scores["best"][scores[name].idxmax()]


def test_heat_maps_hold_the_table_in_both_renderers(swept, tmp_path):
    found = swept({"lr": [0.01, 0.1], "alpha": [0.1, 1.0], "epochs": [1, 2]}, seeds=1, out=tmp_path)
    drawn = figures("sweep", found)
    assert list(drawn) == ["scores", "differences"] and len(drawn["scores"].plots) == 4
    assert [plot.title for plot in drawn["scores"].plots][:2] == [
        "fedavg, epochs=1",
        "fedprox(mu=0.1), epochs=1",
    ]
    [first] = drawn["scores"].plots[0].marks
    expected = [
        [
            100 * at(found, lr=lr, alpha=a, epochs="1", method="fedavg")["accuracy"].item()
            for a in ("0.1", "1")
        ]
        for lr in ("0.01", "0.1")
    ]
    np.testing.assert_allclose(first.values, expected)
    assert all(len(plot.title.split("fedprox")) == 2 for plot in drawn["differences"].plots)
    interactive = plotly_figures.draw(drawn["scores"])
    assert [trace.type for trace in interactive.data] == ["heatmap"] * 4 and interactive.data[
        0
    ].texttemplate == "%{text}"
    texts = [
        text.get_text()
        for axes in matplotlib_figures.draw(drawn["scores"]).axes
        for text in axes.texts
    ]
    assert texts == [
        text for plot in drawn["scores"].plots for line in plot.marks[0].texts for text in line
    ]
    for name in ("sweep-scores.svg", "sweep-scores.pdf", "sweep-differences.svg", "sweep.csv"):
        assert (tmp_path / name).stat().st_size
    page = (tmp_path / "sweep.html").read_text("utf-8")
    assert "panel-scores" in page and found.findings[0] in page.replace("&#39;", "'")
    assert len(json.loads((tmp_path / "sweep.json").read_text())) == len(found.table) == 16
    assert (
        found.plot("differences").data
        and "<table" in found._repr_html_()
        and "Best point" in str(found)
    )


def test_one_name_is_one_map_of_methods(swept):
    found = swept({"lr": [0.01, 0.1]}, seeds=1)
    [plot] = figures("sweep", found)["scores"].plots
    assert list(plot.y.ticks.values()) == ["fedavg", "fedprox(mu=0.1)"] and list(
        plot.x.ticks.values()
    ) == [
        "0.01",
        "0.1",
    ]
    assert plot.marks[0].values.shape == (2, 2)
    with pytest.raises(ua.UnalikeError, match="sweep two methods"):
        swept({"lr": [0.01, 0.1]}, methods=["fedavg"], seeds=1).plot("differences")


@pytest.mark.parametrize(
    ("grid", "methods", "message"),
    [
        ({"lrr": [1]}, METHODS, "did you mean 'lr'"),
        ({"rounds": [1, 2]}, METHODS, "rounds"),
        ({"lr": [0.1, -1.0]}, METHODS, "lr"),
        ({"alpha": [-1.0]}, METHODS, "alpha"),
        ({"mu": [0.1, "much"]}, METHODS, "mu"),
        (
            {"mu": [0.1]},
            ["fedprox(mu=0.1)", "fedprox(mu=1.0)"],
            "differ in a swept parameter alone",
        ),
        ({}, METHODS, "expected names with values"),
        ({"lr": []}, METHODS, "expected names with values"),
        ({"model": ["linear", "no_such_model"]}, METHODS, "no_such_model"),
    ],
    ids=str,
)
def test_impossible_grids_are_refused_before_training(swept, trained, grid, methods, message):
    with pytest.raises(ua.UnalikeError, match=message):
        swept(grid, methods=methods)
    assert not trained


def test_name_of_partition_and_method_has_to_be_told_apart(swept):
    grid, methods = {"alpha": [0.2, 0.4]}, ["fedavg", "feddyn"]
    with pytest.raises(ua.UnalikeError, match=r"alpha is a parameter of dirichlet.* and of feddyn"):
        swept(grid, methods=methods)
    start = Arguments({m: m for m in methods}, _request("dirichlet(alpha=0.5)"), None, {})
    assert start.at("dirichlet.alpha", 0.2).clients.partition == "dirichlet(alpha=0.2)"
    assert start.at("feddyn.alpha", 0.2).methods == {
        "fedavg": "fedavg",
        "feddyn": "feddyn(alpha=0.2)",
    }


def _request(partition):
    from unalike.data.partitioning.given_clients import ClientsRequest

    return ClientsRequest(5, "digits", partition=partition)


def test_compare_names_the_function_that_sweeps(dataset):
    with pytest.raises(ua.UnalikeError, match=r"takes no keyword 'sweep'; ua\.sweep"):
        ua.compare(["fedavg"], data=dataset, sweep={"lr": [0.1]})


def test_labels_leave_out_what_is_swept():
    methods = ["fedprox(mu=0.1) + lws", "fedavg", "fedadam(lr=0.1)"]
    assert [label_of(m, ["mu", "lr"]) for m in methods] == [
        "fedprox + lws",
        "fedavg",
        "fedadam(lr=0.1)",
    ]
    assert [label_of(m, ["fedadam.lr"]) for m in methods] == [
        "fedprox(mu=0.1) + lws",
        "fedavg",
        "fedadam",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=.01,.1", {"lr": [0.01, 0.1]}),
        ("batch-size=16,full", {"batch_size": [16, None]}),
        ("model=mlp,cnn(channels=(8, 16))", {"model": ["mlp", "cnn(channels=(8, 16))"]}),
        ("optimizer=sgd,'adam'", {"optimizer": ["sgd", "adam"]}),
    ],
)
def test_grid_is_read_from_text(text, expected):
    assert read_grid([text]) == expected


@pytest.mark.parametrize("texts", [["lr"], ["lr="], ["lr=1,("], ["lr=1", "lr=2"]], ids=str)
def test_other_texts_are_refused(texts):
    with pytest.raises(ua.UnalikeError, match="--sweep"):
        read_grid(texts)


def test_name_that_a_method_lacks_is_not_named_with_it(swept):
    best, _, *others = swept({"mu": [0.01, 0.1, 1.0], "alpha": [0.1, 1.0]}).findings
    assert "fedavg at alpha=0.1 (" in best and "fedprox at alpha=0.1, mu=" in best
    assert any(
        text.startswith("fedavg: no mu, so the same runs stand at each of its values")
        for text in others
    )
    assert not any("best mu of" in text and "fedavg" in text for text in others)


def test_sweep_over_data_has_a_best_point_in_each_data_set(swept, dataset):
    two = ua.data.Dataset("two", (np.arange(60.0)[:, None] / 60, np.arange(60) // 30))
    options = {"data": None, "partition": None, "rounds": 1}
    found = swept({"data": [dataset, two], "lr": [0.01, 0.5]}, ["fedavg"], **options)
    assert found.best["data"].tolist() == [dataset.name, "two"]
    assert found.name == f"{dataset.name} and two"
    assert found.comparisons["two", "0.01"].facts.partition["data"] == "two"
    [chart] = found.plot("scores").data
    assert np.shape(chart.z) == (2, 2)
    amounts = ua.data.Dataset("amounts", (np.ones((60, 1)), np.linspace(0.5, 9, 60)))
    with pytest.raises(UnalikeError, match="found data of the tasks classification and regression"):
        swept({"data": [dataset, amounts]}, ["fedavg"], **options)
    with pytest.raises(
        UnalikeError, match="found data with the values two, two; expected values that"
    ):
        swept({"data": [two, two]}, ["fedavg"], **options)
    with pytest.raises(UnalikeError, match="found test beside a sweep of data"):
        swept({"data": [dataset, two]}, ["fedavg"], test=dataset.test, **options)
