"""`seeds="auto"`: seeds are added until the decision stands, and a folder is continued."""

from __future__ import annotations

import tomllib

import pytest

import unalike as ua
from unalike.comparison.comparison import Comparison
from unalike.comparison.seed_plan import SeedPlan


def seeds_of(table):
    return table.rounds.groupby("method")["seed"].nunique().to_dict()


def test_added_seeds_stop_when_the_decision_stands(people, small, trained, tmp_path):
    """A learning rate of almost 0 cannot win, and one that learns can: a few seeds show that."""
    methods = {
        "frozen": "fedavg + clip(norm=0.000001)",
        "learns": "fedavg",
        "pooled": "centralised",
    }
    options = {"seeds": "auto", "min_seeds": 3, "max_seeds": 8, "out": tmp_path, "rounds": 6}
    table = small(methods, people, **options)
    decision = table.decision
    assert (
        decision.choice == decision.best == "learns" and decision.stands and decision.settles == 0
    )
    assert 3 <= seeds_of(table)["learns"] < 8 and seeds_of(table)["pooled"] == 3
    assert decision.level < 0.05 and f"{100 * (1 - decision.level):.3g}\u00a0% interval" in str(
        decision
    )
    config = tomllib.loads(table.facts.config)
    assert (config["seeds"], config["min_seeds"], config["max_seeds"]) == ("auto", 3, 8)
    assert any("Each look" in text for text in table.findings.limits)
    trained.clear()
    again = small(methods, people, **options)
    assert not trained and seeds_of(again) == seeds_of(table)
    assert str(Comparison.load(tmp_path).decision) == str(decision)


def test_added_seeds_end_at_the_limit_and_go_to_contenders_only(people, small, tmp_path):
    """Methods that hardly differ stay undecided; references have the fewest seeds."""
    methods = ["fedavg", "fedprox(mu=0.01)", "centralised"]
    table = small(
        methods,
        people,
        seeds="auto",
        min_seeds=2,
        max_seeds=4,
        rounds=1,
        smallest_effect=0.0,
        out=tmp_path,
    )
    assert (
        seeds_of(table)["centralised"] == 2
        and seeds_of(table)["fedavg"] == seeds_of(table)["fedprox(mu=0.01)"]
    )
    assert seeds_of(table)["fedavg"] in (2, 4)


@pytest.mark.parametrize(("fewest", "most"), [(1, 5), (4, 3)])
def test_added_seeds_with_impossible_limits_are_refused(people, small, trained, fewest, most):
    with pytest.raises(ua.UnalikeError, match="expected 2 or more seeds"):
        small(["fedavg", "scaffold"], people, seeds="auto", min_seeds=fewest, max_seeds=most)
    assert not trained


def test_seed_plan_flags_repeat_it():
    assert SeedPlan.of("auto", 3, 7).flags == {"seeds": "auto", "min_seeds": 3, "max_seeds": 7}
    assert SeedPlan.of([4]).flags == {"seeds": "4,"} and SeedPlan.of(3).seeds == [0, 1, 2]
    with pytest.raises(
        ua.UnalikeError,
        match=r"seeds='three': expected how many \(3\), which \(\[0, 1, 4\]\) or 'auto'",
    ):
        SeedPlan.of("three")
