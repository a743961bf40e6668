"""The fault table (docs/federation/threats.md), row by row: reactions to hostile and broken sites."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace

import pytest
import torch
from small_federation import (
    COORDINATOR,
    NetworkFaults,
    SmallFederation,
    federation_of,
    key_of,
    make_clients,
    states,
)

from unalike._utils.errors import UnalikeError
from unalike.core.codec import checksum, pack
from unalike.core.tasks.registry import find_task
from unalike.federation.coordinator.run_control import Control, Stopped
from unalike.federation.protocol.envelope import Head, seal, unseal
from unalike.federation.protocol.messages import NOTICES, versions
from unalike.federation.protocol.roster import Roster, SampleCounts, new_run, placeholders
from unalike.metrics.metric_sums import MetricSums

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6))
LAST = "site2"


def small_federation_of(tmp_path, method="fedavg", **more):
    return SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), method, **({"quorum": 2, "rounds": 2} | more)
    )


def without(fed, name=LAST, **more):
    """The model of the other sites alone: it depends on the accepted updates, not on the sites that were asked."""
    clients = [empty(c) if c.name == name else c for c in fed.clients]
    fed = SmallFederation(
        fed.folder / "others", clients, fed.federation.method, rounds=fed.federation.rounds, **more
    )
    return states(fed.run())


def empty(client):
    """The client without training samples."""
    x, y = client.train
    return replace(client, train=(x[:0], y[:0]))


def same(a, b):
    for group in b:
        for name, t in b[group].items():
            assert torch.equal(a[group][name], t), name


def refused_every_time(fed, change, *words):
    """Check that the site's updates are refused with these words in every round, and the model is that of the other sites."""
    fed.corrupt(
        LAST,
        lambda head, facts, tensors: change(head, facts, tensors) if "size" in tensors else None,
    )
    run = fed.run()
    found = [e for e in fed.events("refused") if e["client"] == LAST]
    assert len(found) == fed.federation.rounds, fed.events()
    for event in found:
        assert all(word in event["why"] for word in words), event["why"]
    assert (run.history.rounds["participants"][1:] == 2).all()
    rows = run.history.clients.query("client == 2 and round > 0")
    assert rows["status"].str.startswith("refused: ").all()
    return run


def set_in(name, value):
    def change(head, facts, tensors):
        tensors[name] = value(tensors[name])
        return head, facts, tensors

    return change


def first(tensors, value):
    return torch.cat([torch.tensor([value], dtype=tensors.dtype), tensors.flatten()[1:]]).reshape(
        tensors.shape
    )


WEIGHT = "update/head.weight"
REPORTS = {
    # row 1
    "nan": (WEIGHT, lambda t: first(t, float("nan")), ["head.weight", "not finite"]),
    "inf": (WEIGHT, lambda t: first(t, float("inf")), ["head.weight", "not finite"]),
    "nan in a letter": (
        "messages.control_variates/head.bias",
        lambda t: t * float("nan"),
        ["message", "control_variates", "not finite"],
    ),
    "nan loss": ("loss", lambda t: t * float("nan"), ["loss", "finite"]),
    "negative loss": ("loss", torch.neg, ["training loss -", "expected 0 or more"]),
    # row 2
    "broadcastable": (WEIGHT, lambda t: t.flatten()[:1], ["shape [1]", "expected [4, 8]"]),
    "row of one": ("update/head.bias", lambda t: t[:1], ["shape [1]", "expected [4]"]),
    "scalar": ("update/head.bias", lambda t: t[0], ["shape []", "expected [4]"]),
    "transposed": (WEIGHT, lambda t: t.T.contiguous(), ["shape [8, 4]", "expected [4, 8]"]),
    # row 4
    "float64": (WEIGHT, torch.Tensor.double, ["float64", "expected torch.float32"]),
    "int8": (WEIGHT, lambda t: t.to(torch.int8), ["int8", "expected torch.float32"]),
    "bool": (WEIGHT, torch.Tensor.bool, ["bool", "expected torch.float32"]),
    # rows 5, 6 and 24
    "no samples": ("size", torch.zeros_like, ["size 0", "expected 16"]),
    "negative samples": ("size", torch.neg, ["size -16", "expected 16"]),
    "bought weight": ("size", lambda t: t * 1000, ["size 16000", "expected 16"]),
    "nan samples": ("size", lambda t: t * float("nan"), ["size nan", "expected 16"]),
    "huge samples": ("size", lambda t: t * 1e37, ["size 1.6e+38", "expected 16"]),
    "boolean samples": ("size", torch.Tensor.bool, ["size", "bool", "expected"]),
    "no steps": ("steps", torch.zeros_like, ["steps 0", "expected 4"]),
    "a billion steps": ("steps", lambda t: t * 0 + 1e9, ["steps 1e+09", "expected 4"]),
    "a light solver": ("weight", lambda t: t / 100, ["weight 0.04", "expected 4"]),
}


