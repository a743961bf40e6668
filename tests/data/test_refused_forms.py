"""Tables, labels and clients in forms that are read, or refused with what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.runtime.results.prediction import new_samples

ROWS = 20


def table(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50 + seed, 9, rows),
            "ward": np.resize(["a", "b"], rows),
            "outcome": np.resize(["no", "yes", "no"], rows),
        }
    )


@pytest.mark.parametrize(
    "again, name", [("age", "'age'"), ("outcome", "'outcome'"), (1, "'1'"), ("ward", "'ward'")]
)
def test_two_columns_of_one_name_are_refused(again, name):
    frame = table().assign(**{"1": 1.0})
    frame.insert(0, again, frame[str(again)], allow_duplicates=True)
    with pytest.raises(UnalikeError, match=f"the table: two columns have the name {name}"):
        ua.load(frame, target="outcome")


def test_rows_to_predict_with_two_columns_of_one_name_are_refused():
    encoding = ua.load(table(), target="outcome").encoding
    frame = table()
    frame.insert(0, "age", 1.0, allow_duplicates=True)
    with pytest.raises(UnalikeError, match="two columns have the name 'age'"):
        new_samples(frame, encoding, [encoding.width])


@pytest.mark.parametrize(
    "y, advice",
    [
        (np.eye(3, dtype=np.int64)[np.arange(ROWS) % 3], r"one-hot labels, .* y.argmax\(1\)"),
        (np.eye(3)[np.arange(ROWS) % 3], r"one-hot labels, .* y.argmax\(1\)"),
        (np.eye(3, dtype=bool)[np.arange(ROWS) % 3], r"one-hot labels, .* y.argmax\(1\)"),
        (
            np.resize([0, 1, 1], (ROWS, 5)),
            r"several labels.*task='multilabel', or y.astype\(bool\)",
        ),
        (np.zeros((ROWS, 6, 6, 2), np.int64), "no task has labels of 4 dimensions"),
        (np.resize([4, 0, 2], (ROWS, 5)), "name their task, task= one of counts, .*survival"),
    ],
)
def test_labels_of_several_dimensions_are_refused_with_what_keeps_them(y, advice):
    x = np.ones((ROWS, 3), np.float32)
    with pytest.raises(UnalikeError, match=advice) as refusal:
        ua.Dataset("own", (x, y))
    assert ("argmax" in str(refusal.value)) == ("one-hot" in advice)


def site(classes, labels, seed):
    x = np.random.default_rng(seed).normal(size=(len(labels), 3)).astype(np.float32)
    y = np.array([classes.index(name) for name in labels])
    return ua.Dataset("own", (x, y), test=(x[:4], y[:4]), classes=list(classes))


@pytest.mark.parametrize("as_list", [False, True])
def test_data_sets_are_clients_and_classes_are_matched_by_name(as_list):
    north = site(("no", "yes"), ["no", "yes"] * 5, seed=1)
    south = site(("yes", "maybe", "no"), ["yes", "maybe", "no"] * 4, seed=2)
    given = [north, south] if as_list else {"north": north, "south": south}
    population = ua.Population.of(given)
    assert population.classes == ["no", "yes", "maybe"]
    assert population.names == (["client-0", "client-1"] if as_list else ["north", "south"])
    labels = [population.y[population.train[k]].tolist() for k in range(2)]
    assert labels == [[0, 1] * 5, [1, 2, 0] * 4]
    assert population.test.sizes.tolist() == [4, 4]
    assert len(ua.run("fedavg", given, model="linear", rounds=1).history.rounds) == 2


def test_tables_as_clients_need_one_encoding():
    north = ua.load(table(0), target="outcome")
    own = ua.load(table(1), target="outcome")
    with pytest.raises(UnalikeError, match=r"other scales or categories.*encoding=first\.encoding"):
        ua.Population.of({"north": north, "south": own})
    agreed = ua.load(table(1), target="outcome", encoding=north.encoding)
    population = ua.Population.of({"north": north, "south": agreed})
    assert population.encoding == north.encoding
    assert torch.equal(population.x[population.train[0]], north.train[0])


def test_data_sets_as_data_are_refused_by_name():
    north = site(("no", "yes"), ["no", "yes"] * 5, seed=1)
    with pytest.raises(UnalikeError, match=r"found Dataset, which may have .* as clients"):
        ua.load({"north": north})
