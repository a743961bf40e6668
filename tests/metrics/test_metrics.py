"""Metrics compared with hand-computed values and with scikit-learn, for one and for many clients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sk

import unalike as ua
from unalike.core.tasks.registry import find_task
from unalike.metrics import metrics as m
from unalike.metrics.metrics import measure, own_metrics, per_client
from unalike.metrics.scoring import Scores


def scores(client, y, predicted, logits=None, loss=None):
    n = len(y)
    logits = np.zeros(n) if logits is None else np.asarray(logits, float)
    loss = np.ones(n) if loss is None else np.asarray(loss, float)
    return Scores(np.asarray(client), loss, np.asarray(y), np.asarray(predicted), logits)


def test_measure_equals_hand_computed_values():
    """y = 0 0 0 1, guessed 0 0 1 1: recalls 2/3 and 1; F1 of class 0 is 4/5, of class 1 2/3; class 2 does not occur."""
    found = measure(
        find_task("classification"), scores([0] * 4, [0, 0, 0, 1], [0, 0, 1, 1], loss=[1, 2, 3, 6])
    )
    assert found == pytest.approx(
        {"loss": 3, "accuracy": 3 / 4, "macro_f1": (4 / 5 + 2 / 3) / 2, "balanced_accuracy": 5 / 6}
    )


def test_areas_equal_hand_computed_values():
    """Positives at 3 and 1, negatives at 2 and 1: pairs 3>2, 3>1, 1<2, 1=1: 2.5 of 4. Thresholds 3, 2, 1: precision 1, 1/2, 1/2."""
    y = np.array([True, False, True, False])
    found = measure(find_task("binary"), scores([0] * 4, y, y, [3.0, 2.0, 1.0, 1.0]))
    assert (found["roc_auc"], found["average_precision"]) == pytest.approx(
        (2.5 / 4, 1 / 2 * 1 + 1 / 2 * 2 / 4)
    )
    broken = measure(find_task("binary"), scores([0] * 4, y, y, [3.0, math.nan, 1.0, 1.0]))
    assert (
        math.isnan(broken["roc_auc"])
        and math.isnan(broken["average_precision"])
        and broken["accuracy"] == 1
    )


@pytest.mark.parametrize("seed", range(8))
def test_metrics_equal_scikit_learn(seed):
    """Random labels and logits with many ties, clients of 0 to 40 samples, some with one class only."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 40, 12)
    client = rng.permutation(np.repeat(np.arange(12), sizes))
    y = rng.random(len(client)) < rng.choice([0.0, 0.3, 0.5, 1.0], 12)[client]
    logits = rng.normal(size=len(y)).round(1) + y
    found = per_client(find_task("binary"), scores(client, y, logits > 0, logits), 12)
    for k in range(12):
        own = client == k
        if not own.any():
            assert all(math.isnan(v) for v in found[k].values())
            continue
        truth, guess = y[own], logits[own] > 0
        assert found[k]["accuracy"] == pytest.approx(sk.accuracy_score(truth, guess))
        assert found[k]["macro_f1"] == pytest.approx(
            sk.f1_score(truth, guess, average="macro", zero_division=0)
        )
        recalls = sk.recall_score(
            truth, guess, average=None, zero_division=0, labels=np.unique(truth)
        )
        assert found[k]["balanced_accuracy"] == pytest.approx(recalls.mean())
        if truth.all() or not truth.any():
            assert math.isnan(found[k]["roc_auc"]) and math.isnan(found[k]["average_precision"])
        else:
            assert found[k]["roc_auc"] == pytest.approx(sk.roc_auc_score(truth, logits[own]))
            assert found[k]["average_precision"] == pytest.approx(
                sk.average_precision_score(truth, logits[own])
            )


@pytest.mark.parametrize("block", [1, 7, 2**22])
def test_per_client_in_blocks_equals_one_by_one(monkeypatch, block):
    """Counting clients in blocks changes nothing; scikit-learn gives the same for ten classes."""
    monkeypatch.setattr(m, "MAX_COUNTS_AT_ONCE", block)
    rng = np.random.default_rng(0)
    client, y, guess = rng.integers(0, 9, 300), rng.integers(0, 10, 300), rng.integers(0, 10, 300)
    found = per_client(find_task("classification"), scores(client, y, guess), 10)
    for k in range(9):
        own = client == k
        assert found[k]["macro_f1"] == pytest.approx(
            sk.f1_score(y[own], guess[own], average="macro", zero_division=0)
        )
        recall = sk.recall_score(
            y[own], guess[own], average=None, labels=np.unique(y[own]), zero_division=0
        ).mean()
        assert found[k]["balanced_accuracy"] == pytest.approx(recall)
    assert math.isnan(found[9]["accuracy"])
    assert (
        measure(find_task("classification"), scores(client, y, guess))["accuracy"]
        == (y == guess).mean()
    )


