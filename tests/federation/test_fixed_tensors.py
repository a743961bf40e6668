"""Fixed tensors of a stage are sent to a site once; after its first answer, requests hold their digest only."""

from __future__ import annotations

import pytest
import torch
from small_federation import COORDINATOR, SmallFederation, make_clients, states

from unalike.federation.coordinator.run_control import Control, Stopped
from unalike.federation.protocol.envelope import unseal

SAMPLE_SIZES = ((20, 8), (12, 6), (6, 3), (16, 6))
FEDCONCAT = "fedconcat(clusters=2, encoder_rounds=1, classifier_rounds=3)"


class Watched(SmallFederation):
    """Records every request: stage, round, site, whether fixed tensors were sent, whether there are any."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.orders, send = [], self.transport.send

        def watched(site, message):
            request = unseal(message, COORDINATOR.public_key())
            if request.head.kind == "train":
                facts, tensors = request.open()
                still = {
                    n.partition("/")[0] for n in tensors if n.startswith(("fixed.", "shared/"))
                }
                assert still <= {"fixed.params", "fixed.buffers", "shared"} and (
                    facts["fixed"] or not still
                )
                self.orders.append((*request.head.place, site, bool(still), bool(facts["fixed"])))
            send(site, message)

        self.transport.send = watched

    def told(self, site):
        return [(place, told) for *place, name, told, has in self.orders if name == site and has]


def of(folder, method, **more):
    clients = make_clients(SAMPLE_SIZES)
    proxy = make_clients(((8, 8),))[0].test if method.startswith("data_sharing") else None
    return Watched(folder, clients, method, **({"proxy": proxy, "rounds": 4, "repeat": 5.0} | more))


@pytest.mark.parametrize("method", [FEDCONCAT, "data_sharing"])
def test_fixed_tensors_are_sent_once_per_site(method, tmp_path):
    fed = of(tmp_path, method)
    fed.run()
    for client in fed.clients:
        told = [told for _, told in fed.told(client.name)]
        assert len(told) > 2 and told == [True] + [False] * (len(told) - 1)


def test_method_without_fixed_tensors_has_no_digest(tmp_path):
    fed = of(tmp_path, "scaffold", rounds=2)
    fed.run()
    assert fed.orders and not any(has for *_, has in fed.orders)


def test_site_that_lost_fixed_tensors_gets_them_again(tmp_path):
    fed = of(tmp_path, "data_sharing", quorum=2)

    def lose(row, what=""):
        if row["round"] == 1:
            for file in (fed.folder / "site1").rglob("fixed.safetensors"):
                file.unlink()

    run = fed.run(progress=lose)
    [event] = fed.events("refused")
    assert event["client"] == "site1" and "cannot read" in event["why"]
    assert run.history.rounds["participants"].tolist()[-1] == 4
    assert [told for _, told in fed.told("site1")].count(True) == 2


@pytest.mark.parametrize("method", [FEDCONCAT, "data_sharing"])
def test_site_that_lost_fixed_tensors_gets_them_again_with_full_quorum(method, tmp_path):
    fed, wanted = of(tmp_path / "run", method), states(of(tmp_path / "calm", method).run())

    def lose(row, what=""):
        if row["round"] == 3:
            for file in (fed.folder / "site1").rglob("fixed.safetensors"):
                file.unlink()

    found = states(fed.run(progress=lose))
    assert all(
        torch.equal(t, found[group][name]) for group in wanted for name, t in wanted[group].items()
    )
    assert [e["client"] for e in fed.events("refused", "paused")] == ["site1"]


@pytest.mark.parametrize("method", [FEDCONCAT, "data_sharing"])
def test_restarted_coordinator_does_not_resend_fixed_tensors(method, tmp_path):
    wanted = states(of(tmp_path / "calm", method).run())
    fed, control = of(tmp_path / "run", method), Control()

    def stop(row, what=""):
        if row["round"] == 3:
            control.stop()

    with pytest.raises(Stopped):
        fed.coordinator(control=control).run(progress=stop)
    fed.restart_sites()
    found = states(fed.run())
    assert all(
        torch.equal(t, found[group][name]) for group in wanted for name, t in wanted[group].items()
    )
    assert [told for _, told in fed.told("site0")].count(True) == 1
