"""References that scikit-learn fits to convergence, and the answer to "together, or alone?" that rests on them."""

import math
from dataclasses import replace
from functools import partial
from html import unescape

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import unalike as ua
from unalike.cli.terminal_tables import summary_table
from unalike.comparison import fitted_references
from unalike.metrics.named_metrics import read
from unalike.reporting.export import export
from unalike.reporting.together_or_alone import (
    NOT_REACHED,
    PAYS,
    RATHER_ALONE,
    STAY_ALONE,
    TOO_FEW,
)
from unalike.statistics.client_scores import POOLED
from unalike.statistics.fitted_scores import paired_gain

ROUNDING = 1e-12
"""Far below what one pair of test rows in another order would change."""
OPTIONS = {"model": "linear", "rounds": 1, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hearts") / "results"


@pytest.fixture(scope="module")
def hearts(folder):
    return ua.compare(
        ["fedavg"], data="heart_disease", metric="roc_auc", seeds=3, out=folder, **OPTIONS
    )


def by_hand(population, make, pooled):
    """The risks of all test rows, by a loop as a statistician writes it."""
    x = population.x.numpy().astype(float)
    y = population.y.numpy()
    risk = np.full(len(y), np.nan)
    for k in range(len(population)):
        train = np.concatenate(list(population.train)) if pooled else population.train[k]
        model = make().fit(x[train], y[train])
        risk[population.test[k]] = model.predict_proba(x[population.test[k]])[:, 1]
    return y, risk


def test_references_equal_a_loop_over_scikit_learn_on_the_same_divisions(hearts):
    def logistic():
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))

    population = ua.partition(ua.load("heart_disease"), seed=1)
    makers = {
        "alone(logistic)": logistic,
        "alone(forest)": lambda: RandomForestClassifier(min_samples_leaf=5, random_state=1),
        "pooled(logistic)": logistic,
        "pooled(boosting)": lambda: HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=8, random_state=1
        ),
    }
    table = hearts.fitted[hearts.fitted["seed"] == 1].set_index(["method", "client"])["roc_auc"]
    for label, make in makers.items():
        y, risk = by_hand(population, make, pooled=label.startswith("pooled"))
        for name, rows in zip(population.names, population.test):
            expected = roc_auc_score(y[rows], risk[rows])
            assert table[label, name] == pytest.approx(expected, abs=ROUNDING)
        rows = population.test.values
        expected = roc_auc_score(y[rows], risk[rows])
        assert table[label, POOLED] == pytest.approx(expected, abs=ROUNDING)


def test_repeated_patients_do_not_turn_the_answer_and_it_is_that_of_a_loop_over_scikit_learn():
    """The outcome is that of the patient alone: it can be memorized, and no other patient tells it."""
    rng = np.random.default_rng(0)
    owner = np.sort(rng.integers(0, 120, 400))
    ill = rng.integers(0, 2, 120)
    age = rng.normal(60, 12, 120)
    visits = pd.DataFrame(
        {
            "patient": owner,
            "hospital": np.array(["north", "south"])[owner // 60],
            "age": age[owner],
            "crp": rng.normal(size=400),
            "ill": ill[owner],
        }
    )

    def compared(**options):
        data = ua.load(visits, target="ill", group="hospital", **options)
        return data, ua.compare(["fedavg"], data=data, metric="roc_auc", seeds=2, **OPTIONS)

    _, leaking = compared(unit="none", drop="patient")
    data, honest = compared()
    answer = honest.together_or_alone()
    assert leaking.together_or_alone().pooled.score > 0.7 > 0.65 > answer.pooled.score
    makers = {
        "logistic": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "forest": lambda seed: RandomForestClassifier(min_samples_leaf=5, random_state=seed),
        "boosting": lambda seed: HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=8, random_state=seed
        ),
    }
    gains = []
    for seed in (0, 1):
        population = ua.partition(data, seed=seed)
        rows = population.test.values
        areas = []
        for fit, pooled in ((answer.pooled, True), (answer.alone, False)):
            y, risk = by_hand(population, partial(makers[fit.model], seed), pooled)
            areas.append(roc_auc_score(y[rows], risk[rows]))
        gains.append(areas[0] - areas[1])
    assert answer.gain.mean == pytest.approx(np.mean(gains), abs=ROUNDING)


def test_answer_is_the_paired_interval_of_the_best_fits_and_stands_first(hearts, folder, capsys):
    found = hearts.together_or_alone()
    of_all = hearts.fitted[hearts.fitted["client"] == POOLED]
    scores = of_all.pivot(index="seed", columns="method", values="roc_auc")
    best = scores.mean().groupby(lambda label: label.partition("(")[0]).idxmax()
    assert (found.alone.label, found.pooled.label) == (best["alone"], best["pooled"])
    gains = scores[best["pooled"]] - scores[best["alone"]]
    seeds = len(gains)
    error = gains.std(ddof=1) * math.sqrt(1 / seeds + hearts.facts.sampling.overlap)
    # of two tests neither is below 5 % / 2, so that both intervals have that level
    half = stats.t.ppf(1 - 0.05 / 2 / 2, seeds - 1) * error
    ends = np.clip([gains.mean() - half, gains.mean() + half], -1, 1)
    assert [found.gain.low, found.gain.high] == pytest.approx(ends)

    # two of Switzerland's test rows are without the disease: it is counted, not named
    assert [row.client for row in found.clients] == ["Cleveland", "Hungary", "VA Long Beach"]
    assert found.few_clients == 1 and "Switzerland" not in str(found)
    undecided = [row for row in found.clients if row.gain.low <= 0 <= row.gain.high]
    by_hospital = found.key_facts[-1]
    assert f"no difference is shown at {len(undecided)} hospital" in by_hospital.note

    summary_table(hearts)
    content = hearts.content()
    texts = [str(hearts), capsys.readouterr().out, export([("", content)], "markdown")]
    for text in texts:
        assert text.startswith("Together, or alone?")
    assert '"together_or_alone": {' in export([("", content)], "json")
    page = (folder / "report.html").read_text("utf-8")
    for fact in found.key_facts:
        assert fact.value in unescape(page) and fact.note in unescape(page)


