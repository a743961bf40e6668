"""`ua.estimate`: the cost of a comparison, estimated from a few rounds."""

from __future__ import annotations

import json

import pytest

import unalike as ua
from unalike.comparison.compare import prepare_experiment
from unalike.comparison.comparison import Comparison
from unalike.comparison.seed_plan import SeedPlan
from unalike.data.partitioning.given_clients import ClientsRequest

METHODS = ["fedavg", "scaffold", "fedconcat", "ditto", "ifca(clusters=2)", "local_only"]


def spent(table, method):
    rounds = table.rounds.query("method == @method and seed == 0")
    return [(rounds["bytes_down"]).sum() / 1e6, (rounds["bytes_up"]).sum() / 1e6]


def test_estimate_bytes_and_rounds_are_exact(people, small):
    """Part messages, client queries and bytes sent once are included, for plans of several stages as well."""
    options = {
        "model": "mlp(hidden=(8,))",
        "rounds": 12,
        "seeds": 2,
        "work": ua.Work(batch_size=5, lr=0.1),
    }
    estimate = ua.estimate(METHODS, people, **options)
    table = ua.compare(METHODS, people, **options)
    for cost in estimate.costs:
        assert [cost.mb_down, cost.mb_up] == pytest.approx(spent(table, cost.method), rel=1e-9), (
            cost.method
        )
        assert cost.rounds == 12 and 0 < cost.seconds <= cost.seconds_in_all
    assert estimate.seeds == 2 and estimate.memory_mb > 100
    assert estimate.seconds == pytest.approx(2 * sum(c.seconds_in_all for c in estimate.costs))


def test_estimate_ignores_folder_trackers_and_progress(people, tmp_path):
    options = {"model": "linear", "rounds": 3, "seeds": 1}
    ignored = {"out": tmp_path / "none", "track": "tensorboard", "progress": False}
    assert ua.estimate(["fedavg"], people, **options, **ignored).seeds == 1
    assert not (tmp_path / "none").exists()


def test_estimate_with_budget_has_fewer_rounds(people):
    options = {"model": "linear", "rounds": 50}
    costs = ua.estimate(["fedavg", "scaffold"], people, budget="10 rounds", **options).costs
    assert [c.rounds for c in costs] == [10, 10]
    paid = f"{costs[0].mb_down + costs[0].mb_up} MB"
    assert [
        c.rounds for c in ua.estimate(["fedavg", "scaffold"], people, budget=paid, **options).costs
    ] == [10, 5]


def test_estimate_counts_states_of_clients_not_calibrated():
    """The estimated memory of SCAFFOLD's control variates grows with the clients that the calibration does not train."""
    crowd = ua.partition(ua.load("digits"), "iid", clients=400)
    lean, remembers = (
        ua.estimate([m], crowd, model="mlp(hidden=(200,))", rounds=30, participation=0.02).memory_mb
        for m in ("fedavg", "scaffold")
    )
    variate = (64 * 200 + 200 + 200 * 10 + 10) * 4 / 1e6
    assert remembers - lean > 0.9 * (400 - 3 * 8) * variate


def test_report_shows_estimate_beside_actual_cost(people, tmp_path):
    training = {"model": "linear", "rounds": 6}
    experiment = prepare_experiment(
        ["fedavg", "scaffold"], ClientsRequest(people), SeedPlan.of(2), **training
    )
    options = training | {"seeds": 2}
    experiment.estimate().save(tmp_path)
    table = ua.compare(["fedavg", "scaffold"], people, out=tmp_path, **options)
    rows = {(r["what"], r["unit"]): r for r in table.facts.estimate}
    for method in ("fedavg", "scaffold"):
        down = rows[method, "MB down"]
        assert (
            down["estimated"]
            == pytest.approx(down["actual"])
            == pytest.approx(spent(table, method)[0])
        )
        assert rows[method, "seconds of training"]["actual"] > 0
    assert rows["the process", "MB of memory"]["actual"] > 100
    assert Comparison.load(tmp_path).facts.estimate == table.facts.estimate
    again = ua.compare(["fedavg", "scaffold"], people, out=tmp_path, **options).facts.estimate
    assert again[-1]["actual"] is None  # read, not trained: the memory was not measured
    other = ua.compare(["fedavg", "scaffold"], people, out=tmp_path, **options | {"rounds": 7})
    assert not other.facts.estimate  # the estimate belongs to another comparison


def test_load_damaged_estimate_gives_none(people, tmp_path):
    for text in ("", "{}", "[1]", json.dumps({"key": 3})):
        (tmp_path / "estimate.json").write_text(text)
        assert not ua.compare(
            ["fedavg"], people, model="linear", rounds=1, seeds=1, out=tmp_path
        ).facts.estimate


def test_estimate_budget_counts_bytes_sent_once(people):
    """FedConcat's second stage starts by sending the encoders, which the clients keep."""
    options = {
        "model": "mlp(hidden=(8,))",
        "rounds": 12,
        "seeds": 1,
        "work": ua.Work(batch_size=5, lr=0.1),
    }
    whole = ua.estimate(["fedconcat"], people, **options).costs[0]
    budget = f"{0.8 * (whole.mb_down + whole.mb_up)} MB"
    cost = ua.estimate(["fedconcat"], people, budget=budget, **options).costs[0]
    table = ua.compare(["fedconcat"], people, budget=budget, **options)
    assert cost.rounds == table.rounds["round"].max() < 12
    assert [cost.mb_down, cost.mb_up] == pytest.approx(spent(table, "fedconcat"), rel=1e-9)
