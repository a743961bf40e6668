"""Private methods in a federation: the shares of noise, the number of updates, and the site's ledger of epsilon."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from small_federation import (
    COORDINATOR,
    MODEL,
    WORK,
    SmallFederation,
    federation_of,
    key_of,
    make_clients,
)

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.journal import entries
from unalike.core import tree
from unalike.core.privacy import Release, ReleaseSampling, epsilon_of, epsilon_of_all
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.run_control import Stopped
from unalike.federation.operations.run_site import wire_lines
from unalike.federation.protocol.agreed_methods import notes_on_methods
from unalike.federation.protocol.envelope import seal, unseal
from unalike.federation.protocol.federation_file import Federation, Schema
from unalike.federation.protocol.messages import Declined
from unalike.federation.site.release_ledger import ReleaseLedger
from unalike.federation.site.site_policy import SitePolicy
from unalike.federation.site.site_worker import SiteWorker

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6))
OWN_NOISE = "client_dp(noise_multiplier=2, where='site')"
RULES = {"least_training": 0, "least_test": 0, "least_class": 0}


def ruled(folder, method, rules=(), **more):
    """A federation whose site2 has rules of its own."""
    fed = SmallFederation(folder, make_clients(SAMPLE_SIZES), method, **more)
    policy = SitePolicy(**RULES | dict(rules))
    fed.workers["site2"] = SiteWorker(
        fed.federation, "site2", key_of(2), fed.clients[2], folder / "site2", policy=policy
    )
    return fed


def declined(folder, code):
    """Why site2 declined requests with a code, each reason once."""
    return {
        entry["why"]
        for entry in entries(folder / "site2" / "journal.jsonl")
        if entry["event"] == "declined" and entry["code"] == code
    }


def released(folder, site="site2"):
    return list(entries(folder / site / "privacy.jsonl"))


# The shares of noise --------------------------------------------------------------------------------------------------


def test_noise_shares_are_agreed_and_no_round_may_have_fewer_updates():
    four = make_clients((*SAMPLE_SIZES, (14, 6)))
    agreed = federation_of(four, OWN_NOISE, noise_shares=4)
    assert agreed.terms != replace(agreed, noise_shares=3).terms
    assert federation_of(four, OWN_NOISE).terms == replace(agreed, noise_shares=1).terms
    for lowered in ({"quorum": 1}, {"quorum": 0.5}, {"participation": 3}):
        with pytest.raises(
            UnalikeError, match=r"noise_shares = 4, and a round may have \d updates"
        ):
            replace(agreed, **lowered)
    # a coordinator may unmask sums over as many sites as the threshold says
    secure = {"secure_aggregation": True, "threshold": 3}
    with pytest.raises(UnalikeError, match="noise_shares = 4, and a round may have 3 updates"):
        federation_of(four, OWN_NOISE, noise_shares=4, **secure)
    assert federation_of(four, OWN_NOISE, noise_shares=3, **secure).noise_shares == 3


@pytest.mark.parametrize(
    "method, more, shares",
    [
        (OWN_NOISE, {}, 3),
        (OWN_NOISE, {"quorum": 2}, 2),
        (OWN_NOISE, {"noise_shares": 1}, 1),
        (OWN_NOISE, {"secure_aggregation": True, "threshold": 2}, 2),
        ("client_dp", {}, 1),
        ("fedavg", {}, 1),
        ("fedavg", {"also": (OWN_NOISE,)}, 3),
    ],
)
def test_new_federations_share_noise_among_the_fewest_updates_of_a_round(
    tmp_path, method, more, shares
):
    made = FederationFolder.create(
        tmp_path / "fed",
        {f"site{k}": 100 for k in range(3)},
        host="localhost",
        port=1,
        name="shared",
        method=method,
        model=MODEL,
        rounds=2,
        work=WORK,
        data=Schema(shape=(6,), classes=4),
        **more,
    )
    assert made.federation.noise_shares == shares


def test_quorum_that_was_lowered_in_the_file_is_refused_and_sites_go_by_the_agreed_number(tmp_path):
    """Finding P1: epsilon counts the noise of three shares; a quorum of one would have left a third of its variance."""
    terms = {"noise_shares": 3, "rounds": 1}
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), OWN_NOISE, **terms)
    file = tmp_path / "federation.toml"
    fed.federation.save(file)
    file.write_text(file.read_text().replace("quorum = 1.0", "quorum = 1"))
    with pytest.raises(UnalikeError, match="expected rounds of as many updates"):
        Federation.load(file)

    # whatever else a coordinator changes of it, sites decline: their share follows from the terms
    fed.federation = replace(fed.federation, noise_shares=1, quorum=1)
    with pytest.raises((Stopped, UnalikeError)):
        fed.run()
    assert {event["why"].split(";")[0] for event in fed.events("refused")} == {
        "unable: it agreed to other terms"
    }


@pytest.mark.parametrize("shares", [1, 3])
def test_each_update_has_its_agreed_share_of_the_noise(tmp_path, shares):
    """The sum of as many updates as there are shares has the deviation z C that is accounted."""
    noised = []

    def look(head, facts, tensors):
        if "size" in tensors:
            noised.append(tree.flatten(tree.under(tensors, "update/")))

    z, clip = 400.0, 0.01  # beside this noise updates are nothing
    method = f"client_dp(noise_multiplier={z}, clip={clip}, where='site')"
    model = "mlp(hidden=(60,))"
    fed = SmallFederation(
        tmp_path,
        make_clients(SAMPLE_SIZES),
        method,
        noise_shares=shares,
        rounds=1,
        model=model,
        guard=0,
    )
    fed.corrupt("site2", look)
    fed.run()
    [update] = noised
    deviation = z * clip / shares**0.5
    assert float(update.std()) == pytest.approx(deviation, rel=5 / (2 * len(update)) ** 0.5)


# The number of updates ------------------------------------------------------------------------------------------------


class GreedyCoordinator:
    """A site that is asked again by a hostile coordinator: to train in further rounds, with the model of each request."""

    def __init__(self, worker, heads):
        self.worker, self.heads = worker, heads
        self.updates = 0

    def handle(self, message):
        reply = self._answer(message)
        request = unseal(message, COORDINATOR.public_key())
        if request.head.kind == "train":
            facts, tensors = request.open()
            for number in self.heads:
                head = replace(request.head, round=number)
                self._answer(
                    seal(head, facts | {"train": True, "round": number}, tensors, COORDINATOR)
                )
        return reply

    def _answer(self, message):
        reply = self.worker.handle(message)
        _, tensors = unseal(reply, self.worker.key.public_key()).open()
        self.updates += "size" in tensors
        return reply


@pytest.mark.parametrize("method", [OWN_NOISE, "dp_sgd"])
def test_run_of_r_rounds_releases_r_updates(tmp_path, method):
    """Finding P2: rounds count from 0, so that round R would be one update more than epsilon counts."""
    fed = ruled(tmp_path, method, rounds=3)
    greedy = fed.workers["site2"] = GreedyCoordinator(fed.workers["site2"], heads=(3, 4))
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 3, 3, 3]
    assert greedy.updates == len(released(tmp_path)) == 3
    # the model after the last round was evaluated there
    assert "accuracy" in run.history.last
    assert declined(tmp_path, "rules") >= {
        "training in round 3, counted from 0; site.toml allows 3 rounds of a run (rounds)",
        "round 4; site.toml allows 3 rounds of a run (rounds)",
    }


# The ledger -----------------------------------------------------------------------------------------------------------


def test_epsilon_of_all_is_that_of_one_kind_and_adds_up_several():
    pytest.importorskip("dp_accounting")
    everybody = Release(noise_multiplier=2.0, draw="all", share=1.0, count=3)
    assert epsilon_of_all({}, 1e-5) == 0
    six = epsilon_of(2.0, ReleaseSampling(1, 1), 6, 1e-5)
    assert epsilon_of_all({everybody: 2}, 1e-5) == pytest.approx(six)
    assert epsilon_of_all({replace(everybody, noise_multiplier=0.0): 1}, 1e-5) == float("inf")
    drawn = Release(noise_multiplier=1.0, draw="poisson", share=0.1, count=10)
    alone = epsilon_of(1.0, ReleaseSampling(10, 1, "poisson"), 20, 1e-5)
    assert epsilon_of_all({drawn: 2}, 1e-5) == pytest.approx(alone)
    together = epsilon_of_all({drawn: 2, everybody: 2}, 1e-5)
    apart = epsilon_of_all({everybody: 2}, 1e-5)
    assert max(alone, apart) < together < alone + apart


def test_renyi_divergences_of_several_kinds_are_those_of_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant([*range(2, 33), 40, 48, 64, 96, 128, 256])
    accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), 20)
    accountant.compose(dp.GaussianDpEvent(2.0), 6)
    releases = {Release(1.0, "poisson", 0.1, 10): 2, Release(2.0, "all", 1.0, 3): 2}
    wanted = accountant.get_epsilon(1e-5)
    assert epsilon_of_all(releases, 1e-5) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    "method",
    [OWN_NOISE, "dp_sgd(noise_multiplier=3)", "dp_sgd(noise_multiplier=3, batches='poisson')"],
)
def test_ledger_has_the_epsilon_of_the_history(tmp_path, method):
    """One site alone has all samples, so that the run's epsilon is that of its samples."""
    pytest.importorskip("dp_accounting")
    clients = make_clients(SAMPLE_SIZES[:1])
    fed = SmallFederation(tmp_path, clients, method, rounds=2, work=replace(WORK, epochs=2))
    run = fed.run()
    ledger = ReleaseLedger(tmp_path / "site0" / "privacy.jsonl", limit=100)
    assert ledger.updates == 2
    assert ledger.epsilon == pytest.approx(run.history.last["epsilon"], rel=1e-9)
    assert "of 100 (site.toml) is spent, by 2 updates" in ledger.summary


