"""Secure aggregation: the same model as a simulation, from masked summands alone; drop-outs at every step; what a site refuses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from every_method import METHODS
from secure_federation import ALL_SITES, EQUAL_STEPS, FOUR, TERMS, Tap, secure, sums_of
from small_federation import (
    COORDINATOR,
    MODEL,
    SmallFederation,
    federation_of,
    key_of,
    make_clients,
    states,
)

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors
from unalike.data import Population
from unalike.federation.coordinator.network_backend import NOTE_ON_HIDDEN_SCORES
from unalike.federation.coordinator.run_control import Stopped
from unalike.federation.coordinator.secure_aggregation import masked_wire
from unalike.federation.coordinator.terms_check import check_terms_run
from unalike.federation.operations.run_site import wire_lines
from unalike.federation.protocol.envelope import Head, seal, unseal
from unalike.federation.protocol.messages import ANSWER, Declined, MaskedTrainRequest
from unalike.federation.protocol.roster import new_run
from unalike.federation.secure_aggregation.arithmetic import (
    FRACTION_BITS,
    PRIME,
    RANDOM_BYTES,
    combine,
    decode,
    encode,
    is_encodable,
    split,
)
from unalike.federation.secure_aggregation.dither import dithered, step_sizes
from unalike.federation.secure_aggregation.masks import (
    agree,
    context,
    derive,
    mask,
    pair_context,
    public_half,
    rows,
)
from unalike.federation.secure_aggregation.setup import Setup, model_digest
from unalike.federation.secure_aggregation.summands import check_summed
from unalike.federation.site import site_worker
from unalike.federation.site.site_worker import SiteWorker
from unalike.methods.method import Method
from unalike.methods.plan import Stage
from unalike.runtime.setup.run_config import configure_run
from unalike.training.server.server_round import SumWeights

# arithmetic ------------------------------------------------------------------------------------------------------------


def test_prime_is_the_least_above_two_to_the_256():
    sympy = pytest.importorskip("sympy")
    assert sympy.nextprime(2**256) == PRIME


def test_any_three_of_five_shares_give_the_secret_and_two_do_not():
    rng = np.random.default_rng(0)
    secret, points = rng.bytes(32), [1, 2, 5, 7, 100]
    shares = dict(zip(points, split(secret, 3, points, rng.bytes(2 * RANDOM_BYTES)), strict=True))
    for some in ((1, 2, 5), (100, 7, 1), (2, 5, 7), (1, 2, 5, 7, 100)):
        assert combine({x: shares[x] for x in some}) == secret
    assert combine({x: shares[x] for x in (1, 2)}) != secret


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """For two shares and any secret there is a third share that completes them: they say nothing."""
    rng = np.random.default_rng(0)
    points = [1, 2, 3]
    shares = split(rng.bytes(32), 3, points, rng.bytes(2 * RANDOM_BYTES))
    for other in (bytes(32), b"\xff" * 32):
        # the share at 3 that makes the secret `other`: f(0) = 3 f(1) - 3 f(2) + f(3)
        third = (
            int.from_bytes(other) - 3 * int.from_bytes(shares[0]) + 3 * int.from_bytes(shares[1])
        ) % PRIME
        assert combine({1: shares[0], 2: shares[1], 3: third.to_bytes(33)}) == other


def test_sum_of_encoded_values_is_within_its_bound():
    rng = np.random.default_rng(0)
    for terms in (3, 100):
        values = rng.normal(size=(terms, 1000)) * 10.0 ** rng.integers(-12, 6, (terms, 1000))
        total = np.zeros(1000, np.uint64)
        for row in values:
            total = total + encode(row, terms)
        exact = values.astype(np.longdouble).sum(0)
        assert np.all(np.abs(decode(total) - exact) <= terms * 2.0**-33 + 2.0**-53 * np.abs(exact))


def test_update_on_a_coarse_grid_is_summed_between_its_steps(tmp_path, monkeypatch):
    """Parameters of 1.5 * 2^20 move in steps of 1/8: with the numbers of samples the sum came apart into all sites' updates."""
    params = {"w": torch.full((3,), 1.5 * 2.0**20)}
    update = {"w": torch.tensor([0.125, -0.25, 0.0])}
    weights = SumWeights((0,), torch.ones(1), 7 * torch.ones(1), torch.ones(1))
    terms = {
        "update/w": 7 * update["w"],
        "folded.scaffold/w": 70 * update["w"],
        "idle": torch.zeros(()),
    }
    steps = step_sizes(terms, params, update, weights)
    assert steps["update/w"].tolist() == pytest.approx([7 / 8] * 3)
    assert steps["folded.scaffold/w"].tolist() == pytest.approx([70 / 8] * 3)
    assert float(steps["idle"]) == 0
    zeros = {"w": torch.zeros(3)}
    in_half = {"w": torch.zeros(3).half()}
    half = step_sizes({"update/w": update["w"]}, zeros, in_half, weights)
    assert float(half["update/w"][2]) == pytest.approx(7 * 2.0**-24)
    least, middle, most = dithered(
        np.ones(3), np.full(3, 2.0), np.array([0, 2**63, 2**64 - 1], np.uint64)
    )
    assert (least, middle, most) == pytest.approx((0, 1, 2))

    run = secure(tmp_path / "a", rounds=1).run()
    no_dither = lambda secret, model, length: np.full(length, 2**63, np.uint64)  # noqa: E731
    monkeypatch.setattr(site_worker, "random_words", no_dither)
    plain = secure(tmp_path / "b", rounds=1).run()
    differences = [(run.params[n] - t).abs().max() for n, t in plain.params.items()]
    assert 0 < max(differences) < 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**31 / 10, -(2.0**31) / 10])
