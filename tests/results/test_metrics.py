"""Metrics of many clients at once, by hand and against scikit-learn."""

import math
import warnings

import numpy as np
import pytest
from sklearn import metrics as sk

from unalike.core.task import TASKS
from unalike.results.evaluation import Scores, measure, metric_names, per_client


def scores(client, y, predicted, logit=None):
    y, predicted = np.asarray(y), np.asarray(predicted)
    logit = np.zeros(len(y)) if logit is None else np.asarray(logit, np.float32)
    return Scores(np.asarray(client), np.full(len(y), 0.5, np.float32), y, predicted, logit)


def test_balanced_accuracy_by_hand():
    """Client 4: recall 2/3 of class 0, 1 of class 2; class 1 is only predicted. Client 7 has no sample."""
    found = per_client(TASKS["classification"], scores([4] * 4, [0, 0, 0, 2], [0, 0, 1, 2]), [7, 4])
    assert found[4]["balanced_accuracy"] == pytest.approx(5 / 6) and found[4]["accuracy"] == 0.75
    assert found[4]["macro_f1"] == pytest.approx((4 / 5 + 0 + 1) / 3) and list(found) == [7, 4]
    assert all(map(math.isnan, found[7].values()))


def test_areas_by_hand():
    """Logits 3+ 2- 1+ 1-: 3 beats both, 1 ties with one: AUROC (2 + 1/2) / 4; AUPRC 1/2 * 1 + 1/2 * 2/4."""
    found = measure(TASKS["binary"], scores([0] * 4, [True, False, True, False], [True] * 4, [3, 2, 1, 1]))
    assert (found["auroc"], found["auprc"]) == (0.625, 0.75)


def test_one_class_has_no_area():
    found = measure(TASKS["binary"], scores([0, 0], [True, True], [True, False], [1, -1]))
    assert math.isnan(found["auroc"]) and math.isnan(found["auprc"]) and found["balanced_accuracy"] == 0.5
    assert all(map(math.isnan, measure(TASKS["binary"], scores([], [], [])).values()))


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_every_client_agrees_with_scikit_learn(task):
    rng = np.random.default_rng(0)
    client = rng.permutation(np.repeat(np.arange(30), 12))
    logit = rng.normal(size=360).round(1)  # with ties
    y, guess = (rng.random(360) < 0.4, logit > 0) if task == "binary" else rng.integers(0, 5, (2, 360))
    found = per_client(TASKS[task], scores(client, y, guess, logit), range(30))
    for k, row in found.items():
        own = client == k
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about classes that are predicted only
            expected = {
                "accuracy": sk.accuracy_score(y[own], guess[own]),
                "macro_f1": sk.f1_score(y[own], guess[own], average="macro"),
                "balanced_accuracy": sk.balanced_accuracy_score(y[own], guess[own]),
            }
        if task == "binary" and len(set(y[own])) == 2:
            expected["auroc"] = sk.roc_auc_score(y[own], logit[own])
            expected["auprc"] = sk.average_precision_score(y[own], logit[own])
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-12)  # order of summation
        assert tuple(row) == metric_names(TASKS[task])
