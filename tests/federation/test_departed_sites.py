"""A site that is offline costs no deadline where the others are a quorum, and a pause ends when the quorum is back."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Thread, Timer

import pytest
from small_federation import SmallFederation, make_clients, states

from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.run_control import Control, Stopped
from unalike.federation.coordinator.silent_sites import MISSES_WAITED_FOR, SilentSites

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6))


def test_departed_site_is_not_waited_for_and_named_once(tmp_path):
    told = []
    fed = SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), rounds=7, quorum=2, deadline=60.0, grace=0.3
    )
    started = time.monotonic()
    leave, come_back = fed.transport.offline.add, fed.transport.offline.discard

    def go(row, what=""):
        (come_back if row["round"] == 4 else leave)("site2")

    run = fed.coordinator(tell=told.append).run(progress=go)
    assert time.monotonic() - started < 30
    assert run.history.rounds["participants"].tolist() == [0, 3, 3, 2, 2, 2, 3, 2]
    absent = fed.events("absent")
    assert [e["round"] for e in absent] == [3, 7] and all(
        "not waited for" in e["why"] for e in absent
    )
    assert sum("site2: offline for" in line for line in told) == 2  # it was back in between


def test_site_that_never_connected_costs_the_admission_only_the_grace_time(tmp_path):
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), quorum=2, deadline=60.0, grace=0.3)
    fed.transport.offline.add("site2")
    started = time.monotonic()
    assert fed.run().history.rounds["participants"].tolist() == [0, 2, 2]
    assert time.monotonic() - started < 30


def test_grace_of_two_absent_sites_begins_at_the_same_look(tmp_path):
    """Who asks how long a site has been offline changes nothing, so that none begins to be absent when it is asked about."""
    clients = make_clients((*SAMPLE_SIZES, (14, 6)))
    fed = SmallFederation(tmp_path, clients, rounds=1, quorum=2, deadline=60.0, grace=0.5)
    fed.transport.offline |= {"site2", "site3"}
    assert fed.run().history.rounds["participants"].tolist() == [0, 2]
    offline = [float(e["why"].split()[2]) for e in fed.events("absent") if "offline" in e["why"]]
    assert len(offline) == 2 and offline[0] == offline[1]


def test_seconds_offline_are_those_between_looks(tmp_path):
    mailbox = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES)).coordinator()._mailbox("run")
    mailbox.transport.offline.add("site2")
    for site in ("site0", "site2"):
        assert mailbox.seconds_offline(site) == mailbox.seconds_offline(site) == 0
    mailbox.look()
    time.sleep(0.01)
    assert mailbox.seconds_offline("site2") == 0
    mailbox.look()
    assert mailbox.seconds_offline("site2") >= 0.01 and mailbox.seconds_offline("site0") == 0


def test_connected_site_is_waited_for(tmp_path):
    """Silence is no absence: a site that trains for long is connected all the time."""
    fed = SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), rounds=1, quorum=2, grace=0.05, repeat=0.6
    )
    asked = []

    def slow(head, facts, tensors):
        asked.append(head.place)
        return b"lost" if asked.count(head.place) == 1 else None

    fed.corrupt("site2", slow)
    assert fed.run().history.rounds["participants"].tolist() == [0, 3] and not fed.events("absent")


def test_site_that_is_connected_and_silent_is_waited_for_ever_more_rarely(tmp_path):
    """It made each round last until the deadline. It is asked all the same."""
    fed = SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), rounds=6, quorum=2, deadline=0.2, repeat=10.0
    )
    asked = []

    def silent(head, facts, tensors):
        if not head.stage:
            return None
        asked.append(head.round)
        return b"lost"

    fed.corrupt("site2", silent)
    run = fed.run()
    assert asked[:6] == list(range(6))
    absent = [event for event in fed.events("absent") if event["client"] == "site2"]
    assert [event["round"] for event in absent] == [1, 2, 3, 6]
    assert "the next 4 requests do not wait for it" in absent[3]["why"]
    statuses = run.history.clients.set_index(["round", "client"])["status"]
    assert statuses[5, 2] == "absent: no answer, not waited for"


def test_silent_site_is_waited_for_again_once_it_has_answered():
    sites = SilentSites()
    assert [sites.note_silence("a") for _ in range(MISSES_WAITED_FOR + 1)] == [0, 0, 2, 4]
    sites.note_answer("a")
    assert not sites.is_waited_for("a") and sites.is_waited_for("b")
    sites.note_answer("a")
    assert sites.is_waited_for("a")
    # what it owes stays
    assert sites.note_silence("a") == 2


@pytest.mark.parametrize("where, made", [("server", True), ("site", False)])
def test_round_has_the_sites_among_which_noise_is_shared_out(tmp_path, where, made):
    """A share as quorum shrinks with refused sites, and revoked sites are not asked; the shares of noise stay as large."""
    method = f"client_dp(noise_multiplier=1, where={where!r})"
    clients = make_clients((*SAMPLE_SIZES, (14, 6)))
    fed = SmallFederation(
        tmp_path / "refused",
        clients,
        method,
        rounds=1,
        quorum=0.75,
        noise_shares=3,
        patience=1,
        deadline=0.5,
    )
    assert fed.coordinator().federation.answers_needed(4) == 3
    for name in ("site0", "site1"):
        fed.corrupt(
            name, lambda head, facts, tensors: (head, facts, {}) if "size" in tensors else None
        )
    if made:
        assert fed.run().history.rounds["participants"].tolist() == [0, 2]
    else:
        with pytest.raises(Stopped):
            fed.run()
    fed = SmallFederation(tmp_path / "revoked", clients, method, rounds=1, quorum=3, noise_shares=3)
    sites = [
        replace(site, revoked=site.name in ("site0", "site1")) for site in fed.federation.sites
    ]
    fed.federation = replace(fed.federation, sites=tuple(sites))
    if made:
        assert fed.run().history.rounds["participants"].tolist() == [0, 2]
    else:
        with pytest.raises(
            UnalikeError, match="found 2 sites with training samples; expected 3 in each round"
        ):
            fed.run()


def test_pause_for_lack_of_a_quorum_ends_by_itself(tmp_path):
    terms = {"rounds": 3, "deadline": 0.1, "repeat": 10.0, "patience": 2}
    fed, control, runs = (
        SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), "scaffold", **terms),
        Control(),
        [],
    )
    leave = [fed.transport.offline.add]

    def go():
        runs.append(
            fed.coordinator(control=control).run(
                progress=lambda row, what="": leave.pop()("site2") if leave else None
            )
        )

    thread = Thread(target=go)
    thread.start()
    while control.state != "paused":
        assert thread.is_alive()
        time.sleep(0.01)
    time.sleep(1.2)
    assert control.state == "paused"
    Timer(0.1, fed.transport.offline.discard, ["site2"]).start()
    thread.join(60)
    assert runs and [e["event"] for e in fed.events("paused", "resumed")] == ["paused", "resumed"]
    wanted = states(fed.simulated())
    for group, tensors in states(runs[0]).items():
        assert all(bool((t == wanted[group][name]).all()) for name, t in tensors.items())


def test_pause_ends_when_the_answers_arrive_that_were_late(tmp_path):
    """All sites are connected, and their answers take longer than all attempts, once."""
    terms = {"rounds": 2, "deadline": 0.1, "repeat": 10.0, "patience": 2}
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), **terms)
    held, stalls = [], [True]
    receive = fed.transport.receive

    def stalled(seconds):
        answers = receive(seconds)
        if stalls and len(fed.events("asked")) == 2:
            held.extend(answers)
            return []
        found = [*held, *answers]
        held.clear()
        return found

    fed.transport.receive = stalled
    Timer(1.5, stalls.clear).start()
    run = fed.coordinator(control=Control()).run()
    assert [e["event"] for e in fed.events("paused", "resumed")] == ["paused", "resumed"]
    assert run.history.rounds["participants"].tolist() == [0, 3, 3]


def test_pause_of_the_operator_stays(tmp_path):
    fed = SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), deadline=0.1, repeat=10.0, patience=1
    )
    control = Control()
    thread = Thread(target=lambda: fed.coordinator(control=control).run(), daemon=True)
    fed.transport.offline.add("site2")
    thread.start()
    while control.state != "paused":
        assert thread.is_alive()
        time.sleep(0.01)
    control.pause()
    fed.transport.offline.discard("site2")
    time.sleep(1.5)
    assert control.state == "paused"
    control.resume()
    thread.join(60)
    assert not thread.is_alive()


def test_site_that_connects_again_and_again_cannot_fill_the_disk(tmp_path):
    from unalike.federation.coordinator.mailbox import MAX_REPORTS

    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), rounds=1, quorum=2, deadline=3.0)
    fed.transport.connected = lambda: ["site2"]
    fed.corrupt("site2", lambda head, facts, tensors: b"lost" if head.stage else None)
    fed.run()
    found = fed.events("connected")
    assert found and {e["client"] for e in found} == {"site2"}
    assert len(found) <= 3 * MAX_REPORTS  # admission, a round, the last evaluation
