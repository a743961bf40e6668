"""Statistical tests and intervals compared with numbers computed by hand or by enumeration."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from unalike._utils.errors import UnalikeError
from unalike.metrics import inference as inf


def test_t_test_agrees_with_scipy_and_its_interval():
    a, b = [0.7, 0.9, 0.8, 1.0], [0.6, 0.8, 0.75, 0.7]
    assert inf.paired(a, b).p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    for shift in np.linspace(-0.3, 0.3, 41):
        found = inf.paired([x + shift for x in a], b)
        assert (found.p < inf.ALPHA) == (not found.low <= 0 <= found.high)


@pytest.mark.parametrize("d", [[1, 2, 3], [1, -2, 3, 4, 5], [0.1, 0.2, -0.4, 0.5, 0.6, 0.7, 0.9]])
def test_wilcoxon_equals_enumeration_of_signs(d):
    """Without a difference all 2^n sign patterns are equally likely; W is the sum of the ranks of positive d."""
    rank = stats.rankdata(np.abs(d))
    middle = rank.sum() / 2
    found = abs(rank[np.asarray(d) > 0].sum() - middle)
    patterns = [abs(rank[list(map(bool, signs))].sum() - middle) for signs in itertools.product([0, 1], repeat=len(d))]
    assert inf.wilcoxon(d) == pytest.approx(np.mean([w >= found - 1e-9 for w in patterns]))


def test_wilcoxon_below_six_pairs_cannot_reach_five_percent():
    assert [inf.wilcoxon([0.1 * k for k in range(1, n + 1)]) for n in (1, 3, 5, 6)] == pytest.approx(
        [inf.least_p(n) for n in (1, 3, 5, 6)]
    )
    assert inf.least_p(5) == 0.0625 and inf.least_p(6) == 0.03125
    assert (inf.pairs_needed(), inf.pairs_needed(4), inf.pairs_needed(10)) == (6, 8, 9)


def test_paired_equal_scores_have_p_one():
    same = inf.paired([0.1 + 0.2, 0.5], [0.3, 0.5])
    assert (same.difference, same.p, same.wilcoxon, same.better) == (0, 1, 1, 0.5)
    none = inf.paired([], [])
    assert none.n == 0 and all(map(math.isnan, (none.p, none.wilcoxon, none.better, none.boot_low)))
    one = inf.paired([1.0], [0.0])
    assert math.isnan(one.p) and math.isnan(one.boot_low) and one.wilcoxon == 1 and one.better == 1


@pytest.mark.parametrize("d", [[0.1, 0.1], [0.1] * 3, [0.1, 0.1 + 1e-12, 0.1], [-2.0] * 5])
def test_paired_constant_difference_has_no_t_test(d):
    """t = mean sqrt(n) / 0 is not defined, so there is neither p nor interval."""
    found = inf.paired(d, [0.0] * len(d))
    assert found.difference == pytest.approx(d[0]) and found.n == len(d)
    assert all(map(math.isnan, (found.p, found.low, found.high)))
    assert found.wilcoxon == inf.least_p(len(d))


def test_paired_infinite_difference_is_not_tested():
    found = inf.paired([1.0, math.inf, 2.0], [0.5, 1.0, 1.5])
    assert found.difference == math.inf and found.n == 3
    assert all(map(math.isnan, (found.p, found.low, found.high, found.boot_low, found.boot_high)))


def test_probability_better_counts_ties_half_and_uses_the_sign():
    assert inf.paired([1, 2, 3, 4], [0, 2, 4, 3]).better == pytest.approx((2 + 0.5) / 4)
    assert inf.paired([1, 2, 3], [2, 3, 3], sign=-1).better == pytest.approx((2 + 0.5) / 3)


def test_bootstrap_is_seeded_and_centered():
    d = [0.1, 0.3, 0.2, 0.5, 0.4, 0.0]
    low, high = inf.bootstrap(d)
    assert (low, high) == inf.bootstrap(d) and min(d) <= low < np.mean(d) < high <= max(d)
    reference = stats.bootstrap((d,), np.mean, method="percentile", n_resamples=9999).confidence_interval
    assert (low, high) == pytest.approx(tuple(reference), abs=0.02)  # two draws of the same resampling
    assert inf.bootstrap([2.0, 2.0]) == (2.0, 2.0)


def test_holm_equals_hand_computed_values():
    """0.01 x 4, 0.02 x 3, 0.03 x 2 = 0.06, and 0.5; sorted, non-decreasing."""
    assert inf.holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert inf.holm([0.4, 0.9]) == pytest.approx([0.8, 0.9]) and inf.holm([0.9, 0.8]) == pytest.approx([1, 1])
    found = inf.holm([math.nan, 0.04])
    assert math.isnan(found[0]) and found[1] == 0.04


def test_ranks_critical_difference_equals_demsar():
    """Demsar (2006), table 5: q = 2.569 for four methods, so CD = 2.569 sqrt(4 x 5 / (6 x 14)) = 1.25 on 14 data sets."""
    generator = np.random.default_rng(0)
    many = inf.ranks(pd.DataFrame(generator.normal(size=(14, 4)), columns=list("abcd")))
    assert many.critical == pytest.approx(1.25, abs=0.005) and many.mean.sum() == pytest.approx(10)
    table = pd.DataFrame({"a": [0.9, 0.8, 0.7], "b": [0.5, 0.8, 0.6], "c": [0.1, 0.2, 0.3]})
    found = inf.ranks(table)
    assert found.mean.tolist() == pytest.approx([(1 + 1.5 + 1) / 3, (2 + 1.5 + 2) / 3, 3])
    assert inf.ranks(-table, sign=-1).mean.equals(found.mean)
    assert found.friedman == pytest.approx(stats.friedmanchisquare(*(table[c] for c in table)).pvalue)


def test_groups_are_largest_sets_within_critical_difference():
    """Computed by hand for mean ranks 1.0, 1.8, 2.6, 4.6 for several critical differences."""

    def groups(critical):
        mean = pd.Series({"d": 4.6, "a": 1.0, "c": 2.6, "b": 1.8})
        return inf.Ranks(mean, critical, 10, math.nan).groups

    assert groups(0.5) == []
    assert groups(1.0) == [["a", "b"], ["b", "c"]]  # a and c are 1.6 apart: two bars that overlap in b
    assert groups(1.7) == [["a", "b", "c"]]  # b, c lies inside
    assert groups(2.0) == [["a", "b", "c"], ["c", "d"]]  # 4.6 - 2.6 is not more than 2.0
    assert groups(4.0) == [["a", "b", "c", "d"]]


def test_groups_ties_are_together_and_distant_methods_apart():
    table = pd.DataFrame([[1.0, 1.0, 0.0]] * 8, columns=["x", "y", "z"])  # ranks 1.5, 1.5, 3; CD = 2.343 sqrt(12 / 48)
    found = inf.ranks(table)
    assert found.groups == [["x", "y"]] and found.apart == [("x", "z"), ("y", "z")]


def test_ranks_apart_lists_distant_pairs():
    table = pd.DataFrame({"good": [0.9] * 6, "bad": [0.1] * 6})
    assert inf.ranks(table).apart == [("good", "bad")] and math.isnan(inf.ranks(table).friedman)
    assert inf.ranks(table.head(2)).apart == []  # CD = 1.96 sqrt(6 / 12) = 1.39 > 1
    with pytest.raises(UnalikeError, match="2 methods on 1 partitions"):
        inf.ranks(table.head(1))


def test_paired_scores_equal_up_to_rounding_have_no_difference():
    """The RMSE of methods with the same shared model may differ in the last bits of float32."""
    found = inf.paired([2.3615726, 2.1, 1.9], [2.3615728, 2.1000001, 1.9], sign=-1)
    assert (found.difference, found.low, found.high, found.p, found.better) == (0, 0, 0, 1, 0.5)
    assert math.isnan(inf.paired([math.inf, 1.0], [math.inf, 1.0]).p)


def test_ranks_scores_equal_up_to_rounding_share_a_rank():
    table = pd.DataFrame({"a": [185.20276524394, 2.0], "b": [185.20276524284, math.inf], "c": [185.3, 1.0]})
    assert inf.ranks(table, sign=-1).mean.to_dict() == {"a": (1.5 + 2) / 2, "b": (1.5 + 3) / 2, "c": 2}
