"""A metric of another package, of which lower is better, followed from the command's option to the dashboard."""

from __future__ import annotations

import sys

import pytest

import unalike as ua
from unalike.comparison.standings import standings
from unalike.dashboard.state import Followed, FollowedComparison
from unalike.metrics.named_metrics import read, registry

MODULE = '''
from unalike.metrics.named_metrics import Metric, registry


@registry.register("error_rate")
def error_rate() -> Metric:
    """Share of wrong predictions."""
    formula = lambda labels, predicted, logits: float((labels != predicted).mean())
    return Metric("error_rate", -1, "Error rate", "error rate", formula=formula, percent=True, is_mean=True)
'''
METHODS = ["fedavg", "local_only", "fedprox(mu=1)"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A distribution on the path that names its module in the entry-point group; the registry has not been read yet."""
    folder = tmp_path / "site"
    info = folder / "error_rate-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "error_rate_metric.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: error-rate\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[unalike.metrics]\nerror_rate = error_rate_metric\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "error_rate_metric", raising=False)
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))
    monkeypatch.setattr(registry, "_plugins_are_loaded", False)


@pytest.fixture(scope="module")
def clients():
    return ua.partition(ua.load("digits"), "dirichlet(alpha=0.3)", clients=4, val=0.2)


def options(metric):
    """Local training at a rate with which scores fall and rise."""
    return {"model": "linear", "work": ua.Work(lr=2.0), "metric": metric, "progress": False}


def test_outside_metric_is_found_through_the_entry_point(package):
    [metric] = read(["error_rate"])
    assert (metric.name, metric.sign) == ("error_rate", -1)


def test_outside_metric_selects_and_stops_by_its_sign(package, clients, tmp_path):
    """An error rate is one minus the accuracy, so that both end and select the same rounds."""
    runs = [
        ua.run(
            "fedavg",
            clients,
            rounds=12,
            select="best",
            stop="patience(rounds=2)",
            out=tmp_path / name,
            **options(name),
        )
        for name in ("error_rate", "accuracy")
    ]
    by_error, by_accuracy = runs
    scores = by_error.history.rounds.set_index("round")["val_error_rate"].drop(0)
    assert (
        by_error.selected == scores.idxmin() != scores.idxmax()
        and by_error.selected == by_accuracy.selected
    )
    assert (
        by_error.ended == by_accuracy.ended
        and len(by_error.history) == len(by_accuracy.history) < 13
    )
    again = ua.open_run(tmp_path / "error_rate")
    assert again.selected == by_error.selected and again.history.columns.metric.sign == -1
    assert repr(again).endswith(
        f"rounds, error rate {100 * again.history.last['error_rate']:.1f}\u00a0%>"
    )
    state = Followed(tmp_path / "error_rate").state()
    assert state["metric"] == "error rate" and state["curves"][0]["name"] == "error rate"
    assert state["curves"][0]["ends"][1].endswith("%") and state["table"]["metric"] == "error rate"


def test_outside_metric_decides_a_comparison_in_every_place(
    package, clients, tmp_path, monkeypatch
):
    tables = {
        name: ua.compare(METHODS, clients, rounds=3, seeds=3, out=tmp_path / name, **options(name))
        for name in ("error_rate", "accuracy")
    }
    errors, accuracies = (
        table.summary.set_index(["method", "protocol"]) for table in tables.values()
    )
    assert errors["difference"].to_numpy() == pytest.approx(
        -accuracies["difference"].to_numpy(), nan_ok=True
    )
    assert errors["verdict"].tolist() == accuracies["verdict"].tolist() and errors["better"].equals(
        accuracies["better"]
    )
    assert errors["probability_best"].to_numpy() == pytest.approx(
        accuracies["probability_best"].to_numpy(), nan_ok=True
    )
    assert errors["worst_decile"].to_numpy() == pytest.approx(
        1 - accuracies["worst_decile"].to_numpy()
    )
    by_error, by_accuracy = (table.decision for table in tables.values())
    assert by_error.best == by_accuracy.best and by_error.verdicts == by_accuracy.verdicts
    assert "error rate" in str(by_error)

    rows = standings(tmp_path / "error_rate").methods
    assert [row.method for row in rows] == [
        row.method for row in standings(tmp_path / "accuracy").methods
    ]
    page = (tmp_path / "error_rate" / "report.html").read_text()
    assert "Error rate" in page and "lower and further left is better" in page
    state = FollowedComparison(tmp_path / "error_rate").state()
    names = [curve["name"] for curve in state["curves"]]
    assert names == [
        "error rate of fedavg",
        "personal error rate of local_only",
        "error rate of fedprox(mu=1)",
    ]
    assert all(
        row["score_text"].endswith("%") and row["metric"].endswith("error rate")
        for row in state["standings"]
    )

    monkeypatch.setattr(
        registry, "_builders", {}
    )  # where the package is not installed, the folder still tells
    again = ua.open_comparison(tmp_path / "error_rate")
    assert str(again.decision) == str(by_error) and again.columns.metric.sign == -1
