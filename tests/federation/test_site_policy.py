"""A site's own rules and its journal: each key of site.toml, and what the journal says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from datetime import time as clock

import pytest
import torch
from small_federation import COORDINATOR, SmallFederation, key_of, make_clients, states

from unalike._utils.errors import UnalikeError
from unalike._utils.journal import entries
from unalike.core.option import options_of
from unalike.core.tasks.registry import find_task
from unalike.data.client_data import ClientData
from unalike.federation.protocol.envelope import Head, seal, unseal
from unalike.federation.protocol.messages import Declined
from unalike.federation.site.earlier_requests import EarlierRequests
from unalike.federation.site.site_policy import SitePolicy
from unalike.federation.site.site_worker import SiteWorker

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6))
FREE = {"least_training": 0, "least_test": 0, "least_class": 0, "digits": 0}


def ruled(folder, rules, method="fedavg", **more):
    """A federation in which site2 has these rules."""
    fed = SmallFederation(
        folder, make_clients(SAMPLE_SIZES), method, **({"quorum": 2, "rounds": 3} | more)
    )
    fed.workers["site2"] = SiteWorker(
        fed.federation,
        "site2",
        key_of(2),
        fed.clients[2],
        folder / "site2",
        policy=SitePolicy(**(FREE | rules)),
    )
    return fed


def declined(fed, code):
    found = {e["why"] for e in fed.events("refused") if e["client"] == "site2"}
    journal = [
        e for e in entries(fed.folder / "site2" / "journal.jsonl") if e["event"] == "declined"
    ]
    assert {e["code"] for e in journal} == {code} and len(found) == 1
    return journal[0]["why"]


@pytest.mark.parametrize(
    ("method", "is_allowed"),
    [
        ("ifca(clusters=2)", True),
        ("ifca(clusters=2, method='fedavg + clip(norm=1)')", True),
        ("ifca(clusters=2, method='fedprox')", False),
        ("ccvr(method='fedavg + lws')", False),
    ],
)
def test_rule_on_methods_sees_the_method_of_a_plan(method, is_allowed):
    policy = SitePolicy(**FREE, methods=("ifca", "ccvr", "fedavg", "clip"))
    task = find_task("classification")
    [client] = make_clients(((20, 8),))
    if is_allowed:
        policy.allowed(client, method, task)
    else:
        with pytest.raises(Declined, match="allows ifca, ccvr"):
            policy.allowed(client, method, task)


def test_more_rounds_in_the_rules_than_agreed_allow_no_more():
    policy = SitePolicy(**FREE, rounds=50)
    policy.check_training(1, agreed_rounds=2)
    with pytest.raises(Declined, match="round 2, counted from 0"):
        policy.check_training(2, agreed_rounds=2)


def test_rules_that_allow_everything_change_nothing(tmp_path):
    run = ruled(tmp_path / "ruled", {}).run()
    wanted = SmallFederation(tmp_path / "free", make_clients(SAMPLE_SIZES), rounds=3).run()
    assert all(
        bool((t == states(wanted)[group][name]).all())
        for group, of in states(run).items()
        for name, t in of.items()
    )


def test_site_with_fewer_samples_than_coefficients_joins_no_exact_fit(tmp_path):
    """Six features and an intercept, of four classes: 21 coefficients for the 16 samples of site2."""
    exact = {"method": "newton(l2=1)", "model": "logistic"}
    with pytest.raises(Declined, match=r"16 training samples for 21 coefficients.* demands 21"):
        ruled(tmp_path / "few", {"least_per_coefficient": 1}, **exact)
    ruled(tmp_path / "free", {"least_per_coefficient": 0}, **exact)
    ruled(tmp_path / "other", {"least_per_coefficient": 1})


def test_file_of_rules_is_made_with_comments_and_read_back(tmp_path):
    file = tmp_path / "site.toml"
    assert SitePolicy.of(file) == SitePolicy()
    text = file.read_text()
    for name, option in options_of(SitePolicy).items():
        assert f"# {option.help.text}\n{name} = " in text
    file.write_text(
        text.replace("hours = []", 'hours = ["20:00", "06:00"]').replace(
            "methods = []", 'methods = ["fedavg"]'
        )
    )
    assert SitePolicy.of(file) == SitePolicy(hours=("20:00", "06:00"), methods=("fedavg",))
    for wrong in (
        "digits = -1",
        "hours = ['at night', '06:00']",
        "hours = ['20:00']",
        "unknown = 1",
        "digits",
    ):
        file.write_text(wrong)
        with pytest.raises(UnalikeError, match=r"site\.toml"):
            SitePolicy.of(file)


def test_rules_about_methods_and_training_samples_hold_at_the_start(tmp_path):
    with pytest.raises(
        UnalikeError, match=r"site\.toml allows clip, fedavg; the federation trains scaffold"
    ):
        ruled(tmp_path / "a", {"methods": ("clip", "fedavg")}, "scaffold")
    ruled(tmp_path / "b", {"methods": ("clip", "fedavg")})
    with pytest.raises(UnalikeError, match=r"16 training samples; site\.toml demands 17"):
        ruled(tmp_path / "c", {"least_training": 17})
    with pytest.raises(
        UnalikeError, match=r"16 .* demands 20, .* join with more, or lower least_training there"
    ):
        ruled(tmp_path / "d", {"least_training": SitePolicy().least_training})


def test_site_trains_in_no_more_rounds_than_its_rules_allow(tmp_path):
    fed = ruled(tmp_path, {"rounds": 1})
    assert fed.run().history.rounds["participants"].tolist() == [0, 3, 2, 2]
    why = "training in round 1, counted from 0; site.toml allows 1 rounds of a run (rounds)"
    assert declined(fed, "rules") == why


def test_rounds_beyond_the_agreed_ones_are_declined(tmp_path):
    """60 trainings in a plan of 2 rounds: the coordinator has another number of rounds than the file at the site."""
    fed = ruled(tmp_path, {}, rounds=2)
    fed.federation = replace(fed.federation, rounds=8)
    for number, name in enumerate(("site0", "site1")):
        fed.workers[name] = SiteWorker(
            fed.federation, name, key_of(number), fed.clients[number], tmp_path / name
        )
    assert fed.run().history.rounds["participants"].tolist() == [0, 3, 3] + [2] * 6


def head_of(step, round):
    return Head(run="run", stage=step, round=round, site="site2", kind="train")


def test_rounds_are_those_of_all_steps_of_a_run(tmp_path):
    """Each step of a divided plan had as many rounds as the whole run."""
    earlier = EarlierRequests(tmp_path / "journal.jsonl", "site2", masking=())

    def ask(step, round):
        head = head_of(step, round)
        before = earlier.count(head, f"request {step} {round}")
        SitePolicy().check_request(head, 3, before, earlier)

    for place in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 1)):
        ask(*place)
    with pytest.raises(Declined, match=r"6 rounds in 2 steps of the plan; site\.toml allows 3"):
        ask(2, 2)


class Curious:
    """A site whose coordinator also asks with other models, as a hostile one would; keeps kind and code of the answers.

    With `restart`, which makes the site anew, only requests to train are asked again.
    """

    def __init__(self, worker, round, restart=None):
        self.worker, self.round, self.restart, self.answers = worker, round, restart, []

    def handle(self, message):
        envelope = unseal(message, COORDINATOR.public_key())
        facts, tensors = envelope.open()
        reply = self.worker.handle(message) if self.round else None  # the real one first
        asked = envelope.head.kind == "train" and envelope.head.round == self.round
        if asked and (facts["train"] or not self.restart):
            for factor in range(2, 40):
                if factor == 20 and self.restart:
                    self.worker = self.restart()
                crafted = seal(
                    envelope.head, facts, {n: factor * t for n, t in tensors.items()}, COORDINATOR
                )
                answer = unseal(self.worker.handle(crafted), key_of(2).public_key())
                self.answers.append((answer.head.kind, answer.open()[0].get("code")))
        return reply or self.worker.handle(message)


def test_requests_of_a_round_are_limited(tmp_path):
    """Evaluations answer questions about single samples when there are many of them with crafted models."""
    fed = ruled(tmp_path, {"requests_per_round": 2}, rounds=1)
    curious = fed.workers["site2"] = Curious(fed.workers["site2"], 0)
    fed.run()
    assert curious.answers == [("answer", None)] * 2 + [("unable", "rules")] * 36
    assert "2 other requests of this round came before" in declined(fed, "rules")


@pytest.mark.parametrize("method", ["client_dp(where='site')", "dp_sgd"])
def test_site_sends_one_update_for_a_round_of_a_private_method(tmp_path, method):
    """Every further one would be a release that no accountant counts; a repeated request gets the same bytes."""
    fed = ruled(tmp_path, {"requests_per_round": 100}, method, rounds=2)

    def restart():
        fed.restart_sites("site2")
        return fed.workers["site2"]

    curious = fed.workers["site2"] = Curious(fed.workers["site2"], 1, restart)
    assert fed.run().history.rounds["participants"].tolist() == [0, 3, 3]
    assert curious.answers == [("unable", "released")] * 38


def test_new_runs_of_a_day_are_limited(tmp_path):
    fed = ruled(tmp_path, {"runs_per_day": 1}, rounds=1)
    fed.run()
    again = ruled(tmp_path, {"runs_per_day": 1}, rounds=1)
    (tmp_path / "out" / "roster.json").unlink()
    (tmp_path / "out" / "config.toml").unlink()
    with pytest.raises(UnalikeError):  # the run of the folder begins anew, two sites are a quorum
        again.run()
        raise UnalikeError("two sites were enough")
    assert "1 runs began within 24 hours" in declined(again, "rules")


def test_few_test_samples_and_rare_classes_are_not_evaluated(tmp_path):
    assert len(make_clients(SAMPLE_SIZES)[2].test[1]) == 6
    few = ruled(tmp_path / "few", {"least_test": 7})
    assert few.run().history.clients.query("client == 2 and round == 3")["accuracy"].isna().all()
    assert [e["test"] for e in few.events("admitted") if e["client"] == "site2"] == [0]
    counts = make_clients(SAMPLE_SIZES)[2].test[1].unique(return_counts=True)[1]
    rare = ruled(tmp_path / "rare", {"least_class": 2})
    rare.run()
    [event] = [e for e in rare.events("admitted") if e["client"] == "site2"]
    assert event["test"] == int(counts[counts >= 2].sum()) < 6


@pytest.mark.parametrize("task", ["binary", "survival", "multilabel"])
def test_rare_outcomes_of_every_task_are_not_evaluated(task):
    """The area under a curve, or the C-index, of one event among 30 samples tells where that one stands."""
    x = torch.arange(30.0).reshape(30, 1)
    is_rare = x[:, 0] < 2
    labels = {
        "binary": is_rare,
        "survival": torch.stack([x[:, 0], is_rare.float()], dim=1),
        "multilabel": torch.stack([x[:, 0] % 2 > 0, is_rare], dim=1),
    }
    data = ClientData(train=(x, labels[task]), test=(x, labels[task]))
    kept, _ = SitePolicy().allowed(data, "fedavg", find_task(task)).test
    assert torch.equal(kept, x[2:])


def test_rules_that_were_changed_in_a_run_are_named(tmp_path):
    fed = ruled(tmp_path, {})

    def edited(row, what=""):
        if row["round"] == 1:
            fed.workers.update(ruled(tmp_path, {"least_test": 7}).workers)

    fed.run(progress=edited)
    why = "and with least_test = 0 and least_class = 0 in site.toml (now least_test = 7 and least_class = 0)"
    assert why in declined(fed, "samples")


def test_sums_of_losses_leave_with_the_digits_of_the_rules(tmp_path):
    seen = []

    def look(head, facts, tensors):
        seen.extend(sums["test"]["loss"] for sums in facts.get("tallies", {}).values())

    exact, rounded = ruled(tmp_path / "exact", {}), ruled(tmp_path / "rounded", {"digits": 3})
    for fed in (exact, rounded):
        fed.corrupt("site2", look)
        fed.run()
    half = len(seen) // 2
    assert seen[half:] == [float(f"{loss:.3g}") for loss in seen[:half]] != seen[:half]


def test_site_answers_in_its_hours_only(tmp_path):
    closed = tuple(f"{datetime.now() + timedelta(hours=h):%H:%M}" for h in (2, 3))
    fed = ruled(tmp_path, {"hours": closed})
    assert fed.run().history.rounds["participants"].tolist() == [0, 2, 2, 2]
    assert declined(fed, "rules") == f"site.toml has it answer from {closed[0]} to {closed[1]} only"
    night = SitePolicy(hours=("20:00", "06:00"))
    for hour, is_open in ((19, False), (20, True), (0, True), (5, True), (6, False)):
        assert night.is_open(clock(hour)) is is_open
    earlier = EarlierRequests(tmp_path / "none.jsonl", "site2", masking=())
    with pytest.raises(Declined):
        SitePolicy(hours=closed).check_request(head_of(1, 0), 9, 0, earlier)


def test_process_is_held_to_its_cores_and_memory():
    code = (
        "import os; from unalike.federation.site.site_policy import SitePolicy; SitePolicy(cores=1, memory=900).limit_process(); "
        "print(len(os.sched_getaffinity(0)))\ntry: bytearray(2**30)\nexcept MemoryError: print('held')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "held"]


def test_journal_says_what_was_asked_and_what_left(tmp_path):
    fed = ruled(tmp_path, {})
    fed.run()
    file = tmp_path / "site2" / "journal.jsonl"
    found = list(entries(file))
    assert [(e["kind"], e["step"], e["round"], e["trained"], e["evaluated"]) for e in found] == [
        ("admit", 0, 0, False, []),
        ("train", 1, 0, True, ["clients"]),
        ("train", 1, 1, True, ["clients"]),
        ("train", 1, 2, True, ["clients"]),
        ("train", 1, 3, False, ["clients"]),
        ("notice", 1, 3, False, []),
    ]
    assert all(
        e["event"] == "answered" and len(e["request"]) == len(e["reply"]) == 64 and e["sent"] > 0
        for e in found
    )
    assert (
        oct(file.stat().st_mode & 0o777) == "0o600"
        and oct(file.parent.stat().st_mode & 0o777) == "0o700"
    )
    lines = file.read_text().splitlines()
    for changed in (
        [*lines[:2], lines[2].replace('"trained": true', '"trained": false'), *lines[3:]],
        [*lines[:2], *lines[3:]],
        [*lines[:2], json.dumps({"event": "answered"}), *lines[2:]],
        lines[1:],
    ):
        file.write_text("\n".join(changed) + "\n")
        with pytest.raises(UnalikeError, match="changed, removed or added"):
            list(entries(file))


def test_journal_goes_on_after_a_torn_line(tmp_path):
    from unalike._utils.journal import Journal

    file = tmp_path / "journal.jsonl"
    Journal(file).add("first")
    with open(file, "a") as torn:
        torn.write('{"event": "sec')
    Journal(file).add("third")
    Journal(file).add("fourth")
    assert [e["event"] for e in entries(file)] == ["first", "damaged line", "third", "fourth"]


def test_other_protocol_is_declined_in_words_and_other_versions_are_named(tmp_path, monkeypatch):
    fed, told = ruled(tmp_path / "versions", {}, rounds=1), []
    fed.corrupt(
        "site2",
        lambda head, facts, tensors: (
            (
                head,
                facts | {"versions": facts["versions"] | {"torch": "1.0", "long" * 1000: "1"}},
                tensors,
            )
            if "versions" in facts
            else None
        ),
    )
    fed.coordinator(tell=told.append).run()
    assert any("site2 has torch 1.0 and this machine" in line for line in told)
    assert {e["client"] for e in fed.events("versions")} == {"site0", "site1", "site2"}
    assert max(len(name) for e in fed.events("versions") for name in e["versions"]) == 40

    from unalike.federation.protocol import messages

    other = ruled(tmp_path / "protocol", {}, rounds=1)
    mine = messages.versions()
    monkeypatch.setattr(
        "unalike.federation.coordinator.coordinator.versions", lambda: mine | {"protocol": "0"}
    )
    with pytest.raises(UnalikeError):
        other.run()
    assert {e["why"] for e in other.events("refused")} == {f"unable: {messages.REASONS['version']}"}
    assert (
        declined(other, "version")
        == f"the coordinator speaks protocol 0; this site speaks {messages.PROTOCOL}"
    )
