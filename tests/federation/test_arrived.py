"""Reports that have arrived wait on disk: what the coordinator holds does not grow with the sites, and no bit changes."""

from __future__ import annotations

import pytest
import torch
from worlds import NetworkFaults, World, people, states

from unalike._utils.errors import UnalikeError
from unalike.core.types import ClientUpdate
from unalike.federation.coordinator.exchange import Exchange
from unalike.federation.coordinator.update_store import UpdateStore

CROWD = ((20, 8), (12, 6), (16, 6), (14, 6), (18, 6))


def report(value: float) -> ClientUpdate:
    one = torch.tensor(value)
    return ClientUpdate({"w": one.expand(3)}, {"n": torch.tensor(2)}, {"part": {"c": one}}, one, one, one, one, {})


def test_a_report_comes_back_as_it_came(tmp_path):
    shelf = UpdateStore(tmp_path / "arrived")
    left = shelf.put(1, report(1.5))
    assert (left.update, left.buffers, left.messages, left.size.item()) == ({}, {}, {}, 1.5)
    shelf.put(0, report(-2.0))
    row = shelf.row(1)
    assert row.update["w"].tolist() == [[1.5] * 3] and row.buffers["n"].tolist() == [2] and row.loss.tolist() == [1.5]
    both = shelf.stacked([1, 0])
    assert both.messages["part"]["c"].tolist() == [1.5, -2.0] and both.update["w"].shape == (2, 3)
    assert both.buffers["n"].dtype == torch.int64
    UpdateStore(tmp_path / "arrived")  # a new process takes nothing over
    assert not (tmp_path / "arrived").exists()


@pytest.mark.parametrize("method", ["scaffold + feddisco + fedavgm", "fedavg + median"])
def test_whoever_comes_first_the_bits_are_those_of_the_simulation(method, tmp_path):
    """A linear method, whose reports are read one by one, and one that looks at all of them."""
    world = World(tmp_path, people(CROWD), method, faults=NetworkFaults(delay=9, repeat=0.2), rounds=3)
    ours, theirs = states(world.run()), states(world.simulated())
    assert all(torch.equal(t, theirs[group][name]) for group in theirs for name, t in ours[group].items())


def test_an_exchange_holds_no_tensor_of_a_model(tmp_path, monkeypatch):
    held = []
    run = Exchange.run

    def watched(self):
        done = run(self)
        for reply in done.values.values():
            if getattr(reply, "client_update", None) is not None:
                held.append(
                    (reply.client_update.update, reply.client_update.buffers, reply.client_update.messages, reply.sent)
                )
        return done

    monkeypatch.setattr(Exchange, "run", watched)
    world = World(tmp_path, people(CROWD), "scaffold")
    trained = world.run()
    sent = sum(t.numel() * t.element_size() for t in trained.params.values())
    assert held == [({}, {}, {}, sent)] * 10  # two rounds of five sites
    assert not (world.out / "arrived").exists()


def test_a_report_that_the_disk_lost_stops_the_run_and_is_asked_again(tmp_path, monkeypatch):
    put = UpdateStore.put

    def damaged(self, client, report):
        left = put(self, client, report)
        file = self.folder / f"{client:08d}.safetensors"
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        return left

    wanted = states(World(tmp_path / "calm", people(CROWD)).run())
    world = World(tmp_path / "run", people(CROWD))
    with monkeypatch.context() as patch:
        patch.setattr(UpdateStore, "put", damaged)
        with pytest.raises(UnalikeError, match="not those that were written"):
            world.run()
    assert not world.events("refused")  # no site is to blame
    world.restart_sites()
    found = states(world.run())
    assert all(torch.equal(t, found[group][name]) for group in wanted for name, t in wanted[group].items())
