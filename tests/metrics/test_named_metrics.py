from functools import reduce

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import find_task
from unalike.metrics.metric_sums import MetricSums, unpooled
from unalike.metrics.metrics import measure, metric_names, per_client
from unalike.metrics.named_metrics import Metric, own_metric, read
from unalike.metrics.scoring import Scores


def scored(task, y, logits, clients=1):
    z, labels = torch.from_numpy(logits), torch.from_numpy(y)
    loss, predicted = find_task(task).losses(z, labels).numpy(), find_task(task).predict(z).numpy()
    return Scores(np.arange(len(y)) % clients, loss, y, predicted, logits)


def chosen(task, *specs, classes=None):
    return {m.name: m.of(find_task(task), classes) for m in read(specs)}


def samples(task, n=300):
    rng = np.random.default_rng(0)
    if task == "classification":
        y = rng.integers(0, 3, n)
        return y, (rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[y]).astype(np.float32)
    if task == "binary":
        y = rng.random(n) < 0.3
        return y, (rng.normal(size=n) + y).astype(np.float32)
    y = rng.normal(150, 20, n).astype(np.float32)
    return y, (y + rng.normal(0, 5, n)).astype(np.float32)


def test_metrics_of_classes_equal_scikit_learn():
    y, z = samples("classification")
    p = torch.from_numpy(z).softmax(1).double().numpy()
    p /= p.sum(1, keepdims=True)
    specs = (
        "roc_auc",
        "average_precision",
        "f1_macro",
        "balanced_accuracy",
        "log_loss",
        "brier_score",
    )
    found = measure(
        find_task("classification"),
        scored("classification", y, z),
        chosen("classification", *specs),
    )
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(np.eye(3)[y], p))
    assert found["macro_f1"] == pytest.approx(sk.f1_score(y, z.argmax(1), average="macro"))
    assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, z.argmax(1)))
    assert (
        found["log_loss"]
        == pytest.approx(sk.log_loss(y, p), rel=1e-5)
        == pytest.approx(found["loss"], rel=1e-5)
    )
    assert found["brier_score"] == pytest.approx(((p - np.eye(3)[y]) ** 2).sum(1).mean(), rel=1e-5)


def test_metrics_of_binary_labels_equal_scikit_learn_and_two_classes_the_same():
    y, z = samples("binary")
    p = 1 / (1 + np.exp(-z.astype(float)))
    specs = ("average_precision", "roc_auc", "brier_score", "log_loss", "calibration_error")
    found = measure(find_task("binary"), scored("binary", y, z), chosen("binary", *specs))
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(y, z))
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(y, z))
    assert found["brier_score"] == pytest.approx(sk.brier_score_loss(y, p))
    assert found["log_loss"] == pytest.approx(sk.log_loss(y, p))
    two, names = np.stack([np.zeros_like(z), z], 1), ["well", "ill"]
    same = measure(
        find_task("classification"),
        scored("classification", y.astype(int), two),
        chosen("classification", *specs, classes=names),
    )
    assert {n: same[n] for n in specs} == pytest.approx({n: found[n] for n in specs})
    other = chosen("classification", "average_precision(positive='well')", classes=names)
    swapped = measure(
        find_task("classification"), scored("classification", y.astype(int), two), other
    )
    assert swapped["average_precision"] == pytest.approx(sk.average_precision_score(~y, -z))


def test_sensitivity_at_a_specificity_counts_by_hand():
    # negatives at -4..-1, positives at -2.5, 0.5, 1: 3 of 4 negatives are below -1.5, and two positives are above it, 2/3;
    # 2 of 4 are below -2.5, and all positives are not
    z = np.array([-4, -3, -2, -1, -2.5, 0.5, 1], np.float32)
    y = np.array([0, 0, 0, 0, 1, 1, 1], bool)
    found = measure(
        find_task("binary"),
        scored("binary", y, z),
        chosen("binary", "sensitivity_at(specificity=0.75)", "sensitivity_at(specificity=0.5)"),
    )
    assert found["sensitivity_at_75"] == pytest.approx(2 / 3) and found["sensitivity_at_50"] == 1
    none = measure(
        find_task("binary"), scored("binary", y[:4], z[:4]), chosen("binary", "sensitivity_at")
    )
    assert np.isnan(none["sensitivity_at_95"])


def test_calibration_error_counts_by_hand():
    # confidences 0.8, 0.8 (one right) and 0.6 (right): (|1 - 1.6| + |1 - 0.6|) / 3
    z = np.log(np.array([4, 4, 1.5])).astype(np.float32)
    found = measure(
        find_task("binary"),
        scored("binary", np.array([True, False, True]), z),
        chosen("binary", "calibration_error"),
    )
    assert found["calibration_error"] == pytest.approx((0.6 + 0.4) / 3, abs=1e-6)


