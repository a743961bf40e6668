"""`run.export`: the folder predicts as the run does, in a process that cannot import the library."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import unalike as ua
from unalike.data.sources.delimited import MISSING_TEXTS
from unalike.models.densenet import DenseNet
from unalike.models.registry import registry

WORK = ua.Work(lr=0.1, batch_size=16)
ALONE = """
import runpy, sys
for name in ("unalike", "pandas", "numpy"):
    sys.modules[name] = None  # `import` of it fails
try:
    import unalike
except ImportError:
    words = sys.argv[1:]
    for script, data in zip(words[::2], words[1::2]):
        sys.argv = [script, data]
        print("#", flush=True)
        runpy.run_path(script, run_name="__main__")
"""


def predicted(folder, data):
    """The table that the exported script prints, in a process without this library."""
    [table] = predicted_by_each([(folder, data)])
    return table


def predicted_by_each(exported):
    """The tables of several exported folders and their data, all in one such process."""
    words = [str(word) for folder, data in exported for word in (folder / "predict.py", data)]
    command = [sys.executable, "-W", "ignore", "-c", ALONE, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=exported[0][0].parent)
    assert done.returncode == 0, done.stderr
    tables = done.stdout.split("#\n")[1:]
    return [
        pd.read_csv(io.StringIO(table), keep_default_na=False).set_index("sample")
        for table in tables
    ]


def same(found, run, data, client=None):
    wanted = run.predict(data, client=client)
    assert list(found) == list(wanted) and len(found) == len(wanted)
    numbers = wanted.select_dtypes("number").columns
    np.testing.assert_allclose(found[numbers], wanted[numbers], rtol=1e-6, atol=1e-6)
    if "prediction" not in numbers:
        assert (found["prediction"].astype(str) == wanted["prediction"]).all()


def patients(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 9, rows).round(2)
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            "visits": rng.integers(0, 9, rows),
            "smokes": rng.random(rows) < 0.5,
            "drinks": pd.Series(rng.random(rows) < 0.5, dtype=object).where(
                rng.random(rows) < 0.9, None
            ),
            "ward": rng.choice(["heart", "lungs", "01", ""], rows),
            "hospital": rng.choice(["north", "south"], rows),
        }
    )
    return frame.assign(died=np.where(age + rng.normal(0, 5, rows) > 62, "yes", "no"))


@pytest.fixture
def clients(tmp_path):
    patients().to_csv(tmp_path / "patients.csv", index=False)
    return ua.partition(ua.load(tmp_path / "patients.csv", target="died", group="hospital"))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "client"), [("fedavg", None), ("apfl", "north")])
def test_rows_of_a_table_are_encoded_and_predicted_alike(clients, tmp_path, method, client):
    """Also missing numbers, truth in other spellings, new categories, columns in another order and beside them."""
    run = ua.run(
        method, clients, model="mlp(hidden=(8,))", rounds=3, work=WORK, out=tmp_path / "run"
    )
    new = patients(50, seed=1).drop(columns=["died", "hospital"])[::-1].assign(other="a,b")
    new = (
        new[["ward", "other", "visits", "age", "drinks", "smokes"]]
        .astype({"smokes": str})
        .replace({"smokes": {"True": "TRUE"}})
    )
    new.iloc[3, 0] = "eyes"
    new.to_csv(tmp_path / "new.csv", index=False)
    new.to_csv(tmp_path / "new.tsv", index=False, sep="\t")
    new.to_csv(tmp_path / "german.csv", index=False, sep=";", decimal=",")
    folder = ua.open_run(tmp_path / "run").export(tmp_path / "model", client=client)
    assert sorted(file.name for file in folder.iterdir()) == [
        "model.json",
        "model.pt2",
        "predict.py",
    ]
    facts = json.loads((folder / "model.json").read_text())
    assert facts["classes"] == ["no", "yes"] and facts["run"]["client"] == client
    assert facts["table"]["columns"] == ["age", "visits", "smokes", "drinks", "ward"]
    assert (
        facts["run"]["method"] == run.method
        and facts["run"]["data"]["fingerprint"] == run.config["data"]["fingerprint"]
    )
    with pytest.warns(UserWarning, match="'eyes'"):
        same(predicted(folder, tmp_path / "new.csv"), run, tmp_path / "new.csv", client)
    for other in ("new.tsv", "german.csv"):
        with pytest.warns(UserWarning, match="'eyes'"):
            same(predicted(folder, tmp_path / other), run, tmp_path / "new.csv", client)


@pytest.mark.slow
@pytest.mark.parametrize("bag", [False, True])
def test_texts_are_encoded_alike(tmp_path, bag):
    texts = [
        "It's a good book",
        "a bad, BAD book!",
        "good o'clock",
        "",
        "unknown words",
        "a " * 20,
    ] * 8
    file = tmp_path / "reviews.csv"
    pd.DataFrame({"review": texts, "stars": [i % 2 for i in range(48)]}).to_csv(file, index=False)
    data = ua.load(file, target="stars", text="review", length=6, vocabulary=7, bag=bag)
    run = ua.run(
        "fedavg",
        ua.partition(data, "iid", clients=2),
        model="linear" if bag else "textcnn",
        rounds=1,
        work=WORK,
    )
    same(predicted(run.export(tmp_path / "model"), file), run, file)


@pytest.mark.slow
def test_regression_of_a_table(tmp_path):
    frame, file = patients(), tmp_path / "p.csv"
    days = pd.date_range("2020-01-30", periods=len(frame), freq="7h")
    frame = frame.assign(
        stay=frame["visits"] * 2.5 + np.arange(len(frame)) % 3 + 0.1,
        admitted=days.strftime("%d.%m.%Y %H:%M"),
        born=days.astype(str),
    )
    frame.drop(columns="died").to_csv(file, index=False)
    data = ua.load(file, target="stay", group="hospital", date=("admitted", "born"))
    run = ua.run("fedavg", ua.partition(data), model="linear", rounds=3, work=WORK)
    same(predicted(run.export(tmp_path / "model"), file), run, file)


@pytest.mark.slow
def test_images_are_normalized_in_the_exported_model(tmp_path):
    clients = ua.partition(ua.load("digits"), "iid", clients=2)
    options = {
        "model": "cnn(channels=(3,), norm='batch')",
        "transform": "normalize(mean=0.5, std=0.25) + flip",
    }
    run = ua.run("fedavg", clients, rounds=1, work=WORK, **options)
    x = clients[0].test[0].numpy()
    (tmp_path / "samples.json").write_text(json.dumps(x.tolist()))
    same(predicted(run.export(tmp_path / "model"), tmp_path / "samples.json"), run, x)


@pytest.mark.parametrize("method", ["ditto", "fedper", "conditional", "fedavg + fine_tuned"])
def test_the_model_of_a_client_is_exported(clients, tmp_path, method):
    model = "conditional_mlp" if method == "conditional" else "linear"
    run = ua.run(method, clients, model=model, rounds=2, work=WORK)
    program = torch.export.load(
        run.export(tmp_path / "model", client="south") / "model.pt2"
    ).module()
    x = clients[0].test[0]
    with torch.no_grad():
        torch.testing.assert_close(
            program(x), run.predictor("south")(x).softmax(1), rtol=1e-6, atol=1e-6
        )
    if method in ("fedper", "conditional"):
        with pytest.raises(ua.UnalikeError, match="a client that never trained"):
            run.export(tmp_path / "shared")
        assert not (tmp_path / "shared").exists()


ROWS, GRAY, COLOR, TOKENS = (6,), (1, 28, 28), (3, 32, 32), (8,)
SHAPES = {
    **dict.fromkeys(["linear", "logistic", "mlp", "two_nn"], ROWS),
    **dict.fromkeys(["conditional_linear", "conditional_ensemble", "conditional_mlp"], ROWS),
    **dict.fromkeys(["cnn", "lenet", "emnist_cnn", "mcmahan_cnn", "conditional_cnn", "vit"], GRAY),
    **dict.fromkeys(["resnet20", "resnet18", "densenet121", "mobilenet_v2", "vgg11"], COLOR),
    **dict.fromkeys(["textcnn", "char_lstm"], TOKENS),
}
"""Model of the catalogue -> the shape of a sample."""
DEEPER = {"resnet34": "resnet18", "wrn56_4": "resnet20"}
"""Models with more of the layers of others, which stand for them."""
SMALLER = {"densenet121": partial(DenseNet, blocks=(2, 1), growth=4)}
"""A smaller one of the same layers."""


@pytest.mark.slow
def test_every_model_of_the_catalogue_predicts_from_its_exported_folder(tmp_path):
    # masks are no rows of a table: test_dense_runs.py
    assert SHAPES.keys() == set(registry) - DEEPER.keys() - {"unet"}
    made = {model: exported(model, tmp_path / model) for model in SHAPES}
    tables = predicted_by_each(
        [(folder / "model", folder / "samples.json") for folder, *_ in made.values()]
    )
    for model, found, (_, run, x, client) in zip(made, tables, made.values(), strict=True):
        print(model)  # a failed test shows it
        same(found, run, x, client)


def exported(model, folder):
    """A model that was trained and exported: its folder, the run, samples, and the client whose model it is."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    shape, y = SHAPES[model], np.arange(24) % 3
    x = (
        rng.integers(0, 20, (24, *shape))
        if shape == TOKENS
        else rng.random((24, *shape)).astype(np.float32)
    )
    clients = [
        ua.ClientData(train=(x[i : i + 12], y[i : i + 12]), test=(x[18:], y[18:])) for i in (0, 6)
    ]
    method, client = ("conditional", 0) if model.startswith("conditional") else ("fedavg", None)
    if model == "conditional_cnn":
        method = "fedavg + conditional(statistic='pca', components=1)"
    built = SMALLER[model](shape, 3) if model in SMALLER else model
    run = ua.run(method, clients, model=built, rounds=1, work=ua.Work(lr=0.01, batch_size=6))
    (folder / "samples.json").write_text(json.dumps(x[12:15].tolist()))
    run.export(folder / "model", client=client)
    return folder, run, x[12:15], client


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class OfTwo(nn.Module):
    """A module that torch.export follows and whose output depends on the number of samples in Python."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (1 + self.calls * (not self.training))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Branching, "cannot follow the model: "),
        (OfTwo, "the exported model predicts something else"),
    ],
)
def test_modules_that_cannot_be_exported_are_refused(tmp_path, module, why):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)).astype(np.float32), rng.integers(0, 2, 20)
    run = ua.run(
        "fedavg", [ua.ClientData(train=(x, y), test=(x, y))], model=module, rounds=1, work=WORK
    )
    with pytest.raises(ua.UnalikeError, match=why):
        run.export(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_missing_texts_are_those_of_pandas_and_a_question_mark():
    from pandas._libs.parsers import STR_NA_VALUES

    assert set(MISSING_TEXTS) == STR_NA_VALUES | {"?", " ?"}
