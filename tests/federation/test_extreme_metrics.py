"""Metric sums of one site that no samples have: the site is refused, and the run goes on with the others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_federation import SmallFederation, key_of, make_clients

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import find_task
from unalike.federation.protocol.envelope import seal
from unalike.federation.protocol.federation_file import Schema
from unalike.metrics.metric_sums import (
    LARGEST_LABEL,
    LARGEST_SCORE,
    MetricSums,
    names_computed_by_client,
)
from unalike.metrics.named_metrics import KNOWN

EXTREME = (
    1.7976931348623157e308,
    -1.7976931348623157e308,
    1e300,
    1e160,
    5e-324,
    -0.0,
    -1,
    10**400,
    -(10**400),
    2**63,
    10**30,
    True,
    None,
    "inf",
    [],
    {},
)
"""JSON values that a number of a message may be replaced by; NaN and infinity are no JSON."""
SIZES = ((20, 8), (12, 6), (16, 6))
SAMPLES = 6
TASKS = ("classification", "binary", "regression")


def honest_fields(task, rng):
    """The fields of an honest site with `SAMPLES` test samples, and with the means that a run may choose."""
    fields = {"n": SAMPLES, "loss": 2.5, "true": [], "guessed": [], "right": [], "moments": []}
    if task == "regression":
        y = rng.normal(size=SAMPLES)
        fields["moments"] = [3.0, float(y.sum()), float((y**2).sum())]
        return fields | {"computed_by_client": {}}
    fields |= {"true": [2, 4], "guessed": [3, 3], "right": [2, 3]}
    areas = {"roc_auc": 0.5, "average_precision": 0.25}
    return fields | {"computed_by_client": {"log_loss": 0.7} | areas}


def changed(value, rng):
    """A value of a message with one of its numbers replaced."""
    if isinstance(value, dict) and value:
        name = str(rng.choice(list(value)))
        return value | {name: changed(value[name], rng)}
    if isinstance(value, list) and value:
        place = int(rng.integers(len(value)))
        return [*value[:place], changed(value[place], rng), *value[place + 1 :]]
    return EXTREME[int(rng.integers(len(EXTREME)))]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("task", TASKS)
def test_metric_sums_with_extreme_numbers_are_refused_or_give_metrics_with_others(task):
    rng = np.random.default_rng(0)
    chosen = {} if task == "regression" else {"log_loss": KNOWN["log_loss"]}
    kind = find_task(task)
    kind = kind.of(["no", "yes"])
    names = {"task": kind, "samples": SAMPLES, "classes": 2, "chosen": chosen}
    others = honest_fields(task, rng)
    computed = names_computed_by_client(kind, chosen)
    values = others["computed_by_client"]
    others["computed_by_client"] = {name: values[name] for name in computed if name in values}
    honest = MetricSums.read(others, **names)
    refused = 0
    for _ in range(2000):
        fields = others
        for _ in range(int(rng.integers(1, 4))):
            fields = changed(fields, rng)
        try:
            sums = MetricSums.read(fields, **names)
        except UnalikeError:
            refused += 1
            continue
        pooled = honest.added(sums, chosen).added(sums, chosen)
        kinds = {type(value) for value in sums.computed_by_client.values()}
        assert kinds <= {float, type(None)}  # tables store no whole number of any size
        assert set(pooled.metrics(kind, chosen)) == set(honest.metrics(kind, chosen))
    assert 200 < refused < 2000


@pytest.mark.filterwarnings("error")
def test_metric_sums_at_their_bounds_give_finite_metrics_of_many_sites():
    """The largest sums that are accepted, of 1,000 sites: nothing overflows."""
    task = find_task("regression")
    largest = [2 * SAMPLES * LARGEST_LABEL, SAMPLES * LARGEST_LABEL, SAMPLES * LARGEST_LABEL**2]
    fields = {"n": SAMPLES, "loss": SAMPLES * LARGEST_SCORE, "moments": largest}
    fields |= {"true": [], "guessed": [], "right": [], "computed_by_client": {}}
    one = MetricSums.read(fields, task=task, samples=SAMPLES, classes=2)
    total = MetricSums()
    for _ in range(1000):
        total = total.added(one)
    metrics = total.metrics(task)
    assert np.isfinite([metrics["loss"], metrics["rmse"], metrics["mae"]]).all()


def regression_clients():
    """Three clients with a linear outcome."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=6)
    clients = []
    for number, (train, test) in enumerate(SIZES):
        x = rng.normal(size=(train + test, 6)).astype(np.float32)
        y = (x @ weights).astype(np.float32)
        clients.append(
            ua.ClientData(
                train=(x[:train], y[:train]), test=(x[train:], y[train:]), name=f"site{number}"
            )
        )
    return clients


def regression_terms():
    return {"data": Schema(shape=(6,), task="regression"), "work": ua.Work(batch_size=5, lr=0.02)}


@pytest.mark.parametrize("moments", [[1.0, 1e300, 1.0], [1.0, 1.7e308, 1.7e308]])
def test_labels_beyond_float32_of_one_site_do_not_end_a_regression(moments, tmp_path):
    fed = SmallFederation(tmp_path, regression_clients(), rounds=2, **regression_terms())

    def lie(head, facts, tensors):
        if not facts.get("tallies"):
            return None
        facts["tallies"]["clients"]["test"]["moments"] = moments
        return head, facts, tensors

    fed.corrupt("site2", lie)
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 2, 2]
    assert {event["client"] for event in fed.events("refused")} == {"site2"}
    assert np.isfinite(run.history.rounds["r2"]).all()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_run_goes_on_through_rounds_of_extreme_metric_sums(task, tmp_path):
    clients, terms = make_clients(SIZES), {}
    if task == "regression":
        clients, terms = regression_clients(), regression_terms()
    fed = SmallFederation(tmp_path, clients, rounds=30, quorum=2, deadline=20.0, **terms)
    rng = np.random.default_rng(1)

    def lie(head, facts, tensors):
        if not facts.get("tallies"):
            return None
        facts = json.loads(json.dumps(facts))
        facts["tallies"] = changed(facts["tallies"], rng)
        return seal(head, facts, tensors, key_of(2))

    fed.corrupt("site2", lie)
    run = fed.run()
    assert len(run.history) == 31
    assert {event["client"] for event in fed.events("refused")} == {"site2"}
    assert (run.history.rounds["participants"][1:] >= 2).all()
