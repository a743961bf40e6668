"""Rows 7 and 8: the norm guard. Measured accuracies: `benchmarks/attacks.py`."""

from __future__ import annotations

import pytest
import torch
from small_federation import SmallFederation, make_clients, states

from unalike.training.server.norm_guard import MAX_KEPT_NORMS, NormGuard, outlier

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6), (14, 6), (18, 6))


def test_norm_guard_matches_hand_computed_values():
    guard = NormGuard(3.0)
    reports = {"a": {"update": 1.0}, "b": {"update": 2.0}, "c": {"update": 6.1}}
    assert guard.faults(reports) == {
        "c": "the norm of its update is 6.1; expected at most 3 times the median 2"
    }
    guard.accept({"a": {"update": 1.0}, "b": {"update": 2.0}})
    # the median now runs over 1, 2 of the first round and 5, 5, 5 of this one
    assert guard.faults({key: {"update": 5.0} for key in "abc"}) == {}
    # over 1, 2, and 9: 2
    assert list(guard.faults({"b": {"update": 9.0}})) == ["b"]
    guard.accept({key: {"update": 5.0} for key in map(str, range(2 * MAX_KEPT_NORMS))})
    assert len(guard.seen["update"]) == MAX_KEPT_NORMS
    loose = {
        "a": {"buffers": 1.0},
        "b": {"buffers": 2.0},
        "c": {"buffers": 59.0},
        "d": {"buffers": 2.0},
    }
    assert NormGuard(3.0).faults(loose) == {}
    assert list(NormGuard(2.9).faults(loose)) == ["c"]
    assert NormGuard(0).faults(reports) == {}
    assert (
        NormGuard(3.0).faults({key: {"update": 0.0} for key in "abc"}) == {}
    )  # nobody moves: nobody stands out


def test_norm_guard_is_sound_for_two_sites_and_for_sites_of_other_sizes():
    """The median of two is not their mean, which grows with the larger one; k times the steps may move k times as far."""
    two = {"a": {"update": 1.0}, "b": {"update": 1e30}}
    assert list(NormGuard(10.0).faults(two)) == ["b"]
    large = {"a": {"update": 1.0}, "b": {"update": 40.0}}
    assert NormGuard(10.0).faults(large, {"a": 3, "b": 30}) == {}
    assert list(NormGuard(10.0).faults(large, {"a": 30, "b": 3})) == ["b"]


def test_site_of_a_discarded_round_is_the_one_whose_norms_stand_out():
    assert outlier({"a": {"update": 1.0}, "b": {"update": 8.0}, "c": {"update": 2.0}}) == (
        "b",
        4.0,
    )
    assert outlier({"a": {"update": 1.0}, "b": {"update": 1.9}}) is None
    assert outlier({"a": {"update": 1.0, "m": 1.0}, "b": {"update": 1.0, "m": 30.0}}) == (
        "b",
        30.0,
    )
    assert outlier({"a": {"update": 0.0}, "b": {"update": 1.0}}) is None and outlier({}) is None


@pytest.mark.parametrize(
    "method, factor, prefix", [("fedavg", 1e38, "update/"), ("scaffold", 1e30, "messages.")]
)
def test_one_absurd_update_does_not_end_a_run_with_the_usual_terms(
    method, factor, prefix, tmp_path
):
    """Finite numbers of one of three sites, no flag set: the site is named, and the others go on to a finite model."""
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES[:3]), method, rounds=3)
    fed.corrupt("site2", hostile(factor, prefix))
    run = fed.run()
    assert {e["client"] for e in fed.events("refused")} == {"site2"} and len(
        fed.events("refused")
    ) == 3
    assert run.history.rounds["participants"].tolist() == [0, 2, 2, 2]
    assert all(bool(t.isfinite().all()) for group in states(run).values() for t in group.values())


