"""`ua.recommend`, its result and its page."""

import json
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from planted_runs import planted_runs

import unalike as ua
from unalike.recommendation import judgement, recommend
from unalike.recommendation.forecast import Forecaster
from unalike.recommendation.judgement import HELD_OUT
from unalike.recommendation.stored_runs import METHODS, SHARED, StoredRuns
from unalike_studies.recommendation.regret import judge, regrets

OWNERS_POLICIES = ("always FedAvg", "best on average", "nearest task", "forecast", "sure gain")
"""The columns of the guide's table of regrets on the data of real owners."""


@pytest.fixture(scope="module")
def clients():
    return ua.partition(ua.load("digits"), "dirichlet(alpha=0.1)", clients=10, seed=1)


@pytest.fixture(scope="module")
def planted():
    return planted_runs()


@pytest.fixture(scope="module")
def judged(planted):
    """The judgements of the made-up runs."""
    return {names: judge(planted, "accuracy", names) for names in judgement.CANDIDATES}


@pytest.fixture
def from_planted(planted, judged, monkeypatch):
    """Recommendations that are made from the made-up runs, whose features are constants: everything else is unlike them."""
    monkeypatch.setattr(StoredRuns, "read", classmethod(lambda cls: planted))
    monkeypatch.setattr(Forecaster, "is_unlike", lambda self, features: False)
    monkeypatch.setattr(recommend.judgement, "read", lambda objective, names: judged[names])


def test_recommend_forecast_says_what_is_best_for_alike_tasks(clients, from_planted, tmp_path):
    found = ua.recommend(clients, model="linear")
    assert [one.method for one in found.short_list] == ["FedDyn"]  # label skew is strong here
    [first] = found.short_list
    assert (
        first.gain == pytest.approx(0.10) and first.rate == 0.1
    )  # the median is that of tasks with strong label skew
    scaffold = found.table.loc["SCAFFOLD"]
    assert scaffold["traffic"] == 2 and 0.89 < scaffold["risk"] == pytest.approx(
        1 - first.risk
    )  # worse in the other tasks
    assert "Try FedDyn first: " in str(found)
    assert "label skew" in " ".join(found.reasons)
    assert any(note.endswith("clients in a round: found 10, tasks have 1.") for note in found.notes)
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
    table = pd.DataFrame(
        {"size": rng.normal(size=120), "hospital": rng.choice(["a", "b", "c"], 120)}
    )
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
    assert found.columns[3].title == "In ROC AUC, 10 data sets"


@pytest.fixture
def hospitals():
    """Six owners of 40 patients each."""
    rng = np.random.default_rng(2)
    return [
        ua.ClientData(train=(x, x[:, 0] > 0.3), name=f"clinic {k}")
        for k, x in enumerate(rng.normal(size=(6, 40, 3)))
    ]


def test_real_owners_get_the_method_that_gained_on_the_data_of_all_owners(
    from_planted, hospitals, tmp_path
):
    found = ua.recommend(hospitals, model="linear", metric="roc_auc")
    assert found.owners and [one.method for one in found.advice if one.sure] == ["Ditto"]
    assert str(found).startswith(
        "Try Ditto first: in the median of the tasks it had 2.0 points more than FedAvg ("
    )
    assert "10 stored data sets with real owners" in str(found)
    text = found.save(tmp_path / "advice").read_text()
    assert "In ROC AUC, 10 data sets" in text and found.table.loc[
        "Ditto", "measured"
    ] == pytest.approx(0.01)


def test_real_owners_stay_with_fedavg_where_one_stored_owner_lost(
    planted, from_planted, hospitals, monkeypatch
):
    table = planted.table.copy()
    table.loc[(table["task"] == "task 30") & (table["method"] == "Ditto"), "accuracy"] = 0.5
    monkeypatch.setattr(StoredRuns, "read", classmethod(lambda cls: StoredRuns(table)))
    found = ua.recommend(hospitals, model="linear")
    assert str(found).startswith(
        "Stay with FedAvg: no method surely gains over it. Worth a comparison on your own data: Ditto"
    )
    assert not any(one.sure for one in found.advice)


