"""`unalike cross-site`: every model at every site is what `evaluate` and scikit-learn say of the same rows."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import unalike as ua


@pytest.fixture
def results(cli, tmp_path, monkeypatch):
    """A comparison on 240 visits to three wards, from a table."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=240), "b": rng.normal(size=240)})
    frame["ward"] = np.repeat(["east", "north", "west"], 80)
    frame["ill"] = np.where(frame["a"] + rng.normal(size=240) > 0, "yes", "no")
    frame.to_csv("visits.csv", index=False)
    flags = ["--data", "visits.csv", "--target", "ill", "--group", "ward", "--model", "linear"]
    methods = ["--method", "fedavg", "--method", "ditto", "--rounds", 1, "--seeds", 1]
    code, _, err = cli("compare", *flags, *methods, "--metric", "roc_auc", "--out", "results")
    assert code == 0, err
    return tmp_path / "results"


def test_models_at_sites_are_those_of_evaluate_and_of_scikit_learn(cli, results):
    code, text, err = cli("cross-site", results, "--json", "--out", "table.csv")
    assert code == 0, err
    table = pd.DataFrame(json.loads(text)).set_index(["model", "trained_at"])
    written = pd.read_csv("table.csv").set_index(["model", "trained_at"])
    pd.testing.assert_frame_equal(written, table)
    assert table.shape == (2 + 3 + 2 + 2 * 3, 3 + 1)
    words = cli("cross-site", results)[1]
    assert "of every model at every ward" in words and "site" not in words

    # the shared model, and a personal one at its own site
    [cell] = results.glob("cells/ditto-*")
    for client, words in (("all wards", []), ("north", ["--client", "north"])):
        rows = json.loads(cli("evaluate", cell, *words, "--json")[1])
        by_site = {row["row"]: row["roc_auc"] for row in rows}
        assert table.loc[("ditto", client), "north"] == pytest.approx(by_site["north"])

    # a model that one site fits for itself, on the rows of another
    population = ua.partition(ua.load("visits.csv", target="ill", group="ward"), seed=0)
    x = population.x.numpy().astype(float)
    y = population.y.numpy()
    east, north = (population.names.index(name) for name in ("east", "north"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(x[population.train[east]], y[population.train[east]])
    rows = population.test[north]
    wanted = roc_auc_score(y[rows], model.predict_proba(x[rows])[:, 1])
    assert table.loc[("alone(logistic)", "east"), "north"] == pytest.approx(wanted)


def test_a_federation_is_refused_with_what_there_is_instead(cli, tmp_path):
    (tmp_path / "federation.toml").touch()
    code, _, err = cli("cross-site", tmp_path)
    assert code == 2 and "report" in err and "--table clients" in err


def test_run_keeps_the_model_that_each_client_chose(cli, tmp_path):
    clients = ua.partition("digits", "iid", clients=3)
    run = tmp_path / "run"
    ua.run("ifca(clusters=2)", clients, model="linear", rounds=1, out=run, progress=False)
    code, out, err = cli("cross-site", run)
    assert code == 0 and "client-2" in out, err
    code, out, err = cli("evaluate", run, "--client", "client-2")
    assert code == 0 and "accuracy" in out, err
