"""What a coordinator tells sites beside requests: that a run began without them, and how it ended."""

from __future__ import annotations

import time
from dataclasses import replace

from small_federation import COORDINATOR, SmallFederation, federation_of, make_clients

from unalike.federation.operations.run_coordinator import _check_deadline
from unalike.federation.operations.run_site import logged
from unalike.federation.protocol.envelope import Head, seal, unseal
from unalike.federation.protocol.messages import NOTICE, NOTICES, UNABLE
from unalike.federation.protocol.roster import new_run
from unalike.federation.security.keys import public_key


def said_by(fed):
    """Site -> the lines that it prints."""
    said = {}
    for name, worker in fed.workers.items():
        worker.log = said.setdefault(name, []).append
    return said


def test_finished_run_is_told_to_sites(tmp_path):
    fed = SmallFederation(tmp_path)
    said = said_by(fed)
    fed.run()
    list(fed.transport.receive(0.0))
    for name, lines in said.items():
        assert lines[0] == NOTICES["finished"] and len(lines) == 2
        assert f"`unalike evaluate {tmp_path}`" in lines[1], name


def test_site_says_what_it_was_asked_and_in_which_round(tmp_path):
    fed, said = SmallFederation(tmp_path), []
    first = sorted(fed.workers)[0]
    worker = fed.workers[first]
    answer, worker.log = logged(worker, said.append), said.append

    class Twice:
        """Every message comes twice."""

        def handle(self, message):
            return answer(message) and answer(message)

    fed.workers[first] = Twice()
    fed.run()
    list(fed.transport.receive(0.0))
    found = [line.split(";")[0] for line in said if " kB left, " in line]
    rounds = ["answered admit", "round 1: trained and evaluated", "round 2: trained and evaluated"]
    wanted = [line for done in (*rounds, "round 2: evaluated") for line in (done, "the same again")]
    assert found == [*wanted, "the same again"], (
        said
    )  # the last is the notice that all is finished, which has a line of its own


def test_late_site_is_told_that_a_run_with_fixed_sites_began_without_it(tmp_path):
    """A8: neither the site nor the operator waits for something that will not come."""
    fed = SmallFederation(tmp_path, method="ifca(clusters=2)", rounds=3, quorum=1, deadline=0.3)
    late, lines = sorted(fed.workers)[-1], []
    said = said_by(fed)
    fed.transport.offline.add(late)

    def arrive(row, what=""):
        if row["round"] == 1:
            fed.transport.offline.clear()

    fed.coordinator(tell=lines.append).run(progress=arrive)
    assert said[late][0] == NOTICES["late"] and said[late].count(NOTICES["late"]) == 1
    assert [line for line in lines if f"{late} has connected; it takes no part in this run" in line]
    [event] = fed.events("not in this run")
    assert event["client"] == late and "asked or divided the sites" in event["why"]


def test_site_that_connects_again_is_asked_at_once(tmp_path):
    """A17: not only when the request is repeated."""
    fed = SmallFederation(tmp_path, rounds=2, deadline=60.0, repeat=50.0)
    name = sorted(fed.workers)[0]

    class Leaving:
        """Loses the first request for training and is away for a moment."""

        def __init__(self, worker):
            self.worker, self.calls = worker, 0

        def handle(self, message):
            self.calls += 1
            if self.calls == 2:
                fed.transport.offline.add(name)
                fed.transport.connected()  # it is missed
                fed.transport.offline.clear()
                return b"lost"
            return self.worker.handle(message)

    fed.workers[name] = Leaving(fed.workers[name])
    started = time.monotonic()
    fed.run()
    assert time.monotonic() - started < 30.0 and not fed.events("absent")


def test_deadline_without_time_for_a_repetition_is_announced():
    lines, made = [], federation_of(make_clients())
    for deadline in (59.9, 60.0):
        _check_deadline(replace(made, deadline=deadline, repeat=30.0), lines.append)
    assert len(lines) == 1 and lines[0].startswith(
        "the deadline of 59.9 s leaves no time to repeat a lost request"
    )


def test_unknown_notice_is_declined(tmp_path):
    fed = SmallFederation(tmp_path)
    name = sorted(fed.workers)[0]
    said = said_by(fed)
    asked = seal(Head(new_run(), 0, 0, name, NOTICE), {"what": "<b>rm</b>"}, {}, COORDINATOR)
    site = fed.federation.site(name)
    answer = unseal(fed.workers[name].handle(asked), public_key(site.key))
    assert answer.head.kind == UNABLE and answer.open()[0] == {"code": "error"}
    assert len(said[name]) == 1 and "declined" in said[name][0]
    assert "expected one of late, next, finished, stopped" in said[name][0]
