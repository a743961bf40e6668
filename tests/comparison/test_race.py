"""A comparison without methods: a short list races within a budget, and what can no longer win is dropped."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import unalike as ua
from unalike.comparison import compare
from unalike.comparison.racing import race
from unalike.comparison.racing.drop_rule import tests_against_leader as against_leader
from unalike.comparison.racing.race import CellSeconds, Race
from unalike.comparison.racing.race_budget import RaceBudget
from unalike.comparison.racing.short_list import NEVER_DROPPED, SHORT_LIST
from unalike.methods.part import registry

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FROZEN = "fedavg + clip(norm=0.000001)"
"""A method that learns nothing, and so is shown to be worse under a few seeds."""


def seeds_of(table):
    return table.rounds.groupby("method")["seed"].nunique().to_dict()


@pytest.fixture
def short(monkeypatch):
    """A short list of four methods, one of which cannot win."""
    methods = dict.fromkeys(["fedavg", "local_only", FROZEN, "centralised"], "")
    monkeypatch.setattr(compare, "SHORT_LIST", methods)


@pytest.fixture
def raced(people):
    def run(**options):
        usual = {
            "model": "mlp(hidden=(8,))",
            "rounds": 6,
            "within": "5 seeds",
            "work": ua.Work(batch_size=5, lr=0.1),
            "smallest_effect": 0.0,
        }
        return ua.compare(clients=people, **usual | options)

    return run


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("10 min", "seconds", 600),
        ("90s", "seconds", 90),
        ("1.5 h", "seconds", 5400),
        ("200 rounds", "rounds", 200),
        ("5 seeds", "seeds", 5),
    ],
)
def test_budget_is_read(text, unit, amount):
    budget = RaceBudget.read(text)
    assert (budget.unit, budget.amount) == (unit, amount)


@pytest.mark.parametrize("text", ["soon", "10", "0 min", "2.5 seeds", "5 MB", "-3 seeds"])
def test_budget_that_cannot_be_read_is_refused(text):
    with pytest.raises(ua.UnalikeError, match=r"such as '10 min', '200 rounds'|a whole number"):
        RaceBudget.read(text)


def test_rounds_are_those_of_each_method():
    assert RaceBudget.read("200 rounds").most_seeds(rounds=50) == 4
    with pytest.raises(ua.UnalikeError, match="less than one run of 50 rounds"):
        RaceBudget.read("40 rounds").most_seeds(rounds=50)


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (["fedavg", "scaffold"], {"within": "5 seeds"}, "which has methods of its own"),
        (None, {"seeds": 5}, "a race adds seeds by itself"),
        (None, {"seeds": "auto"}, "a race adds seeds by itself"),
        (None, {"within": "long"}, "within='long'"),
        (None, {"baseline": "fedsgd"}, "none of the methods"),
    ],
)
def test_options_that_contradict_are_refused(people, trained, methods, options, message):
    with pytest.raises(ua.UnalikeError, match=message):
        ua.compare(methods, people, rounds=1, **options)
    assert not trained


def test_method_that_cannot_win_is_dropped_and_the_others_stay(
    short, raced, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(race.Race, "fewest", 3)
    table = raced(out=tmp_path)
    account = table.facts.race
    [departure] = account.departures
    assert (departure.method, departure.why, departure.seeds) == (
        FROZEN,
        f"worse than {departure.leader}",
        3,
    )
    assert departure.low <= departure.difference <= departure.high < 0
    counts = seeds_of(table)
    assert counts[FROZEN] == 3 and {counts[name] for name in NEVER_DROPPED} == {account.seeds}
    assert account.began == 4 and 3 <= account.seeds <= 5 and account.ended

    page = (tmp_path / "report.html").read_text()
    assert "What left the race" in page and "A race within 5 seeds: 4 methods began, 1 left" in page
    config = tomllib.loads(table.facts.config)
    assert config["within"] == "5 seeds" and not {"method", "seeds"} & config.keys()

    trained.clear()
    again = raced(out=tmp_path)
    assert not trained and again.facts.race == account
    opened = ua.open_comparison(tmp_path)
    assert opened.facts.race == account and str(opened.decision) == str(table.decision)


def test_interrupted_race_goes_on_where_it_stopped(short, raced, tmp_path):
    whole = raced(out=tmp_path / "whole")
    rounds = 0

    def interrupt(row):
        nonlocal rounds
        rounds += 1
        if rounds == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raced(out=tmp_path / "halves", progress=interrupt)
    again = raced(out=tmp_path / "halves")
    scores = [column for column in whole.rounds if "seconds" not in column]
    assert again.rounds[scores].equals(whole.rounds[scores])
    assert again.facts.race.departures == whole.facts.race.departures


def test_method_that_cannot_run_is_left_out_with_the_reason(raced, monkeypatch):
    methods = dict.fromkeys(["fedavg", "local_only", "dp_sgd(epsilon=1)", "no_such_method"], "")
    monkeypatch.setattr(compare, "SHORT_LIST", methods)
    table = raced(within="2 seeds", rounds=1)
    reasons = {departure.method: departure.why for departure in table.facts.race.departures}
    assert reasons["no_such_method"].startswith("cannot run: ")
    assert "Not in the race: " in table.findings.race
    assert {"fedavg", "local_only"} <= {*seeds_of(table)}


def test_small_budget_leaves_methods_out_rather_than_seeds(short, raced, monkeypatch):
    """Ten seconds a cell: three seeds of two methods fit into a minute, and nothing else does."""
    monkeypatch.setattr(CellSeconds, "add", lambda self, key, seconds: 10.0)
    table = raced(within="1 min", rounds=1)
    assert seeds_of(table) == {"fedavg": 3, "local_only": 3}
    assert [departure.method for departure in table.facts.race.departures] == [
        FROZEN,
        "centralised",
    ]
    assert "no time: 3 seeds of it would not fit into 1 min" in table.facts.race.departures[0].why
    assert "budget of 1 min is spent" in table.facts.race.ended or table.decision.stands


def test_one_seed_decides_nothing_and_says_so(short, raced, monkeypatch):
    monkeypatch.setattr(CellSeconds, "add", lambda self, key, seconds: 100.0)
    table = raced(within="1 min", rounds=1)
    assert seeds_of(table) == {"fedavg": 1, "local_only": 1}
    assert "One seed cannot show a difference" in str(table.decision) and not table.decision.choice
    assert "One seed decides nothing" in table.findings.race


def test_seconds_of_a_cell_are_those_of_its_first_run(tmp_path):
    CellSeconds.load(tmp_path).add("cell", 7.0)
    assert CellSeconds.load(tmp_path).add("cell", 0.1) == 7.0


def test_next_seed_is_only_begun_if_it_fits():
    state = Race(RaceBudget.read("100 s"), 10, ["fedavg", "scaffold"])
    for method, seconds in (("fedavg", 20.0), ("scaffold", 30.0)):
        state.add_cell(method, seconds)
    assert state.affords_another_seed()
    state.add_cell("fedavg", 20.0)
    assert not state.affords_another_seed()


def test_longer_race_goes_on_with_the_same_methods(short, raced, trained, tmp_path):
    first = raced(within="3 seeds", out=tmp_path, rounds=1)
    trained.clear()
    with_more = raced(within="4 seeds", out=tmp_path, rounds=1)
    assert not (tmp_path / "reports").exists()
    assert len(trained) <= len(seeds_of(first)) and with_more.facts.race.within == "4 seeds"


def test_short_list_are_methods_with_the_references_among_them():
    assert {*NEVER_DROPPED} <= {*SHORT_LIST} and next(iter(SHORT_LIST)) == "fedavg"
    assert len(SHORT_LIST) - len(NEVER_DROPPED) == 8
    for method in SHORT_LIST:
        assert registry.spelled(method) == method


def test_rule_drops_what_is_shown_to_be_worse_and_nothing_else():
    rng = np.random.default_rng(0)
    gains = rng.normal(0, 0.01, size=(5, 3)) + np.array([-0.5, -0.001, 0])
    gains[:, 2] = np.nan  # the leader itself
    _, words = against_leader(gains, 0.0147)
    assert words.tolist() == ["worse", "undecided", "undecided"]


@pytest.fixture
def rates(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import race_rates

    yield race_rates
    for name in ("race_rates", "error_rates"):
        del sys.modules[name]


@pytest.mark.parametrize("methods", [3, 10])
def test_error_rates_of_races_are_at_most_five_percent(rates, methods):
    races = 600
    margin = 3 * (0.05 * 0.95 / races) ** 0.5
    equal = rates.races(races, methods, "all equal")
    near = rates.races(races, methods, "nearly equal")
    assert equal.winner <= 0.05 + margin and near.best_dropped <= 0.05 + margin
    best = rates.races(races, methods, "one is best")
    assert best.best_dropped <= 0.01 and best.right > 0.6 and best.runs < equal.runs
