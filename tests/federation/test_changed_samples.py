"""A site that restarts with other samples declines with a reason, and continues with the samples at admission."""

from __future__ import annotations

import pytest
import torch
from small_federation import COORDINATOR, SmallFederation, key_of, make_clients, states

import unalike as ua
from unalike.federation.coordinator.run_control import Stopped
from unalike.federation.protocol.envelope import Head, seal, unseal
from unalike.federation.protocol.messages import AdmitRequest, versions
from unalike.federation.protocol.roster import Roster
from unalike.federation.site.site_worker import SiteWorker


def fewer(client):
    x, y = client.train
    return ua.ClientData(train=(x[:-2], y[:-2]), test=client.test, name=client.name)


def in_other_units(client):
    x, y = client.train
    return ua.ClientData(train=(1.8 * x + 32, y), test=client.test, name=client.name)


@pytest.mark.parametrize("method", ["scaffold", "ifca(clusters=2)"])
@pytest.mark.parametrize("change", [fewer, in_other_units])
def test_site_with_changed_samples_is_refused_until_restored(change, method, tmp_path):
    fed = SmallFederation(tmp_path, list(make_clients()), method, rounds=4)
    first, said = fed.clients[1], []

    def changed(row, what=""):
        if row["round"] == 2:
            fed.clients[1] = change(first)
            folder = tmp_path / "site1"
            fed.workers["site1"] = SiteWorker(
                fed.federation, "site1", key_of(1), fed.clients[1], folder, log=said.append
            )

    with pytest.raises(Stopped):
        fed.run(progress=changed)
    assert {e["client"] for e in fed.events("refused")} == {"site1"}
    assert all(
        "its samples are not those that it was admitted to this run with" in e["why"]
        for e in fed.events("refused")
    )
    assert said and all("join with the data that the run began with" in line for line in said)

    fed.clients[1] = first
    fed.restart_sites("site1")
    found, wanted = states(fed.run()), states(fed.simulated())
    assert all(
        torch.equal(t, wanted[group][name]) for group in found for name, t in found[group].items()
    )


def test_second_admission_does_not_change_the_samples_of_a_run(tmp_path):
    """Two updates of a run, without and with a sample, would show this sample by their difference."""
    fed = SmallFederation(tmp_path, list(make_clients()))
    fed.run()
    fed.clients[1] = fewer(fed.clients[1])
    fed.restart_sites("site1")
    request = AdmitRequest(terms=fed.federation.terms, versions=versions())
    run = Roster.load(fed.out / "roster.json").run
    head = Head(run=run, stage=1, round=2, site="site1", kind="admit")
    message = seal(head, request.facts, {}, COORDINATOR)
    reply = unseal(fed.workers["site1"].handle(message), key_of(1).public_key())
    assert (reply.head.kind, reply.open()[0]) == ("unable", {"code": "samples"})


def test_new_run_accepts_changed_samples(tmp_path):
    fed = SmallFederation(tmp_path, list(make_clients()))
    fed.run()
    fed.clients[1] = fewer(fed.clients[1])
    fed.restart_sites()
    for file in sorted(fed.out.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    fed.run()
    assert not fed.events("refused") and fed.events("admitted")[1]["train"] == 10
