"""`run.predict`: a column a class, ids, notes on values that training never had, and whose model predicts."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import unalike as ua

WORK = ua.Work(lr=0.1, batch_size=16)


def patients(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 9, rows).round(1)
    return pd.DataFrame(
        {
            "patient_id": np.arange(rows) + 1000,
            "age": age,
            "ward": rng.choice(["lungs", "heart"], rows),
            "hospital": rng.choice(["north", "south"], rows),
            "died": np.where(age + rng.normal(0, 5, rows) > 62, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "patients.csv"
    patients().to_csv(file, index=False)
    return ua.load(file, target="died", group="hospital", drop="patient_id")


@pytest.fixture
def train(table, tmp_path):
    """A run of a method on the two hospitals, as it ended and as it is read from its folder."""

    def runs(method, **options):
        clients = ua.partition(table)
        run = ua.run(
            method, clients, model="linear", rounds=2, work=WORK, out=tmp_path / "run", **options
        )
        return run, ua.open_run(tmp_path / "run")

    return runs


def test_a_table_gives_the_probability_of_each_class_and_keeps_ids(train, table):
    new = (
        patients(7, seed=1).set_index(pd.Index(list("abcdefg"))).drop(columns=["died", "hospital"])
    )
    x = table.encoding.apply(new, "new")
    for run in train("fedavg"):
        found = run.predict(new, keep="patient_id")
        assert list(found) == ["patient_id", "prediction", "probability_no", "probability_yes"]
        assert (
            list(found.index) == list("abcdefg")
            and (found["patient_id"] == new["patient_id"]).all()
        )
        with torch.no_grad():
            chances = run.module().eval()(x).softmax(1)
        np.testing.assert_allclose(found.filter(like="probability"), chances.numpy(), rtol=1e-5)
        assert (found["prediction"] == np.where(chances[:, 1] > 0.5, "yes", "no")).all()


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_files_need_no_target_and_keep_their_order(train, tmp_path, ending):
    new, file = patients(9, seed=2).drop(columns="died"), tmp_path / f"new{ending}"
    new.to_csv(file, index=False, sep="\t" if ending == ".tsv" else ",")
    for run in train("fedavg"):
        of_file = run.predict(file, keep=["patient_id", "hospital"])
        pd.testing.assert_frame_equal(
            of_file.rename_axis(None), run.predict(new, keep=["patient_id", "hospital"])
        )


def test_a_table_without_a_target_loads_with_an_encoding_and_can_only_be_predicted(
    train, table, tmp_path
):
    new, file = patients(9, seed=2).drop(columns="died"), tmp_path / "new.csv"
    new.to_csv(file, index=False)
    loaded = ua.load(file, encoding=table.encoding, group="hospital")
    assert (
        repr(loaded) == "<Dataset new: 9 training and 0 test samples of shape (3,), without labels>"
    )
    assert list(loaded.groups["hospital"]) == list(new["hospital"])
    run, _ = train("fedavg")
    pd.testing.assert_frame_equal(run.predict(loaded), run.predict(file))
    pd.testing.assert_frame_equal(run.predict(loaded.merged()[0].numpy()), run.predict(file))
    for use in (lambda: ua.partition(loaded), lambda: loaded.known_task):
        with pytest.raises(
            ua.UnalikeError, match=r"the labels of new are not known.*--target COLUMN"
        ):
            use()


def test_values_that_no_training_row_had_are_noted_and_read(train):
    new = patients(5, seed=3).assign(
        ward=["eyes", "heart", "eyes", "ears", None], age=[60, np.nan, 61, 62, 63]
    )
    run, _ = train("fedavg")
    with pytest.warns(UserWarning) as notes:
        found = run.predict(new)
    texts = [str(note.message) for note in notes]
    assert (
        "the column 'ward' holds 'eyes' (2 rows), 'ears' (1 row), '(missing)' (1 row), which no training row had"
        in texts[1]
    )
    assert (
        "the column 'age' has no value in 1 row, and had one in every training row: read as "
        in texts[0]
    )
    assert len(texts) == 2 and found.notna().all(axis=None)
    with pytest.warns(
        UserWarning,
        match=r"'age' has a mean 7\d.* standard deviations from its mean in training \(other units\?\)",
    ):
        run.predict(patients(5, seed=3).assign(age=720))  # months
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.predict(patients(5, seed=3))


def test_errors_name_the_columns(train):
    run, _ = train("fedavg")
    new = patients(3)
    with pytest.raises(
        ua.UnalikeError,
        match="found no columns 'age', 'ward', which the model reads; it has patient_id",
    ):
        run.predict(new.drop(columns=["age", "ward"]))
    with pytest.raises(ua.UnalikeError, match="found no column 'ward', expected one of texts"):
        run.predict(new.drop(columns="ward"))
    with pytest.raises(ua.UnalikeError, match="no column 'patient'; did you mean 'patient_id'"):
        run.predict(new, keep="patient")
    with pytest.raises(
        ua.UnalikeError, match="'prediction' has the name of a column of predictions"
    ):
        run.predict(new.assign(prediction=1), keep="prediction")
    with pytest.raises(ua.UnalikeError, match=r"shape \[4\], the model takes \[3\]"):
        run.predict(np.zeros((2, 4), np.float32))
    with pytest.raises(ua.UnalikeError, match=r"found keep=\['age'\] for data that is no table"):
        run.predict(np.zeros((2, 3), np.float32), keep="age")


def test_regression_is_in_the_unit_of_the_target_and_binary_has_two_columns(tmp_path):
    frame, file = patients(80).drop(columns="patient_id"), tmp_path / "p.csv"
    noise = np.random.default_rng(0).normal(scale=0.1, size=len(frame))
    frame.assign(stay=frame["age"] / 10 + noise).drop(columns="died").to_csv(file, index=False)
    run = ua.run(
        "fedavg",
        ua.partition(ua.load(file, target="stay", group="hospital")),
        model="linear",
        rounds=30,
        work=WORK,
    )
    found = run.predict(file)
    assert (
        list(found) == ["prediction"]
        and np.abs(found["prediction"] - frame["age"] / 10).mean() < 0.5
    )
    frame.assign(died=frame["died"] == "yes").to_csv(file, index=False)
    run = ua.run(
        "fedavg",
        ua.partition(ua.load(file, target="died", group="hospital")),
        model="linear",
        rounds=5,
        work=WORK,
    )
    found = run.predict(file)
    assert list(found) == ["prediction", "probability_False", "probability_True"]
    assert (found["prediction"] == np.where(found["probability_True"] > 0.5, "True", "False")).all()


@pytest.mark.parametrize("method", ["ditto", "apfl", "fedper", "local_only", "fedavg + fine_tuned"])
def test_a_client_is_chosen_by_name_and_the_shared_model_only_with_a_note(train, table, method):
    run, opened = train(method)
    new = patients(6, seed=4)
    x = table.encoding.apply(new, "new")
    with torch.no_grad():
        own = run.predictor("north")(x).softmax(1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run.predict(new, client="north").filter(like="probability")
    np.testing.assert_allclose(found, own, rtol=1e-5)
    if run._runner.state.has_shared_model:
        with pytest.warns(UserWarning, match="the only one for a client that never trained"):
            shared = opened.predict(new)
        with torch.no_grad():
            chances = run.module().eval()(x).softmax(1).numpy()
        np.testing.assert_allclose(shared.filter(like="probability"), chances, rtol=1e-5)
    else:
        with pytest.raises(
            ua.UnalikeError,
            match=f"the run of {method} has no shared model: .* a client that never trained",
        ):
            opened.predict(new)


def normalized():
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("ifca(clusters=2)", {}, "has 2 models, one for each group of clients"),
        ("fedavg", {"buffers": "local", "model": normalized}, "its own batch-norm statistics"),
        (
            "conditional",
            {"model": "conditional_mlp"},
            "feeds its model facts of each client's own samples",
        ),
    ],
)
def test_methods_without_one_model_for_everybody_say_why(table, method, options, reason):
    clients = ua.partition(table)
    run = ua.run(method, clients, **{"model": "linear", "rounds": 2, "work": WORK} | options)
    with pytest.raises(
        ua.UnalikeError, match=f"{reason}.*; so it has no model for a client that never trained"
    ):
        run.predict(patients(3))
    assert len(run.predict(patients(3), client="south")) == 3


def test_images_are_prepared_as_in_evaluation():
    data = ua.load("digits")
    clients = ua.partition(data, "iid", clients=3)
    run = ua.run(
        "fedavg",
        clients,
        model="linear",
        rounds=3,
        transform="normalize(mean=0.5, std=0.25)",
        work=WORK,
    )
    x, y = (np.concatenate([client.test[i] for client in clients]) for i in (0, 1))
    found = run.predict(x)
    assert (found["prediction"].astype(int) == y).mean() == pytest.approx(
        run.history.last["accuracy"]
    )