def test_ledger_counts_all_runs_and_declines_what_would_exceed_the_limit(tmp_path):
    """Finding P3: each run has fresh noise; ten a day would average it away."""
    pytest.importorskip("dp_accounting")
    limit = epsilon_of(2.0, ReleaseSampling(1, 1), 3, 1e-5) + 1e-6
    rules = {"epsilon": limit}
    ruled(tmp_path, OWN_NOISE, rules, rounds=2).run()
    assert len(released(tmp_path)) == 2

    # another run, and a site that was restarted: the third update is the last one
    for file in ("roster.json", "config.toml"):
        (tmp_path / "out" / file).unlink()
    again = ruled(tmp_path, OWN_NOISE, rules, rounds=2, quorum=2)
    again.run()
    assert len(released(tmp_path)) == 3
    assert [len(released(tmp_path, site)) for site in ("site0", "site1")] == [4, 4]
    [why] = declined(tmp_path, "spent")
    assert f"site.toml allows {limit:g} (epsilon), and 3 updates are in the ledger" in why
    refused = {(event["client"], event["why"]) for event in again.events("refused")}
    assert any(client == "site2" and "exceed the epsilon" in why for client, why in refused)


def test_crash_before_the_update_leaves_counts_it_and_never_forgets_one(tmp_path, monkeypatch):
    """The entry comes before training: after a kill there is an entry for each update that left, at least."""
    fed = ruled(tmp_path, OWN_NOISE, rounds=2)
    worker = fed.workers["site2"]
    counted = []

    class Killed(BaseException):
        """The process ends here: no handler of errors runs."""

    def killed(*_):
        counted.append(len(released(tmp_path)))
        raise Killed

    store = "unalike.federation.site.site_folder.ReplyCache.store"
    with monkeypatch.context() as patched:
        train = worker.handle

        def handle(message):
            facts, _ = unseal(message, COORDINATOR.public_key()).open()
            if facts.get("train") and not counted:
                patched.setattr(store, killed)
            return train(message)

        worker.handle = handle
        with pytest.raises(Killed):
            fed.run()
    assert counted == [1]

    again = ruled(tmp_path, OWN_NOISE, rounds=2)
    assert again.run().history.rounds["participants"].tolist() == [0, 3, 3]
    assert [entry["round"] for entry in released(tmp_path)] == [0, 0, 1]


