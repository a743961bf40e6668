"""What a site keeps of runs that are over: the last one, so that its disk does not fill."""

from __future__ import annotations

import shutil

import pytest
import torch
from small_federation import SmallFederation, states

from unalike.federation.coordinator.control import Control, Stopped


def kept(world, site="site0"):
    return sorted(f.name for f in (world.folder / site).iterdir() if f.is_dir())


def test_the_last_two_runs_are_kept(tmp_path):
    world, runs = SmallFederation(tmp_path, method="scaffold"), []
    for _ in range(4):
        world.run()
        runs.append(kept(world)[-1])
        assert kept(world) == runs[-2:]
        world.restart_sites()
        shutil.rmtree(world.out)  # a new run
    assert len(set(runs)) == 4


def test_the_run_that_goes_on_keeps_its_memories(tmp_path):
    """A replayed order of an older run changes nothing, nor does a coordinator that starts anew."""
    world = SmallFederation(tmp_path / "run", method="scaffold", rounds=4)
    first, orders = tmp_path / "run" / "first", []
    handle = world.workers["site0"].handle
    world.workers["site0"].handle = lambda message: orders.append(message) or handle(message)
    world.run()
    world.out.rename(first)
    control = Control()
    with pytest.raises(Stopped):
        world.coordinator(control=control).run(
            progress=lambda row, what="": control.stop() if row["round"] == 2 else None
        )
    client_states = sorted(p.relative_to(tmp_path) for p in (tmp_path / "run" / "site0").rglob("*") if p.is_file())
    assert len(kept(world)) == 2
    world.restart_sites()
    for order in orders:
        world.workers["site0"].handle(order)
    found = sorted(p.relative_to(tmp_path) for p in (tmp_path / "run" / "site0").rglob("*") if p.is_file())
    assert set(client_states) <= set(found) and len(kept(world)) == 2
    calm = SmallFederation(tmp_path / "calm", method="scaffold", rounds=4).run()
    for name, t in states(calm)["all"].items():
        assert torch.equal(states(world.run())["all"][name], t)
