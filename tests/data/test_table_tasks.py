"""Tables whose labels are several columns: counts with an exposure, times with events, several targets."""

import numpy as np
import pandas as pd
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.sources.table_summary import agreed, summarize


@pytest.fixture
def visits():
    rng = np.random.default_rng(0)
    rows = 60
    return pd.DataFrame(
        {
            "age": rng.normal(60, 10, rows),
            "hospital": np.repeat(["a", "b", "c"], 20),
            "days": rng.integers(10, 300, rows),
            "falls": rng.poisson(2.0, rows),
            "died": rng.choice(["no", "yes"], rows),
            "fever": rng.random(rows) < 0.5,
            "cost": rng.normal(size=rows),
        }
    )


def names(visits, *unread):
    return [column for column in visits if column not in ("age", "hospital", *unread)]


def in_order(data, values):
    """Values of the rows as the data set has them: every fifth row tests."""
    test = np.arange(len(values)) % 5 == 4
    return np.concatenate([values[~test], values[test]])


def test_counts_have_an_exposure_that_is_no_feature(visits):
    data = ua.load(
        visits,
        task="counts",
        target="falls",
        offset="log(days / 100)",
        group="hospital",
        drop=names(visits, "falls", "days"),
    )
    assert data.task.name == "counts" and data.encoding.names == ["age"]
    assert data.encoding.target == ("falls", "log(days / 100)")
    labels = np.column_stack([visits["falls"], np.log(visits["days"] / 100)])
    np.testing.assert_allclose(data.merged()[1], in_order(data, labels), rtol=1e-5)
    # the same columns are read again by the encoding
    again = ua.load(visits, encoding=data.encoding, labelled=True, task="counts")
    np.testing.assert_array_equal(again.merged()[1], data.merged()[1])


def test_survival_has_a_time_and_an_event(visits):
    options = {"group": "hospital", "drop": names(visits, "days", "died")}
    data = ua.load(visits, task="survival", time="days", event="died == yes", **options)
    labels = np.column_stack([visits["days"], visits["died"] == "yes"])
    np.testing.assert_array_equal(data.merged()[1], in_order(data, labels))
    population = ua.partition(data)
    assert len(population) == 3 and population.outputs is None
    with pytest.raises(UnalikeError, match=r"the target 'died' holds text.*'died == yes'"):
        ua.load(visits, task="survival", time="days", event="died", **options)
    with pytest.raises(UnalikeError, match="expected a time and an event together"):
        ua.load(visits, task="survival", time="days", **options)


def test_several_targets_are_several_labels_or_amounts(visits):
    drop = names(visits, "died", "fever", "cost", "days")
    labels = ua.load(
        visits, target=["fever", "died == yes"], group="hospital", drop=[*drop, "cost", "days"]
    )
    assert labels.task.name == "multilabel" and labels.train[1].shape == (48, 2)
    amounts = ua.load(
        visits, target=["cost", "days / 100"], group="hospital", drop=[*drop, "fever", "died"]
    )
    assert amounts.task.name == "amounts" and amounts.encoding.names == ["age"]
    run = ua.run("fedavg", ua.partition(amounts), model="linear", rounds=1)
    predicted = run.predict(visits)
    assert list(predicted) == ["prediction_cost", "prediction_days / 100"]


def test_sites_agree_on_labels_of_several_columns(visits, tmp_path):
    summaries = {}
    for hospital, rows in visits.groupby("hospital"):
        file = tmp_path / f"{hospital}.csv"
        rows.to_csv(file, index=False)
        summaries[hospital] = summarize(
            file,
            task="survival",
            time="days",
            event="fever",
            group=["hospital"],
            drop=names(visits, "days", "fever"),
        )
    encoding, target = agreed(summaries)
    assert (target.kind, target.label_shape) == ("survival", (2,))
    assert encoding.target == target.name == ("days", "fever")
