"""Secure aggregation against a hostile coordinator: one summand a round, one sum over a model, and answers that say nothing."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from secure_federation import EQUAL_STEPS, FOUR, TERMS, Tap, secure, sums_of
from small_federation import COORDINATOR, SmallFederation, key_of, make_clients, states

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.journal import entries
from unalike.core.codec import checksum
from unalike.engine.loop import Loop
from unalike.federation.coordinator import secure_aggregation
from unalike.federation.coordinator.run_control import Stopped
from unalike.federation.coordinator.secure_aggregation import MaskedRequests
from unalike.federation.protocol.envelope import Head, seal, unseal
from unalike.federation.protocol.messages import ANSWER, MaskedTrainRequest
from unalike.federation.secure_aggregation.setup import model_digest
from unalike.federation.secure_aggregation.sum_ledger import SumLedger
from unalike.federation.site.site_policy import SitePolicy
from unalike.federation.site.site_worker import SiteWorker

OTHER_RUN = f"{2**60:020d}-{'0' * 16}"


@pytest.fixture
def scaffold(tmp_path):
    """A federation after two rounds with client states, with taps at its sites."""
    fed = secure(tmp_path, "scaffold", rounds=2, also=("scaffold + half_precision",), **EQUAL_STEPS)
    taps = fed.tapped(Tap)
    fed.run()
    return fed, taps


def answer_of(fed, head, facts, tensors, site="site0"):
    worker = getattr(fed.workers[site], "worker", fed.workers[site])
    reply = worker.handle(seal(head, facts, tensors, COORDINATOR))
    answer = unseal(reply, key_of(int(site[-1])).public_key())
    return answer.head.kind, *answer.open()


def train_request(taps, number=-1, site="site0"):
    message = unseal(taps[site].requests["train"][number], COORDINATOR.public_key())
    return message.head, *message.open()


def changes(value):
    """Other values of a field, of its kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(0, value - 1), 0]
    if isinstance(value, float):
        return [2 * value, value / 2]
    if isinstance(value, str):
        return [f"{value} ", value[1:], "fedavg"]
    if isinstance(value, list):
        return [value[1:], value[::-1], [*value, "other"], [*value, ["other"]]]
    assert value is None
    return [0, 1]


# one summand for a round -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_every_field_of_a_request_that_is_changed_is_declined(scaffold, number):
    """All fields of the message, also those of later versions: none gives a second summand for the round."""
    fed, taps = scaffold
    head, facts, tensors = train_request(taps, number)
    assert set(facts) == {field.name for field in fields(MaskedTrainRequest)}
    assert answer_of(fed, head, facts, tensors)[0] == ANSWER  # to the byte the same as before
    tried = 0
    for name, value in facts.items():
        for other in changes(value):
            if other == value:
                continue
            tried += 1
            kind, _, answer = answer_of(fed, head, facts | {name: other}, tensors)
            assert "masked" not in answer, (name, other)
            assert kind == "unable" or (name, other) == ("train", False), (name, other)
    assert tried >= len(facts)
    other_terms = [terms for terms in fed.federation.variants if terms != facts["terms"]]
    assert answer_of(fed, head, facts | {"terms": other_terms[0]}, tensors)[0] == "unable"


def test_every_field_of_the_head_that_is_changed_is_declined(scaffold):
    fed, taps = scaffold
    head, facts, tensors = train_request(taps)
    others = {"run": [OTHER_RUN], "site": ["site1"], "kind": ["keys", "ask"], "answers": ["0" * 64]}
    for field in fields(Head):
        value = getattr(head, field.name)
        for other in others.get(field.name) or [value + 1, 0]:
            changed = replace(head, **{field.name: other})
            assert "masked" not in answer_of(fed, changed, facts, tensors)[2], (field.name, other)


def test_every_tensor_of_a_request_that_is_changed_is_declined(scaffold):
    fed, taps = scaffold
    head, facts, tensors = train_request(taps)
    assert any(name.startswith("messages.") for name in tensors)
    for name, t in tensors.items():
        kind, _, _ = answer_of(fed, head, facts, tensors | {name: t + 1e-3})
        assert kind == "unable", name
    # also in the next round, where nothing was asked yet: the ledger of sums would know the model by another digest
    messages = {name: t for name, t in tensors.items() if name.startswith("messages.")}
    [[name, t], *_] = messages.items()
    for changed in (
        tensors | {"junk/x": torch.zeros(1)},
        tensors | {name: torch.cat([t, t])},
        {other: value for other, value in tensors.items() if other != name},
    ):
        for round in (head.round, head.round + 1):
            later = answer_of(fed, replace(head, round=round), facts | {"round": round}, changed)
            assert later[:2] in [("unable", {"code": code}) for code in ("plan", "rules")]