def test_value_that_could_overflow_the_sum_is_not_encodable_and_has_a_word_all_the_same(value):
    assert not is_encodable(np.array([0.0, value]), 10)
    largest = np.full(1, np.nextafter(2.0**31 / 10, 0))
    assert is_encodable(largest, 10)
    limited = 0.0 if np.isnan(value) else float(np.copysign(largest[0], value))
    assert decode(encode(np.array([value]), 10))[0] == pytest.approx(limited)
    assert decode(sum((encode(largest, 10) for _ in range(9)), encode(largest, 10)))[
        0
    ] == pytest.approx(2.0**31)
    assert FRACTION_BITS == 32


def test_masks_of_two_sites_are_equal_and_of_every_sum_another_one():
    a, b = (derive(bytes([n]) * 32, "key") for n in (1, 2))
    one, other = (agree(mine, rows([public_half(theirs)])[0]) for mine, theirs in ((a, b), (b, a)))
    assert one == other
    assert np.array_equal(mask(one, context(1), 9), mask(other, context(1), 9))
    assert not np.array_equal(mask(one, context(1), 9), mask(one, context(2), 9))
    assert context("a", 1) != context("a", "1")


# the same model --------------------------------------------------------------------------------------------------------

SERVED = {
    "fedavg": {},
    "fedprox(mu=0.1)": {"participation": 0.75},
    "scaffold": EQUAL_STEPS,
    "feddyn": ALL_SITES,
    "fednova": {"work": ua.Work(steps=3, batch_size=5, lr=0.1)},
    "uniform + fedadam": {},
    "fedper + fedprox(mu=0.1)": ALL_SITES,
    "random_mask(fraction=0.5) + ditto": ALL_SITES,
    "scaffold + half_precision": EQUAL_STEPS,
    "client_dp(noise_multiplier=0, where='site', clip=0.1)": {"work": ua.Work(lr=0.1)},
}


@pytest.mark.parametrize("method", SERVED)
def test_model_is_that_of_the_simulation(tmp_path, method):
    fed = secure(tmp_path, method, rounds=3, **SERVED[method])
    ours, theirs = fed.run(), fed.simulated()
    # noise below rounding is larger where numbers have few digits
    tolerance = {"rtol": 1e-5, "atol": 2e-6}
    if "half_precision" in method:
        tolerance = {"rtol": 1e-2, "atol": 2e-3}
    for group, values in states(theirs).items():
        for name, t in values.items():
            torch.testing.assert_close(states(ours)[group][name], t, **tolerance)
    usual = ["participants", "train_loss", "accuracy"]
    for name in usual:
        a, b = (run.history.rounds[name].tolist() for run in (ours, theirs))
        assert a == pytest.approx(b, abs=10 * tolerance["rtol"], nan_ok=True), name
    assert not fed.events("refused", "absent", "no quorum") and len(fed.events("setup")) == 1
    assert ours.history.rounds["bytes_up"].iloc[-1] > 8 * sum(
        t.numel() for t in ours.params.values()
    )