@pytest.mark.parametrize("case", REPORTS)
def test_rows_1_2_4_5_6_24_invalid_update_is_refused(case, tmp_path):
    name, value, words = REPORTS[case]
    refused_every_time(small_federation_of(tmp_path, "scaffold"), set_in(name, value), *words)


def test_refused_update_leaves_model_of_other_sites(tmp_path):
    fed = small_federation_of(tmp_path, "scaffold", protocol=("clients",))
    run = refused_every_time(fed, set_in(WEIGHT, lambda t: t * float("nan")), "not finite")
    found, wanted = states(run), without(fed)
    # the population that scaffold's server divides by is one larger: its variates differ, the first round's model does not
    assert found.keys() == wanted.keys()
    plain = small_federation_of(tmp_path / "plain")
    same(
        states(refused_every_time(plain, set_in(WEIGHT, lambda t: t * float("nan")), "not finite")),
        without(plain),
    )


def test_row_3_missing_extra_and_renamed_tensors_are_refused(tmp_path):
    def missing(head, facts, tensors):
        del tensors[WEIGHT]
        return head, facts, tensors

    def extra(head, facts, tensors):
        return head, facts, tensors | {"update/backdoor": torch.zeros(3)}

    def renamed(head, facts, tensors):
        tensors["update/head.wait"] = tensors.pop(WEIGHT)
        return head, facts, tensors

    for i, (change, words) in enumerate(
        [
            (missing, ["lacks update/head.weight"]),
            (extra, ["has update/backdoor"]),
            (renamed, ["lacks update/head.weight", "has update/head.wait"]),
        ]
    ):
        refused_every_time(small_federation_of(tmp_path / str(i)), change, *words)


def test_row_1_impossible_metrics_are_refused(tmp_path):
    def change(field, value):
        def changed(head, facts, tensors):
            facts["tallies"]["clients"]["test"][field] = value
            return head, facts, tensors

        return changed

    for i, (field, value, word) in enumerate(
        [
            ("loss", "many", "not a number"),
            ("loss", True, "not a number"),
            ("loss", 10**400, "not a number"),
            ("loss", -0.5, "not a number"),
            ("n", 10**9, "expected 6"),
            ("n", -6, "expected 6"),
            ("right", [6, 6, 6, 6], "contradict"),
            ("guessed", [0, 0, 0, 10**6], "not a list of at most 4 numbers"),
            ("true", [0] * 10**4, "not a list of at most 4 numbers"),
            ("computed_by_client", {"roc_auc": 0.5}, "the task has none"),
            ("moments", [1.0, 1.0, 1.0], "the task has none"),
        ]
    ):
        refused_every_time(small_federation_of(tmp_path / str(i)), change(field, value), word)


def test_row_1_nan_in_facts_cannot_be_encoded(tmp_path):
    def change(head, facts, tensors):
        sealed = seal(head, facts | {"loss": 1.5}, tensors, key_of(2))
        return sealed.replace(b'"loss":1.5', b'"loss":NaN')

    fed = small_federation_of(tmp_path)
    fed.corrupt(
        LAST,
        lambda head, facts, tensors: change(head, facts, tensors) if "size" in tensors else None,
    )
    fed.federation = replace(fed.federation, deadline=0.3)
    fed.run()
    assert any("not the one that was signed" in e["why"] for e in fed.events("refused"))
    with pytest.raises(ValueError, match="JSON compliant"):
        pack({"loss": float("nan")}, {})


def test_row_5_empty_site_is_listed_and_empty_federation_is_refused(tmp_path):
    none = [empty(c) for c in make_clients(SAMPLE_SIZES)]
    some = [*make_clients(SAMPLE_SIZES)[:2], none[2]]
    run = SmallFederation(tmp_path / "one", some).run()
    assert set(run.history.clients.query("client == 2")["status"]) == {"no training data"}
    with pytest.raises(UnalikeError, match="none of the 3 clients has a training sample"):
        SmallFederation(tmp_path / "all", none).run()


