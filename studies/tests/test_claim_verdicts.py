"""The rule from numbers to verdicts, with intervals that were computed by hand."""

import math

import pytest

from unalike import UnalikeError
from unalike_studies.claim_verdicts import Above, Below, Near, Same, judge

# Three values: the interval is mean ± 4.3027 s / sqrt(3); for 1, 2, 3 it is 2 ± 2.4841.
ONE_TWO_THREE = [1.0, 2.0, 3.0]


def test_judge_three_values_gives_mean_and_t_interval():
    found = judge(ONE_TWO_THREE, Above())
    assert (found.seeds, found.mean) == (3, 2.0)
    assert (found.low, found.high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0]])
def test_judge_fewer_than_three_seeds_is_not_run(values):
    assert judge(values, Above()).verdict == "not run"


def test_judge_value_that_is_not_finite_is_not_run():
    assert judge([1.0, 2.0, math.nan], Above()).verdict == "not run"


def test_judge_divergence_decides_the_verdict():
    diverged = [math.inf, math.inf, 1.0]
    assert judge(diverged, Above(), published=5.0).verdict == "reproduced"
    assert judge(diverged, Below()).verdict == judge(diverged, Same(1.0)).verdict == "contradicted"
    assert judge(diverged, Near(80.0, 1.0)).verdict == "contradicted"


def test_judge_divergence_under_one_seed_does_not_outweigh_the_others():
    found = judge([-5.0, -6.0, math.inf], Above(), published=1.0)
    assert (found.mean, found.low, found.high, found.verdict) == (
        math.inf,
        -6.0,
        math.inf,
        "no effect",
    )


def test_judge_equal_values_make_the_interval_one_number():
    found = judge([5.0, 5.0, 5.0], Above())
    assert (found.low, found.high, found.verdict) == (5.0, 5.0, "reproduced")


@pytest.mark.parametrize(
    ("values", "published", "verdict"),
    [
        ([9.0, 10.0, 11.0], None, "reproduced"),  # 7.5 to 12.5
        ([9.0, 10.0, 11.0], 12.0, "reproduced"),
        ([9.0, 10.0, 11.0], 20.0, "same direction"),
        (ONE_TWO_THREE, None, "no effect"),
        ([-9.0, -10.0, -11.0], 5.0, "contradicted"),
    ],
)
def test_above_verdict_follows_from_the_interval(values, published, verdict):
    assert judge(values, Above(), published=published).verdict == verdict
    mirrored = None if published is None else -published
    assert judge([-value for value in values], Below(), published=mirrored).verdict == verdict


@pytest.mark.parametrize(
    ("published", "margin", "verdict"),
    [
        (10.5, 1.0, "reproduced"),  # near, and in the interval 7.5 to 12.5
        (12.0, 1.0, "same direction"),  # in the interval, but not near
        (13.0, 1.0, "contradicted"),
        (13.0, 3.5, "no effect"),  # near, but the interval misses it and leaves 9.5 to 16.5
        (13.0, 6.0, "reproduced"),  # the interval lies within 7 to 19
    ],
)
def test_near_verdict_follows_from_margin_and_interval(published, margin, verdict):
    assert judge([9.0, 10.0, 11.0], Near(published, margin)).verdict == verdict
    assert judge([9.0, 10.0, 11.0], Near(margin=margin), published=published).verdict == verdict


def test_near_without_any_number_is_refused():
    with pytest.raises(UnalikeError, match="give `number`"):
        judge(ONE_TWO_THREE, Near(margin=1.0))


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ([0.0, 0.0, 0.0], 1e-9, "reproduced"),
        ([-0.1, 0.0, 0.1], 1.0, "reproduced"),  # -0.25 to 0.25
        ([-1.0, 0.0, 1.0], 1.0, "same direction"),  # -2.5 to 2.5
        ([0.0, 1.5, 4.5], 1.0, "no effect"),  # mean 2, -3.7 to 7.7
        ([9.0, 10.0, 11.0], 1.0, "contradicted"),
    ],
)
def test_same_verdict_follows_from_margin_and_interval(values, margin, verdict):
    assert judge(values, Same(margin)).verdict == verdict