def test_masks_follow_from_every_field_that_the_sites_have_in_common(scaffold):
    """Should the ledger be lost with all else, a changed request would still have other masks."""
    fed, taps = scaffold
    head, facts, tensors = train_request(taps)
    sums = sums_of(fed, "site0", head.run)
    keys = sums._members()

    def context(facts, tensors=tensors, place=head.place):
        asked = MaskedTrainRequest.read(facts)
        model = model_digest(place, tensors, asked.fixed)
        return sums.setup.sum_context(place, asked, model, keys)

    for name, value in facts.items():
        others = [other for other in changes(value) if other != value]
        changed = []
        for other in others:
            try:
                changed.append(context(facts | {name: other}))
            except UnalikeError:
                continue  # no such request can be made
        if name in MaskedTrainRequest.OWN_FIELDS:
            assert set(changed) == {context(facts)}
        else:
            assert changed and context(facts) not in changed, name
    assert context(facts, place=(1, 0)) != context(facts)
    for name, t in tensors.items():
        assert context(facts, tensors | {name: t + 1e-3}) != context(facts)
    backwards = dict(reversed(tensors.items()))
    assert context(facts, backwards) == context(
        facts
    )  # the same model in another order is the same


def test_round_of_the_facts_is_that_of_the_head(tmp_path):
    """Else a round could be asked again under the next one's keys: equal updates, of which two sums show one."""
    fed = secure(tmp_path, "scaffold", rounds=3, **EQUAL_STEPS)
    taps = fed.tapped(Tap)
    seen = []

    def ask(row, what=""):
        if row["round"] != 1:
            return
        head, facts, tensors = train_request(taps, 0)
        later = replace(head, round=2)
        seen.append(answer_of(fed, later, facts, tensors)[:2])
        head, facts, tensors = train_request(taps)
        for accepted in (head.round, head.round + 1):
            asked = facts | {"accepted": accepted}
            seen.append(answer_of(fed, head, asked, tensors)[:2])

    fed.coordinator().run(progress=ask)
    assert seen == [("unable", {"code": "plan"})] * 3


def test_client_state_is_that_of_the_last_sum_with_the_site(tmp_path):
    """One site told to begin anew, over the same model: the difference of two sums over all was its gradient, to 5 10^-7."""
    fed = secure(tmp_path, "scaffold", rounds=3, **EQUAL_STEPS)
    taps = fed.tapped(Tap)
    seen = []

    def ask(row, what=""):
        if row["round"] == 1:
            head, facts, tensors = train_request(taps)
            changed = facts | {"round": 2, "accepted": None}
            seen.append(answer_of(fed, replace(head, round=2), changed, tensors)[:2])

    fed.coordinator().run(progress=ask)
    assert seen == [("unable", {"code": "sum"})]
    journal = entries(tmp_path / "site0" / "journal.jsonl")
    [why] = [entry["why"] for entry in journal if entry["event"] == "declined"]
    assert why.startswith("the client state of round None in round 2")


def test_model_group_is_that_of_a_plan_without_groups(scaffold):
    fed, taps = scaffold
    head, facts, tensors = train_request(taps)
    answer = answer_of(fed, replace(head, round=1), facts | {"group": 1}, tensors)
    assert answer[:2] == ("unable", {"code": "plan"})


@pytest.mark.parametrize("changed", [{"method": "fedavg"}, {"method": ""}])
def test_step_of_a_request_is_checked_also_after_the_first_one(scaffold, changed):
    """A site keeps the model group of a step: a later request with other words about the step was answered with it."""
    fed, taps = scaffold
    message = unseal(taps["site0"].requests["evaluate"][-1], COORDINATOR.public_key())
    facts, tensors = message.open()
    assert answer_of(fed, message.head, facts, tensors)[0] == ANSWER
    assert answer_of(fed, message.head, facts | changed, tensors)[0] == "unable"