def test_random_mask_shortens_the_sum(tmp_path):
    """The sum is that of masked updates, in the simulation and here; it has a tenth of the numbers, and a weight and a loss."""
    method, model = "fedavg + random_mask(fraction=0.1)", "mlp(hidden=(40,))"
    fed = secure(tmp_path, method, rounds=3, model=model, **ALL_SITES)
    ours, theirs = fed.run(), fed.simulated()
    for name, t in theirs.params.items():
        torch.testing.assert_close(ours.params[name], t, rtol=1e-5, atol=2e-6)
    whole_fed = secure(tmp_path / "whole", "fedavg", rounds=3, model=model, **ALL_SITES)
    whole = whole_fed.run()
    for federation, run in (
        (fed.federation, ours),
        (whole_fed.federation, whole),
    ):  # the list is what was sent
        items = masked_wire(federation, run.run_config)
        for way in ("up", "down"):
            listed = sum(i.bytes * (1 if i.once else 3) for i in items if i.direction == way)
            assert run.history.rounds[f"bytes_{way}"].sum() == 4 * listed, way
    np.savez(tmp_path / "mine.npz", x=fed.clients[0].train[0], y=fed.clients[0].train[1])
    shown = "\n".join(
        wire_lines(fed.federation, str(tmp_path / "mine.npz"), None, fed.clients[0].name)
    )
    assert "shares that unmask the sum" in shown and "update" not in shown
    few, many = (run.history.rounds["bytes_up"].iloc[-1] for run in (ours, whole))
    assert few < 0.2 * many


def test_secure_sum_has_the_noise_of_all_sites_and_no_other_of_the_seed(tmp_path):
    """Each of 4 sites adds N(0, (z C)^2 / 3): a sum over 3 has z C. Two runs of one seed have different noise."""

    def after(folder, z):
        method = f"client_dp(noise_multiplier={z}, clip=0.1, where='site')"
        terms = {"rounds": 1, "model": "mlp(hidden=(40,))", "noise_shares": 3}
        run = secure(tmp_path / folder, method, **terms).run()
        return torch.cat([t.flatten().double() for t in run.params.values()])

    plain, noised, again = after("plain", 0), after("noised", 2), after("again", 2)
    assert len(plain) > 300
    deviation = (4 / 3) ** 0.5 * 2 * 0.1 / 4
    for noise, wanted in ((noised - plain, deviation), (noised - again, deviation * 2**0.5)):
        assert float(noise.std()) == pytest.approx(wanted, rel=5 / (2 * len(plain)) ** 0.5)


def test_batch_norm_of_their_own_is_served(tmp_path):
    clients = [
        ua.ClientData(
            train=(c.train[0].reshape(-1, 1, 8, 8), c.train[1]),
            test=(c.test[0].reshape(-1, 1, 8, 8), c.test[1]),
            name=c.name,
        )
        for c in make_clients(FOUR, (64,))
    ]
    model = "cnn(channels=(4,), hidden=8, norm='batch')"
    with pytest.raises(UnalikeError, match="is no sum: use buffers='local'"):
        SmallFederation(tmp_path / "a", clients, model=model, **TERMS)
    fed = SmallFederation(
        tmp_path / "b", clients, model=model, buffers="local", rounds=1, **TERMS | ALL_SITES
    )
    ours, theirs = fed.run(), fed.simulated()
    for name, t in theirs.params.items():
        torch.testing.assert_close(ours.params[name], t, rtol=1e-5, atol=1e-6)
    # its means and variances are those of a site's training samples, and a score would tell of them
    assert ours.history.rounds["accuracy"].isna().all()


