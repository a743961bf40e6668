"""The rule from numbers to verdicts, with intervals that were computed by hand."""

import math

import pytest

from unalike import UnalikeError
from unalike_studies.claim_verdicts import Above, Below, Near, Same, judge

# Three values: the interval is mean ± 4.3027 s / sqrt(3); for 1, 2, 3 it is 2 ± 2.4841. A printed number without a deviation
# counts as a run with that of the values: it agrees up to 4.3027 s sqrt(1/3 + 1), which is 4.9683 for s = 1.
ONE_TWO_THREE = [1.0, 2.0, 3.0]


def test_judge_three_values_gives_mean_and_t_interval():
    found = judge(ONE_TWO_THREE, Above())
    assert (found.seeds, found.mean) == (3, 2.0)
    assert (found.low, found.high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)


def test_judge_says_which_difference_the_seeds_would_have_shown():
    # 4.3027 for the interval and 1.0607 for 80 % of power, times 1 / sqrt(3)
    assert judge(ONE_TWO_THREE, Above()).visible == pytest.approx(3.0965, abs=1e-4)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0]])
def test_judge_fewer_than_three_seeds_is_not_run(values):
    assert judge(values, Above()).verdict == "not run"


def test_judge_value_that_is_not_finite_is_not_run():
    assert judge([1.0, 2.0, math.nan], Above()).verdict == "not run"


def test_judge_divergence_decides_the_verdict():
    diverged = [math.inf, math.inf, 1.0]
    assert judge(diverged, Above(), published=5.0).verdict == "reproduced"
    assert judge(diverged, Below()).verdict == judge(diverged, Same(1.0)).verdict == "against"
    assert judge([math.inf] * 3, Near(80.0, 1.0)).verdict == "excluded"


def test_judge_divergence_under_one_seed_does_not_outweigh_the_others():
    found = judge([-5.0, -6.0, math.inf], Above(), published=1.0)
    assert (found.mean, found.low, found.high, found.verdict) == (
        math.inf,
        -6.0,
        math.inf,
        "undecided",
    )


def test_judge_equal_values_make_the_interval_one_number():
    found = judge([5.0, 5.0, 5.0], Above())
    assert (found.low, found.high, found.verdict) == (5.0, 5.0, "reproduced")


@pytest.mark.parametrize(
    ("values", "published", "deviation", "verdict"),
    [
        ([9.0, 10.0, 11.0], None, None, "reproduced"),  # 7.5 to 12.5
        ([9.0, 10.0, 11.0], 14.9, None, "reproduced"),
        ([9.0, 10.0, 11.0], 15.1, None, "same direction"),
        ([9.0, 10.0, 11.0], 5.1, None, "reproduced"),
        (
            [9.0, 10.0, 11.0],
            4.9,
            None,
            "same direction",
        ),  # more than printed is not what is printed
        ([9.0, 10.0, 11.0], 12.6, 0.1, "same direction"),  # 4.3027 sqrt(1/3 + 0.01) = 2.52
        ([9.0, 10.0, 11.0], 12.6, 0.2, "reproduced"),  # 2.63
        (ONE_TWO_THREE, None, None, "undecided"),
        (ONE_TWO_THREE, 6.9, None, "undecided"),
        (ONE_TWO_THREE, 7.0, None, "excluded"),
        ([-9.0, -10.0, -11.0], 5.0, None, "against"),
    ],
)
def test_above_verdict_follows_from_interval_and_printed_number(
    values, published, deviation, verdict
):
    found = judge(values, Above(), published=published, deviation=deviation)
    assert found.verdict == verdict
    mirrored = None if published is None else -published
    negative = [-value for value in values]
    found = judge(negative, Below(), published=mirrored, deviation=deviation)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("negligible", "published", "verdict"),
    [(5.0, None, "none within d"), (4.0, None, "undecided"), (5.0, 3.0, "undecided")],
)
def test_difference_that_is_surely_small_is_none_where_no_number_is_printed(
    negligible, published, verdict
):
    found = judge(ONE_TWO_THREE, Above(), published=published, negligible=negligible)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("number", "margin", "verdict"),
    [
        (10.5, 1.0, "reproduced"),  # near, and in the interval 7.5 to 12.5
        (12.0, 1.0, "undecided"),  # in the interval, but not near
        (13.0, 1.0, "excluded"),
        (13.0, 3.5, "undecided"),  # near, but the interval misses it and leaves 9.5 to 16.5
        (13.0, 6.0, "reproduced"),  # the interval lies within 7 to 19
    ],
)
def test_near_verdict_follows_from_margin_and_interval(number, margin, verdict):
    assert judge([9.0, 10.0, 11.0], Near(number, margin)).verdict == verdict
    # a printed number with a deviation of 0 is as exact as one of a statement
    found = judge([9.0, 10.0, 11.0], Near(margin=margin), published=number, deviation=0.0)
    assert found.verdict == verdict


def test_near_printed_number_of_one_run_is_not_exact():
    found = judge([9.0, 10.0, 11.0], Near(margin=1.0), published=13.0)
    assert (found.verdict, found.agreement) == ("undecided", "yes")


def test_near_without_any_number_is_refused():
    with pytest.raises(UnalikeError, match="give `number`"):
        judge(ONE_TWO_THREE, Near(margin=1.0))


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ([0.0, 0.0, 0.0], 1e-9, "reproduced"),
        ([-0.1, 0.0, 0.1], 1.0, "reproduced"),  # -0.25 to 0.25
        ([-1.0, 0.0, 1.0], 1.0, "undecided"),  # -2.5 to 2.5
        ([0.0, 1.5, 4.5], 1.0, "undecided"),  # mean 2, -3.7 to 7.7
        ([9.0, 10.0, 11.0], 1.0, "against"),
    ],
)
def test_same_verdict_follows_from_margin_and_interval(values, margin, verdict):
    assert judge(values, Same(margin)).verdict == verdict
