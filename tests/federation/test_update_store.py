"""Received updates are kept on disk: the coordinator's memory does not grow with the sites, and no bit changes."""

from __future__ import annotations

import pytest
import torch
from small_federation import NetworkFaults, SmallFederation, make_clients, states

from unalike._utils.errors import UnalikeError
from unalike.core.types import ClientUpdate
from unalike.federation.coordinator.exchange import Exchange
from unalike.federation.coordinator.update_store import UpdateStore

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6), (14, 6), (18, 6))


def report(value: float) -> ClientUpdate:
    one = torch.tensor(value)
    return ClientUpdate(
        {"w": one.expand(3)}, {"n": torch.tensor(2)}, {"part": {"c": one}}, one, one, one, one, {}
    )


def test_update_store_returns_update_unchanged(tmp_path):
    shelf = UpdateStore(tmp_path / "arrived")
    left = shelf.put(1, report(1.5))
    assert (left.update, left.buffers, left.messages, left.size.item()) == ({}, {}, {}, 1.5)
    shelf.put(0, report(-2.0))
    row = shelf.row(1)
    assert (
        row.update["w"].tolist() == [[1.5] * 3]
        and row.buffers["n"].tolist() == [2]
        and row.loss.tolist() == [1.5]
    )
    both = shelf.stacked([1, 0])
    assert both.messages["part"]["c"].tolist() == [1.5, -2.0] and both.update["w"].shape == (2, 3)
    assert both.buffers["n"].dtype == torch.int64
    UpdateStore(tmp_path / "arrived")  # a new process takes nothing over
    assert not (tmp_path / "arrived").exists()


@pytest.mark.parametrize("method", ["scaffold + feddisco + fedavgm", "fedavg + median"])
def test_arrival_order_does_not_change_model(method, tmp_path):
    """A linear method, for which updates are read one by one, and one that needs all of them."""
    fed = SmallFederation(
        tmp_path,
        make_clients(SAMPLE_SIZES),
        method,
        faults=NetworkFaults(delay=9, repeat=0.2),
        rounds=3,
    )
    ours, theirs = states(fed.run()), states(fed.simulated())
    assert all(
        torch.equal(t, theirs[group][name]) for group in theirs for name, t in ours[group].items()
    )


def test_exchange_keeps_no_model_tensors_in_memory(tmp_path, monkeypatch):
    held = []
    run = Exchange.run

    def watched(self):
        done = run(self)
        for reply in done.values.values():
            if getattr(reply, "client_update", None) is not None:
                held.append(
                    (
                        reply.client_update.update,
                        reply.client_update.buffers,
                        reply.client_update.messages,
                        reply.update_bytes,
                    )
                )
        return done

    monkeypatch.setattr(Exchange, "run", watched)
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), "scaffold")
    trained = fed.run()
    sent = sum(t.numel() * t.element_size() for t in trained.params.values())
    assert held == [({}, {}, {}, sent)] * 10  # two rounds of five sites
    assert not (fed.out / "arrived").exists()


def test_damaged_stored_update_stops_run_and_is_requested_again(tmp_path, monkeypatch):
    put = UpdateStore.put

    def damaged(self, client, report):
        left = put(self, client, report)
        file = self.folder / f"{client:08d}.safetensors"
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        return left

    wanted = states(SmallFederation(tmp_path / "calm", make_clients(SAMPLE_SIZES)).run())
    fed = SmallFederation(tmp_path / "run", make_clients(SAMPLE_SIZES))
    with monkeypatch.context() as patch:
        patch.setattr(UpdateStore, "put", damaged)
        with pytest.raises(UnalikeError, match="not those that were written"):
            fed.run()
    assert not fed.events("refused")  # no site is to blame
    fed.restart_sites()
    found = states(fed.run())
    assert all(
        torch.equal(t, found[group][name]) for group in wanted for name, t in wanted[group].items()
    )
