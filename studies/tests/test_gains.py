"""The table of gains over a baseline, in metrics of their own and with corrected intervals."""

import math

import pytest
from scipy import stats

from unalike_studies.layouts.gains import GainTable
from unalike_studies.results import CellResult, Results


def cell(method, setting, seed, clients, ended="rounds"):
    return CellResult(method, setting, seed, "", "", {}, 1.0, ended, clients=clients)


def clients(**columns):
    return {"client": ["a", "b"], "n_train": [30, 90], "n_test": [10, 30], **columns}


RESULTS = Results(
    (
        *(
            cell("FedAvg", "ill", s, clients(roc_auc=[0.6, v]))
            for s, v in enumerate((0.8, 0.82, 0.84))
        ),
        *(
            cell("Ditto", "ill", s, clients(roc_auc=[0.0, 0.0], personal_roc_auc=[None, v]))
            for s, v in enumerate((0.8, 0.85, 0.9))
        ),
        *(cell("FedAvg", "price", s, clients(rmse=[2.0, 4.0])) for s in (0, 1)),
        *(cell("Ditto", "price", s, clients(rmse=[2.0, v])) for s, v in enumerate((3.0, 3.2))),
        cell("SCAFFOLD", "price", 0, {}, "diverged"),
    )
)
ROWS = GainTable("", {"ill": "roc_auc", "price": "rmse"}).table(RESULTS)


def test_a_score_is_the_mean_of_the_clients_that_have_one_weighted_by_test_samples_and_of_personal_models():
    assert ROWS[0] == ["data set", "metric", "FedAvg", "Ditto", "SCAFFOLD"]
    assert ROWS[1][2].startswith(
        f"{25 * 0.6 + 75 * 0.82:.2f} ("
    )  # percent; weights of a quarter and three quarters
    assert ROWS[1][3].startswith("+8.50 (")  # 100 (0.85 - 0.765): Ditto's client a has no AUC


def test_gains_of_errors_are_per_cent_of_the_baseline_and_a_diverged_run_is_named():
    assert ROWS[2][2] == "3.50" and ROWS[2][4] == "diverges"
    assert ROWS[2][3].startswith("+19.29 (")  # 100 (0.75 + 0.6) / 2 / 3.5


def test_intervals_allow_for_training_sets_that_overlap():
    gains = [
        100 * (own - 0.25 * 0.6 - 0.75 * base)
        for own, base in ((0.8, 0.8), (0.85, 0.82), (0.9, 0.84))
    ]
    mean, sd = sum(gains) / 3, stats.tstd(gains)
    half = stats.t.ppf(0.975, 2) * sd * math.sqrt(1 / 3 + 1 / 3)  # 1 / J + tests / trains
    low, high = (float(text) for text in ROWS[1][3].split("(")[1].rstrip(")").split(" to "))
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.005)
