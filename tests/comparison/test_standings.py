"""The standings of a comparison while it runs, read from its folder."""

from __future__ import annotations

import math

import pytest

from unalike._utils.errors import UnalikeError
from unalike.comparison.standings import Standing, standings
from unalike.dashboard.state import FollowedComparison


def by_method(folder) -> dict[str, Standing]:
    return {row.method: row for row in standings(folder).methods}


def test_standings_during_a_comparison_count_seeds_and_rounds(people, small, tmp_path):
    seen = []

    def look(row):
        if row["run"] == "ditto (seed 1)" and row["round"] == 1:
            seen.append(by_method(tmp_path))

    table = small(["fedavg", "ditto", "local_only"], people, out=tmp_path, progress=look)
    during, after = seen[0], by_method(tmp_path)
    assert {m: r.seeds_done for m, r in during.items()} == {
        "fedavg": 2,
        "ditto": 1,
        "local_only": 1,
    }
    assert all(r.seeds == 2 and r.rounds == 6 for r in during.values())
    assert during["fedavg"].seconds_left == 0 < during["ditto"].seconds_left
    assert all(
        r.seeds_done == 2 and r.rounds_done == 6 and r.seconds_left == 0 for r in after.values()
    )
    expected = table.summary.query("protocol == 'used'").set_index("method")
    for name, row in after.items():
        assert row.score == pytest.approx(expected["accuracy"][name])
        assert row.column.name == ("accuracy" if name == "fedavg" else "personal_accuracy")
        assert row.difference == pytest.approx(
            0 if name == "fedavg" else expected["difference"][name]
        )


@pytest.mark.parametrize("across", ["clients", "worst"])
def test_standings_have_the_score_of_all_clients_that_decides(people, small, tmp_path, across):
    table = small(["fedavg", "ditto"], people, out=tmp_path, across=across)
    expected = table.summary.query("protocol == 'used'").set_index("method")
    assert not expected["accuracy"].equals(
        table.judged_by(across="pooled").summary.query("protocol == 'used'")["accuracy"]
    )
    for name, row in by_method(tmp_path).items():
        assert (
            row.score == pytest.approx(expected["accuracy"][name])
            and row.column.metric == table.decision.metric
        )
        assert row.difference == pytest.approx(
            0 if name == "fedavg" else expected["difference"][name]
        )
    curves = FollowedComparison(tmp_path).state()["curves"]
    assert [curve["name"] for curve in curves] == [
        "accuracy of fedavg",
        "personal accuracy of ditto",
    ]


def test_standings_are_best_first_and_without_score_last(people, small, tmp_path):
    order = []

    def look(row):
        if row["run"] == "fedpake (seed 0)":
            order.append(standings(tmp_path))

    small(["fedavg", "fedpake"], people, out=tmp_path, progress=look)
    assert [row.method for row in order[0].methods] == ["fedavg", "fedpake"]
    assert math.isnan(order[0].methods[1].score) and order[0].methods[1].seconds_left > 0
    scores = [row.score for row in standings(tmp_path).methods]
    assert scores == sorted(scores, reverse=True)


def test_standings_of_another_folder_are_refused(tmp_path):
    with pytest.raises(UnalikeError, match="holds no comparison that has begun"):
        standings(tmp_path)
