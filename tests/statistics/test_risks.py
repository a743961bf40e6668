"""Calibration, ROC curve, sensitivity and net benefit of small tables, by hand; coverage by simulation."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from unalike._utils.errors import UnalikeError
from unalike.statistics.recalibration import Recalibration
from unalike.statistics.risks import MIN_SAMPLES_OF_CLASS, Risks, risks_of, wilson

OUTCOME, RISK = np.array([0, 0, 1, 0, 1, 1]), np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.9])
TINY = Risks(OUTCOME, RISK, np.zeros(6))


def test_brier_score_and_counts_by_hand():
    assert TINY.brier == pytest.approx((0.01 + 0.04 + 0.49 + 0.16 + 0.16 + 0.01) / 6)
    assert (TINY.positives, TINY.others, TINY.enough) == (3, 3, False)
    twice = Risks(np.tile(OUTCOME, 2), np.tile(RISK, 2), np.repeat([0, 1], 6))
    assert (twice.positives, twice.others, twice.brier) == (3, 3, pytest.approx(TINY.brier))


def test_net_benefit_by_hand():
    # at .25 four are treated, three of them ill; at .5 two, both ill
    assert TINY.net_benefit(np.array([0.25, 0.5])) == pytest.approx([3 / 6 - 1 / 6 / 3, 2 / 6])
    assert TINY.treat_all(np.array([0.25, 0.5])) == pytest.approx([0.5 - 0.5 / 3, 0.0])
    assert TINY.net_benefit(np.array([0.3]))[0] == pytest.approx(
        3 / 6 - 1 / 6 * 3 / 7
    )  # a risk at the threshold is treated


def test_sensitivity_at_a_specificity_by_hand():
    # no false alarm: above .4 are two of three positives; one of three false alarms finds all
    assert TINY.sensitivities(np.array([1.0, 0.9, 2 / 3, 0.0])) == pytest.approx(
        [2 / 3, 2 / 3, 1, 1]
    )
    ties = Risks(np.array([0, 1, 0, 1]), np.full(4, 0.5), np.zeros(4))
    assert ties.sensitivities(np.array([0.5, 0.0])) == pytest.approx(
        [0, 1]
    )  # equal risks are one step
    other = Risks(np.concatenate([OUTCOME, 1 - OUTCOME]), np.tile(RISK, 2), np.repeat([0, 1], 6))
    assert other.sensitivities(np.array([1.0])) == pytest.approx([1 / 3])  # mean of 2/3 and 0
    assert math.isnan(Risks(np.ones(3), np.ones(3), np.zeros(3)).sensitivity(0.9)[0])


def test_wilson_interval_of_the_literature():
    # Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for count, of, wanted in (
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ):
        assert wilson(count / of, of) == pytest.approx(wanted, abs=5e-5)
    assert all(map(math.isnan, wilson(math.nan, 3)))


def test_reliability_groups_by_hand():
    risk = np.concatenate([np.full(10, 0.2), np.full(10, 0.7)])
    outcome = np.concatenate([np.arange(10) < 3, np.arange(10) < 6]).astype(int)
    table = Risks(outcome, risk, np.zeros(20)).reliability()
    assert table["expected"].tolist() == pytest.approx([0.2, 0.7]) and table[
        "observed"
    ].tolist() == pytest.approx([0.3, 0.6])
    assert table["count"].tolist() == [10, 10]
    assert tuple(table.loc[0, ["low", "high"]]) == pytest.approx(wilson(0.3, 10))
    repeated = Risks(np.tile(outcome, 3), np.tile(risk, 3), np.repeat([0, 1, 2], 20)).reliability()
    pd.testing.assert_frame_equal(repeated, table)  # the same samples thrice narrow nothing


def test_slope_and_intercept_are_those_that_were_simulated():
    rng = np.random.default_rng(0)
    z = rng.normal(size=20_000)
    outcome = (rng.random(len(z)) < expit(z)).astype(int)
    right = Risks(outcome, expit(z), np.zeros(len(z)))
    assert (
        right.slope()[1] < 1 < right.slope()[2] and right.intercept()[1] < 0 < right.intercept()[2]
    )
    assert Risks(outcome, expit(2 * z), right.seed).slope()[0] == pytest.approx(
        right.slope()[0] / 2
    )  # too extreme
    assert Risks(outcome, expit(z + 1), right.seed).intercept()[0] == pytest.approx(
        -1, abs=0.05
    )  # too high
    constant = Risks(np.array([0, 0, 0, 1]), np.full(4, 0.5), np.zeros(4))
    assert constant.intercept()[0] == pytest.approx(math.log(1 / 3)) and math.isnan(
        constant.slope()[0]
    )
    separated = Risks(np.array([0, 0, 1, 1]), np.array([0.1, 0.2, 0.8, 0.9]), np.zeros(4))
    assert math.isnan(separated.slope()[0])


def test_intervals_of_slope_cover_and_grow_with_repeats():
    rng, found = np.random.default_rng(1), []
    for _ in range(300):
        z = rng.normal(size=80)
        risks = Risks((rng.random(80) < expit(z)).astype(int), expit(z), np.zeros(80))
        found.append(
            (
                risks.slope()[1] < 1 < risks.slope()[2],
                risks.intercept()[1] < 0 < risks.intercept()[2],
            )
        )
    assert ((np.mean(found, axis=0) >= 0.91) & (np.mean(found, axis=0) <= 0.99)).all()
    twice = Risks(np.tile(risks.outcome, 2), np.tile(risks.risk, 2), np.repeat([0, 1], 80))
    assert twice.slope() == pytest.approx(risks.slope(), abs=1e-6)


def test_table_is_read_by_client_and_method():
    table = pd.DataFrame(
        {
            "method": ["a", "b", "a"],
            "seed": 0,
            "client": ["x", "x", "y"],
            "outcome": [1, 0, 1],
            "risk": [0.5] * 3,
        }
    )
    found = risks_of(table, ["b", "a"])
    assert {client: list(own) for client, own in found.items()} == {"x": ["b", "a"], "y": ["a"]}
    assert found["x"]["b"].outcome.tolist() == [0] and MIN_SAMPLES_OF_CLASS == 10


NUMBERS = {"intercept": 0.5, "slope": 1.5, "positive": "ill", "data": "a.csv"}
COUNTS = {"samples": 90, "positives": 40, "model": "0123"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(NUMBERS | COUNTS | {"intercept": math.nan}),
        json.dumps(NUMBERS | COUNTS | {"intercept": math.inf}),
        json.dumps(NUMBERS | COUNTS | {"slope": 0.0}),
        json.dumps(NUMBERS | COUNTS | {"slope": -1.5}),
        "[" * 100_000,
    ],
)
def test_recalibration_that_no_samples_give_is_refused(text, tmp_path):
    """A file from elsewhere, by which every risk would be unknown, equal or reversed."""
    file = tmp_path / "place.json"
    file.write_text(json.dumps(NUMBERS | COUNTS))
    assert Recalibration.load(file).slope == 1.5
    file.write_text(text)
    with pytest.raises(UnalikeError, match=r"place\.json is no recalibration"):
        Recalibration.load(file)