def test_request_cannot_set_what_a_site_is_not_sent(tmp_path):
    """A declined request left a model group with its values of the frozen head: with a head of 0 a site's update is 0."""
    fed = secure(tmp_path, "fedavg + fixed(select='head')", rounds=1)
    taps = fed.tapped(Tap)
    fed.run()
    message = unseal(taps["site0"].requests["evaluate"][-1], COORDINATOR.public_key())
    facts, tensors = message.open()
    before = answer_of(fed, message.head, facts, tensors)
    model = fed.workers["site0"].worker.run_config.model
    zeros = {}
    for name, t in model.params.items():
        if f"params/{name}" not in tensors:
            zeros[f"fixed.params/{name}"] = torch.zeros_like(t)
    assert zeros
    for derived in (False, True):
        poisoned = facts | {"derived": derived, "fixed": checksum(zeros)}
        assert answer_of(fed, message.head, poisoned, tensors | zeros)[0] == "unable"
        kind, told, _ = answer_of(fed, message.head, facts | {"derived": derived}, tensors)
        assert kind == "unable" if derived else told == before[1]


# one sum over a model, in all runs -------------------------------------------------------------------------------------


class Again(SmallFederation):
    """A run of the same sites once more, into another folder."""

    @property
    def out(self):
        return self.folder / "again"


def again(fed, **more):
    return Again(fed.folder, fed.clients, fed.federation.method, **(TERMS | {"rounds": 2} | more))


def bits(run):
    return {name: t.numpy().tobytes() for name, t in states(run)["all"].items()}


def test_run_again_over_the_same_sites_gives_the_same_sums(tmp_path):
    fed = secure(tmp_path, rounds=2)
    first = fed.run()
    assert bits(again(fed).run()) == bits(first)


def test_sum_over_the_same_model_without_one_site_is_declined_in_a_later_run(tmp_path):
    """The difference to the sum of the first run would be the update of site3 alone."""
    fed = secure(tmp_path, rounds=2)
    fed.run()
    second = again(fed, quorum=3, patience=1, deadline=0.3)
    second.transport.offline.add("site3")
    with pytest.raises(Stopped):
        second.run()
    codes = {entry.get("code") for entry in entries(tmp_path / "site0" / "journal.jsonl")}
    assert codes == {None, "sum"}
    assert {len(sites) for sites in sums_at(tmp_path / "site0").values()} == {1}


def test_sum_over_the_same_model_with_one_more_site_is_declined_in_a_later_run(tmp_path):
    fed = secure(tmp_path, rounds=2, quorum=3)
    fed.workers["site3"] = Leaving(fed, "site3")
    assert fed.run().history.rounds["participants"].tolist() == [0, 3, 3]
    second = again(fed, quorum=3, patience=1, deadline=0.3)
    with pytest.raises(Stopped):
        second.run()
    assert {len(sites) for sites in sums_at(tmp_path / "site0").values()} == {1}


def sums_at(folder):
    """Model -> the sites of the sums over it that a site has helped to unmask."""
    found = {}
    for line in (folder / "sums.jsonl").read_text().split("\n")[1:]:
        model, _, _, _, *sites = json.loads(line)
        found.setdefault(model, []).append(sites)
    return found


class Leaving:
    """A site that is offline from its first request for keys on."""

    def __init__(self, fed, name):
        self.fed, self.name, self.worker = fed, name, fed.workers[name]

    def handle(self, message):
        if unseal(message, COORDINATOR.public_key()).head.kind == "keys":
            self.fed.transport.offline.add(self.name)
        return self.worker.handle(message)


def test_coordinator_that_knows_its_earlier_sums_asks_for_the_same_ones(tmp_path):
    """Who was absent in the first run is left out where the model is the same, and the runs are equal to the bit."""
    fed = secure(tmp_path, rounds=2, quorum=3)
    fed.workers["site3"] = Leaving(fed, "site3")
    first = fed.run()
    second = again(fed, quorum=3)
    unmasked = SumLedger(fed.out / "sums.jsonl")
    run = second.coordinator(unmasked=unmasked).run()
    assert run.history.rounds["participants"].tolist() == [0, 3, 3]
    assert bits(run) == bits(first)