def test_row_6_more_samples_than_enrolled_are_refused(tmp_path):
    fed = small_federation_of(tmp_path)
    small = [replace(s, samples=10) if s.name == LAST else s for s in fed.federation.sites]
    with pytest.raises(UnalikeError, match="16 training samples and is enrolled for 10"):
        SmallFederation(tmp_path / "honest", make_clients(SAMPLE_SIZES), sites=tuple(small))
    lying = small_federation_of(
        tmp_path / "lying",
        sites=tuple(replace(s, samples=20) for s in fed.federation.sites),
        deadline=1.0,
    )

    def claim(head, facts, tensors):
        return (head, facts | {"train": 10**6}, tensors) if "train" in facts else None

    lying.corrupt(LAST, claim)
    run = lying.run()
    assert "1000000 training samples; enrolled for at most 20" in lying.events("refused")[0]["why"]
    assert (run.history.rounds["participants"][1:] == 2).all()


def test_row_6_claimed_test_samples_use_no_memory():
    """Enrolment does not limit their number."""
    federation, many = federation_of(make_clients()), 10**7
    roster = Roster("run", {"site0": SampleCounts(20, many, many)})
    tracemalloc.start()
    people_there = placeholders(federation, roster)
    assert people_there.fingerprint
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert people_there.test.sizes.tolist() == [many, 0] and taken < 3 * 10**7


def test_row_24_label_histogram_must_match_samples(tmp_path):
    name = "shared.label_histogram/counts"
    for i, (value, word) in enumerate(
        [
            (lambda t: t * 100, "expected whole numbers, 16 in all"),
            (lambda t: t - 20, "negative"),
            (lambda t: t * 0, "sum to 0"),
        ]
    ):
        refused_every_time(
            small_federation_of(tmp_path / str(i), "feddisco"), set_in(name, value), word
        )


def test_row_24_counts_in_a_message_must_match_samples(tmp_path):
    fed = small_federation_of(tmp_path, "feature_alignment")
    counts = "messages.feature_alignment/class.counts"
    refused_every_time(fed, set_in(counts, lambda t: t * 9), "sum to 144", "16 in all")


def test_row_24_invalid_buffers_and_query_answers_are_refused(tmp_path):
    clients = make_clients(SAMPLE_SIZES, (1, 4, 4))
    fed = SmallFederation(
        tmp_path / "buffers", clients, model="cnn(channels=(4,), norm='batch')", quorum=2
    )
    names = _names(fed)
    from_the_report = [n for n in names if n.startswith("buffers/") and n.endswith("running_var")]
    refused_every_time(fed, set_in(from_the_report[0], torch.neg), "running_var", "negative")

    # the largest count is kept: at the other sites it would overflow in the next round
    counter = next(n for n in names if n.endswith("num_batches_tracked"))
    fed = SmallFederation(tmp_path / "counts", clients, model=fed.federation.model, quorum=2)
    most = set_in(counter, lambda t: torch.full_like(t, 2**63 - 1))
    refused_every_time(fed, most, "num_batches_tracked is 9223372036854775807", "expected at most")

    asked = SmallFederation(
        tmp_path / "answers",
        make_clients(((20, 8), (12, 6), (16, 6), (9, 4))),
        "fedconcat(clusters=2)",
        quorum=2,
        rounds=2,
    )
    asked.corrupt(
        LAST,
        lambda head, facts, tensors: (
            (head, facts, {"counts": tensors["counts"] * 9}) if "counts" in tensors else None
        ),
    )
    asked.run()
    assert [e["why"] for e in asked.events("refused")] == [
        "answer: counts that sum to 144; expected whole numbers, 16 in all"
    ]


def _names(fed):
    """The contents of a reply of the site."""
    seen = []
    other = SmallFederation(fed.folder / "look", fed.clients, model=fed.federation.model, rounds=1)
    other.corrupt(LAST, lambda head, facts, tensors: seen.extend(tensors))
    other.run()
    return seen


# -- messages: rows 9 (here), 11 to 17 ---------------------------------------------------------------------------------


class Listening:
    """A site that keeps its replies."""

    def __init__(self, handler):
        self.handler, self.said = handler, []

    def handle(self, message):
        self.said.append(self.handler.handle(message))
        return self.said[-1]


def test_row_11_repeated_update_counts_once(tmp_path):
    fed = small_federation_of(tmp_path, faults=NetworkFaults(repeat=1.0))
    run = fed.run()
    same(states(run), states(fed.simulated()))
    assert not fed.events("refused", "absent")

    def twice(head, facts, tensors):
        other = {n: t * 2 if n.startswith("update") else t for n, t in tensors.items()}
        changed.transport.inject(LAST, seal(head, facts, tensors, key_of(2)))
        return head, facts, other

    changed = small_federation_of(tmp_path / "changed")
    changed.corrupt(
        LAST,
        lambda head, facts, tensors: twice(head, facts, tensors) if "size" in tensors else None,
    )
    same(states(changed.run()), states(fed.simulated()))
    assert {e["why"] for e in changed.events("refused")} == {
        "a second answer to one request, and another one than the first"
    }


