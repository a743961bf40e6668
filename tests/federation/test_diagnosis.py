"""A diagnosis of a federation: the numbers of the local form, from what the wire lists and nothing else."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from secure_federation import Tap
from small_federation import COORDINATOR, SmallFederation, key_of, make_clients

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.diagnosis.from_counts.run_diagnosis import run_diagnosis
from unalike.federation.coordinator.coordinator import Coordinator, run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.operations.run_coordinator import coordinate
from unalike.federation.protocol.envelope import seal, unseal
from unalike.federation.protocol.federation_file import Schema
from unalike.methods.client_query import QueryInputs
from unalike.methods.plan import QueryStep

SIZES = ((30, 8), (20, 6), (24, 6), (16, 6))
LABEL_MEASURES = (
    "label_tv",
    "label_js",
    "label_hellinger",
    "size_gini",
    "size_ratio",
    "silhouette_label_distributions",
)


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    """A federated diagnosis with two rounds, every reply of its sites, and the local diagnosis of the same clients."""
    fed = SmallFederation(
        tmp_path_factory.mktemp("fed"), make_clients(SIZES), "diagnosis", rounds=2
    )
    replies = []
    for name in list(fed.workers):
        fed.corrupt(name, lambda head, facts, tensors: replies.append((head, facts, tensors)))
    run = fed.run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        local = ua.diagnose(
            fed.clients, rounds=2, model=fed.federation.model, work=fed.federation.work, features=lambda x: x,
            progress=False,
        )  # fmt: skip
    return run, replies, run_diagnosis(run, "test"), local


@pytest.mark.parametrize("lie", ["wraps around", "other ranges"])
def test_counts_that_do_not_add_up_to_the_samples_are_refused(tmp_path, lie):
    """Four counts of 2^62 add up to nothing in whole numbers; counts by magnitude choose the ranges of all."""
    fed = SmallFederation(tmp_path, make_clients(SIZES), "diagnosis", rounds=0)

    def changed(head, facts, tensors):
        histograms = tensors.get("histograms")
        if histograms is None or (histograms.dim() == 3) != (lie == "wraps around"):
            return None
        histograms = histograms.clone()
        if lie == "wraps around":
            histograms[..., :4] += 2**62
        else:
            histograms[..., -1] += 2**40
        return head, facts, {"histograms": histograms}

    fed.corrupt("site3", changed)
    found = run_diagnosis(fed.run(), "test")
    refused = fed.events("refused")
    assert {event["client"] for event in refused} == {"site3"}
    assert all("counts that add up to" in event["why"] for event in refused)
    is_left_out = "site3 did not answer all questions" in " ".join(found.notes)
    assert is_left_out == (lie == "wraps around")


@pytest.mark.parametrize("name", LABEL_MEASURES)
def test_label_and_size_measures_equal_those_of_the_local_form(diagnosed, name):
    *_, found, local = diagnosed
    ours, theirs = found.measures[name], local.measures[name]
    assert ours.as_dict() == theirs.as_dict()  # value, interval, p, scale: bit for bit


def test_counts_and_distances_equal_those_of_the_local_form(diagnosed):
    *_, found, local = diagnosed
    assert found.counts.equals(local.counts)
    assert np.array_equal(found.label_distances, local.label_distances)


def test_feature_measures_agree_with_the_local_form(diagnosed):
    """Within 0.08 sd: other random directions of the same features, and 64 ranges in place of the values."""
    *_, found, local = diagnosed
    for name in ("feature_distance", "feature_distance_within"):
        ours, theirs = found.measures[name], local.measures[name]
        assert ours.value == pytest.approx(theirs.value, abs=0.08)
        assert ours.found == theirs.found
        assert list(ours.scale) == list(theirs.scale)


def test_training_measures_equal_those_of_the_local_form(diagnosed):
    """The updates are the same; the inner products are stored in float32. Gradients are of other parts of the samples."""
    *_, found, local = diagnosed
    for name in ("drift", "cosine"):
        ours, theirs = found.measures[name], local.measures[name]
        assert [ours.value, ours.low, ours.high] == pytest.approx(
            [theirs.value, theirs.low, theirs.high], abs=1e-5
        )
        assert not ours.scale
    np.testing.assert_allclose(found.training.cosines, local.training.cosines, atol=1e-5)
    assert [m.name for m in found.training.layers] == [m.name for m in local.training.layers]
    assert found.measures["gradient_start"].value == pytest.approx(
        local.measures["gradient_start"].value, abs=0.1
    )


def test_only_what_the_wire_lists_leaves_a_site(diagnosed):
    run, replies, *_ = diagnosed
    steps, model = run.run_config.outline, run.run_config.model
    listed = {item.what: item.bytes for item in run.run_config.wire if item.direction == "up"}
    seen = set()
    empty = [(facts, tensors) for _, facts, tensors in replies if not facts and not tensors]
    assert len(empty) == len(
        run.run_config.population
    )  # each site has heard that the run is finished
    for head, facts, tensors in replies:
        if (facts, tensors) in empty:
            continue
        size = tree.nbytes(tensors)
        if head.stage == 0:
            assert set(facts) == {"train", "test", "val", "versions"} and not tensors
            continue
        step = steps[head.stage - 1]
        seen.add(step.name)
        if not isinstance(step, QueryStep):
            assert set(facts) == {"tallies"}  # sums and counts of metrics
            assert all(set(sums) == {"test", "val"} for sums in facts["tallies"].values())
            names = {f"update/{name}" for name in model.params} | {
                "size",
                "steps",
                "weight",
                "loss",
            }
            assert not tensors or set(tensors) == names
            assert size in (0, listed["train: update"] + listed["train: counts and loss"])
            continue
        own = step.model or model
        like = step.query.answer(
            QueryInputs(own, run.run_config.settings.task, own.params, own.buffers, ())
        )
        assert facts == {} and set(tensors) == set(like)
        assert all(
            (tensors[n].shape, tensors[n].dtype) == (like[n].shape, like[n].dtype) for n in like
        )
        assert size == listed[f"{step.name}: answer to {step.query.name} (once)"]
        if step.query.name != "gradients":
            assert all(t.dtype == torch.int64 for t in tensors.values())  # whole numbers of samples
    assert seen == {step.name for step in steps} and len(listed) == len(steps) + 1


def test_unavailable_numbers_are_named_with_the_reason(diagnosed):
    *_, found, _ = diagnosed
    assert set(found.unavailable) == {"Concept shift", "Scale of the numbers about training"}
    assert (
        "concept_gap" not in found.measures
        and "Concept shift: not available here, since" in str(found)
    )
    content = json.loads(found.to_json())
    assert content["unavailable"]["Concept shift"] and ["train: update", 4 * 92] in content["sent"]


def test_model_is_that_of_fedavg(diagnosed, tmp_path):
    run, *_ = diagnosed
    plain = SmallFederation(tmp_path, make_clients(SIZES), rounds=2).run()
    assert all(torch.equal(run.params[name], t) for name, t in plain.params.items())


def test_run_in_simulation_gives_the_same_diagnosis(diagnosed):
    run, _, found, _ = diagnosed
    clients = make_clients(SIZES)
    work = run.run_config.work
    alone = ua.run(
        "diagnosis",
        clients,
        model="mlp(hidden=(8,))",
        rounds=2,
        work=work,
        executor="loop",
        progress=False,
    )
    assert run_diagnosis(alone, "test").table.equals(found.table)


def test_diagnosis_of_another_run_is_refused():
    run = ua.run("fedavg", make_clients(SIZES), model="linear", rounds=1, progress=False)
    with pytest.raises(UnalikeError, match="expected one of the plan 'diagnosis'"):
        run_diagnosis(run, "test")


def test_regression_labels_are_counted_in_tenths(tmp_path):
    made = []
    for c in make_clients(((60, 8), (50, 6), (40, 6))):
        y = [x[:, 0] * 3 + 1000 for x in (c.train[0], c.test[0])]  # an offset far above the spread
        made.append(ua.ClientData(train=(c.train[0], y[0]), test=(c.test[0], y[1]), name=c.name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = SmallFederation(
            tmp_path, made, "diagnosis", data=Schema(shape=(6,), task="regression"), rounds=0
        ).run()
        local = ua.diagnose(made, progress=False)
    found = run_diagnosis(run, "test")
    assert found.counts.shape == (3, 10) and found.counts.to_numpy().sum() == 150
    assert (found.counts.sum() - 15).abs().max() <= 3  # 64 ranges over the labels of 150 samples
    assert found.measures["label_tv"].value == pytest.approx(
        local.measures["label_tv"].value, abs=0.05
    )


def test_binary_labels_are_counted(tmp_path):
    made = [
        ua.ClientData(
            train=(c.train[0], c.train[1] > 1), test=(c.test[0], c.test[1] > 1), name=c.name
        )
        for c in make_clients(SIZES)
    ]
    run = SmallFederation(
        tmp_path, made, "diagnosis", data=Schema(shape=(6,), task="binary"), rounds=0
    ).run()
    found, local = run_diagnosis(run, "test"), ua.diagnose(made, progress=False)
    assert (
        found.counts.equals(local.counts)
        and found.measures["label_tv"] == local.measures["label_tv"]
    )
    assert "drift" not in found.measures and found.training is None


@pytest.mark.parametrize("noise", [0, 1])
def test_site_with_impossible_counts_is_left_out_and_named(tmp_path, noise):
    def change(head, facts, tensors):
        counts = tensors.get("histograms")
        return None if counts is None else (head, facts, {"histograms": counts * 1000 - 7})

    fed = SmallFederation(tmp_path, make_clients(SIZES), f"diagnosis(noise={noise})", rounds=0)
    fed.corrupt("site1", change)
    found = run_diagnosis(fed.run(), "test")
    assert list(found.counts.index) == ["site0", "site2", "site3"]
    assert "Left out: site1 did not answer all questions." in found.notes
    whys = [event["why"] for event in fed.events("refused")]
    assert whys and all("count" in why for why in whys)
    assert set(found.unavailable) == {"Concept shift"}


def test_site_that_does_not_answer_is_left_out_and_named(tmp_path):
    fed = SmallFederation(
        tmp_path, make_clients(SIZES), "diagnosis", rounds=0, quorum=3, deadline=0.5
    )
    fed.coordinator()._roster().save(fed.out / "roster.json")  # all are admitted
    fed.transport.offline.add("site2")
    found = run_diagnosis(fed.run(), "test")
    assert list(found.counts.index) == ["site0", "site1", "site3"]
    assert "Left out: site2 did not answer all questions." in found.notes


@pytest.mark.parametrize("rounds", [0, 1])
def test_up_writes_the_page_also_without_rounds(tmp_path, rounds):
    fed = SmallFederation(tmp_path / "sites", make_clients(SIZES), "diagnosis", rounds=rounds)
    keys = iter([COORDINATOR, *map(key_of, range(len(SIZES)))])
    with pytest.MonkeyPatch.context() as patch:
        for module in ("coordinator.federation_folder", "security.site_keys"):
            patch.setattr(f"unalike.federation.{module}.new_key", lambda: next(keys))
        folder = FederationFolder.create(
            tmp_path / "fed", {s.name: s.samples for s in fed.federation.sites}, host="localhost", port=1, name="test",
            method="diagnosis", model=fed.federation.model, rounds=rounds, data=fed.federation.data,
            work=fed.federation.work, deadline=5.0, repeat=0.05,
        )  # fmt: skip
    lines = []
    run_rounds(folder, fed.transport, lines.append)
    content = json.loads((folder.path / "diagnosis.json").read_text())
    assert content["name"] == "federation test" and (folder.path / "diagnosis.html").exists()
    assert (folder.path / "report.html").exists() == bool(rounds)
    assert lines[-1].startswith("done: ") and any(line.startswith("Label skew: ") for line in lines)
    coordinate(folder, lines.append)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} nothing to do: ", lines[-1])


# noise --------------------------------------------------------------------------------------------------------------


def listened(fed):
    """(site, step) -> the tensors of the site's reply, filled while the federation runs."""
    replies = {}

    def keep(head, facts, tensors):
        replies[head.site, head.stage] = tensors

    for name in list(fed.workers):
        fed.corrupt(name, keep)
    return replies


