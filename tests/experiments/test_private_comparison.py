"""Epsilon in a comparison: a column of the summary and of its table, and a clause of the decision."""

import math

import pytest

import unalike as ua

pytest.importorskip("dp_accounting")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_epsilon_stands_in_the_summary_the_table_and_the_decision():
    clients = ua.partition(ua.load("digits"), "iid", clients=10, seed=0)
    methods = [f"client_dp(noise_multiplier={z})" for z in (20.0, 0.5)]
    options = {"model": "linear", "rounds": 3, "work": ua.Work(lr=0.5), "seeds": 3, "progress": None}
    found = ua.compare(methods, clients, **options)
    costs = found.summary.set_index("method")["epsilon"]
    assert costs[methods[0]] < 1 < costs[methods[1]] and "Epsilon" in str(found)
    assert str(found.decision).startswith(f"At epsilon {costs[methods[1]]:.2g}, use {methods[1]}: ")
    plain = ua.compare(["fedavg", "fedprox(mu=1)"], clients, **options | {"rounds": 1, "seeds": 2})
    assert "epsilon" not in plain.summary and "Epsilon" not in str(plain) and math.isnan(plain.decision.epsilon)
