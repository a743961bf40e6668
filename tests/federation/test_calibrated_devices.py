"""The seconds of sites in the history of a federation, and simulated devices that have their speeds."""

from __future__ import annotations

import pytest
from small_federation import SmallFederation, make_clients

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.client_devices.device_model import device_model
from unalike.runtime.run_recorder import RunRecorder


def test_devices_have_the_speeds_of_the_sites_of_a_federation(tmp_path, monkeypatch):
    clients = make_clients()
    fed = SmallFederation(tmp_path, clients, rounds=3)
    hold = RunRecorder.hold

    def die_before_second_row(self, index, clients):
        hold(self, index, clients)
        if self.history.last["round"] == 1:
            raise KeyboardInterrupt

    # the seconds of a round survive a kill between its training and its evaluation
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunRecorder, "hold", die_before_second_row)
        fed.run()
    fed.restart_sites()
    table = fed.run().history.clients
    trained = table["status"] == "trained"
    assert trained.sum() == 2 * 3
    assert (table["reply_seconds"][trained] > 0).all()
    assert table["reply_seconds"][~trained].isna().all()

    # one epoch a round: the samples of a step each
    speeds = (table["n_train"] / table["reply_seconds"])[trained].groupby(table["client"]).median()
    rates = device_model(f"calibrated(folder={str(fed.out)!r})").rates(clients=30, seed=0)
    assert sorted(set(rates.samples_per_second)) == pytest.approx(sorted(speeds))

    run = ua.run(
        "fedavg",
        clients,
        model="linear",
        rounds=1,
        devices=f"calibrated(folder={str(fed.out)!r})",
        progress=False,
    )
    assert run.history.last["simulated_seconds"] > 0


def test_folder_without_seconds_of_sites_is_refused(tmp_path):
    clients = make_clients()
    ua.run("fedavg", clients, model="linear", rounds=1, out=tmp_path / "run", progress=False)
    for folder in ("run", "nowhere"):
        model = device_model(f"calibrated(folder={str(tmp_path / folder)!r})")
        with pytest.raises(UnalikeError, match="expected the folder of a federation's run"):
            model.rates(clients=2, seed=0)