def noisy(folder):
    return SmallFederation(folder, make_clients(SIZES), "diagnosis(noise=3)", rounds=0)


def test_noise_is_normal_and_another_one_at_every_site(tmp_path):
    ours = noisy(tmp_path / "a").run().answers["features-magnitudes"].tree["histograms"]
    exact = SmallFederation(tmp_path / "b", make_clients(SIZES), "diagnosis", rounds=0).run()
    noise = (ours - exact.answers["features-magnitudes"].tree["histograms"]).double()
    assert noise.std().item() == pytest.approx(3, rel=0.05) and abs(noise.mean().item()) < 0.1
    assert len({tuple(row.flatten().tolist()) for row in noise}) == len(noise)


def test_noise_is_the_same_when_asked_again_and_unknown_to_the_coordinator(tmp_path):
    fed = noisy(tmp_path / "a")
    first = listened(fed)
    fed.run()
    fed.restart_sites()
    second = listened(fed)
    Coordinator(fed.federation, COORDINATOR, fed.transport, tmp_path / "another run").run()
    assert len(first) == len(second) and all(
        torch.equal(t, second[key][name])
        for key, tensors in first.items()
        for name, t in tensors.items()
    )
    other = noisy(tmp_path / "b")  # the same keys and samples, at sites with other secrets
    third = listened(other)
    other.run()
    assert not torch.equal(first["site0", 1]["histograms"], third["site0", 1]["histograms"])