def test_answer_follows_the_tests_of_pooling_and_of_the_method(hearts):
    of_method = hearts.rounds[hearts.rounds["round"] == 1].set_index("seed")["roc_auc"]

    def answered(pooled, alone):
        """The answer where references are so far from fedavg under every seed; boosting is a point better than the linear model."""
        fitted = hearts.fitted.copy()
        noise = 1e-4 * fitted["seed"]
        ahead = fitted["scope"].map({"pooled": pooled, "alone": alone})
        ahead += 0.01 * (fitted["model"] == "boosting") + 2 * noise * (fitted["scope"] == "pooled")
        fitted["roc_auc"] = fitted["seed"].map(of_method) + ahead - noise
        return replace(hearts, fitted=fitted).together_or_alone()

    assert answered(pooled=0.1, alone=-0.1).verdict == PAYS
    assert answered(pooled=-0.1, alone=0.1).verdict == STAY_ALONE
    assert answered(pooled=0.09, alone=0.1).verdict == RATHER_ALONE
    trees = answered(pooled=0.2, alone=0.1)
    assert trees.verdict == NOT_REACHED
    [lead] = [fact for fact in trees.key_facts if fact.title == "Lead of trees"]
    assert lead.value == "+21.0 points"
    assert lead.note.endswith("of pooled(boosting) over fedavg: no method here trains trees")


def test_two_seeds_give_no_answer_and_the_line_says_how_many_do(hearts):
    fitted = hearts.fitted[hearts.fitted["seed"] < 2].copy()
    fitted["roc_auc"] += fitted["scope"].map({"pooled": 0.0, "alone": -0.5})
    rounds = hearts.rounds[hearts.rounds["seed"] < 2]
    found = replace(hearts, fitted=fitted, rounds=rounds).together_or_alone()
    assert found.gain.pairs == 2
    assert found.gain.low > 0
    assert found.verdict == TOO_FEW
    assert not any(fact.title.startswith("By ") for fact in found.key_facts)


def test_finished_fits_are_read_and_not_repeated(hearts, folder, monkeypatch):
    def fails(*arguments):
        raise AssertionError("fitted again")

    monkeypatch.setattr(fitted_references, "_fit_all", fails)
    again = ua.compare(
        ["fedavg"], data="heart_disease", metric="roc_auc", seeds=3, out=folder, **OPTIONS
    )
    pd.testing.assert_frame_equal(again.fitted, hearts.fitted)
    assert ua.open_comparison(folder).together_or_alone() == hearts.together_or_alone()


@pytest.fixture(scope="module")
def amounts():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90)})
    frame["site"] = np.repeat(["north", "south", "west"], 30)
    frame["dose"] = 2 * frame["a"] - frame["b"] + rng.normal(size=90)
    return frame


def test_numbers_are_fitted_by_ridge_regression(amounts):
    dataset = ua.load(amounts, target="dose", group="site")
    found = ua.compare(["fedavg"], data=dataset, seeds=1, **OPTIONS)
    population = ua.partition(dataset, seed=0)
    x = population.x.numpy().astype(float)
    y = population.y.numpy()
    train = np.sort(population.train.values)
    test = population.test.values
    model = make_pipeline(StandardScaler(), Ridge()).fit(x[train], y[train])
    rmse = np.sqrt(np.mean((model.predict(x[test]) - y[test]) ** 2))
    rows = found.fitted.set_index(["method", "client"])["rmse"]
    assert rows["pooled(linear)", POOLED] == pytest.approx(rmse)
    assert "alone(linear)" in rows and not found.together_or_alone().gain.is_known


def test_client_with_one_class_predicts_it(amounts):
    frame = amounts.drop(columns="dose").assign(died=amounts["dose"] > 0)
    frame.loc[frame["site"] == "west", "died"] = False
    found = ua.compare(
        ["fedavg"], data=ua.load(frame, target="died", group="site"), seeds=1, **OPTIONS
    )
    rows = found.fitted.set_index(["method", "client"])
    assert rows.loc[("alone(logistic)", "west"), "accuracy"] == 1
    assert found.together_or_alone().few_clients > 0


def test_arrays_have_no_references_and_large_tables_a_note(small, people, amounts, monkeypatch):
    assert small(["fedavg"], people).together_or_alone() is None
    monkeypatch.setattr(fitted_references, "MAX_NUMBERS", 10)
    dataset = ua.load(amounts, target="dose", group="site")
    found = ua.compare(["fedavg"], data=dataset, seeds=1, **OPTIONS)
    assert found.fitted is None
    assert any("expected at most 100 clients and 10 numbers" in note for note in found.facts.notes)


def test_gain_of_repeated_fits_varies_with_the_shared_test_rows_alone():
    [metric] = read(["roc_auc"])
    level = pd.Series([0.8, 0.8, 0.8])
    gain = paired_gain(level + 0.05, level, metric, level=0.05, overlap=0, sampling=0.01**2)
    half = stats.norm.ppf(0.975) * 0.01
    assert (gain.low, gain.high) == pytest.approx((0.05 - half, 0.05 + half))