def test_row_12_replays_are_refused(tmp_path):
    fed = small_federation_of(tmp_path)
    ear = fed.workers[LAST] = Listening(fed.workers[LAST])
    fed.run()
    before = states(fed.run())
    again = small_federation_of(tmp_path / "again", rounds=3)
    for message in ear.said:  # another run of the same federation, the same keys
        again.transport.inject(LAST, message)
    ear = again.workers[LAST] = Listening(again.workers[LAST])
    trained = iter(range(100))

    def replay(row, what=""):
        if next(trained) == 1:
            for message in ear.said:  # rounds of this run that are over
                again.transport.inject(LAST, message)

    after = again.run(progress=replay)
    assert before.keys() == states(after).keys()
    same(states(after), states(again.simulated()))
    why = [e["why"] for e in again.events("refused", "late")]
    assert sum("a replay, or another federation" in w for w in why) >= 2
    assert "repeats an answer that was taken in" in why or "of an earlier round" in why


def test_row_13_late_and_early_updates_are_recorded_and_ignored(tmp_path):
    kept = []

    def late(head, facts, tensors):
        if "size" in tensors and head.round == 0:
            kept.append(seal(head, facts, tensors, key_of(2)))
            return b"lost"
        if "size" in tensors and kept:
            fed.transport.inject(LAST, kept.pop())
            fed.transport.inject(
                LAST, seal(replace(head, round=head.round + 7), facts, tensors, key_of(2))
            )
        return None

    fed = small_federation_of(tmp_path, rounds=3, deadline=0.3, repeat=10.0)
    fed.corrupt(LAST, late)
    run = fed.run()
    assert [e["why"] for e in fed.events("late") if e["client"] == LAST] == ["the round is closed"]
    assert run.history.rounds["participants"].tolist() == [0, 2, 3, 3]
    assert [e["round"] for e in fed.events("absent")] == [1]


def test_row_13_update_for_future_round_is_refused(tmp_path):
    fed = small_federation_of(tmp_path)
    head = None

    def early(found, facts, tensors):
        nonlocal head
        if "size" in tensors:
            head = replace(found, round=found.round + 1, answers="0" * 64)
            fed.transport.inject(LAST, seal(head, facts, tensors, key_of(2)))

    fed.corrupt(LAST, early)
    same(states(fed.run()), states(fed.simulated()))
    assert "of a round that has not begun" in {e["why"] for e in fed.events("refused")}


def test_row_14_unselected_revoked_and_unknown_sites_are_refused(tmp_path):
    clients = make_clients(((20, 8), (12, 6), (16, 6), (9, 4)))
    fed = SmallFederation(tmp_path, clients, participation=2, quorum=2, rounds=3)
    stolen = []

    def volunteer(head, facts, tensors):
        if "size" in tensors:
            stolen.append((head, facts, tensors))
        elif stolen and head.stage:  # not selected, and reports all the same
            return head, facts, stolen[-1][2]
        return None

    for name in ("site0", "site1", "site2", "site3"):
        fed.corrupt(name, volunteer)
    run = fed.run()
    same(states(run), states(fed.simulated(participation=0.5)))
    assert "an update of a site that was not asked to train" in {
        e["why"] for e in fed.events("refused")
    }

    sites = tuple(replace(s, revoked=s.name == LAST) for s in federation_of(clients).sites)
    revoked = SmallFederation(tmp_path / "revoked", clients, sites=sites)
    revoked.transport.inject(LAST, b"anything")
    revoked.transport.inject("stranger", b"anything")
    run = revoked.run()
    assert {(e["client"], e["why"]) for e in revoked.events("refused")} == {
        (LAST, "revoked"),
        ("stranger", "not enrolled"),
    }
    assert (run.history.rounds["participants"][1:] == 3).all()


def test_row_10_other_sites_name_or_key_is_refused(tmp_path):
    fed = small_federation_of(tmp_path, deadline=0.3, repeat=10.0)

    def as_another(head, facts, tensors):
        return (replace(head, site="site0"), facts, tensors) if "size" in tensors else None

    fed.corrupt(LAST, as_another)
    fed.run()
    assert {"signed as 'site0'"} == {e["why"] for e in fed.events("refused")}

    forged = small_federation_of(tmp_path / "forged", deadline=0.3, repeat=10.0)
    forged.corrupt(
        LAST,
        lambda head, facts, tensors: (
            seal(head, facts, tensors, key_of(0)) if "size" in tensors else None
        ),
    )
    forged.run()
    assert {"the signature is not by the key that was enrolled"} == {
        e["why"] for e in forged.events("refused")
    }