def test_query_of_a_step_is_answered_once(tmp_path):
    """Other ranges give other noise, about the same counts: four answers a round, of which the mean has little."""
    fed = noisy(tmp_path)
    taps = fed.tapped(Tap)
    fed.run()
    message = taps["site0"].requests["ask"][-1]
    request = unseal(message, COORDINATOR.public_key())
    facts, tensors = request.open()
    worker, key = taps["site0"].worker, key_of(0).public_key()
    before = unseal(taps["site0"].replies["ask"][-1], key)
    assert unseal(worker.handle(message), key).digest == before.digest
    changed = {name: t + 1 for name, t in tensors.items()}

    def ask_again(round):
        head = replace(request.head, round=round)
        return unseal(worker.handle(seal(head, facts, changed, COORDINATOR)), key).open()

    for round in (0, 1):
        assert ask_again(round) in [({"code": code}, {}) for code in ("plan", "rules")]
    # replies of later rounds would push the answer out of those that a site keeps: a run without rounds has none
    for round in (1, 2, 3):
        notice = replace(request.head, kind="notice", round=round)
        answer = worker.handle(seal(notice, {"what": "late"}, {}, COORDINATOR))
        assert unseal(answer, key).open()[0] == {"code": "rules"}
    assert ask_again(4) in [({"code": code}, {}) for code in ("plan", "rules")]
    assert ask_again(0) in [({"code": code}, {}) for code in ("plan", "rules")]


def test_page_states_noise_and_its_guarantee(tmp_path):
    found = run_diagnosis(noisy(tmp_path).run(), "test")
    assert any("standard deviation 3" in note and "epsilon = " in note for note in found.notes)
    assert (found.counts.to_numpy() >= 0).all()
    assert (
        found.measures["size_ratio"].value == 30 / 16
    )  # sizes are known from admission, without noise
