"""`select = "best"`: the round that the sites' validation samples choose, and its model, are those of the simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_federation import SmallFederation, federation_of, make_clients, states

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.run_control import Control, Stopped
from unalike.federation.operations.run_coordinator import write_site
from unalike.federation.protocol.federation_file import Schema
from unalike.federation.site.site_data import site_data

JUMPY = ua.Work(batch_size=5, lr=1.5)
"""Large steps, so that the last round is not the best one."""


def validated():
    return [
        ua.ClientData(train=c.train, test=c.test, val=other.test, name=c.name)
        for c, other in zip(make_clients(), make_clients(((5, 7), (5, 4))))
    ]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ifca(clusters=2)"])
def test_select_best_equals_simulation(method, tmp_path):
    fed = SmallFederation(tmp_path, validated(), method, rounds=6, work=JUMPY, select="best")
    ours, theirs = fed.run(), fed.simulated(select="best")
    assert ours.selected == theirs.selected and ours.selected not in (None, 6)
    assert (ours.history.rounds["selected"] == theirs.history.rounds["selected"]).all()
    for group, tensors in states(theirs).items():
        for name, t in tensors.items():
            assert torch.equal(states(ours)[group][name], t), name
    last = SmallFederation(tmp_path / "last", validated(), method, rounds=6, work=JUMPY).run()
    assert any(
        not torch.equal(t, states(ours)[g][n])
        for g, found in states(last).items()
        for n, t in found.items()
    )


def test_select_best_survives_restart(tmp_path):
    made = {"clients": validated(), "rounds": 6, "work": JUMPY, "select": "best"}
    calm = SmallFederation(tmp_path / "calm", **made).run()
    fed, control = SmallFederation(tmp_path / "run", **made), Control()
    with pytest.raises(Stopped):
        fed.coordinator(control=control).run(
            progress=lambda row, what="": control.stop() if row["round"] == 4 else None
        )
    run = fed.run()
    assert run.selected == calm.selected
    for name, t in calm.params.items():
        assert torch.equal(run.params[name], t)


def test_sites_are_asked_anew_where_none_had_validation_samples_to_decide_by(tmp_path):
    terms = {"val": 0.2, "rounds": 3, "stop": "patience(rounds=1)"}
    fed = SmallFederation(tmp_path, **terms)
    with pytest.raises(UnalikeError, match=r"val = 0.2 .* for stop in .* lower least_test"):
        fed.run()
    fed.clients = validated()
    fed.restart_sites()
    assert fed.run().history.last["round"] > 0


def test_select_best_of_personal_models_is_refused(tmp_path):
    with pytest.raises(
        UnalikeError, match="models of their own, which they keep of the last rounds alone"
    ):
        SmallFederation(tmp_path / "personal", validated(), "ditto", select="best").run()
    with pytest.raises(UnalikeError, match="--val"):
        SmallFederation(tmp_path / "unvalidated", select="best").run()
    with pytest.raises(UnalikeError, match="select"):
        federation_of(make_clients(), select="first")


def test_validation_split_equals_simulation(tmp_path):
    data = ua.load("digits")
    sites = ua.partition(data, "iid", clients=2, seed=3)
    theirs = ua.partition(data, "iid", clients=2, seed=3, val=0.2)
    federation = federation_of(
        [ua.ClientData(train=c.train, name=f"site{k}") for k, c in enumerate(sites)],
        seed=3,
        val=0.2,
        data=Schema((1, 8, 8), 10),
    )
    for k, (site, expected) in enumerate(zip(sites, theirs)):
        write_site(tmp_path / f"site{k}.npz", site, sites.classes)
        found = site_data(federation, str(tmp_path / f"site{k}.npz"), None, f"site{k}")
        for part in ("train", "test", "val"):
            for a, b in zip(getattr(found, part), getattr(expected, part)):
                assert np.array_equal(np.asarray(a), np.asarray(b)), part