def test_row_15_huge_body_is_refused(tmp_path):
    fed = small_federation_of(tmp_path, message_bytes=20_000, deadline=0.3, repeat=10.0)

    def huge(head, facts, tensors):
        return (
            (head, facts, tensors | {"update/more": torch.zeros(10**6)})
            if "size" in tensors
            else None
        )

    fed.corrupt(LAST, huge)
    run = fed.run()
    assert all("bytes; expected at most 20000" in e["why"] for e in fed.events("refused"))
    assert (run.history.rounds["participants"][1:] == 2).all()


def test_row_17_pickles_and_paths_are_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    fed = small_federation_of(tmp_path, deadline=0.3, repeat=10.0)
    fed.corrupt(
        LAST, lambda head, facts, tensors: pickle.dumps(Bomb()) if "size" in tensors else None
    )
    fed.run()
    assert not (tmp_path / "exploded").exists()
    assert {e["why"] for e in fed.events("refused")} == {"not a message of a federation"}
    for bad in ("../../etc/passwd", "a/b", "", "a" * 65, "ä", ".hidden", "a\x00b"):
        with pytest.raises(UnalikeError, match="expected a name"):
            Head(bad, 0, 0, "site", "kind")
        with pytest.raises(UnalikeError, match="expected 1 to 64 letters"):
            replace(fed.federation, name=bad)
    with pytest.raises(
        UnalikeError, match=r"^sites\.0\.name='a b': expected 1 to 64 letters[^;]*$"
    ):
        replace(fed.federation, sites=[{"name": "a b", "key": "0" * 64, "samples": 1}])


# -- time: rows 20 and 23 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_row_23_lossy_network_gives_same_model(seed, tmp_path):
    faults = NetworkFaults(loss=0.2, repeat=0.3, delay=5)
    fed = small_federation_of(
        tmp_path,
        "scaffold + ditto",
        rounds=4,
        quorum=3,
        faults=faults,
        transport_seed=seed,
        deadline=60.0,
        repeat=0.02,
    )
    run, wanted = fed.run(), fed.simulated()
    same(states(run), states(wanted))
    assert (run.history.rounds["participants"][1:] == 3).all()
    assert not fed.events("refused", "absent")


def test_row_23_corrupted_message_is_refused_and_requested_again(tmp_path):
    fed = small_federation_of(
        tmp_path, rounds=4, quorum=3, faults=NetworkFaults(corrupt=0.3), deadline=60.0, repeat=0.02
    )
    same(states(fed.run()), states(fed.simulated()))
    assert fed.events("refused")


def test_row_20_returning_site_keeps_client_state(tmp_path):
    """Offline and restarted in rounds 2 and 3 of 5: equals a simulation in which it is not drawn in these."""
    fed = small_federation_of(tmp_path, "scaffold + ditto", rounds=5, deadline=0.2, repeat=10.0)

    def weather(row, what=""):
        (fed.transport.offline.add if row["round"] in (1, 2) else fed.transport.offline.discard)(
            LAST
        )
        fed.restart_sites(LAST)

    # the exchange of round r + 1 begins with the evaluation of round r: what `progress` does acts one round later
    run = fed.run(progress=weather)
    participants = run.history.rounds["participants"].tolist()
    assert participants == [0, 3, 3, 2, 2, 3]
    rows = run.history.clients.query("client == 2")
    assert rows["status"].tolist()[3:5] == ["absent: no answer by the deadline"] * 2
    assert [e["round"] for e in fed.events("absent") if e["client"] == LAST] == [3, 4]

    from unalike.runtime.stages.stage_state import StageState

    draw = StageState.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageState, "draw", lambda self, n: [0, 1] if n in (2, 3) else draw(self, n))
        same(states(run), states(fed.simulated()))


class Overtaken:
    """A site that gets a request of the second round after that of the fourth, or never."""

    def __init__(self, worker, ever):
        self.worker, self.ever, self.held = worker, ever, []

    def handle(self, message):
        head = unseal(message, COORDINATOR.public_key()).head
        if head.kind == "train" and head.round == 1:
            self.held = [message]
            return b"lost"
        reply = self.worker.handle(message)
        if head.kind == "train" and head.round == 3 and self.ever:
            for late in self.held:
                self.worker.handle(late)
        return reply


