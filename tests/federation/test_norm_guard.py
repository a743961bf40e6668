"""Rows 7 and 8: the norm guard. Measured accuracies: `benchmarks/attacks.py`."""

from __future__ import annotations

import pytest
import torch
from small_federation import SmallFederation, make_clients, states

from unalike.federation.coordinator.norm_guard import WINDOW, NormGuard

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6), (14, 6), (18, 6))


def test_norm_guard_matches_hand_computed_values():
    guard = NormGuard(3.0)
    reports = {"a": {"update": 1.0}, "b": {"update": 2.0}, "c": {"update": 6.1}}
    assert guard.faults(reports) == {"c": "the norm of its update is 6.1; expected at most 3 times the median 2"}
    guard.accept({"a": {"update": 1.0}, "b": {"update": 2.0}})
    # the median now runs over 1, 2 of the first round and 5, 5, 5 of this one
    assert guard.faults({key: {"update": 5.0} for key in "abc"}) == {}
    # over 1, 2, and 9: 2
    assert list(guard.faults({"b": {"update": 9.0}})) == ["b"]
    guard.accept({key: {"update": 5.0} for key in map(str, range(2 * WINDOW))})
    assert len(guard.seen["update"]) == WINDOW
    loose = {"a": {"buffers": 1.0}, "b": {"buffers": 2.0}, "c": {"buffers": 59.0}, "d": {"buffers": 2.0}}
    assert NormGuard(3.0).faults(loose) == {}
    assert list(NormGuard(2.9).faults(loose)) == ["c"]
    assert NormGuard(None).faults(reports) == {}
    assert NormGuard(3.0).faults({key: {"update": 0.0} for key in "abc"}) == {}  # nobody moves: nobody stands out


def hostile(factor, prefix="update/"):
    def change(head, facts, tensors):
        if "size" not in tensors:
            return None
        return head, facts, {n: factor * t if n.startswith(prefix) else t for n, t in tensors.items()}

    return change


def attacked(folder, factor, prefix="update/", **more):
    fed = SmallFederation(folder, make_clients(SAMPLE_SIZES), **({"rounds": 4, "quorum": 3} | more))
    for name in ("site3", "site4"):
        fed.corrupt(name, hostile(factor, prefix))
    return fed, fed.run()


@pytest.mark.parametrize(
    "factor, word", [(100.0, "times the median"), (-30.0, "times the median"), (0.0, "trained nothing")]
)
def test_norm_guard_scaled_flipped_and_zero_updates_are_refused(factor, word, tmp_path):
    fed, run = attacked(tmp_path, factor, guard=3.0)
    found = fed.events("refused")
    assert {e["client"] for e in found} == {"site3", "site4"} and len(found) == 8
    assert all(word in e["why"] for e in found)
    assert (run.history.rounds["participants"][1:] == 3).all()
    assert set(fed.events("norms")[0]["norms"]) == {"site0", "site1", "site2"}


def test_norm_guard_checks_part_messages(tmp_path):
    fed, _ = attacked(tmp_path, 1000.0, "messages.", guard=5.0, method="scaffold")
    assert all("of control_variates" in e["why"] for e in fed.events("refused"))


def test_norm_guard_state_survives_restart(tmp_path):
    from unalike.federation.coordinator.run_control import Control, Stopped

    calm, _ = attacked(tmp_path / "calm", 100.0, guard=3.0)
    fed, control = (
        SmallFederation(tmp_path / "run", make_clients(SAMPLE_SIZES), rounds=4, quorum=3, guard=3.0),
        Control(),
    )
    for name in ("site3", "site4"):
        fed.corrupt(name, hostile(100.0))
    with pytest.raises(Stopped):
        fed.coordinator(control=control).run(
            progress=lambda row, what="": control.stop() if row["round"] == 2 else None
        )
    run = fed.run()
    for group, tensors in states(calm.run()).items():
        for name, t in tensors.items():
            assert torch.equal(states(run)[group][name], t)
    assert len(run._runner._norm_guard.seen["update"]) == 12


def test_median_without_norm_guard_bounds_model(tmp_path):
    _, clean = attacked(tmp_path / "clean", 1.0, method="median")
    _, mean = attacked(tmp_path / "mean", -30.0)
    _, median = attacked(tmp_path / "median", -30.0, method="median")

    def last(run):
        return run.history.rounds["loss"].iloc[-1]

    assert last(median) < 2 * last(clean) < last(mean)