@pytest.mark.parametrize("factor", [1e38, 1e4])
def test_round_with_an_absurd_model_is_discarded_and_made_again_without_its_sender(
    factor, tmp_path
):
    """Without the guard: a model that is not finite is never sent, and one with an absurd loss is taken back."""
    told, terms = [], {"rounds": 3, "guard": 0, "quorum": 2}
    fed = SmallFederation(tmp_path / "attacked", make_clients(SAMPLE_SIZES[:3]), **terms)

    def once(head, facts, tensors):
        return hostile(factor)(head, facts, tensors) if head.round == 1 else None

    fed.corrupt("site2", once)
    run = fed.coordinator(tell=told.append).run()
    [event] = fed.events("discarded")
    assert (event["client"], event["round"]) == ("site2", 2)
    assert any("round 2: discarded" in line and "made again without site2" in line for line in told)
    assert run.history.rounds["participants"].tolist() == [0, 3, 2, 3]
    assert run.history.rounds["loss"].iloc[-1] < run.history.rounds["loss"].iloc[0]

    absent = SmallFederation(tmp_path / "absent", make_clients(SAMPLE_SIZES[:3]), **terms)
    absent.corrupt(
        "site2", lambda head, facts, tensors: (head, facts, {}) if head.round == 1 else None
    )
    for group, tensors in states(absent.run()).items():
        for name, t in tensors.items():
            assert torch.equal(states(run)[group][name], t), name


def test_one_site_cannot_have_a_round_discarded_by_what_it_reports(tmp_path):
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES[:3]), rounds=2)

    def lie(head, facts, tensors):
        if facts.get("tallies"):
            facts["tallies"]["clients"]["test"]["loss"] = 1e30
            return head, facts, tensors
        return None

    fed.corrupt("site2", lie)
    assert fed.run().history.rounds["participants"].tolist() == [0, 3, 3] and not fed.events(
        "discarded"
    )


def test_model_that_diverges_at_all_sites_is_named_as_the_cause(tmp_path):
    from unalike.federation.coordinator.run_control import Stopped

    told = []
    fed = SmallFederation(tmp_path, make_clients(((20, 8), (20, 8))), rounds=3, guard=0)
    for name in ("site0", "site1"):
        fed.corrupt(name, hostile(1e37))
    with pytest.raises(Stopped):
        fed.coordinator(tell=told.append).run()
    assert len(fed.events("diverged model")) == 1 and not fed.events("discarded")
    assert all("the model is not finite since round 1" in e["why"] for e in fed.events("refused"))
    assert any("no site stands out" in line for line in told)


@pytest.mark.parametrize("guard", [10.0, 0.0])
def test_update_that_is_not_finite_once_it_is_decoded_is_refused(guard, tmp_path):
    """Factors are finite where their product is not: NaN is no larger than any limit, so that all sites were paused."""
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES[:3]), "powersgd", guard=guard)
    fed.corrupt("site2", hostile(1e25))
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 2, 2]
    assert {(e["client"], e["why"].split(",")[0]) for e in fed.events("refused")} == {
        ("site2", "its update is not finite once it is decoded")
    }
    assert not fed.events("discarded", "paused")


@pytest.mark.parametrize("bound", ["", ", quantile=0.5, clip_lr=0.0001"])
def test_update_that_was_not_clipped_as_epsilon_demands_is_refused(bound, tmp_path):
    """FAULTS 25: three times the bound is within the guard; honest updates are those of a run without the site."""
    method = f"client_dp(noise_multiplier=0, clip=0.01{bound})"
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES[:3]), method, quorum=2)
    fed.corrupt("site2", hostile(3.0))
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 2, 2]
    assert [e["client"] for e in fed.events("refused")] == ["site2"] * 2
    assert all(
        "norm of its update is 0.03" in e["why"] and "client_dp" in e["why"]
        for e in fed.events("refused")
    )


def hostile(factor, prefix="update/"):
    def change(head, facts, tensors):
        if "size" not in tensors:
            return None
        return (
            head,
            facts,
            {n: factor * t if n.startswith(prefix) else t for n, t in tensors.items()},
        )

    return change


def attacked(folder, factor, prefix="update/", **more):
    fed = SmallFederation(folder, make_clients(SAMPLE_SIZES), **({"rounds": 4, "quorum": 3} | more))
    for name in ("site3", "site4"):
        fed.corrupt(name, hostile(factor, prefix))
    return fed, fed.run()


@pytest.mark.parametrize(
    "factor, word",
    [(100.0, "times the median"), (-30.0, "times the median"), (0.0, "trained nothing")],
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
        SmallFederation(
            tmp_path / "run", make_clients(SAMPLE_SIZES), rounds=4, quorum=3, guard=3.0
        ),
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
    _, clean = attacked(tmp_path / "clean", 1.0, method="median", guard=0)
    _, mean = attacked(tmp_path / "mean", -30.0, guard=0)
    _, median = attacked(tmp_path / "median", -30.0, method="median", guard=0)

    def last(run):
        return run.history.rounds["loss"].iloc[-1]

    assert last(median) < 2 * last(clean) < last(mean)