def test_real_owners_unlike_the_stored_ones_are_told_so(from_planted, hospitals, monkeypatch):
    monkeypatch.setattr(Forecaster, "is_unlike", lambda self, features: True)
    assert "your clients are unlike all of them" in str(ua.recommend(hospitals, model="linear"))


@pytest.mark.parametrize(
    ("metric", "most"), [(None, 0.05), ("roc_auc", 0.5), ("balanced_accuracy", 0.5)]
)
def test_no_gain_is_larger_than_the_metric_of_the_clients_allows(
    planted, from_planted, monkeypatch, metric, most
):
    table = planted.table.assign(
        accuracy=planted.table["accuracy"] + 2 * (planted.table["method"] == "Ditto")
    )
    monkeypatch.setattr(StoredRuns, "read", classmethod(lambda cls: StoredRuns(table)))
    x = np.random.default_rng(0).normal(size=(40, 3))
    few = [
        ua.ClientData(train=(x, np.arange(40) % 25 == 0), name=f"clinic {k}") for k in range(5)
    ]  # 2 of 40 are true
    assert ua.recommend(few, model="linear", metric=metric).table.loc[
        "Ditto", "high"
    ] == pytest.approx(most)


def test_no_gain_is_larger_than_what_is_left_above_the_most_frequent_class(from_planted):
    x = np.random.default_rng(0).normal(size=(40, 3))
    few = [
        ua.ClientData(train=(x, np.arange(40) % 25 == 0), name=f"clinic {k}") for k in range(5)
    ]  # 2 of 40 are true
    found = ua.recommend(few, model="linear")  # Ditto's 2 points fit, FedDyn's 10 do not
    assert max(one.high for one in found.advice) <= 0.05 + 1e-9
    assert any(
        "95\u00a0% of the samples are of one class" in note and "--metric roc_auc" in note
        for note in found.notes
    )


def test_clients_unlike_all_stored_tasks_count_these_alike_and_say_so(
    planted, clients, from_planted, monkeypatch
):
    monkeypatch.setattr(Forecaster, "is_unlike", lambda self, features: True)
    found = ua.recommend(clients, model="linear")
    assert (
        found.unlike
        and "No stored task is like these clients, so this counts all 24 stored tasks alike"
        in str(found)
    )
    assert found.table.loc["FedDyn", "low"] == pytest.approx(
        -0.05
    )  # in the half of the tasks without strong label skew


def test_a_task_is_unlike_if_it_is_farther_from_the_nearest_one_than_stored_tasks_are_from_each_other():
    forecaster = Forecaster(StoredRuns.read(), "accuracy", tuple(METHODS))
    stored = forecaster.runs.features
    assert not any(map(forecaster.is_unlike, stored[:20]))
    assert forecaster.is_unlike(
        np.where(np.arange(stored.shape[1]) % 2, stored.max(0) * 2, stored.min(0))
    )


def test_recommend_regression_speaks_in_rmse_of_stored_owners():
    rng = np.random.default_rng(0)
    clients = [
        ua.ClientData(train=(rng.normal(size=(20, 3)), rng.normal(size=20))) for _ in range(3)
    ]
    found = ua.recommend(clients)
    assert found.owners and found.metric.name == "rmse" and found.measured == 4
    assert found.columns[3].title == "In RMSE, 4 data sets"


def test_recommend_in_a_metric_that_is_not_stored_says_so(from_planted, hospitals):
    found = ua.recommend(hospitals, model="linear", metric="sensitivity_at(specificity=0.9)")
    assert not found.measured and any(
        "The stored runs have no sensitivity" in note for note in found.notes
    )


def test_shipped_runs_have_every_method_and_finite_features():
    runs = StoredRuns.read()
    assert np.isfinite(runs.features).all() and (runs.gains("accuracy")["FedAvg"] == 0).all()
    assert runs.made.scores("accuracy").notna().all().all() and set(runs.made.tasks["metric"]) == {
        "accuracy"
    }
    absent = runs.natural.scores("accuracy").isna()
    assert (
        absent[["FedPake", "IFCA"]].all().all()
        and not absent.drop(columns=["FedPake", "IFCA"]).any().any()
    )