def test_site_may_allow_a_second_sum_over_a_model(tmp_path):
    """After a site was revoked, for instance; the people at each site decide that."""
    fed = secure(tmp_path, rounds=1)
    fed.run()
    second = again(fed, quorum=3, rounds=1)
    rules = SitePolicy(least_training=0, least_test=0, least_class=0, digits=0, sums_per_model=2)
    for number, name in enumerate(second.workers):
        second.workers[name] = SiteWorker(
            second.federation,
            name,
            key_of(number),
            fed.clients[number],
            tmp_path / name,
            policy=rules,
        )
    second.workers["site3"] = Leaving(second, "site3")
    assert second.run().history.rounds["participants"].tolist() == [0, 3]
    [sums] = sums_at(tmp_path / "site0").values()
    assert [len(sites) for sites in sums] == [4, 3]


def test_sums_over_a_model_that_differs_a_little_still_show_a_site(tmp_path):
    """What no ledger prevents: the limit that docs/federation/secure_aggregation.md states."""
    work = ua.Work(steps=3, batch_size=None, lr=0.1)
    first = secure(tmp_path / "a", rounds=1, work=work)
    before = first.workers["site0"].run_config.model.params
    whole = first.run().params
    # four sites from w, then three from w + 1e-6: sums of sample-weighted updates
    sizes = [n for n, _ in FOUR]
    few = ua.run(
        "fedavg",
        make_clients(FOUR)[:3],
        model=nudged(first.workers["site0"].run_config.model, 1e-6),
        rounds=1,
        work=work,
        executor="loop",
    ).params
    one = ua.run(
        "fedavg",
        make_clients(FOUR)[3:],
        model=nudged(first.workers["site0"].run_config.model, 0),
        rounds=1,
        work=work,
        executor="loop",
    ).params
    flat = {
        what: torch.cat([(run[n] - before[n]).flatten().double() for n in before])
        for what, run in {"whole": whole, "few": few, "one": one}.items()
    }
    guessed = (flat["whole"] * sum(sizes) - (flat["few"] - 1e-6) * sum(sizes[:3])) / sizes[3]
    error = float((guessed - flat["one"]).norm() / flat["one"].norm())
    assert error < 1e-3, error


def nudged(model, step):
    """A module with the parameters of a model, each larger by a step."""
    return model.module({n: w + step for n, w in model.params.items()}, model.buffers)


# answers that say nothing about the samples ----------------------------------------------------------------------------


@contextmanager
def failing(client, error, rounds=(0, 1, 2)):
    """Training of a client ends with an error in these rounds."""
    real = Loop.feed

    def feed(self, broadcast, ids, accepted, sink):
        real(self, broadcast, ids, accepted, sink)
        if list(ids) == [client] and broadcast.round in rounds:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "feed", feed)
        yield


ERRORS = [RuntimeError("no"), UnalikeError("not finite"), FloatingPointError(), ValueError("x")]


@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_error_of_training_is_told_by_the_sum_alone(tmp_path, error):
    """How many sites failed is in the sum; which ones, in no message and no event."""
    fed = secure(tmp_path, rounds=1)
    taps = fed.tapped(Tap)
    with failing(3, error), pytest.raises(UnalikeError, match="training failed at 1 of 4 sites"):
        fed.run()
    lengths = {len(tap.replies["train"][0]) for tap in taps.values()}
    assert len(lengths) == 1
    assert [(e["idle"], e["sites"]) for e in fed.events("idle summands")] == [(1, 4)]
    assert not fed.events("refused", "absent", "no quorum")


def test_site_whose_training_failed_keeps_its_client_state_and_takes_part_in_the_next_run(tmp_path):
    undisturbed = secure(tmp_path / "undisturbed", "scaffold", rounds=2, **EQUAL_STEPS).run()
    fed = secure(tmp_path / "failed", "scaffold", rounds=2, **EQUAL_STEPS)
    failed_at_site3 = failing(3, ValueError("x"), rounds=(1,))
    with failed_at_site3, pytest.raises(UnalikeError, match="round 2: training failed at 1"):
        fed.run()
    journal = list(entries(tmp_path / "failed" / "site3" / "journal.jsonl"))
    assert [e["why"] for e in journal if e["event"] == "idle summand"] == ["ValueError: x"]
    assert "declined" not in {e["event"] for e in journal}
    # the noise below rounding is another one in another folder
    run = again(fed, **EQUAL_STEPS).run()
    for name, t in states(undisturbed)["all"].items():
        torch.testing.assert_close(states(run)["all"][name], t, rtol=1e-5, atol=1e-6)


