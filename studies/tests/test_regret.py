"""Forecasts, and the regret of ways to choose, on runs whose best method is known."""

import numpy as np
import pandas as pd
import pytest
from planted_runs import planted_runs

from unalike_studies.recommendation import judgement, regret
from unalike_studies.recommendation.forecast import Forecaster, lower_bound, weighted_quantile
from unalike_studies.recommendation.judgement import HELD_OUT
from unalike_studies.recommendation.regret import judge, means, regrets, write
from unalike_studies.recommendation.stored_runs import METHODS, StoredRuns
from unalike_studies.recommendation.task_features import TITLES

NAMES = tuple(METHODS)


@pytest.fixture(scope="module")
def planted():
    return planted_runs()


@pytest.fixture(scope="module")
def made(planted):
    """The 24 tasks without owners."""
    return planted.made


def features(label_skew: float) -> np.ndarray:
    return np.array([label_skew if name == "label_skew" else 1.0 for name in TITLES])


def test_forecast_is_the_gain_of_alike_tasks(made):
    forecaster = Forecaster(made, "accuracy", NAMES)
    weights = forecaster.weights(features(0.8))
    assert weights.sum() == pytest.approx(1) and (weights >= 0).all()
    assert weights[::2].sum() > 0.8  # the tasks with strong label skew
    gains = forecaster.forecast(features(0.8))
    assert gains.idxmax() == "FedDyn" and 0.07 < gains["FedDyn"] <= 0.10
    assert forecaster.forecast(features(0.1)).idxmax() == "SCAFFOLD"


def test_reasons_name_the_feature_that_decides(made):
    [reason] = Forecaster(made, "accuracy", NAMES).reasons(features(0.8))
    assert reason.startswith("label skew") and "0.8, above 0.45" in reason


def test_weighted_quantile_of_hand_made_weights():
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([0.2, 0.5, 0.3])
    assert [weighted_quantile(values, weights, share) for share in (0.1, 0.5, 0.6, 0.9, 1.0)] == [
        1,
        1,
        2,
        3,
        3,
    ]


def test_regrets_are_those_of_the_known_best_method(planted):
    found = regrets(planted, "accuracy", NAMES, HELD_OUT["data"]).mean()
    # FedDyn is 0.10 better on half of the tasks, SCAFFOLD 0.04 on the others; on average FedDyn is best (+0.025)
    assert found["always FedAvg"] == pytest.approx((0.10 + 0.04) / 2)
    assert found["best on average"] == pytest.approx((0.0 + 0.09) / 2)
    assert found["published advice"] == pytest.approx(
        (0.10 + 0.04) / 2
    )  # FedAdagrad is as good as FedAvg here
    assert (
        found["forecast"]
        == found["small tree"]
        == found["nearest task"]
        == pytest.approx(0, abs=1e-12)
    )


def test_regrets_of_owners_a_sure_gain_is_found_only_from_other_owners(planted):
    known, unknown = (
        regrets(planted, "accuracy", NAMES, HELD_OUT[name])
        for name in ("owners", "owners, unknown kind")
    )
    best = [
        0.10,
        0.04,
    ] * 5  # FedDyn or SCAFFOLD, whose gains are not sure; Ditto gains 0.02 on nine of nine others
    assert known["sure gain"].to_numpy() == pytest.approx(np.array(best) - 0.02)
    assert unknown["sure gain"].to_numpy() == pytest.approx(best)  # no owners are known: FedAvg


@pytest.mark.parametrize(
    "n, methods, place",
    [
        (10, 10, 1),
        (9, 10, 1),
        (7, 10, None),
        (5, 1, 1),
        (4, 1, None),
        (20, 1, 6),
        (20, 10, 4),
        (0, 10, None),
    ],
)
def test_lower_bound_is_the_order_statistic_of_the_sign_test(n, methods, place):
    gains = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    assert lower_bound(gains, methods) == (-np.inf if place is None else place)


def test_lower_bound_of_any_of_ten_methods_is_above_the_median_in_at_most_a_twentieth_of_the_draws():
    drawn = np.random.default_rng(1).standard_t(
        2, size=(400, 10, 10)
    )  # methods without a gain, heavy tails
    false = np.mean([any(lower_bound(method, 10) > 0 for method in gains.T) for gains in drawn])
    assert false <= 0.05


def test_regrets_of_another_kind_cannot_be_learnt_from_one_kind(planted):
    found = regrets(planted, "accuracy", NAMES, HELD_OUT["kind"]).mean()
    assert found["forecast"] == found["best on average"] == pytest.approx((0.12 + 0.09) / 2)


def test_means_interval_covers_group_means_and_is_exact_for_equal_groups():
    regret = pd.DataFrame({"a": [0.1] * 6, "b": [0.0, 0.0, 0.2, 0.2, 0.4, 0.4]})
    found = means(regret, np.array(list("xxyyzz")))
    assert found.loc["a"].tolist() == pytest.approx([0.1, 0.1, 0.1])
    assert found.loc["b", "mean"] == pytest.approx(0.2)
    assert found.loc["b", "low"] == pytest.approx(0.0) and found.loc["b", "high"] == pytest.approx(
        0.4
    )
    assert means(regret, np.array(list("xxyyzz")), versus="a").loc["b", "mean"] == pytest.approx(
        0.1
    )


@pytest.mark.slow
def test_judgement_follows_forecasts_only_if_they_are_better_for_sure(
    planted, tmp_path, monkeypatch
):
    runs = planted
    monkeypatch.setattr(regret, "OBJECTIVES", ("accuracy",))
    _, found = write(runs, tmp_path / "j.json")
    assert found.policy(False) == "forecast" and found.forecast_less_average["data"].high < 0
    assert found.policy(True) == "sure gain" and (found.tasks, found.owners) == (24, 10)
    assert judgement.read("accuracy", "any", tmp_path / "j.json") == found
    same = runs.table.assign(label_skew=1.0)  # nothing to learn from
    assert judge(type(runs)(same), "accuracy", "any").policy(False) == "best on average"


@pytest.mark.slow
@pytest.mark.parametrize("names", judgement.CANDIDATES)
def test_shipped_judgement_is_that_of_the_shipped_runs(names):
    shipped, found = judgement.read("accuracy", names), judge(StoredRuns.read(), "accuracy", names)
    assert shipped.policy(False) == found.policy(False) and shipped.tasks == found.tasks
    for by, policies in found.regret.items():
        for policy, estimate in policies.items():
            assert shipped.regret[by][policy].mean == pytest.approx(estimate.mean, abs=0.01), (
                by,
                policy,
            )
