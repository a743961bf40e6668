"""A site with new keys during a run continues with its client state: same model as an undisturbed run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_federation import COORDINATOR, SmallFederation, key_of, make_clients, states

from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.run_control import Control, Stopped
from unalike.federation.protocol.envelope import unseal
from unalike.federation.security.keys import public_text
from unalike.federation.site.site_worker import SiteWorker


def test_new_site_keys_during_run_give_same_model(tmp_path):
    calm = SmallFederation(tmp_path / "calm", method="scaffold", rounds=4).run()
    fed, control = SmallFederation(tmp_path / "run", method="scaffold", rounds=4), Control()
    with pytest.raises(
        Stopped
    ):  # the sites have answered the next round already, signed by the old key
        fed.coordinator(control=control).run(
            progress=lambda row, what="": control.stop() if row["round"] == 2 else None
        )
    old, new = fed.workers["site0"], key_of(77)
    sites = (replace(fed.federation.sites[0], key=public_text(new)), *fed.federation.sites[1:])
    fed.federation = replace(
        fed.federation, sites=sites
    )  # site1 keeps its copy, with the old key of the other

    run = fed.coordinator  # the old key is worth nothing
    with pytest.raises(Stopped):
        run().run()
    assert any(
        "signature" in event["why"] for event in fed.events("refused") if event["client"] == "site0"
    )

    fed.workers["site0"] = SiteWorker(
        fed.federation, "site0", new, make_clients()[0], old.folder.path
    )
    found = states(fed.run())
    for group, tensors in states(calm).items():
        for name, t in tensors.items():
            assert torch.equal(found[group][name], t), name


def test_reenrolled_site_continues(tmp_path):
    fed = SmallFederation(tmp_path, rounds=4)
    wanted, sites = states(SmallFederation(tmp_path / "calm", rounds=4).run()), fed.federation.sites

    def stop(row, what=""):
        if row["round"] == 2:
            raise Stopped("the operator stopped it")

    with pytest.raises(Stopped):
        fed.run(progress=stop)
    fed.federation = replace(
        fed.federation, sites=tuple(replace(site, revoked=True) for site in sites)
    )
    with pytest.raises(UnalikeError, match="every site with training samples was revoked"):
        fed.run()
    fed.federation = replace(fed.federation, sites=sites)
    found = states(fed.run())
    assert all(torch.equal(t, wanted["all"][name]) for name, t in found["all"].items())


@pytest.mark.parametrize(
    "method, kind", [("client_dp(noise_multiplier=1, where='site')", "train"), ("diagnosis", "ask")]
)
def test_new_key_does_not_answer_again_what_is_answered_once(method, kind, tmp_path):
    """The replies of the old key cannot be read any more: a second update, or noise, of the same round would cost privacy."""
    fed = SmallFederation(tmp_path, method=method, rounds=1, noise_shares=2, quorum=2)
    requests = []
    worker = fed.workers["site0"]

    class Tap:
        def handle(self, message):
            requests.append(message)
            return worker.handle(message)

    fed.workers["site0"] = Tap()
    fed.run()
    for message in reversed(requests):
        request = unseal(message, COORDINATOR.public_key())
        if request.head.kind == kind and request.open()[0].get("train", True):
            break
    new = key_of(77)
    sites = (replace(fed.federation.sites[0], key=public_text(new)), fed.federation.sites[1])
    renewed = replace(fed.federation, sites=sites)
    site = SiteWorker(renewed, "site0", new, make_clients()[0], worker.folder.path)
    reply = unseal(site.handle(message), new.public_key())
    assert reply.head.kind == "unable"
    assert "with an earlier key" in site.journal.path.read_text().splitlines()[-1]

    # Rounds before those whose replies are kept are over with every key.
    if kind == "ask":
        site.handle(next(one for one in requests if b'"kind":"ask"' in one))
        assert "a replay?" in site.journal.path.read_text().splitlines()[-1]