def test_sum_of_one_site_among_idle_ones_is_random(tmp_path, monkeypatch):
    """A model with which training fails at all sites but one: with zeros of the others the sum was that one's update."""
    sums = []
    real = secure_aggregation.decode
    monkeypatch.setattr(
        secure_aggregation, "decode", lambda total: sums.append(real(total)) or real(total)
    )
    real_run = Loop.run

    def run(self, broadcast, ids, accepted):
        if ids != [0]:
            raise RuntimeError
        return real_run(self, broadcast, ids, accepted)

    monkeypatch.setattr(Loop, "run", run)
    fed = secure(tmp_path, "scaffold", rounds=1, **EQUAL_STEPS)
    with pytest.raises(UnalikeError, match="training failed at 3 of 4 sites"):
        fed.run()
    [total] = sums
    # the numbers of idle sites, of samples, and the random loss come last; the others are uniform over +-2^31
    assert total[-3] == 3
    shares = np.abs(total[:-3]) / 2.0**31
    assert abs(shares.mean() - 0.5) < 0.2 and shares.min() > 1e-6


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "random_mask(fraction=0.5) + ditto"])
@pytest.mark.parametrize("factor", [1e8, 1e30, 3e38])
def test_every_finite_model_gets_the_same_kind_of_answer(tmp_path, monkeypatch, factor, method):
    """Models of whatever size: no site declines, and where sites cannot train on it the run ends."""
    real = MaskedRequests.request

    def huge(self, site):
        kind, facts, tensors = real(self, site)
        if facts["train"]:
            largest = torch.finfo(torch.float32).max
            for name, t in tensors.items():
                if name.startswith("params"):
                    tensors = tensors | {
                        name: (factor * t.double()).clamp(-largest, largest).float()
                    }
        self.model = model_digest(self.secure.state.place, tensors, facts["fixed"])
        return kind, facts, tensors

    monkeypatch.setattr(MaskedRequests, "request", huge)
    fed = secure(tmp_path, method, rounds=1, **EQUAL_STEPS)
    taps = fed.tapped(Tap)
    with pytest.raises(UnalikeError, match="training failed at 4 of 4 sites"):
        fed.run()
    answers = set()
    for name, tap in taps.items():
        [reply] = tap.replies["train"]
        answer = unseal(reply, key_of(int(name[-1])).public_key())
        answers.add((answer.head.kind, len(answer.open()[1]["masked"])))
    assert len(answers) == 1 and answers.pop()[0] == ANSWER


def test_false_number_of_idle_summands_is_found(tmp_path):
    fed = secure(tmp_path, rounds=1)

    def less(head, facts, tensors):
        if "masked" not in tensors:
            return None
        tensors["masked"][-3] -= 1 << 32
        return head, facts, tensors

    fed.corrupt("site1", less)
    with pytest.raises(UnalikeError, match="-1 idle summands: a site sent false shares"):
        fed.run()


# clocks and rules ------------------------------------------------------------------------------------------------------


def test_clock_of_the_coordinator_may_go_back(tmp_path, monkeypatch):
    """The number of a setup does not come from the clock: sites would decline it, and the run would pause for ever."""
    limit = "unalike.federation.coordinator.secure_aggregation.MAX_SETUP_ROUNDS"
    monkeypatch.setattr(limit, 1)
    fed = secure(tmp_path, rounds=3)

    def stop(row, what=""):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fed.coordinator().run(progress=stop)
    now, hour = time.time_ns, 3600 * 10**9
    monkeypatch.setattr("time.time_ns", lambda: now() - hour)
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 4, 4, 4]
    numbers = [sums_of(fed, name, run_of(fed)).setup.number for name in fed.workers]
    assert numbers == [3] * 4


def run_of(fed):
    [folder] = [file for file in (fed.folder / "site0").iterdir() if file.is_dir()]
    return folder.name


def ruled(fed, **rules):
    free = {"least_training": 0, "least_test": 0, "least_class": 0, "digits": 0}
    for number, name in enumerate(fed.workers):
        fed.workers[name] = SiteWorker(
            fed.federation,
            name,
            key_of(number),
            fed.clients[number],
            fed.folder / name,
            policy=SitePolicy(**(free | rules)),
        )