def test_damaged_ledger_is_no_empty_one(tmp_path):
    ledger = ReleaseLedger(tmp_path / "privacy.jsonl", limit=0)
    release = Release(noise_multiplier=1.0, draw="all", share=1.0, count=1)
    for number in range(3):
        ledger.add(release, 1e-5, round=number)
    lines = (tmp_path / "privacy.jsonl").read_text().splitlines()
    (tmp_path / "privacy.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(UnalikeError, match="changed, removed or added"):
        ReleaseLedger(tmp_path / "privacy.jsonl", limit=0)


def test_smallest_delta_of_all_releases_counts(tmp_path):
    pytest.importorskip("dp_accounting")
    ledger = ReleaseLedger(tmp_path / "privacy.jsonl", limit=9.0)
    release = Release(noise_multiplier=2.0, draw="all", share=1.0, count=1)
    ledger.add(release, 1e-9)
    ledger.add(release, 1e-3)
    assert ledger.epsilon == epsilon_of_all(Counter({release: 2}), 1e-9)
    with pytest.raises(Declined, match="3 updates are in the ledger"):
        ledger.add(release, 1e-9)
        ledger.add(replace(release, noise_multiplier=0.1), 1e-9)


# Rounds that do not count ---------------------------------------------------------------------------------------------


def test_private_round_is_never_discarded(tmp_path, monkeypatch):
    """Sites send one update for a round: made again, it would wait for ever. Its epsilon is spent, whatever the model is."""
    monkeypatch.setattr(
        "unalike.federation.coordinator.network_backend.why_implausible",
        lambda losses, best: "the loss is implausible",
    )
    monkeypatch.setattr(
        "unalike.federation.coordinator.network_backend.outlier", lambda norms: ("site0", 50.0)
    )
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), OWN_NOISE, rounds=2)
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 3, 3]
    assert not fed.events("discarded")
    assert len(fed.events("diverged model")) == 2