def test_shipped_runs_have_the_ten_data_sets_with_owners_in_their_own_metrics():
    natural = StoredRuns.read().natural
    assert natural.tasks.groupby("metric").size().to_dict() == {
        "accuracy": 1,
        "rmse": 4,
        "roc_auc": 5,
    }
    assert (natural.table.groupby(["task", "method"])["seed"].nunique() == 5).all()
    assert natural.table["accuracy"].notna().equals(natural.table["rmse"].isna())


def test_errors_count_as_shares_of_those_of_fedavg(planted):
    table = planted.natural.table
    errors = {"FedAvg": 4.0, "Ditto": 3.0, "SCAFFOLD": np.inf}
    runs = StoredRuns(table.assign(metric="rmse", rmse=table["method"].map(errors).fillna(5.0)))
    gains = runs.gains("accuracy").iloc[0]
    assert gains[["FedAvg", "Ditto", "SCAFFOLD", "FedDyn"]].tolist() == pytest.approx(
        [0, 0.25, -1.0, -0.25]
    )


def test_the_table_of_regrets_with_real_owners_in_the_guide_is_computed_from_the_shipped_runs():
    page = (Path(__file__).parents[2] / "docs/how_to/recommend.md").read_text().replace("*", "")
    runs = StoredRuns.read()
    for choice, held_out in (
        ("learned from all others", "owners"),
        ("learned from tasks without owners", "owners, unknown kind"),
    ):
        found = 100 * regrets(runs, "accuracy", tuple(METHODS), HELD_OUT[held_out])
        rest = found[runs.natural.tasks["data"].to_numpy() != "smartwatch"]
        row = next(
            line for line in page.splitlines() if line.startswith(f"| all methods, {choice} |")
        )
        for policy, cell in zip(OWNERS_POLICIES, row.split(" | ")[1:], strict=True):
            expected = f"{found[policy].mean():.1f}, {rest[policy].mean():.1f}"
            assert cell.strip(" |") == expected, (row, policy)


def test_the_sentences_of_regrets_with_real_owners_in_the_guide_are_those_of_the_shipped_judgement():
    page = " ".join((Path(__file__).parents[2] / "docs/how_to/recommend.md").read_text().split())

    def owners(objective, names):
        regret = judgement.read(objective, names).regret["owners"]
        assert regret["sure gain"] == regret["always FedAvg"]
        return [
            f"{100 * regret[policy].mean:.1f}"
            for policy in ("always FedAvg", "best on average", "forecast")
        ]

    fedavg, average, forecast = owners("accuracy", "shared")
    assert (
        f"{fedavg} (FedAvg, and the rule), {average} (best on average) and {forecast} (forecast)"
        in page
    )
    fedavg, average, forecast = owners("worst_decile", "any")
    assert f"of the worst tenth of the clients {fedavg}, {average} and {forecast}" in page
    fedavg, average, forecast = owners("worst_decile", "shared")
    assert f"among shared models {fedavg}, {average} and {forecast}," in page


def test_the_table_of_regrets_in_the_guide_is_that_of_the_shipped_judgement():
    page = (Path(__file__).parents[2] / "docs/how_to/recommend.md").read_text().replace("*", "")
    choices = {"any": "all methods", "shared": "shared models"}
    for (names, choice), (objective, score) in product(
        choices.items(), {"accuracy": "accuracy", "worst_decile": "worst decile"}.items()
    ):
        found = judgement.read(objective, names)
        assert f"the {found.tasks} stored tasks" in page
        row = next(
            line
            for line in page.splitlines()
            if line.startswith(f"| {choice}, {score} | data sets |")
        )
        for policy, cell in zip(
            ("always FedAvg", "best on average", "forecast"), row.split(" | ")[2:], strict=True
        ):
            e = found.regret["data"][policy]
            assert (
                cell.strip(" |") == f"{100 * e.mean:.1f} ({100 * e.low:.1f} to {100 * e.high:.1f})"
            ), (row, policy)