def test_row_23_overtaken_request_keeps_client_state(tmp_path):
    found = []
    for ever in (True, False):
        fed = small_federation_of(
            tmp_path / str(ever), "scaffold + ditto", rounds=6, deadline=0.3, repeat=10.0
        )
        fed.workers[LAST] = Overtaken(fed.workers[LAST], ever)
        found.append(fed.run())
    same(*map(states, found))
    assert found[0].history.rounds["participants"].tolist() == [0, 3, 2, 3, 3, 3, 3]


def test_row_20_straggler_costs_only_the_deadline(tmp_path):
    fed = small_federation_of(tmp_path, deadline=0.2, repeat=10.0)
    fed.corrupt(LAST, lambda head, facts, tensors: b"" if head.stage else None)
    run = fed.run()
    assert (run.history.rounds["participants"][1:] == 2).all()
    assert [e["client"] for e in fed.events("absent")] == [
        LAST
    ] * 3  # two rounds and the last evaluation


def test_row_20_run_without_quorum_pauses_and_resumes(tmp_path):
    from threading import Thread

    fed = small_federation_of(
        tmp_path, "scaffold", rounds=4, quorum=3, deadline=0.1, repeat=10.0, patience=2
    )
    control, runs, told = Control(), [], []

    def go():
        coordinator = fed.coordinator(control=control, tell=told.append)
        runs.append(
            coordinator.run(progress=lambda row, what="": lose.pop()(LAST) if lose else None)
        )

    lose = [fed.transport.offline.add]
    thread = Thread(target=go)
    thread.start()
    while control.state != "paused":
        assert thread.is_alive()
    fed.transport.offline.discard(LAST)
    control.resume()
    thread.join(20)
    assert [e["event"] for e in fed.events("no quorum", "paused", "resumed")] == [
        "no quorum",
        "no quorum",
        "paused",
        "resumed",
    ]
    assert (
        told[-1].endswith(": goes on")
        and "of 3 after 2 attempts; goes on when the sites are back, or by `unalike federation resume FOLDER`"
        in told[-2]
    )
    same(states(runs[0]), states(fed.simulated()))


def test_coordinator_log_lines_are_printable(tmp_path):
    fed, told = small_federation_of(tmp_path, deadline=0.2, repeat=10.0), []
    coordinator = fed.coordinator(tell=told.append)
    coordinator.run(progress=lambda row, what="": fed.transport.offline.add(LAST))
    absent = [e["round"] for e in fed.events("absent")]
    assert absent and told == [f"round {n}: {LAST}: no answer by the deadline" for n in absent]
    coordinator._event("refused", round=1, client=LAST, why="\x1b[2Jgone\nfor good")
    assert told[-1] == f"round 1: {LAST} was refused:  [2Jgone for good"


def test_stopped_run_continues_later(tmp_path):
    fed = small_federation_of(tmp_path, "scaffold + ditto", rounds=4)
    control = Control()

    def stop(row, what=""):
        if row["round"] == 2:
            control.stop()

    with pytest.raises(Stopped, match="start it again"):
        fed.coordinator(control=control).run(progress=stop)
    fed.restart_sites()
    same(states(fed.run()), states(fed.simulated()))


def test_offline_drawn_sites_are_replaced(tmp_path):
    clients = make_clients(((20, 8), (12, 6), (16, 6), (9, 4), (8, 4)))
    fed = SmallFederation(
        tmp_path, clients, participation=2, quorum=2, rounds=4, deadline=0.1, repeat=10.0
    )
    run = fed.run(progress=lambda row, what="": fed.transport.offline.add("site0"))
    assert fed.events("no quorum")
    assert (run.history.rounds["participants"][1:] == 2).all()


# -- what the site refuses ---------------------------------------------------------------------------------------------


def why(fed, message, name="site0"):
    from unalike.federation.protocol.envelope import unseal

    told, site = [], fed.workers[name]
    getattr(site, "worker", site).log = told.append
    reply = unseal(site.handle(message), key_of(0).public_key())
    assert reply.head.kind == "unable" and set(reply.open()[0]) == {"code"}
    return f"{reply.open()[0]['code']}: {told[-1]}"