@pytest.mark.parametrize(("method", "told"), [("ditto", {"clients"}), ("fedper", set())])
def test_scores_of_personal_models_stay_at_the_sites_which_keep_the_models(tmp_path, method, told):
    """A coordinator read a feature of a training sample from scores of models that training had made."""
    fed = secure(tmp_path, method, rounds=1, **ALL_SITES)
    taps = fed.tapped(Tap)
    run = fed.run()
    assert NOTE_ON_HIDDEN_SCORES in run.notes
    assert not [name for name in run.history.rounds if name.startswith("personal")]
    expected = secure(tmp_path / "again", method, rounds=1, **ALL_SITES).simulated()
    for k, (name, tap) in enumerate(taps.items()):
        asked = unseal(tap.requests["evaluate"][-1], COORDINATOR.public_key()).open()[0]
        assert "personal" in asked["evaluate"]
        for message in tap.replies["train"] + tap.replies["evaluate"]:
            facts, _ = unseal(message, tap.worker.key.public_key()).open()
            assert set(facts["tallies"]) == told
        [file] = (fed.folder / name).glob("*/model/model.safetensors")
        kept, _ = read_tensors(file)
        for tensor, value in expected.personal(k).items():
            torch.testing.assert_close(kept[tensor], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stop", ["accuracy >= 0.9", "round >= 1"])
def test_rule_about_scores_that_stay_at_the_sites_is_refused(stop):
    federation = federation_of(make_clients(FOUR), "fedper", stop=stop, **TERMS | ALL_SITES)
    reads_scores = "accuracy" in stop
    refused = pytest.raises(UnalikeError, match="scores of such models stay at the sites")
    with refused if reads_scores else nullcontext():
        check_terms_run(federation, {})


REFUSED = {
    "median": "median reads each update",
    "multikrum": "reads each update",
    "topk(fraction=0.1)": "topk has each site send numbers of a grid, or at places, of its own",
    "quantize(bits=8)": "quantize has each site send numbers of a grid, or at places, of its own",
    "powersgd": "powersgd has each site send numbers of a grid, or at places, of its own",
    "feddisco": "reads label_histogram of each site",
    "ifca(clusters=2)": "divides the sites into groups",
    "ccvr": "reads the answer of each site to",
    "diagnosis": "reads the answer of each site to",
    "conditional": "feeds the model facts of each site's samples",
}


@pytest.mark.parametrize("method", REFUSED)
def test_method_that_reads_more_than_sums_is_refused_at_the_site(tmp_path, method):
    model = "conditional_mlp" if method == "conditional" else MODEL
    with pytest.raises(UnalikeError, match=REFUSED[method]):
        secure(tmp_path, method, model=model)


def test_method_that_may_be_run_besides_is_refused_however_often_it_is_asked_for(tmp_path):
    """Among them are queries, whose answers are of one site: class means and covariances of its features."""
    fed = secure(tmp_path, "fedavg", also=("ccvr",))
    [other] = [t for t, f in fed.federation.variants.items() if f.method == "ccvr"]
    worker = fed.workers["site0"]
    facts = {
        "terms": other,
        "rounds": 2,
        "samples": 57,
        "outcomes": [["all"]],
        "derived": False,
        "query": "feature_statistics()",
    }
    head = Head(run=new_run(), stage=2, round=1, site="site0", kind="ask")
    for _ in range(3):
        reply = unseal(worker.handle(seal(head, facts, {}, COORDINATOR)), key_of(0).public_key())
        assert (reply.head.kind, reply.open()[1]) == ("unable", {})
    assert worker.terms == fed.federation.terms


def test_every_method_is_served_or_refused_with_its_reason():
    """A method that is served is one whose updates the executors add up, too."""
    settings = configure_run(
        "fedavg", Population.of(make_clients(FOUR)), model="mlp(hidden=(8,))"
    ).settings
    served = set()
    for name, method in METHODS.items():
        try:
            check_summed(Stage("only", method, 1), settings)
        except UnalikeError as error:
            assert "sums over the sites alone, and" in str(error)
        else:
            served.add(name)
            assert method.needs_sums_only, name
    assert {
        "fedavg",
        "fedprox",
        "feddyn",
        "fednova",
        "fedadam",
        "fedper",
        "ditto",
    } <= served
    assert not served & {"median", "multikrum", "trimmed_mean", "feddisco", "fedpac", "fedgh"}
    # of a class that one site alone has, a sum by class is that site's
    assert not served & {"feature_alignment", "fedproto", "creff"}

    # of two sums of the same updates with other factors one site's can be had, unless all make the same number of steps
    twice = {"scaffold": METHODS["scaffold"], "mimelite": METHODS["mimelite"]}
    twice["feddyn + fednova"] = Method.parse("feddyn + fednova")
    equal_steps = replace(settings, work=ua.Work(steps=3, batch_size=5, lr=0.1))
    for method in twice.values():
        with pytest.raises(UnalikeError, match="have all make the same number"):
            check_summed(Stage("only", method, 1), settings)
        check_summed(Stage("only", method, 1), equal_steps)


def test_methods_that_weigh_sites_differently_are_not_agreed_on_together(tmp_path):
    with pytest.raises(UnalikeError, match="weigh sites differently"):
        secure(tmp_path, "fedavg", also=("fedavg + uniform",))
    secure(tmp_path, "fedavg", also=("fedprox(mu=0.1) + fedavgm",))


# what the coordinator sees ---------------------------------------------------------------------------------------------


def is_uniform(words):
    bits = np.unpackbits(words.view(np.uint8))
    return abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5  # five standard deviations


def masks_of(fed, tap, name):
    """The summand of a site as it left, and its masks: "private" or the other site -> words, plus or minus as it added them."""
    [message], [reply] = tap.requests["train"], tap.replies["train"]
    request = unseal(message, COORDINATOR.public_key())
    facts, tensors = request.open()
    sums = sums_of(fed, name, request.head.run)
    setup, keys = sums.setup, sums._members()
    asked = MaskedTrainRequest.read(facts)
    model = model_digest(request.head.place, tensors, asked.fixed)
    found = setup.sum_context(request.head.place, asked, model, keys)
    words = unseal(reply, tap.worker.key.public_key()).open()[1]["masked"].numpy().view(np.uint64)
    masks = {"private": mask(sums._derived("private mask", 0), found, len(words))}
    for other in asked.cohort:
        if other != name:
            secret = agree(sums._derived("mask key", 0), keys[other][1])
            common = mask(secret, pair_context(found, name, other), len(words))
            masks[other] = common if name < other else np.zeros(1, np.uint64) - common
    return words, masks


def test_coordinator_sees_a_uniform_summand_and_with_one_site_still_does(tmp_path):
    """Alone, with the private masks that it is given, and with all that site0 knows, site1's summand stays masked."""
    fed = secure(tmp_path, rounds=1)
    taps = fed.tapped(Tap)
    fed.run()
    facts, tensors = unseal(
        taps["site1"].replies["train"][0], taps["site1"].worker.key.public_key()
    ).open()
    assert set(tensors) == {"masked"} and set(facts) == {"tallies"}  # evaluations are in clear
    words, masks = masks_of(fed, taps["site1"], "site1")
    assert is_uniform(words)
    for known in (
        ["private"],
        ["private", "site0"],
        ["private", "site0", "site2"],
        ["site0", "site2", "site3"],
    ):
        assert is_uniform(words - sum((masks[who] for who in known), np.zeros(1, np.uint64))), known
    clear = decode(words - sum(masks.values(), np.zeros(1, np.uint64)))
    assert clear[-2] == 12 and 0 < clear[-1] < 100  # the number of samples as weight, and the loss
    opened = [
        unseal(m, COORDINATOR.public_key()).open()[0]
        for t in taps.values()
        for m in t.requests["unmask"]
    ]
    assert all(
        facts["dropped"] == [] and len(facts["alive"]) == 4 for facts in opened
    )  # no mask key was asked for


def test_shares_are_sealed_for_their_receivers(tmp_path):
    """The coordinator has all sealed shares, and opens none: no share of a round that was not unmasked passes it in clear."""
    fed = secure(tmp_path, rounds=1)
    taps = fed.tapped(Tap)
    fed.run()
    for name, tap in taps.items():
        run = unseal(tap.requests["shares"][0], COORDINATOR.public_key()).head.run
        sums = sums_of(fed, name, run)
        for reply in (reply for replies in tap.replies.values() for reply in replies):
            assert (
                sums._derived("private mask", 0) not in reply
                and sums._derived("mask key", 0) not in reply
            )
        sealed = unseal(tap.replies["shares"][0], tap.worker.key.public_key()).open()[1]["shares"]
        assert sealed.shape == (4, 1, 2 * 33 + 16) and is_uniform(
            sealed.numpy().reshape(-1)[:320].view(np.uint64)
        )


# drop-outs -------------------------------------------------------------------------------------------------------------


class Leaving:
    """A site that is offline from its first request of a kind in a round on: it does what it is asked, and its answer is lost."""

    def __init__(self, fed, name, kind, round):
        self.fed, self.name, self.worker, self.at = fed, name, fed.workers[name], (kind, round)

    def handle(self, message):
        head = unseal(message, COORDINATOR.public_key()).head
        reply = self.worker.handle(message)
        if (head.kind, head.round) == self.at:
            self.fed.transport.offline.add(self.name)
        return reply


@pytest.mark.parametrize(
    ("kind", "round", "participants"),
    [
        ("keys", 0, [0, 3, 3, 3]),
        ("shares", 0, [0, 3, 3, 3]),
        ("train", 0, [0, 3, 3, 3]),
        ("train", 1, [0, 4, 3, 3]),
        ("unmask", 0, [0, 4, 3, 3]),
        ("unmask", 1, [0, 4, 4, 3]),
    ],
)
def test_drop_out_at_every_step_gives_the_sum_of_the_others(tmp_path, kind, round, participants):
    method = "fedprox(mu=0.1) + fedavgm"
    fed = secure(tmp_path / "secure", method, rounds=3, quorum=3)
    fed.workers["site2"] = Leaving(fed, "site2", kind, round)
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == participants
    plain = SmallFederation(
        tmp_path / "plain", make_clients(FOUR), method, rounds=3, quorum=3, grace=0.05
    )
    plain.workers["site2"] = Leaving(plain, "site2", "train", participants.index(3) - 1)
    for name, t in states(plain.run())["all"].items():
        torch.testing.assert_close(states(run)["all"][name], t, rtol=1e-5, atol=2e-6)


def test_site_that_returns_gets_keys_in_a_new_setup(tmp_path):
    fed = secure(tmp_path, rounds=5, quorum=3)
    fed.workers["site2"] = Leaving(fed, "site2", "train", 1)

    def back(row, what=""):
        if row["round"] == 3:
            fed.workers["site2"] = fed.workers["site2"].worker
            fed.transport.offline.clear()

    run = fed.coordinator().run(progress=back)
    found = run.history.rounds["participants"].tolist()
    assert found[:4] == [0, 4, 3, 3] and found[-1] == 4
    assert len(fed.events("setup")) in (1, 2)


@pytest.mark.parametrize("kind", ["keys", "shares", "train", "unmask"])
def test_too_few_sites_stop_the_round_which_goes_on_when_they_are_back(tmp_path, kind):
    """Two of four leave where all are needed. The coordinator begins anew, as after a kill, also the sites."""
    fed = secure(tmp_path / "a", "scaffold", rounds=2, deadline=0.3, patience=1, **EQUAL_STEPS)
    for name in ("site1", "site2"):
        fed.workers[name] = Leaving(fed, name, kind, 1 if kind in ("train", "unmask") else 0)
    with pytest.raises(Stopped):
        fed.run()
    fed.transport.offline.clear()
    fed.restart_sites()
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 4, 4]
    calm = secure(tmp_path / "b", "scaffold", rounds=2, **EQUAL_STEPS)
    # but for the noise below rounding, which each folder has of its own
    for name, t in states(calm.run())["all"].items():
        torch.testing.assert_close(states(run)["all"][name], t, rtol=1e-5, atol=1e-6)


