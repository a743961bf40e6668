"""M1: the loss that one site reports neither chooses the round whose model is the result, nor ends the run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_federation import SmallFederation, make_clients, states

import unalike as ua
from unalike.federation.coordinator.bounded_losses import bounded_losses
from unalike.federation.protocol.federation_file import Schema
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.named_metrics import KNOWN

WORK = ua.Work(batch_size=5, lr=0.05)


def losses(*pairs):
    """Sums of clients with these (samples, mean loss)."""
    return {
        client: MetricSums(n=n, loss=None if mean is None else n * mean)
        for client, (n, mean) in enumerate(pairs)
    }


@pytest.mark.parametrize(
    ("pairs", "outlier", "counts_as"),
    [
        (((10, 1.0), (10, 2.0), (10, 20.1)), 2, 2.0),
        (((10, 1.0), (10, 2.0), (10, 19.9)), None, None),
        (((10, 1.0), (10, 2.0), (10, 1e70)), 2, 2.0),
        (((10, 1.0), (10, 2.0), (10, None)), 2, 2.0),
        # many small ones: it is less than half of all
        (((10, 1.0), *[(10, 1.0)] * 11, (10, 11.0)), None, None),
        (((10, 1.0), *[(10, 1.0)] * 11, (10, 13.0)), 12, 1.0),
        # of two nobody knows which one lies
        (((10, 1.0), (10, 1e70)), None, None),
        (((10, 1.0), (10, None)), None, None),
        (((10, 1.0), (0, 0.0), (10, 1e70)), None, None),
        (((10, None), (10, None), (10, None)), None, None),
        (((10, 0.0), (10, 0.0), (10, 0.1)), 2, 0.0),
    ],
)
def test_outlying_loss_counts_as_the_largest_of_the_others(pairs, outlier, counts_as):
    sums = losses(*pairs)
    bounded, reasons = bounded_losses(sums, {})
    assert list(reasons) == ([] if outlier is None else [outlier])
    for client, one in sums.items():
        if client == outlier:
            assert bounded[client].loss == one.n * counts_as
        else:
            assert bounded[client] is one


def test_loss_of_a_model_that_knows_nothing_counts_as_it_is():
    """An honest site with few samples, one of which the model gets wrong, is no outlier."""
    counts = {"true": (3, 3, 4), "guessed": (3, 3, 4), "right": (3, 3, 3)}
    for mean, is_outlier in ((1.09, False), (1.11, True)):
        sums = {k: MetricSums(n=10, loss=0.1, **counts) for k in range(2)}
        sums[2] = MetricSums(n=10, loss=10 * mean, **counts)
        bounded, reasons = bounded_losses(sums, {})
        assert (2 in reasons) == is_outlier
        assert bounded[2].loss == (0.1 if is_outlier else 10 * mean)
    # of the outcomes 1 and 3 the variance is 1; what the site says of its own does not count
    for mean, is_outlier in ((0.99, False), (1.01, True)):
        sums = {k: MetricSums(n=2, loss=0.02, moments=(0.1, 4.0, 10.0)) for k in range(2)}
        sums[2] = MetricSums(n=2, loss=2 * mean, moments=(0.1, 0.0, 1e9))
        assert (2 in bounded_losses(sums, {})[1]) == is_outlier


def test_absolute_errors_and_unbounded_means_are_bounded_alike():
    sums = {}
    for client, (error, log_loss) in enumerate([(1.0, 0.5), (2.0, 0.7), (1e30, 1e30), (1.0, None)]):
        sums[client] = MetricSums(
            n=4,
            loss=4.0,
            moments=(4 * error, 1.0, 9.0),
            computed_by_client={"log_loss": log_loss, "brier_score": 2.0},
        )
    bounded, reasons = bounded_losses(
        sums, {name: KNOWN[name] for name in ("log_loss", "brier_score")}
    )
    assert set(reasons) == {2, 3}
    assert bounded[2].moments == (8.0, 1.0, 9.0)
    means = [bounded[client].computed_by_client["log_loss"] for client in range(4)]
    assert means == [0.5, 0.7, 0.7, 0.7]
    assert bounded[0] is sums[0] and bounded[1] is sums[1]


@pytest.mark.parametrize(
    ("metric", "task"), [("brier_score", "classification"), ("mae", "regression")]
)
def test_site_that_leaves_sums_out_takes_no_metric_away(metric, task, tmp_path):
    """Where the metric of all was empty, no round was the best, and `patience` never ended."""
    terms = {"metric": (metric,), "rounds": 4, "select": "best", "quorum": 2, "work": WORK}
    sizes = ((20, 8), (12, 6), (16, 6))
    given = make_clients(sizes)
    if task == "regression":
        terms["data"] = Schema(shape=(6,), task="regression")
        given = []
        for k, client in enumerate(make_clients(sizes)):
            x, test_x = client.train[0], client.test[0]
            given.append(
                ua.ClientData(train=(x, x[:, 0]), test=(test_x, test_x[:, 0]), name=f"site{k}")
            )
    given = [ua.ClientData(train=c.train, test=c.test, val=c.test, name=c.name) for c in given]
    fed = SmallFederation(tmp_path, given, **terms)

    def leave_out(head, facts, tensors):
        for sums in facts.get("tallies", {}).values():
            for part in ("test", "val"):
                sums[part]["computed_by_client"] = {}
                sums[part]["moments"] = []
        return head, facts, tensors

    fed.corrupt("site2", leave_out)
    run = fed.run()
    rounds = run.history.rounds
    assert np.isfinite(rounds[[metric, f"val_{metric}"]]).all(axis=None)
    assert rounds.loc[rounds["selected"], f"val_{metric}"].item() == rounds[f"val_{metric}"].min()
    assert {event["client"] for event in fed.events("outlying loss")} == {"site2"}
    honest = SmallFederation(tmp_path / "honest", given, **terms).run()
    assert run.selected == honest.selected


def clients():
    """Four clients with a linear outcome and validation samples."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=6)
    found = []
    for number, size in enumerate((20, 12, 16, 14)):
        parts = {}
        for part, samples in {"train": size, "test": 6, "val": 6}.items():
            x = rng.normal(size=(samples, 6)).astype(np.float32)
            parts[part] = (x, (x @ weights).astype(np.float32))
        found.append(ua.ClientData(**parts, name=f"site{number}"))
    return found