def test_site_worker_request_outside_terms_is_declined(tmp_path):
    """Requests must be signed by the coordinator, of the newest run, under the site's own terms, with methods of its plan."""
    from small_federation import COORDINATOR

    fed = small_federation_of(tmp_path)
    run = new_run()
    terms = fed.federation.terms
    head = Head(run, 1, 0, "site0", "admit")
    assert "not by the key" in why(fed, seal(head, {"terms": terms}, {}, key_of(1)))
    own = {"versions": versions()}
    assert "this is 'site0'" in why(
        fed, seal(replace(head, site="site1"), {"terms": terms}, {}, COORDINATOR)
    )
    assert "terms: declined a request: the coordinator runs other terms" in why(
        fed, seal(head, {"terms": "x"} | own, {}, COORDINATOR)
    )
    for name in (
        "zzzz",
        "2" * 20 + "-x",
        "9" * 20 + "-" + "0" * 16,
    ):  # no real run would ever be newer
        assert "expected the time at which it began" in why(
            fed, seal(replace(head, run=name), {"terms": terms}, {}, COORDINATOR)
        )
    assert "not a valid request of the kind 'admit'" in why(
        fed, seal(head, {"terms": terms, "eval": "1"} | own, {}, COORDINATOR)
    )
    assert "of the kind 'exec'" in why(fed, seal(replace(head, kind="exec"), {}, {}, COORDINATOR))
    order = {
        "terms": terms, "rounds": 2, "samples": 48, "outcomes": [], "derived": False, "group": 0, "round": 0,
        "accepted": None, "share": 1.0, "lr": 0.1, "train": True, "evaluate": [], "local": False, "fixed": "",
    }  # fmt: skip
    train = replace(head, kind="train")
    assert "not among what this site agreed to" in why(
        fed, seal(train, order | {"method": "scaffold"}, {}, COORDINATOR)
    )
    assert "not among what this site agreed to" in why(
        fed, seal(train, order | {"method": "__import__('os').system('true')"}, {}, COORDINATOR)
    )
    method = repr(__import__("unalike").plan("fedavg"))
    question = {k: order[k] for k in ("terms", "rounds", "samples", "outcomes", "derived")} | {
        "query": "label_counts()"
    }
    assert "not among what this site agreed to" in why(
        fed, seal(replace(head, kind="ask"), question, {}, COORDINATOR)
    )
    weights = fed.workers["site0"].run_config.model.params
    params, order = {f"params/{n}": t for n, t in weights.items()}, order | {"method": method}
    without_weight = {n: t for n, t in params.items() if n != "params/head.weight"}
    found = why(fed, seal(train, order, without_weight, COORDINATOR))
    assert found.startswith("plan: ") and "the request lacks params/head.weight" in found
    for change, tensors, said in (
        ({"lr": 1e-12}, {}, "a learning rate of 1e-12 in round 0; expected 0.1"),
        ({"lr": 1e300}, {}, "a learning rate of 1e+300"),
        ({}, {"params/head.weight": torch.zeros(1)}, "params/head.weight has shape [1]"),
        ({}, {"messages.spy/x": torch.zeros(1)}, "the request has messages.spy/x; expected 4"),
        ({}, {"junk/x": torch.zeros(1)}, "the request has junk/x; expected 4"),
        ({"evaluate": ["personal"]}, {}, "evaluations of personal in round 0; expected clients"),
        ({"local": True}, {}, "evaluations of local"),
        ({"group": 1}, {}, "the model group 1; expected one of 1"),
        ({"outcomes": [["all"]]}, {}, "outcomes of 1 steps in a request of step 1"),
    ):
        found = why(fed, seal(train, order | change, params | tensors, COORDINATOR))
        assert found.startswith("plan: ") and said in found
    later = order | {"outcomes": [[]] * 56}
    assert "agreed to as step 57: none" in why(
        fed, seal(replace(train, stage=57), later, params, COORDINATOR)
    )
    samples = {"shared/x": torch.randn(200, 6), "shared/y": torch.zeros(200, dtype=torch.int64)}
    for fixed, said in (
        ("", "error: declined a request: the fixed tensors of this step do not have the digest"),
        (checksum(samples), "plan: declined a request: 200 public samples to train on; expected 0"),
    ):
        fed.restart_sites("site0")
        found = why(fed, seal(train, order | {"fixed": fixed}, params | samples, COORDINATOR))
        assert found.startswith(said)
    elsewhere = seal(
        replace(train, stage=57),
        later | {"fixed": checksum(samples)},
        params | samples,
        COORDINATOR,
    )
    assert "agreed to as step 57: none" in why(fed, elsewhere)
    junk = {"fixed.params/junk": torch.zeros(10)}
    unknown = seal(train, order | {"fixed": checksum(junk)}, params | junk, COORDINATOR)
    assert "the request has fixed.params/junk; expected 4" in why(fed, unknown)
    assert not list((tmp_path / "site0").rglob("fixed.safetensors")), (
        "what was not agreed on would fill the disk"
    )