def test_round_that_was_unmasked_is_asked_of_the_same_sites_again(tmp_path):
    """site2 is missing in the sum, then the coordinator is killed before the checkpoint: it may not ask for the sum with site2."""
    fed = secure(tmp_path, rounds=1, quorum=3)
    fed.workers["site2"] = Leaving(fed, "site2", "train", 0)
    coordinator = fed.coordinator()
    real = coordinator.directory.event

    def killed(kind, **facts):
        if kind == "absent":
            coordinator.control.stop()
        return real(kind, **facts)

    for name in ("site0", "site1", "site3"):
        worker = fed.workers[name]
        fed.workers[name] = Leaving(fed, name, "unmask", 0)
        fed.workers[name].worker = worker
    with pytest.raises(Stopped):
        replace_patience(coordinator)
    fed.transport.offline.clear()
    fed.restart_sites()
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 3]


def replace_patience(coordinator):
    coordinator.federation = replace(coordinator.federation, deadline=0.3, patience=1)
    return coordinator.run()


# what a site refuses ---------------------------------------------------------------------------------------------------


@pytest.fixture
def messages(tmp_path):
    """A federation after two rounds, and ask(site, kind, change, round): the answer of a site to a changed request of the run."""
    fed = secure(tmp_path, rounds=2, participation=1.0)
    taps = fed.tapped(Tap)
    fed.run()

    def ask(what, change=lambda facts, tensors: None, site="site0", number=-1, **head):
        message = unseal(taps[site].requests[what][number], COORDINATOR.public_key())
        facts, tensors = message.open()
        change(facts, tensors)
        worker = getattr(fed.workers[site], "worker", fed.workers[site])  # without its tap
        reply = worker.handle(seal(replace(message.head, **head), facts, tensors, COORDINATOR))
        answer = unseal(reply, key_of(int(site[-1])).public_key())
        return answer.head.kind, answer.open()[0].get("code"), answer.open()[1]

    return fed, ask


