"""Sites that connect after a run has begun: they join it from the next round on, where its sites are not fixed."""

from __future__ import annotations

import json

import pytest
from late_updates import (
    SLOW,
    SlowSite,
    ages_of_rounds,
    assert_equal_bits,
    joined_since,
    replayed,
    slow_federation,
    three_sites,
)
from secure_federation import FOUR, TERMS
from small_federation import SmallFederation, federation_of, make_clients, states

from unalike._utils.journal import entries
from unalike.federation.coordinator.late_sites import why_sites_are_fixed
from unalike.federation.protocol.messages import NOTICES

LATE = "site2"
NUMBER = 2
WITHOUT_THE_LATE_ONE = {"quorum": 2, "grace": 0.05}


class Killed(BaseException):
    pass


def coming(fed, after, killed_after=None):
    """Bring the late site of a federation to the network after a round, and kill the coordinator; a progress callback."""
    fed.transport.offline.add(LATE)

    def arrive(row, what=""):
        if row["round"] == after:
            fed.transport.offline.discard(LATE)
        if row["round"] == killed_after:
            raise Killed

    return arrive


def test_late_site_takes_part_from_the_next_round_on(tmp_path):
    fed = three_sites(tmp_path, "fedavg", rounds=5, **WITHOUT_THE_LATE_ONE)
    run = fed.run(progress=coming(fed, after=1))
    since = joined_since(fed)[NUMBER] + 1
    roster = json.loads((fed.out / "roster.json").read_text())
    assert roster["joined"] == {LATE: since}
    others = ["site0", "site1"]
    asked = fed.events("asked")
    for event in asked[:-1]:
        late = [LATE] if event["round"] >= since else []
        assert event["train"] == [*others, *late]
    # no round was made again for it
    assert [event["round"] for event in asked] == [1, 2, 3, 4, 5, 5]
    participants = run.history.rounds["participants"].tolist()
    assert participants == [0, *[2] * (since - 1), *[3] * (6 - since)] and 3 in participants
    # it scores the models since it is there
    scored = run.history.clients.dropna(subset=["accuracy"])
    first = scored.groupby("client")["round"].min()
    assert first.tolist() == [0, 0, since - 1]


def test_late_site_of_a_killed_federation_counts_as_in_a_simulation(tmp_path):
    fed = slow_federation(tmp_path, "fednova", first=2, rounds=9, **WITHOUT_THE_LATE_ONE)
    with pytest.raises(Killed):
        fed.run(progress=coming(fed, after=1, killed_after=4))
    [since] = joined_since(fed).values()
    assert since < 4
    fed.restart_sites()
    fed.transport = SlowSite(fed.workers)
    run = fed.run()

    assert joined_since(fed) == {NUMBER: since}
    ages = ages_of_rounds(fed)
    assert min(number for number, of_round in ages.items() if NUMBER in of_round) >= since
    assert_equal_bits(replayed(fed), states(run))
    # what was under way when it joined was not asked anew
    journal = entries(fed.workers[SLOW].journal.path)
    trained = [entry["round"] for entry in journal if entry.get("trained")]
    assert len(trained) == len(set(trained))


def test_late_site_with_most_of_the_weight_is_turned_away(tmp_path):
    clients = make_clients(((12, 6), (16, 6), (60, 8)))
    fed = SmallFederation(tmp_path, clients, rounds=4, max_weight=0.6, **WITHOUT_THE_LATE_ONE)
    said = []
    fed.workers[LATE].log = said.append
    fed.run(progress=coming(fed, after=1))
    [event] = fed.events("not in this run")
    assert event["client"] == LATE and "68% of the weight" in event["why"]
    assert said[0] == NOTICES["late"] and not fed.events("joined")


def test_sites_are_fixed_where_something_counts_on_those_that_were_there():
    clients = make_clients(FOUR)
    assert not why_sites_are_fixed(federation_of(clients, "scaffold + fedbuff"))
    reasons = {
        "secure aggregation": federation_of(clients, **TERMS),
        "accounting of privacy": federation_of(clients, "fedavg + dp_sgd"),
        "asked or divided": federation_of(clients, "ifca(clusters=2)"),
        "networks were given": federation_of(
            clients, model="networks(a='mlp(hidden=4)', b='mlp(hidden=8)')"
        ),
    }
    for why, federation in reasons.items():
        assert why in why_sites_are_fixed(federation)
