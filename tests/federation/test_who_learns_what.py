"""The cells of docs/federation/who_learns_what.md that no other test shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_federation import COORDINATOR, SmallFederation

import unalike as ua
from unalike.core import tree
from unalike.federation.protocol.envelope import unseal


class Tap:
    """A site whose training requests and replies are kept, opened: facts and tensors."""

    def __init__(self, worker):
        self.worker, self.requests, self.replies = worker, [], []

    def handle(self, message):
        request, reply = unseal(message, COORDINATOR.public_key()), self.worker.handle(message)
        if request.head.kind == "train":
            self.requests.append(request.open())
            self.replies.append(unseal(reply, self.worker.key.public_key()).open())
        return reply


def test_coordinator_sees_each_update_in_clear_without_secure_aggregation(tmp_path):
    fed = SmallFederation(tmp_path, rounds=1)
    taps = fed.tapped(Tap)
    run = fed.run()
    updates = {name: tree.under(tap.replies[0][1], "update/") for name, tap in taps.items()}
    start = tree.under(taps["site0"].requests[0][1], "params/")
    for name, t in run.params.items():
        mean = (20 * updates["site0"][name] + 12 * updates["site1"][name]) / 32
        torch.testing.assert_close(t, start[name] + mean)
    assert any(not t.equal(updates["site1"][name]) for name, t in updates["site0"].items())
    assert {"tallies"} == set(taps["site0"].replies[0][0])


def test_two_sites_know_each_other_by_the_difference(tmp_path):
    """From two models, its own update and the number of all samples, site0 computes the update of site1."""
    fed = SmallFederation(tmp_path, rounds=2)
    taps = fed.tapped(Tap)
    fed.run()
    (facts, before), (_, after) = taps["site0"].requests[:2]
    own, n = tree.under(taps["site0"].replies[0][1], "update/"), 20
    for name, theirs in tree.under(taps["site1"].replies[0][1], "update/").items():
        moved = after[f"params/{name}"] - before[f"params/{name}"]
        found = (facts["samples"] * moved - n * own[name]) / (facts["samples"] - n)
        torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("secure", [False, True])
def test_user_of_the_model_tells_members_by_their_losses(tmp_path, secure):
    """Labels are drawn by lot, so a model can know the samples of training alone; no mask changes that."""
    rng = np.random.default_rng(0)

    def drawn(n):
        return rng.normal(size=(n, 30)).astype(np.float32), rng.integers(0, 4, n)

    sites = [ua.ClientData(train=drawn(20), test=drawn(20), name=f"site{k}") for k in range(3)]
    work = ua.Work(epochs=60, batch_size=20, lr=0.3)
    run = SmallFederation(tmp_path, sites, rounds=4, work=work, secure_aggregation=secure).run()
    module = run.model.module(run.params, {})
    inside, outside = (
        torch.cat(
            [torch.nn.functional.cross_entropy(module(x), y, reduction="none") for x, y in pairs]
        )
        for pairs in ([site.train for site in sites], [site.test for site in sites])
    )
    advantage = max(
        float((inside <= t).float().mean() - (outside <= t).float().mean()) for t in inside
    )
    assert advantage > 0.5