def test_site_never_gives_both_kinds_of_shares_for_a_site(messages):
    fed, ask = messages

    def drop(facts, tensors):
        facts["alive"], facts["dropped"] = facts["alive"][:3], facts["alive"][3:]

    def both(facts, tensors):
        facts["dropped"] = facts["alive"][3:]
        tensors["shares"] = torch.cat([tensors["shares"], tensors["shares"][3:]])

    assert ask("unmask")[:2] == (ANSWER, None)  # the same again
    for change in (drop, both):
        assert ask("unmask", change)[:2] == ("unable", "sum")
    fed.restart_sites()
    assert ask("unmask", drop)[:2] == ("unable", "sum")
    assert ask("unmask")[:2] == (ANSWER, None)


def test_site_gives_no_shares_for_a_sum_of_fewer_than_the_threshold(messages):
    def few(facts, tensors):
        facts["alive"], facts["dropped"] = facts["alive"][:2], facts["alive"][2:]

    assert messages[1]("unmask", few)[:2] == ("unable", "sum")


def test_site_adds_to_no_sum_of_fewer_than_the_threshold_nor_to_one_without_it(messages):
    _, ask = messages

    def few(facts, tensors):
        facts["cohort"] = facts["cohort"][:2]

    def without(facts, tensors):
        facts["cohort"] = facts["cohort"][1:]

    def twice(facts, tensors):
        facts["cohort"] = [facts["cohort"][0]] * 4

    def strangers(facts, tensors):
        facts["cohort"] = [facts["cohort"][0], "x", "y", "z"]

    for change in (few, without, twice, strangers):
        assert ask("train", change)[:2] == ("unable", "sum")