def test_site_worker_has_no_more_groups_than_the_federation_has_sites(tmp_path):
    """A plan that divides sites makes groups that nobody knows before; each takes memory, and a folder of client states."""
    fed = small_federation_of(tmp_path, "clustered")
    asked = []
    send = fed.transport.send
    fed.transport.send = lambda site, message: (asked.append(message), send(site, message))
    fed.run()
    requests = [unseal(message, COORDINATOR.public_key()) for message in asked]
    request = next(r for r in requests if r.head.kind == "train" and r.head.site == "site0")
    facts, tensors = request.open()
    sites = len(fed.federation.sites)
    for group in (sites, 10**9):
        message = seal(request.head, facts | {"group": group}, tensors, COORDINATOR)
        assert f"the model group {group}; expected one of {sites}" in why(fed, message)
    last = seal(request.head, facts | {"group": sites - 1}, tensors, COORDINATOR)
    assert unseal(fed.workers["site0"].handle(last), key_of(0).public_key()).head.kind == "answer"


def test_site_worker_choice_among_other_models_than_those_of_the_plan_is_declined(tmp_path):
    """Among many the choice would be a number about the training samples, and millions of them would take the memory."""
    fed = small_federation_of(tmp_path, "ifca(clusters=2)")
    asked = {
        "terms": fed.federation.terms, "rounds": 2, "samples": 48, "outcomes": [], "derived": False,
        "query": "mean_loss()", "groups": 2 * 10**7,
    }  # fmt: skip
    message = seal(Head(new_run(), 1, 0, "site0", "choose"), asked, {}, COORDINATOR)
    tracemalloc.start()
    assert "a choice among 20000000 models, of which 0 came" in why(fed, message)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 10**7
    three = {f"{number}/head.bias": torch.zeros(4) for number in range(3)}
    message = seal(
        Head(new_run(), 1, 0, "site0", "choose"), asked | {"groups": 3}, three, COORDINATOR
    )
    assert "a choice among 3 models, of which 3 came; expected 2" in why(fed, message)
    message = seal(Head(new_run(), 0, 0, "site0", "choose"), asked, {}, COORDINATOR)
    assert "outcomes of 0 steps in a request of step 0" in why(fed, message)


def test_site_worker_request_of_old_run_or_round_is_declined(tmp_path):
    heard = []

    class Ear:
        def __init__(self, worker):
            self.worker = worker

        def handle(self, message):
            heard.append((message, self.worker.handle(message)))
            return heard[-1][1]

    fed = small_federation_of(tmp_path, rounds=6)
    fed.workers["site0"] = Ear(fed.workers["site0"])
    fed.run()
    fed.restart_sites()
    assert fed.workers["site0"].handle(heard[-1][0]) == heard[-1][1]
    assert "is over" in why(fed, heard[1][0])
    again = SmallFederation(tmp_path / "again", make_clients(SAMPLE_SIZES))
    again.transport.handlers = fed.workers
    again.run()
    assert "newer; a replay?" in why(fed, heard[-1][0])


@pytest.mark.parametrize(
    "area, sound",
    [(0.5, True), (1, True), (None, True), (1.5, False), (True, False), ("0.5", False)],
)
def test_row_1_impossible_areas_under_curves_are_refused(area, sound):
    """A site's ROC AUC is a number from 0 to 1; NaN means that there is none."""
    found = MetricSums(2, 1.0, (1, 1), (1, 1), (1, 1)).as_fields() | {
        "computed_by_client": {"roc_auc": area}
    }
    if sound:
        assert (
            MetricSums.read(found, find_task("binary"), 2, 2).computed_by_client["roc_auc"] == area
        )
    else:
        with pytest.raises(UnalikeError, match="not a number from 0 to 1"):
            MetricSums.read(found, find_task("binary"), 2, 2)


def test_site_worker_any_exception_is_reported_as_unable(tmp_path, monkeypatch):
    """For example an accelerator out of memory; the message is made printable and can be sent."""
    fed = small_federation_of(tmp_path, rounds=2, quorum=2, deadline=5.0)
    told, worker = [], fed.workers[LAST]
    monkeypatch.setattr(worker, "log", told.append)

    def fail(*_):
        raise RuntimeError("no memory\x1b[2J left\udcff")

    monkeypatch.setattr(worker, "_broadcast", fail)
    run = fed.run()
    assert (run.history.rounds["participants"][1:] == 2).all()
    assert told.pop() == NOTICES["finished"]
    assert told and set(told) == {"declined a request: RuntimeError: no memory [2J left "}
    assert all(
        e["why"] == "unable: it failed; its terminal and journal say how"
        for e in fed.events("refused")
    )
