"""Public samples that sites predict with their own models: named in the terms, in every bundle, in no request."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from secure_federation import ALL_SITES, FOUR, TERMS, Tap
from small_federation import MODEL, SmallFederation, make_clients

from unalike._utils.errors import UnalikeError
from unalike._utils.journal import entries
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.run_control import Stopped
from unalike.federation.operations.run_site import wire_lines
from unalike.federation.protocol import bundle as bundle_file
from unalike.federation.protocol.bundle import MAX_PUBLIC_BYTES, Bundle
from unalike.federation.protocol.federation_file import Schema
from unalike.federation.protocol.messages import Declined
from unalike.federation.protocol.public_samples import PUBLIC_FILE, PublicSamples
from unalike.federation.site.site_policy import NO_RULES
from unalike.federation.site.site_worker import SiteWorker

PUBLIC = make_clients(((8, 8),))[0].test
OTHERS = (PUBLIC[0].flip(0), PUBLIC[1])


def folder_of(root, own, **terms):
    usual = {
        "name": "own",
        "method": "fedmd",
        "model": MODEL,
        "rounds": 2,
        "data": Schema(shape=(6,), classes=4),
    }
    return FederationFolder.create(
        root, {"north": 1000}, host="localhost", port=1, own={"proxy": own}, **usual | terms
    )


def worker_of(bundle, folder, policy=NO_RULES):
    [client] = make_clients(((20, 8),))
    return SiteWorker(
        bundle.federation,
        "north",
        bundle.key,
        client,
        folder,
        policy=policy,
        public=bundle.public,
    )


def test_no_request_brings_public_samples(tmp_path):
    fed = SmallFederation(tmp_path, method="fedmd", proxy=PUBLIC)
    taps = fed.tapped(Tap)
    fed.run()
    came = [message for tap in taps.values() for of in tap.requests.values() for message in of]
    x, _ = PUBLIC
    assert came and not any(row.numpy().tobytes() in message for row in x for message in came)


def test_bundle_without_the_agreed_samples_is_refused(tmp_path):
    bundle_of = {}
    for name, samples in (("ours", PUBLIC), ("others", OTHERS)):
        folder = folder_of(tmp_path / name, samples)
        bundle_of[name] = folder.bundles["north"]
    ours = Bundle.read(bundle_of["ours"])
    assert ours.federation.public == PublicSamples.of(PUBLIC)
    with zipfile.ZipFile(bundle_of["ours"]) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(bundle_of["others"]) as archive:
        exchanged = archive.read(PUBLIC_FILE)

    def read(**changed):
        files = contents | {PUBLIC_FILE: changed["public"]}
        with zipfile.ZipFile(tmp_path / "changed.zip", "w") as archive:
            for name, content in files.items():
                if content is not None:
                    archive.writestr(name, content)
        return Bundle.read(tmp_path / "changed.zip")

    with pytest.raises(UnalikeError, match=r"found 8 public samples with the SHA-256 .*agreed 8"):
        worker_of(read(public=exchanged), tmp_path / "north")
    for damaged in (None, b"no tensors", contents[PUBLIC_FILE][:-9]):
        with pytest.raises(UnalikeError, match="ask for it again"):
            read(public=damaged)
    with pytest.raises(UnalikeError, match=f"a file of more than {MAX_PUBLIC_BYTES} bytes"):
        read(public=bytes(MAX_PUBLIC_BYTES + 1))


def test_samples_for_which_a_bundle_has_no_room_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_file, "MAX_PUBLIC_BYTES", 100)
    with pytest.raises(UnalikeError, match="a bundle has room for 100; choose fewer"):
        folder_of(tmp_path / "fed", PUBLIC)
    assert not (tmp_path / "fed").exists()


def test_fingerprint_of_a_federation_covers_its_public_samples(tmp_path):
    federation = folder_of(tmp_path / "fed", PUBLIC).federation
    other = replace(federation, public=PublicSamples.of(OTHERS))
    none = replace(federation, public=None)
    assert len({f.fingerprint(b"authority") for f in (federation, other, none)}) == 3
    assert len({f.terms for f in (federation, other, none)}) == 3


def test_site_sees_the_samples_before_it_joins(tmp_path):
    folder = folder_of(tmp_path / "fed", PUBLIC)
    bundle = Bundle.read(folder.bundles["north"])
    x, y = make_clients(((20, 8),))[0].train
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    shown = wire_lines(
        bundle.federation, str(tmp_path / "mine.npz"), None, "north", public=bundle.public
    )
    said = f"predicts for 8 public samples: {PUBLIC_FILE} in its bundle, SHA-256 "
    assert any(said + bundle.federation.public.sha256 in line for line in shown)
    # of 8 samples the logits of 4 classes, and the number 1, of 4 bytes each
    assert any("consensus" in line and " 132 bytes" in line for line in shown)
    for ours, theirs in zip(bundle.public, PUBLIC, strict=True):
        assert torch.equal(ours, theirs)


def test_rule_bounds_the_number_of_public_samples(tmp_path):
    bundle = Bundle.read(folder_of(tmp_path / "fed", PUBLIC).bundles["north"])
    few = replace(NO_RULES, most_public=7)
    with pytest.raises(Declined, match=r"8 public samples.*site\.toml allows 7 \(most_public\)"):
        worker_of(bundle, tmp_path / "few", policy=few)
    worker_of(bundle, tmp_path / "enough", policy=replace(NO_RULES, most_public=8))


def test_other_samples_in_a_run_are_refused_on_both_sides(tmp_path):
    """A coordinator that names others has other terms; one that keeps the terms and changes its file ends."""
    fed = SmallFederation(tmp_path, method="fedmd", proxy=PUBLIC, rounds=1)
    with pytest.raises(UnalikeError, match="found 8 public samples with the SHA-256"):
        fed.coordinator(proxy=OTHERS).run()
    fed.federation = replace(fed.federation, public=PublicSamples.of(OTHERS))
    fed.proxy = OTHERS
    with pytest.raises(Stopped):
        fed.run()
    codes = set()
    for entry in entries(tmp_path / "site0" / "journal.jsonl"):
        if entry["event"] == "declined":
            codes.add(entry["code"])
    assert codes == {"terms"}


def test_method_that_asks_sites_about_unnamed_samples_is_refused(tmp_path):
    with pytest.raises(UnalikeError, match=r"the terms name none; expected.*--proxy FILE"):
        folder_of(tmp_path / "fed", None)
    with pytest.raises(UnalikeError, match="the terms name none"):
        SmallFederation(tmp_path / "small", method="fedavg + consensus")
    # other methods that learn from samples of the server do not show them to sites
    assert folder_of(tmp_path / "feddf", PUBLIC, method="feddf").federation.public is None


def test_site_that_claims_the_logits_of_several_is_refused(tmp_path):
    fed = SmallFederation(tmp_path, make_clients(FOUR), "fedmd", proxy=PUBLIC, quorum=2)

    def several(head, facts, tensors):
        name = "messages.consensus/public.clients"
        if name not in tensors:
            return None
        return head, facts, tensors | {name: tensors[name] * 9}

    fed.corrupt("site3", several)
    fed.run()
    assert "logits of 9 clients; expected those of 1" in fed.events("refused")[0]["why"]


def test_secure_sum_of_logits_is_that_of_a_simulation(tmp_path):
    terms = TERMS | ALL_SITES | {"protocol": ("clients",), "proxy": PUBLIC}
    fed = SmallFederation(tmp_path / "fed", make_clients(FOUR), "fedavg + consensus", **terms)
    run = fed.run()
    for name, value in fed.simulated().params.items():
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=1e-6)
    # logits hardly change between rounds: sums over three of four sites would show the fourth
    fewer = terms | {"threshold": 3}
    with pytest.raises(UnalikeError, match="two sums show a site that is in one of them"):
        SmallFederation(tmp_path / "three", make_clients(FOUR), "fedavg + consensus", **fewer)