def test_site_has_one_summand_for_a_round(messages):
    """Another model, or another list of sites, under keys that were used."""
    fed, ask = messages

    def model(facts, tensors):
        tensors[next(n for n in tensors if n.startswith("params"))] += 1

    def shorter(facts, tensors):
        facts["cohort"] = facts["cohort"][:3]

    for change in (model, shorter):
        assert ask("train", change)[:2] == ("unable", "sum")
    assert ask("train", number=0)[0] == ANSWER  # to the byte the same as before
    fed.restart_sites()
    assert ask("train", model)[:2] == ("unable", "sum")
    assert ask("train", model, number=0)[:2] == ("unable", "sum")


def test_sites_do_not_sum_a_round_again_over_other_sites(messages):
    """With a new setup, as after a restart of the coordinator, the sites of the sum must be those of the first one."""
    fed, ask = messages
    now = 2**62

    def later(facts, tensors):
        facts["setup"] = now

    keys = {s: ask("keys", later, s, round=1)[2] for s in fed.workers}

    def members(facts, tensors):
        later(facts, tensors)
        tensors["keys"] = torch.stack([k["keys"] for k in keys.values()])
        tensors["signatures"] = torch.stack([k["signature"] for k in keys.values()])

    assert {ask("shares", members, s, round=1)[0] for s in fed.workers} == {ANSWER}

    def without(facts, tensors):
        later(facts, tensors)
        facts["cohort"] = facts["cohort"][:3]

    assert ask("train", without)[:2] == ("unable", "sum")
    assert ask("train", later)[:2] == (
        "unable",
        "sum",
    )  # another request, though the sum is the same


def test_site_refuses_keys_that_no_enrolled_key_signed(messages):
    _, ask = messages

    def forged(facts, tensors):
        tensors["keys"][1, 0, 0] ^= 1

    def exchanged(facts, tensors):
        tensors["keys"] = tensors["keys"][[1, 0, 2, 3]]

    def stranger(facts, tensors):
        facts["members"][1] = "mallory"

    def few(facts, tensors):
        facts["members"], tensors["keys"], tensors["signatures"] = (
            facts["members"][:2],
            tensors["keys"][:2],
            tensors["signatures"][:2],
        )

    def fewer_than_first(facts, tensors):
        facts["members"], tensors["keys"], tensors["signatures"] = (
            facts["members"][:3],
            tensors["keys"][:3],
            tensors["signatures"][:3],
        )

    assert ask("shares")[0] == ANSWER
    for change in (forged, exchanged, stranger, few, fewer_than_first):
        assert ask("shares", change)[:2] == ("unable", "sum")


def test_key_of_small_order_is_refused_though_it_is_signed():
    fed = federation_of(make_clients(FOUR), **TERMS)
    setup, keys = (
        Setup("run", 1, 0, 0, 2, fed.terms),
        rows([public_half(derive(bytes(32), n)) for n in range(3)]),
    )
    for value, why in (
        (keys, None),
        (torch.cat([keys[:2], torch.zeros_like(keys[:1])]), "agree on the same secret"),
    ):
        signature = rows([key_of(1).sign(setup.signed(fed.sites[1].name, value))])
        with pytest.raises(Declined, match=why) if why else nullcontext():
            setup.check(fed, fed.sites[1].name, value, signature)


def test_site_refuses_former_setups_and_rounds_without_keys(messages):
    _, ask = messages
    assert ask("keys", lambda facts, tensors: facts.update(setup=9))[:2] == (ANSWER, None)
    for kind in ("keys", "shares", "train", "unmask"):
        assert ask(kind)[:2] == ("unable", "sum") or kind == "train"  # which was answered before
        assert ask(kind, lambda facts, tensors: facts.update(setup=8))[:2] == ("unable", "sum")
    assert ask("unmask", round=7)[:2] in [("unable", "sum"), ("unable", "rules")]


