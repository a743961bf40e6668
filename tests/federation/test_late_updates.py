"""Rounds of a federation that end with the first updates: late ones count by their age, and a run is what its arrivals say."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from late_updates import (
    SAMPLE_SIZES,
    SLOW,
    SlowSite,
    ages_of_rounds,
    assert_equal_bits,
    replayed,
    slow_federation,
)
from secure_federation import TERMS
from small_federation import SmallFederation, make_clients, states

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.journal import entries
from unalike.client_devices.simulated_clock import COUNTED_LATER, TRAINED
from unalike.core import tree
from unalike.dashboard.state import Followed
from unalike.federation.coordinator import sites_under_way
from unalike.federation.coordinator.terms_check import check_terms_run
from unalike.reporting import panels
from unalike.reporting.charts.palette import looks


def test_rounds_that_await_all_that_they_ask_have_the_bits_of_synchronous_rounds(tmp_path):
    terms = {"rounds": 3, "participation": 2}
    awaiting = slow_federation(tmp_path / "a", "fedbuff(buffer=2, weighted=True)", **terms)
    synchronous = slow_federation(tmp_path / "b", "fedavg", **terms)
    found, expected = awaiting.run(), synchronous.run()
    assert_equal_bits(states(found), states(expected))
    columns = ["accuracy", "loss", "train_loss", "participants"]
    assert found.history.rounds[columns].equals(expected.history.rounds[columns])


def test_late_update_counts_by_its_age_while_others_go_on(tmp_path):
    fed = slow_federation(tmp_path, "fedbuff(buffer=2, staleness=0.5)")
    sent = {}

    def remember(head, facts, tensors):
        update = tree.under(tensors, "update/")
        if update:
            sent[head.site, head.round] = update

    for client in fed.clients:
        fed.corrupt(client.name, remember)
    run = fed.run()
    ages = ages_of_rounds(fed)
    [late] = [number for number, of_round in ages.items() if of_round.get(1)][:1]
    assert ages[late][1] > 1
    # meanwhile every round had the updates of both fast sites, and was evaluated by them
    for number in range(late):
        assert ages[number] == {0: 0, 2: 0}
    assert run.history.rounds["age_max"][late + 1] == ages[late][1]

    # the timeline has a bar for each update, and that of the slow site ends in a later round than it began in
    turns = run.history.timeline
    assert turns["client"].value_counts().to_dict() == Counter(
        k for of in ages.values() for k in of
    )
    assert turns["bytes_up"].sum() == run.history.rounds["bytes_up"].sum()
    slow = turns[turns["client"] == 1].iloc[0]
    assert (slow["round"], slow["age"], slow["fate"]) == (late + 1, ages[late][1], COUNTED_LATER)
    first = turns[(turns["client"] == 0) & (turns["round"] == 1)].iloc[0]
    assert first["fate"] == TRAINED and first["begun"] < first["ended"] < slow["ended"]
    assert 0 < slow["begun"] < first["ended"]
    content = ua.open_comparison(fed.out).content()
    [view] = panels.timeline(content, looks(content.labels)).views
    assert (
        f"trained and {len(turns[turns['age'] > 0])} trained, counted in a later round" in view.alt
    )
    shown = Followed(fed.out).state()["timeline"]
    assert len(shown["bars"]) == len(turns) and not shown["simulated"]

    # the model of each round by hand: w + sum_k (u_k / 2) / sqrt(1 + a_k), of the updates that were sent
    [state] = fed.simulated(rounds=0)._runner.state.states.values()
    params = dict(state.params)
    for number, of_round in sorted(ages.items()):
        for client, age in of_round.items():
            update = sent[f"site{client}", number - age]
            params = {n: w + update[n] / 2 / (1 + age) ** 0.5 for n, w in params.items()}
    [found] = states(run).values()
    for name, value in params.items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("method", ["scaffold + fedbuff(buffer=2)", "fedasync"])
def test_simulation_with_the_arrivals_of_a_federation_has_its_bits(method, tmp_path):
    fed = slow_federation(tmp_path, method)
    run = fed.run()
    assert max(run.history.rounds["age_max"].dropna()) > 0
    assert_equal_bits(replayed(fed), states(run))


def test_killed_coordinator_goes_on_with_the_sites_under_way(tmp_path):
    fed = slow_federation(tmp_path, "scaffold + fedbuff(buffer=2)", rounds=12)

    class Killed(BaseException):
        pass

    def kill(row, what=""):
        if row["round"] == 3:
            raise Killed

    with pytest.raises(Killed):
        fed.run(progress=kill)
    assert 1 not in ages_of_rounds(fed)[2]
    # also what was on its way is lost
    fed.restart_sites()
    fed.transport = SlowSite(fed.workers)
    run = fed.run()

    ages = ages_of_rounds(fed)
    assert [*ages] == [*range(12)]
    first = min(number for number, of_round in ages.items() if 1 in of_round)
    assert ages[first][1] == first > 3
    assert_equal_bits(replayed(fed), states(run))
    # its request was the same to the byte, so that the site has trained its first round once
    journal = entries(fed.workers[SLOW].journal.path)
    trained = [entry["round"] for entry in journal if entry.get("trained")]
    assert len(trained) == len(set(trained))


def test_bad_update_of_a_late_site_is_refused_and_the_site_is_asked_anew(tmp_path):
    fed = slow_federation(tmp_path, "fedbuff(buffer=2)", rounds=12)
    spoiled = []

    def spoil_first(head, facts, tensors):
        if "size" in tensors and not spoiled:
            spoiled.append(head)
            return head, facts, tree.map(lambda t: t * float("nan"), tensors)
        return None

    fed.corrupt(SLOW, spoil_first)
    run = fed.run()
    [refused] = fed.events("refused")
    assert refused["client"] == SLOW and refused["round"] > 2
    later = [number for number, of_round in ages_of_rounds(fed).items() if 1 in of_round]
    assert later and min(later) >= refused["round"]
    assert_equal_bits(replayed(fed), states(run))


def test_update_of_a_model_that_is_too_old_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(sites_under_way, "MAX_AGE_ROUNDS", 2)
    fed = slow_federation(tmp_path, "fedbuff(buffer=2)")
    run = fed.run()
    [absent, *_] = fed.events("absent")
    assert absent["client"] == SLOW
    assert max(run.history.rounds["age_max"].dropna()) <= 2
    [group] = run._runner.state.groups.values()
    assert len(group.versions) <= 3


@pytest.mark.parametrize(
    ("method", "terms", "why"),
    [
        ("fedbuff(buffer=2)", TERMS, "known before they train"),
        ("fedbuff(buffer=2) + topk", {}, "decodes an update by the round"),
        ("fedasync", {"protocol": ("clients", "local")}, "each client's model after training"),
    ],
)
def test_terms_that_late_updates_would_break_are_refused(method, terms, why, tmp_path):
    with pytest.raises(UnalikeError, match=why):
        fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), method, **terms)
        check_terms_run(fed.federation, {})
