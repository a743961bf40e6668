"""Epsilon in a comparison: in its standings, a column of the summary and of its table, and a clause of the decision."""

import math

import pytest

import unalike as ua
from unalike.cli.terminal_tables import _standings_table, standings_line
from unalike.comparison.standings import standings
from unalike.reporting import summary_page

pytest.importorskip("dp_accounting")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_epsilon_stands_in_the_summary_the_table_and_the_decision():
    clients = ua.partition(ua.load("digits"), "iid", clients=10, seed=0)
    methods = [f"client_dp(noise_multiplier={z})" for z in (20.0, 0.5)]
    options = {
        "model": "linear",
        "rounds": 3,
        "work": ua.Work(lr=0.5),
        "seeds": 3,
        "progress": None,
    }
    found = ua.compare(methods, clients, **options)
    costs = found.summary.set_index("method")["epsilon"]
    assert costs[methods[0]] < 1 < costs[methods[1]] and "Epsilon" in str(found)
    assert str(found.decision).startswith(f"At epsilon {costs[methods[1]]:.2g}, use {methods[1]}: ")
    [bound, _] = [text for text in found.findings.limits if "epsilon" in text]
    assert (
        bound
        == f"The training of {methods[0]} has epsilon {costs[methods[0]]:.3g} at delta 1e-05 for each client."
    )
    assert bound in summary_page.render(found.content())
    plain = ua.compare(["fedavg", "fedprox(mu=1)"], clients, **options | {"rounds": 1, "seeds": 2})
    assert not any("epsilon" in text for text in plain.findings.limits)
    assert (
        "epsilon" not in plain.summary
        and "Epsilon" not in str(plain)
        and math.isnan(plain.decision.epsilon)
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_epsilon_stands_in_the_standings_where_a_method_is_private(people, small, tmp_path):
    private, seen = "client_dp(noise_multiplier=2)", []

    def look(row):
        if row["run"] == f"{private} (seed 1)" and row["round"] == 2:
            seen.append(standings(tmp_path / "private"))

    small(["fedavg", private], people, out=tmp_path / "private", progress=look)
    spent = (
        ua.open_comparison(tmp_path / "private")
        .rounds.query("method == @private")
        .groupby("round")["epsilon"]
        .max()
    )
    for board in (seen[0], standings(tmp_path / "private")):
        by_method = {row.method: row for row in board.methods}
        assert by_method[private].epsilon == spent.iloc[-1] and math.isnan(
            by_method["fedavg"].epsilon
        )
        assert [c.header for c in _standings_table(board).columns][-2:] == ["epsilon", "time left"]
        line = standings_line(board)
        assert f"% at epsilon {spent.iloc[-1]:.3g} (" in line and line.count("epsilon") == 1
    small(["fedavg"], people, out=tmp_path / "plain", progress=None)
    assert "epsilon" not in {
        c.header for c in _standings_table(standings(tmp_path / "plain")).columns
    }