def test_metrics_of_numbers_equal_scikit_learn_together_and_by_client():
    y, z = samples("regression")
    scores, custom = (
        scored("regression", y, z, clients=4),
        chosen("regression", "r2", "median_absolute_error"),
    )
    assert list(measure(find_task("regression"), scores, custom))[:3] == [
        "r2",
        "median_absolute_error",
        "loss",
    ]
    for k, found in enumerate(per_client(find_task("regression"), scores, 4, custom)):
        own = y[k::4], z[k::4]
        assert found["r2"] == pytest.approx(sk.r2_score(*own)) and found["mae"] == pytest.approx(
            sk.mean_absolute_error(*own)
        )
        assert found["median_absolute_error"] == pytest.approx(sk.median_absolute_error(*own))
    assert np.isnan(
        measure(find_task("regression"), scored("regression", np.full(5, 1.1, np.float32), z[:5]))[
            "r2"
        ]
    )


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_sums_of_clients_give_the_metrics_of_all_where_they_can(task):
    y, z = samples(task)
    specs = {
        "regression": ("r2", "mae"),
        "binary": ("brier_score", "roc_auc"),
        "classification": ("log_loss", "roc_auc"),
    }
    custom = chosen(task, *specs[task])
    sums = []
    for k in range(3):
        own = MetricSums.of(find_task(task), scored(task, y[k::3], z[k::3]), custom)
        sums.append(
            MetricSums.read(
                own.as_fields(), find_task(task), 100, 3 if task == "classification" else 2, custom
            )
        )
    pooled = reduce(lambda a, b: a.added(b, custom), sums, MetricSums()).metrics(
        find_task(task), custom
    )
    whole = measure(find_task(task), scored(task, y, z), custom)
    alone = {"roc_auc", "average_precision"}
    assert list(pooled) == list(whole) == list(metric_names(find_task(task), custom))
    for name, value in whole.items():
        assert (
            np.isnan(pooled[name])
            if name in alone
            else pooled[name] == pytest.approx(value, rel=1e-5)
        )


def test_sums_of_clients_pool_a_mean_that_another_package_registered_and_no_other_metric():
    task, (y, z) = find_task("classification"), samples("classification")
    errors = Metric(
        "error_rate",
        -1,
        "Errors",
        "errors",
        formula=lambda y, p, z: float((y != p).mean()),
        is_mean=True,
    )
    custom = {"error_rate": errors, "mine": own_metric("mine", lambda y, p, z: 1.0)}
    parts = [slice(0, 50), slice(50, 300)]
    sums = [MetricSums.of(task, scored("classification", y[p], z[p]), custom) for p in parts]
    pooled = reduce(lambda a, b: a.added(b, custom), sums, MetricSums()).metrics(task, custom)
    assert pooled["error_rate"] == pytest.approx((y != z.argmax(1)).mean()) and np.isnan(
        pooled["mine"]
    )
    assert unpooled(task, custom) == ("mine",)
    with pytest.raises(UnalikeError, match="error_rate of metric sums is not a number from 0 to 1"):
        MetricSums.read(
            sums[0].as_fields() | {"computed_by_client": {"error_rate": 2.0}}, task, 50, 3, custom
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"computed_by_client": {"brier_score": 3.0}}, "not a number from 0 to 2"),
        ({"computed_by_client": {"brier_score": "low"}}, "not a number"),
        ({"computed_by_client": {"cost": 1.0}}, "metrics other than brier_score"),
        ({"computed_by_client": 3}, "metrics other than"),
        ({"moments": [1.0]}, "not three numbers"),
        ({"moments": [1.0, float("inf"), 1.0]}, "finite"),
    ],
)
def test_impossible_sums_are_refused(change, words):
    task = "regression" if "moments" in change else "classification"
    y, z = samples(task)
    custom = {} if task == "regression" else chosen(task, "brier_score")
    sums = MetricSums.of(find_task(task), scored(task, y, z), custom).as_fields()
    with pytest.raises(UnalikeError, match=words):
        MetricSums.read(sums | change, find_task(task), 300, 3, custom)


def test_unknown_or_unfit_metrics_are_refused():
    for spec, words in [
        ("roc_acu", "unknown metric 'roc_acu'; did you mean 'roc_auc'"),
        ("sensitivity_at(specificity=2)", "expected a share"),
        ("roc_auc(x=1)", "takes roc_auc"),
    ]:
        with pytest.raises(UnalikeError, match=words):
            read([spec])
    with pytest.raises(UnalikeError, match="each once"):
        read(["f1_macro", "macro_f1"])
    for task, spec, classes, words in [
        ("regression", "roc_auc", None, "not defined for regression; expected one of rmse"),
        ("classification", "r2", ["a", "b"], "not defined for classification"),
        (
            "classification",
            "sensitivity_at",
            ["a", "b", "c"],
            "defined for two classes; the data has 3",
        ),
        ("classification", "sensitivity_at(positive='c')", ["a", "b"], "'c'"),
    ]:
        with pytest.raises(UnalikeError, match=words):
            chosen(task, spec, classes=classes)


def test_error_in_a_metric_of_ones_own_names_the_metric():
    failing = own_metric("cost", lambda labels, predicted, logits: 1 / 0)
    with pytest.raises(ZeroDivisionError) as failed:
        failing(*(np.zeros(3) for _ in range(3)))
    assert "in the metric 'cost'" in failed.value.__notes__[0]