def test_requests_for_keys_and_shares_are_counted_also_after_a_restart(tmp_path):
    fed = secure(tmp_path, rounds=1)
    ruled(fed, masking_per_round=6)
    taps = fed.tapped(Tap)
    fed.run()
    message = unseal(taps["site0"].requests["keys"][0], COORDINATOR.public_key())
    facts, tensors = message.open()
    codes = []
    for setup in range(2, 8):
        if setup == 4:
            ruled(fed, masking_per_round=6)
        codes.append(answer_of(fed, message.head, facts | {"setup": setup}, tensors)[:2])
    # keys, shares, open and unmask came before
    assert codes == [(ANSWER, {})] * 2 + [("unable", {"code": "rules"})] * 4


def test_declined_requests_are_counted_and_those_for_other_sites_are_not(tmp_path):
    fed = secure(tmp_path, rounds=1)
    ruled(fed, requests_per_round=6)
    taps = fed.tapped(Tap)
    fed.run()
    head, facts, tensors = train_request(taps)

    def ask(lr, site):
        return answer_of(fed, replace(head, site=site), facts | {"lr": lr}, tensors)[1].get("code")

    assert [ask(1 + n, "site1") for n in range(20)] == ["error"] * 20
    found = [ask(2 + n, "site0") for n in range(20)]
    assert found[0] == "plan" and found[-1] == "rules"
    ruled(fed, requests_per_round=6)
    assert ask(100, "site0") == "rules"


# shares that nobody can open -------------------------------------------------------------------------------------------


def garbage(head, facts, tensors):
    """What a site sealed, with other bytes in its place."""
    if "shares" not in tensors or tensors["shares"].dim() < 3:
        return None
    return head, facts, {"shares": torch.full_like(tensors["shares"], 7)}


def test_site_whose_shares_nobody_can_open_is_named_and_the_others_go_on(tmp_path):
    """Its sender was not known, and the run paused for ever."""
    fed = secure(tmp_path, rounds=2)
    fed.corrupt("site2", garbage)
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 3, 3]
    [refused] = fed.events("refused")
    assert refused["client"] == "site2" and "cannot be opened by site0, site1" in refused["why"]
    assert len(fed.events("setup")) == 1, "it is in no other setup"
    statuses = run.history.clients.set_index(["round", "client"])["status"]
    assert "sealed cannot be opened" in statuses[1, 2]


def test_false_shares_of_one_site_cost_a_start_and_no_model(tmp_path):
    """They make noise of the sum, whose weight shows it; the next start asks for the same sum again."""
    honest = secure(tmp_path / "honest", rounds=1).run()
    fed = secure(tmp_path / "attacked", rounds=1)
    worker = fed.workers["site0"]

    def flip(head, facts, tensors):
        if not {"shares", "opened"} <= tensors.keys():
            return None
        shares = tensors["shares"].clone()
        shares[0, 5] ^= 1
        return head, facts, tensors | {"shares": shares}

    fed.corrupt("site0", flip)
    with pytest.raises(UnalikeError, match="a site sent false shares or another weight"):
        fed.coordinator().run()
    fed.workers["site0"] = worker
    # but for the noise below rounding, which each folder has of its own
    run = fed.run()
    for name, t in states(honest)["all"].items():
        torch.testing.assert_close(states(run)["all"][name], t, rtol=1e-5, atol=1e-6)


def test_site_that_cannot_open_the_shares_of_others_excludes_nobody(tmp_path):
    """Its word alone counts for nothing, in the setup and when a sum is unmasked."""
    fed = secure(tmp_path, rounds=1)

    def accuse(head, facts, tensors):
        if "opened" not in tensors:
            return None
        return head, facts, tensors | {"opened": torch.zeros_like(tensors["opened"])}

    fed.corrupt("site2", accuse)
    assert fed.run().history.rounds["participants"].tolist() == [0, 4]
    assert not fed.events("refused")


def test_fewer_usable_sites_than_the_threshold_end_the_run_with_their_names(tmp_path):
    fed = secure(tmp_path, rounds=1)
    for name in ("site1", "site2"):
        fed.corrupt(name, garbage)
    with pytest.raises(UnalikeError, match=r"found 2 sites .*site1: the shares that it sealed"):
        fed.run()