def test_measure_regression_gives_rmse():
    found = measure(find_task("regression"), scores([0, 0], [1.0, 2.0], [1.0, 4.0], loss=[0, 4]))
    assert {n: found[n] for n in ("loss", "rmse")} == pytest.approx(
        {"loss": 2, "rmse": math.sqrt(2)}
    )


def test_measure_user_metric_is_computed():
    """A user's metric gets labels, predictions and logits of each client and of all, and every protocol records it."""
    rng = np.random.default_rng(0)
    people = [
        ua.ClientData(
            (rng.normal(size=(9, 4)), rng.integers(0, 3, 9)),
            (rng.normal(size=(5, 4)), rng.integers(0, 3, 5)),
        )
    ] * 3

    def confidence(y, predicted, logits):
        assert logits.shape == (len(y), 3) and (logits.argmax(1) == predicted).all()
        return np.exp(logits - np.logaddexp.reduce(logits, 1)[:, None]).max(1).mean()

    with pytest.warns(UserWarning, match="'confidence >= 9' reads test samples"):
        run = ua.run(
            "ditto",
            people,
            model="linear",
            rounds=2,
            metrics={"confidence": confidence},
            stop="confidence >= 9",
        )
    for table in (run.history.rounds, run.history.clients):
        assert table[["confidence", "personal_confidence"]].notna().all(axis=None)
    assert run.config["metrics"] == ["confidence"]
    last = run.history.clients.query("round == 2")["confidence"]
    assert last.mean() == pytest.approx(run.history.rounds["confidence"].iloc[-1])  # equal sizes


def test_history_of_binary_task_has_area_columns():
    rng = np.random.default_rng(1)
    people = [
        ua.ClientData(*[(rng.normal(size=(n, 4)), rng.random(n) < 0.5) for n in (9, 7)])
        for _ in range(3)
    ]
    rounds = ua.run("fedavg", people, model="linear", rounds=2).history.rounds
    assert rounds[["balanced_accuracy", "roc_auc", "average_precision"]].notna().all(axis=None)


@pytest.mark.parametrize(
    "name",
    [
        "accuracy",
        "rmse",
        "roc_auc",
        "val_mine",
        "my metric",
        "min_x",
        "selected",
        "preselected",
        "bytes",
    ],
)
def test_metric_names_used_name_is_refused(name):
    with pytest.raises(ua.UnalikeError, match="metrics: found the name"):
        own_metrics({name: lambda y, p, s: 0.0})


def test_metric_names_reserve_every_column():
    rng = np.random.default_rng(2)
    people = [ua.ClientData(*[(rng.normal(size=(9, 4)), rng.normal(size=9))] * 3) for _ in range(3)]
    table = ua.compare(
        ["fedavg", "ditto"], people, model="linear", rounds=1, seeds=1, select="best"
    )
    for name in {*table.rounds, *table.clients, *table.summary}:
        with pytest.raises(ua.UnalikeError, match="metrics: found the name"):
            own_metrics({name: lambda y, p, s: 0.0})


def test_report_accepts_every_free_metric_name(tmp_path):
    rng = np.random.default_rng(2)
    people = [
        ua.ClientData(*[(rng.normal(size=(9, 4)), rng.integers(0, 2, 9))] * 2) for _ in range(3)
    ]
    own = dict.fromkeys(
        ("worst", "better_off", "worse_off", "largest_loss", "mb"), lambda y, p, s: 7.5
    )
    table = ua.compare(["fedavg", "ditto"], people, model="linear", rounds=1, seeds=1, metrics=own)
    assert (
        "Worst client" in table.report(tmp_path / "report.html").read_text()
        and (table.summary["worst"] == 7.5).all()
    )


def test_user_metric_that_overwrites_arguments_changes_no_other():
    def spoils(y, predicted, logits):
        for given in (y, predicted, logits):
            given.fill(0)
        return 0.0

    custom = {"spoils": spoils, "hits": lambda y, predicted, logits: float((y == predicted).mean())}
    found = measure(
        find_task("classification"),
        scores([0] * 4, [0, 0, 0, 1], [0, 0, 1, 1]),
        own_metrics(custom),
    )
    assert found["hits"] == found["accuracy"] == 3 / 4