def test_site_refuses_to_send_an_update_in_clear(messages):
    _, ask = messages

    def clear(facts, tensors):
        for name in ("setup", "clients", "cohort"):
            del facts[name]

    assert ask("train", clear)[:2] == ("unable", "error")


def test_site_without_secure_aggregation_refuses_its_requests(tmp_path, messages):
    fed, ask = messages
    plain = federation_of(make_clients(FOUR), rounds=2)
    fed.workers["site0"] = SiteWorker(plain, "site0", key_of(0), fed.clients[0], tmp_path / "plain")

    def terms(facts, tensors):
        facts["terms"] = plain.terms

    assert ask("keys", terms)[:2] == ("unable", "plan")


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"threshold": 2}, "threshold 2 of 4 sites"),
        ({"threshold": 5}, "threshold 5 of 4 sites"),
        ({"participation": 2}, "at least as many in a round"),
        ({"record": "updates"}, "needs single updates"),
        ({"protocol": ("clients", "local")}, "scores of its model after training"),
        ({"protocol": ("clients", "personal")}, "kept and scored at their sites"),
        ({"secure_aggregation": False}, "a threshold means nothing"),
    ],
)
def test_terms_that_would_show_single_updates_are_refused(terms, why):
    with pytest.raises(UnalikeError, match=why):
        federation_of(make_clients(FOUR), **(TERMS | terms))


def test_terms_without_secure_aggregation_have_the_digest_that_they_had():
    plain = federation_of(make_clients(FOUR))
    assert plain.terms != federation_of(make_clients(FOUR), **TERMS).terms
    assert federation_of(make_clients(FOUR), secure_aggregation=True).least_sum == 3


# attacks and accidents -------------------------------------------------------------------------------------------------


def test_different_models_for_different_sites_give_noise(tmp_path, monkeypatch):
    """The coordinator sends site1 another model, so that the others' updates could be taken away (model inconsistency)."""
    from unalike.federation.coordinator.secure_aggregation import MaskedRequests

    real = MaskedRequests.request

    def inconsistent(self, site):
        kind, facts, tensors = real(self, site)
        if site == "site1" and kind == "train":
            name = next(n for n in tensors if n.startswith("params"))
            tensors = tensors | {name: tensors[name] * 0}
        return kind, facts, tensors

    monkeypatch.setattr(MaskedRequests, "request", inconsistent)
    with pytest.raises(UnalikeError, match="has the weight"):
        secure(tmp_path, rounds=1).run()


def test_site_whose_values_are_out_of_range_ends_the_run_and_is_not_named(tmp_path):
    clients = list(make_clients(FOUR))
    x, y = clients[3].train
    clients[3] = ua.ClientData(train=(x * 1e12, y), test=clients[3].test, name="site3")
    fed = SmallFederation(tmp_path, clients, rounds=1, **TERMS)
    with pytest.raises(UnalikeError, match="gave values that a sum cannot hold") as raised:
        fed.run()
    [event] = fed.events("idle summands")
    assert (event["round"], event["idle"], event["sites"]) == (1, 1, 4)
    assert not fed.events("refused", "absent") and "site3" not in f"{event}{raised.value}"


def test_false_weight_is_found_in_the_sum(tmp_path):
    fed = secure(tmp_path, rounds=1)

    def heavy(head, facts, tensors):
        if "masked" not in tensors:
            return None
        tensors["masked"][-2] += 5 << FRACTION_BITS
        return head, facts, tensors

    fed.corrupt("site1", heavy)
    with pytest.raises(UnalikeError, match="another weight"):
        fed.run()


def test_run_says_that_no_norm_guard_looks_at_updates(tmp_path):
    run = secure(tmp_path, rounds=1).run()
    assert any("norm guard" in note for note in run.notes)


def test_sites_own_rules_do_not_count_the_requests_of_secure_aggregation(tmp_path):
    from unalike.federation.site.site_policy import SitePolicy

    fed = secure(tmp_path, rounds=2)
    for name, worker in fed.workers.items():
        policy = SitePolicy(requests_per_round=1, least_training=0, least_test=1, least_class=0)
        fed.workers[name] = SiteWorker(
            fed.federation,
            name,
            worker.key,
            fed.clients[worker.number],
            tmp_path / name,
            policy=policy,
        )
    assert fed.run().history.rounds["participants"].tolist() == [0, 4, 4]
