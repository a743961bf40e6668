"""`ua.recommend`, its result and its page."""

import json
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import unalike as ua
from unalike.recommendation import judgement, recommend
from unalike.recommendation.forecast import Forecaster
from unalike.recommendation.stored_runs import StoredRuns
from unalike.recommendation.task_runs import METHODS, SHARED


@pytest.fixture(scope="module")
def clients():
    return ua.partition(ua.load("digits"), "dirichlet(alpha=0.1)", clients=10, seed=1)


@pytest.fixture
def from_planted(planted, monkeypatch):
    """Recommendations that are made from the made-up runs, whose features are constants: everything else is unlike them."""
    found = {names: judgement.judge(planted, "accuracy", names) for names in judgement.CANDIDATES}
    monkeypatch.setattr(StoredRuns, "read", classmethod(lambda cls: planted))
    monkeypatch.setattr(Forecaster, "is_unlike", lambda self, features: False)
    monkeypatch.setattr(recommend.judgement, "read", lambda objective, names: found[names])


def test_recommend_forecast_says_what_is_best_for_alike_tasks(clients, from_planted, tmp_path):
    found = ua.recommend(clients, model="linear")
    assert [one.method for one in found.short_list] == ["FedDyn"]  # label skew is strong here
    [first] = found.short_list
    assert first.gain == pytest.approx(0.10) and first.rate == 0.1  # the median is that of tasks with strong label skew
    scaffold = found.table.loc["SCAFFOLD"]
    assert scaffold["traffic"] == 2 and 0.89 < scaffold["risk"] == pytest.approx(
        1 - first.risk
    )  # worse in the other tasks
    assert "Try FedDyn first: " in str(found)
    assert "label skew" in " ".join(found.reasons)
    assert any("clients in a round" in note for note in found.notes)  # 10; the made-up tasks have 1
    page = found.save(tmp_path / "advice")
    text = page.read_text()
    assert "Which method should be tried first?" in text and "FedDyn" in text
    content = json.loads((tmp_path / "advice" / "recommendation.json").read_text())
    assert content["advice"][0]["spec"] == METHODS["FedDyn"] and content["judgement"]["tasks"] == 24


def test_recommend_candidates_shared_leaves_out_personal_methods(clients, from_planted):
    assert set(ua.recommend(clients, candidates="shared").table.index) == set(SHARED)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"candidates": "sharde"}, "did you mean 'shared'"),
        ({"objective": "accuracies"}, "did you mean 'accuracy'"),
        ({"participation": 0.0}, "above 0 and at most 1"),
        ({"modle": "mlp"}, "did you mean 'model'"),
    ],
)
def test_recommend_wrong_options_are_refused(clients, options, message):
    with pytest.raises((ua.UnalikeError, TypeError), match=message):
        ua.recommend(clients, **options)


def written(outcome):
    """Clients whose outcomes, 0 or 1, are written in a way."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.normal(size=120), "hospital": rng.choice(["a", "b", "c"], 120)})
    died = table["size"] + rng.normal(size=120) > 1
    return table.assign(died=[outcome[int(one)] for one in died])


@pytest.mark.parametrize("outcome", [(0, 1), ("no", "yes"), (False, True), (0.0, 1.0)], ids=str)
def test_recommend_is_the_same_however_an_outcome_is_written(from_planted, tmp_path, outcome):
    written(outcome).to_csv(tmp_path / "visits.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data = ua.load(tmp_path / "visits.csv", target="died", group="hospital")
    found = ua.recommend(data=data, model="linear", metric="roc_auc")
    assert found.diagnosis.counts.shape == (3, 2) and found.advice[0].gain >= 0
    assert any("gains in ROC AUC may be others" in note for note in found.notes)


def test_no_gain_is_larger_than_what_is_left_above_the_most_frequent_class(from_planted):
    x = np.random.default_rng(0).normal(size=(40, 3))
    few = [ua.ClientData(train=(x, np.arange(40) % 25 == 0), name=f"clinic {k}") for k in range(5)]  # 2 of 40 are true
    found = ua.recommend(few, model="linear")
    assert max(one.high for one in found.advice) <= 0.05 + 1e-9
    assert any(
        "95\u00a0% of the samples are of one class" in note and "--metric roc_auc" in note for note in found.notes
    )


def test_clients_unlike_all_stored_tasks_count_these_alike_and_say_so(planted, clients, from_planted, monkeypatch):
    monkeypatch.setattr(Forecaster, "is_unlike", lambda self, features: True)
    found = ua.recommend(clients, model="linear")
    assert found.unlike and "No stored task is like these clients, so this counts all 24 stored tasks alike" in str(
        found
    )
    assert found.table.loc["FedDyn", "low"] == pytest.approx(
        -0.05
    )  # in the half of the tasks without strong label skew


def test_a_task_is_unlike_if_it_is_farther_from_the_nearest_one_than_stored_tasks_are_from_each_other():
    forecaster = Forecaster(StoredRuns.read(), "accuracy", tuple(METHODS))
    stored = forecaster.runs.features
    assert not any(map(forecaster.is_unlike, stored[:20]))
    assert forecaster.is_unlike(np.where(np.arange(stored.shape[1]) % 2, stored.max(0) * 2, stored.min(0)))


def test_recommend_regression_is_refused():
    rng = np.random.default_rng(0)
    clients = [ua.ClientData(train=(rng.normal(size=(20, 3)), rng.normal(size=20))) for _ in range(3)]
    with pytest.raises(ua.UnalikeError, match="expected classes"):
        ua.recommend(clients)


def test_shipped_runs_have_every_method_and_finite_features():
    runs = StoredRuns.read()
    assert runs.scores("accuracy").notna().all().all() and np.isfinite(runs.features).all()
    assert (runs.gains("accuracy")["FedAvg"] == 0).all()


def test_the_table_of_regrets_in_the_guide_is_that_of_the_shipped_judgement():
    page = (Path(__file__).parents[2] / "docs/how_to/recommend.md").read_text().replace("*", "")
    choices = {"any": "all methods", "shared": "shared models"}
    for (names, choice), (objective, score) in product(
        choices.items(), {"accuracy": "accuracy", "worst_decile": "worst decile"}.items()
    ):
        found = judgement.read(objective, names)
        assert f"the {found.tasks} stored tasks" in page
        row = next(line for line in page.splitlines() if line.startswith(f"| {choice}, {score} | data sets |"))
        for policy, cell in zip(("always FedAvg", "best on average", "forecast"), row.split(" | ")[2:], strict=True):
            e = found.regret["data"][policy]
            assert cell.strip(" |") == f"{100 * e.mean:.1f} ({100 * e.low:.1f} to {100 * e.high:.1f})", (row, policy)


@pytest.mark.slow
@pytest.mark.parametrize("names", judgement.CANDIDATES)
def test_shipped_judgement_is_that_of_the_shipped_runs(names):
    shipped, found = judgement.read("accuracy", names), judgement.judge(StoredRuns.read(), "accuracy", names)
    assert shipped.policy == found.policy and shipped.tasks == found.tasks
    for by, policies in found.regret.items():
        for policy, estimate in policies.items():
            assert shipped.regret[by][policy].mean == pytest.approx(estimate.mean, abs=0.01), (by, policy)
