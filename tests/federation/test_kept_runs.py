"""A site keeps the files of the current and the previous run, so that its disk does not fill."""

from __future__ import annotations

import shutil

import pytest
import torch
from small_federation import SmallFederation, states

from unalike.federation.coordinator.run_control import Control, Stopped


def kept(fed, site="site0"):
    return sorted(f.name for f in (fed.folder / site).iterdir() if f.is_dir())


def test_site_keeps_files_of_last_two_runs(tmp_path):
    fed, runs = SmallFederation(tmp_path, method="scaffold"), []
    for _ in range(4):
        fed.run()
        runs.append(kept(fed)[-1])
        assert kept(fed) == runs[-2:]
        fed.restart_sites()
        shutil.rmtree(fed.out)  # a new run
    assert len(set(runs)) == 4


def test_resumed_run_keeps_client_states(tmp_path):
    """Neither a replayed request of an older run nor a restarted coordinator removes client states."""
    fed = SmallFederation(tmp_path / "run", method="scaffold", rounds=4)
    first, orders = tmp_path / "run" / "first", []
    handle = fed.workers["site0"].handle
    fed.workers["site0"].handle = lambda message: orders.append(message) or handle(message)
    fed.run()
    fed.out.rename(first)
    control = Control()
    with pytest.raises(Stopped):
        fed.coordinator(control=control).run(
            progress=lambda row, what="": control.stop() if row["round"] == 2 else None
        )
    client_states = sorted(
        p.relative_to(tmp_path) for p in (tmp_path / "run" / "site0").rglob("*") if p.is_file()
    )
    assert len(kept(fed)) == 2
    fed.restart_sites()
    for order in orders:
        fed.workers["site0"].handle(order)
    found = sorted(
        p.relative_to(tmp_path) for p in (tmp_path / "run" / "site0").rglob("*") if p.is_file()
    )
    assert set(client_states) <= set(found) and len(kept(fed)) == 2
    calm = SmallFederation(tmp_path / "calm", method="scaffold", rounds=4).run()
    for name, t in states(calm)["all"].items():
        assert torch.equal(states(fed.run())["all"][name], t)