def federation(folder, **terms):
    data = Schema(shape=(6,), task="regression")
    return SmallFederation(folder, clients(), work=WORK, data=data, **terms)


def lie(loss, honest_rounds):
    """Report this loss of every model but those after `honest_rounds`."""

    def change(head, facts, tensors):
        if not facts.get("tallies") or head.round in honest_rounds:
            return None
        for split in facts["tallies"]["clients"].values():
            split["loss"] = loss
        return head, facts, tensors

    return change


@pytest.mark.parametrize("loss", [1e70, None])
def test_one_site_does_not_choose_the_best_round(loss, tmp_path):
    honest = federation(tmp_path / "honest", rounds=8, select="best").run()
    fed = federation(tmp_path / "attacked", rounds=8, select="best")
    fed.corrupt("site3", lie(loss, honest_rounds=(1,)))
    run = fed.run()
    assert run.selected >= honest.selected - 1 >= 5
    assert {event["client"] for event in fed.events("outlying loss")} == {"site3"}
    rounds = run.history.rounds
    assert np.isfinite(rounds["rmse"]).all()


@pytest.mark.parametrize("loss", [1e70, None])
def test_one_site_does_not_end_a_run_by_patience(loss, tmp_path):
    fed = federation(tmp_path, rounds=8, stop="patience(rounds=2)")
    fed.corrupt("site3", lie(loss, honest_rounds=(0, 1)))
    assert fed.run().history.last["round"] == 8


def test_honest_losses_give_the_round_and_model_of_the_simulation(tmp_path):
    fed = federation(tmp_path, rounds=6, select="best")
    ours, theirs = fed.run(), fed.simulated(select="best")
    assert not fed.events("outlying loss") and ours.selected == theirs.selected
    for name in ("loss", "rmse", "mae", "val_loss", "val_rmse"):
        np.testing.assert_allclose(ours.history.rounds[name], theirs.history.rounds[name], 1e-6)
    for group, tensors in states(theirs).items():
        for name, t in tensors.items():
            assert torch.equal(states(ours)[group][name], t), name
