"""One outcome of two classes in all its spellings: the same task, the same metrics, the same scores, in every command."""

import json

import numpy as np
import pandas as pd
import pytest

import unalike as ua

FLAGS = ["--data", "visits.csv", "--target", "died", "--group", "hospital"]
QUICK = ["--model", "linear", "--rounds", 2]
SPELLINGS = {
    "0/1": ({False: "0", True: "1"}, ["0", "1"]),
    "no/yes": ({False: "no", True: "yes"}, ["no", "yes"]),
    "FALSE/TRUE": ({False: "FALSE", True: "TRUE"}, ["False", "True"]),
    "0.0/1.0": ({False: "0.0", True: "1.0"}, ["0", "1"]),
}
AREAS = ["roc_auc", "average_precision"]


@pytest.fixture(params=SPELLINGS)
def classes(request, tmp_path, monkeypatch):
    """`visits.csv` with the outcome in one spelling; the names of its classes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, written = rng.normal(60, 9, 90).round(1), SPELLINGS[request.param]
    died = [written[0][bool(d)] for d in age + rng.normal(0, 6, 90) > 62]
    pd.DataFrame({"age": age, "hospital": ["east", "north", "west"] * 30, "died": died}).to_csv(
        "visits.csv", index=False
    )
    return written[1]


@pytest.fixture(scope="module")
def scores():
    """What -> the numbers under the first spelling, which all others must give."""
    return {}


def test_every_command_reads_the_outcome_in_the_same_way(cli, classes, scores):
    code, _, err = cli("run", *FLAGS, *QUICK, "--method", "fedavg", "--out", "run")
    assert code == 0, err
    run = ua.open_run("run")
    assert (run.config["data"]["task"], run.config["data"]["classes"]) == (
        "classification",
        classes,
    )
    code, _, err = cli(
        "compare",
        *FLAGS,
        *QUICK,
        "--method",
        "fedavg",
        "--method",
        "ditto",
        "--seeds",
        2,
        "--out",
        "c",
    )
    assert code == 0, err
    code, text, err = cli(
        "evaluate", "run", "--data", "visits.csv", "--group", "hospital", "--json"
    )
    assert code == 0, err
    summary, rows = ua.open_comparison("c").summary, pd.DataFrame(json.loads(text))
    found = {
        "run": run.history.rounds.iloc[-1][AREAS],
        "compare": summary.set_index(["method", "protocol"])[AREAS],
        "evaluate": rows.set_index("row")[["positives", *AREAS]],
    }
    for what, values in found.items():
        numbers = np.asarray(values, float)
        assert not np.isnan(numbers[..., -2:]).any(), what
        np.testing.assert_allclose(numbers, scores.setdefault(what, numbers), err_msg=what)


def test_areas_are_those_of_the_metric_chosen_by_name():
    """Also with equal logits; `positive=` names the other class."""
    from unalike.core.tasks.registry import find_task
    from unalike.metrics.metrics import measure
    from unalike.metrics.named_metrics import read
    from unalike.metrics.scoring import Scores

    rng = np.random.default_rng(0)
    y, z = rng.integers(0, 2, 80), rng.normal(size=(80, 2)).round(1).astype(np.float32)
    scores = Scores(np.zeros(80, int), np.zeros(80), y, z.argmax(1), z)
    two = find_task("classification").of(["no", "yes"])
    usual = measure(two, scores)
    assert list(usual)[-2:] == AREAS
    of_three = measure(find_task("classification"), scores, {m.name: m for m in read(AREAS)})
    for name in AREAS:
        assert usual[name] == pytest.approx(of_three[name])
    [other] = read(["average_precision(positive='no')"])
    found = measure(two, scores, {other.name: other.of(two, ["no", "yes"])})["average_precision"]
    flipped = Scores(scores.client, scores.loss, 1 - y, 1 - scores.predicted, z[:, ::-1])
    assert (
        found
        == pytest.approx(measure(two, flipped)["average_precision"])
        != pytest.approx(usual["average_precision"])
    )
