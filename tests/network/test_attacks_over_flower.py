"""Attacks of an enrolled site and of a coordinator, over real sockets with TLS: the answers are those of the in-process tests."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from echo_network import EchoNetwork
from small_federation import SmallFederation, key_of, make_clients

from unalike._utils.journal import entries
from unalike.federation.site.site_policy import SitePolicy
from unalike.federation.site.site_worker import SiteWorker


def scaled(factor):
    def change(head, facts, tensors):
        if "size" not in tensors:
            return None
        return (
            head,
            facts,
            {n: factor * t if n.startswith("update/") else t for n, t in tensors.items()},
        )

    return change


def test_absurd_update_and_a_request_beyond_the_rules_over_real_sockets(tmp_path):
    network = EchoNetwork(tmp_path / "network", names=("site0", "site1"))
    try:
        fed = SmallFederation(tmp_path / "fed", make_clients(), rounds=3, deadline=60.0, repeat=5.0)
        rules = SitePolicy(rounds=1, least_test=0, least_class=0)
        own = tmp_path / "fed" / "site0"
        fed.workers["site0"] = SiteWorker(
            fed.federation, "site0", key_of(0), fed.clients[0], own, policy=rules
        )
        fed.corrupt("site1", scaled(1e38))
        for name in network.names:
            network.handlers[name] = lambda message, name=name: fed.workers[name].handle(message)
        fed.transport = network.transport
        with pytest.raises(Exception, match="stopped"):  # site0 declines the second round
            fed.run()
        assert [(e["round"], e["client"]) for e in fed.events("scaled down")] == [(1, "site1")]
        refused = fed.events("refused")
        assert any("its own rules" in e["why"] for e in refused if e["client"] == "site0")
        declined = [e for e in entries(own / "journal.jsonl") if e["event"] == "declined"]
        assert declined and {e["code"] for e in declined} == {"rules"}
        assert {e["client"] for e in fed.events("connected")} <= {"site0", "site1"}
    finally:
        network.close()