# What scores tell -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method, why",
    [
        (f"ditto + {OWN_NOISE}", "sites send scores of their own models"),
        (f"fedper + {OWN_NOISE}", "sites send scores of their own models"),
        (f"conditional + {OWN_NOISE}", "scores of models that read facts of their training data"),
        ("local_finetune + dp_sgd", "sites send scores of models that it tunes without noise"),
    ],
)
def test_scores_of_models_that_were_trained_without_noise_are_refused(tmp_path, method, why):
    """A reply depends on training samples through noised sums alone; in a simulation scores are the user's own."""
    model = "conditional_mlp(hidden=(8,))" if "conditional" in method else MODEL
    with pytest.raises(UnalikeError, match=why):
        SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), method, model=model)
    simulated = method.replace("where='site'", "where='server'")
    ua.run(simulated, make_clients(SAMPLE_SIZES), model=model, rounds=1, work=WORK, progress=None)


def test_method_without_noise_beside_a_private_one_is_named(tmp_path):
    clients = make_clients(SAMPLE_SIZES)
    mixed = federation_of(clients, OWN_NOISE, also=("fedprox(mu=0.1)",))
    [note] = notes_on_methods(mixed)
    assert "fedprox(mu=0.1) may be run beside client_dp" in note
    for methods in (("fedavg", "scaffold"), (OWN_NOISE, OWN_NOISE)):
        assert not notes_on_methods(federation_of(clients, methods[0], also=methods[1:]))
    x, y = clients[0].train
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    shown = wire_lines(mixed, str(tmp_path / "mine.npz"), None, clients[0].name)
    assert note in shown
