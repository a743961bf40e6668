"""Statistical tests and intervals compared with numbers computed by hand, by enumeration, or by independent code."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

from unalike.statistics import inference as inf
from unalike.statistics.moderated_t import ALPHA, holm, levels_of_holm, moderated_t
from unalike.statistics.seed_draws import sampling_variances


def compared(values, baseline, sign=1):
    """The tests of a family of one."""
    scores = {"base": pd.Series(baseline, dtype=float), "own": pd.Series(values, dtype=float)}
    return inf.family_tests(inf.difference_table(scores, "base"), sign).loc["own"]


def family(*columns):
    return pd.DataFrame({f"m{i}": column for i, column in enumerate(columns)}, dtype=float)


def test_family_of_one_is_the_paired_t_test():
    a, b = [0.7, 0.9, 0.8, 1.0], [0.6, 0.8, 0.75, 0.7]
    assert compared(a, b)["p"] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    for shift in np.linspace(-0.3, 0.3, 41):
        found = compared([x + shift for x in a], b)
        assert (found["p"] < ALPHA) == (not found["ci_low"] <= 0 <= found["ci_high"])
    assert inf.t_test([1, 2, 3])[:3] == pytest.approx((2.0, -0.484138, 4.484138), abs=1e-6)


def test_moderated_variances_equal_an_independent_computation():
    """Two methods with uncorrelated differences of other spread: trigamma(d0 / 2) = var(log s2) - trigamma(1)."""
    d = np.array([[1.0, 30.0], [-1.0, 30.0], [0.0, -60.0]])
    s2, v = d.var(0, ddof=1), 2.0
    logs = np.log(s2) - special.digamma(v / 2) + np.log(v / 2)
    excess = logs.var(ddof=1) - special.polygamma(1, v / 2)
    d0 = optimize.brentq(lambda x: special.polygamma(1, x / 2) - excess, 1e-3, 1e3)
    s0 = math.exp(logs.mean() + special.digamma(d0 / 2) - math.log(d0 / 2))
    found = moderated_t(d)
    assert 0 < d0 < 2 and found.df == pytest.approx([v + d0] * 2)
    assert found.sd == pytest.approx(np.sqrt((d0 * s0 + v * s2) / (d0 + v)))


def test_moderated_variances_of_proportional_differences_are_their_own():
    """Methods that differ from the baseline only by its noise say nothing about each other's variance."""
    one = np.array([1.0, 2.0, 4.0, 3.0])
    found = moderated_t(np.stack([one, 2 * one, -one], axis=1))
    assert found.df == pytest.approx([3.0] * 3)
    assert found.sd == pytest.approx([one.std(ddof=1) * factor for factor in (1, 2, 1)])


def test_overlapping_training_samples_widen_the_interval_as_nadeau_and_bengio_say():
    d = np.array([[0.3], [0.1], [0.4], [0.2]])
    plain, corrected = moderated_t(d), moderated_t(d, overlap=1 / 3)
    wider = math.sqrt((1 / 4 + 1 / 3) / (1 / 4))
    assert corrected.high - corrected.mean == pytest.approx(wider * (plain.high - plain.mean))
    t = d.mean() / (d.std(ddof=1) * math.sqrt(1 / 4 + 1 / 3))
    assert corrected.p == pytest.approx(2 * stats.t.sf(t, 3)) and corrected.df == plain.df


def test_variance_of_shared_test_samples_joins_two_intervals():
    """The half width is the hypotenuse of those of seeds and of samples, and p is at 5 % where the interval ends at 0."""
    d = np.array([[0.3], [0.1], [0.4]])
    plain, joined = moderated_t(d), moderated_t(d, sampling=[0.01])
    half = math.hypot(float((plain.high - plain.mean)[0]), stats.norm.ppf(0.975) * 0.1)
    assert joined.high - joined.mean == pytest.approx(half)
    edge = moderated_t(d - d.mean() + half, sampling=[0.01])
    assert edge.p == pytest.approx(0.05) and edge.low == pytest.approx(0.0, abs=1e-12)


def test_variance_of_samples_is_that_of_paired_draws():
    """Methods that are right on the same samples differ by nothing, however few samples there are."""
    rng = np.random.default_rng(0)
    a = pd.DataFrame(rng.normal(size=(200, 3)))
    draws = {"base": a, "same": a + 0.5, "other": a + pd.DataFrame(rng.normal(size=(200, 3)))}
    found = sampling_variances(draws, "base", ["same", "other", "unknown"])
    assert found == pytest.approx([0.0, 1 / 3, 0.0], abs=0.06)


def test_no_number_of_seeds_narrows_an_interval_below_what_seeds_share():
    assert inf.seeds_needed(0.5, 1.0, 0.1, 0.05) < 50
    assert inf.seeds_needed(0.5, 1.0, 0.1, 0.05, overlap=1 / 3) == inf.MOST_NEEDED
    assert inf.seeds_needed(3.0, 1.0, 0.1, 0.05, overlap=1 / 3) < 20


def test_moderated_t_of_many_families_equals_that_of_each():
    d = np.random.default_rng(0).normal(size=(5, 4, 3))
    d[1, 0, 2] = math.nan
    d[2, :, 1] = 0.0
    together = moderated_t(d)
    for i, alone in enumerate(map(moderated_t, d)):
        np.testing.assert_allclose(
            [together.p[i], together.sd[i], together.df[i]], [alone.p, alone.sd, alone.df]
        )
    assert together.p[2, 1] == 1 and together.low[2, 1] == together.high[2, 1] == 0


@pytest.mark.parametrize(
    "columns",
    [[[1, 2, 3]], [[1, -2, 3, 4, 5], [3, 1, 2, 5, 4]], [[0.1, 0.2, -0.4, 0.5], [5, 6, 7, 9]]],
)
def test_sign_flips_equal_enumeration(columns):
    """Without a difference, the signs of each seed are equally likely to be the opposite, for all methods at once."""
    d = np.array(columns, dtype=float).T

    def t(table):
        return np.abs([stats.ttest_1samp(column, 0).statistic for column in table.T])

    observed = t(d)
    most = [
        t(d * np.array(signs)[:, None]).max() for signs in itertools.product([1, -1], repeat=len(d))
    ]
    expected = [np.mean([m >= own - 1e-9 for m in most]) for own in observed]
    assert inf.sign_flip_p(family(*columns)) == pytest.approx(expected)


def test_sign_flips_reach_five_percent_from_six_seeds_for_any_number_of_methods():
    rng = np.random.default_rng(0)
    for n in (3, 5, 6):
        columns = [1 + 0.01 * rng.random(n), *(rng.normal(size=(10, n)))]
        assert inf.sign_flip_p(family(*columns))[0] == inf.least_exact_p(n) == 2 / 2**n
    assert (
        inf.least_exact_p(inf.MIN_EXACT_SEEDS) < ALPHA <= inf.least_exact_p(inf.MIN_EXACT_SEEDS - 1)
    )
    assert inf.sign_flip_p(family(1 + rng.random(30)))[0] == pytest.approx(
        1 / (inf.RANDOM_DRAWS + 1)
    )


def test_family_equal_scores_have_p_one():
    same = compared([0.1 + 0.2, 0.5], [0.3, 0.5])
    assert (same["difference"], same["p"], same["p_exact"], same["better"], same["won"]) == (
        0,
        1,
        1,
        0.5,
        0,
    )
    none = compared([], [])
    assert none["pairs"] == 0 and none[["p", "p_exact", "better", "boot_low"]].isna().all()
    one = compared([1.0], [0.0])
    assert one[["p", "boot_low"]].isna().all() and one["p_exact"] == 1 and one["better"] == 1


@pytest.mark.parametrize("d", [[0.1, 0.1], [0.1] * 3, [0.1, 0.1 + 1e-12, 0.1], [-2.0] * 5])
def test_family_constant_difference_has_no_t_test(d):
    """t = mean sqrt(n) / 0 is not defined, so there is neither p nor interval."""
    found = compared(d, [0.0] * len(d))
    assert found["difference"] == pytest.approx(d[0]) and found["pairs"] == len(d)
    assert found[["p", "ci_low", "ci_high"]].isna().all()
    assert found["p_exact"] == inf.least_exact_p(len(d))


def test_family_infinite_difference_is_not_tested():
    found = compared([1.0, math.inf, 2.0], [0.5, 1.0, 1.5])
    assert found["difference"] == math.inf and found["pairs"] == 3
    assert found[["p", "ci_low", "ci_high", "boot_low", "boot_high", "p_exact"]].isna().all()


def test_family_counts_ties_half_and_uses_the_sign():
    assert compared([1, 2, 3, 4], [0, 2, 4, 3])["better"] == pytest.approx((2 + 0.5) / 4)
    lower = compared([1, 2, 3], [2, 3, 3], sign=-1)
    assert lower["better"] == pytest.approx((2 + 0.5) / 3) and lower["won"] == 2


def best_of(d, sign=1):
    """P(best) and the shrunken differences of a table of differences."""
    means = inf.posterior_means(d, inf.family_tests(d, sign))
    return inf.probability_best(means, "base", d.columns, sign), means.mean()


def test_probability_best_of_one_candidate_is_below_that_of_a_flat_prior():
    """d = 1, 2, 3: with a flat prior on the mean, P(mean > 0) is the t distribution with two degrees of freedom at 2 sqrt(3)."""
    found, shrunken = best_of(family([1, 2, 3]))
    assert 0.75 < found["m0"] < stats.t.cdf(2 * math.sqrt(3), 2) and 0.8 < shrunken["m0"] < 2.0
    assert found.sum() == pytest.approx(1)
    assert best_of(family([1, 2, 3]), -1)[0]["base"] == found["m0"]
    far, shrunken = best_of(family([101, 102, 103]))
    assert far["m0"] > 0.98 and shrunken["m0"] > 95  # what noise could not make is hardly shrunk


def test_probability_best_of_equal_methods_is_even():
    rng = np.random.default_rng(1)
    d = family(*(rng.normal(size=(3, 4000)) - rng.normal(size=4000)))
    d = d - d.mean()
    found, shrunken = best_of(d)
    assert found.to_numpy() == pytest.approx([0.25] * 4, abs=0.03)
    assert shrunken.abs().max() < 0.01


def test_methods_without_an_interval_have_no_probability():
    d = family([0.1, 0.1, 0.1], [0.1, 0.3, 0.2])
    found, shrunken = best_of(d)
    assert (
        math.isnan(found["m0"])
        and "m0" not in shrunken
        and found[["base", "m1"]].sum() == pytest.approx(1)
    )
    nothing, _ = best_of(family([0.0, 0.0, 0.0]))
    assert nothing.tolist() == [1.0, 0.0]


def test_seeds_needed_reach_the_power():
    """With the number found, a t test finds the difference in 80 % of simulated experiments, with one less in fewer."""
    n = inf.seeds_needed(1.0, 1.0, 0.1, 0.05)
    rng = np.random.default_rng(0)
    found = [
        (stats.ttest_1samp(rng.normal(1, 1, (20000, k)), 0, axis=1).pvalue < 0.05).mean()
        for k in (n - 1, n)
    ]
    assert found[0] < 0.8 <= found[1] + 0.01
    assert inf.seeds_needed(0.0, 1.0, 0.5, 0.05) > n  # to show that a difference is below 0.5
    assert inf.seeds_needed(0.001, 1.0, 0.001, 0.05) == inf.MOST_NEEDED


def test_bootstrap_is_seeded_and_centered():
    d = [0.1, 0.3, 0.2, 0.5, 0.4, 0.0]
    low, high = inf.bootstrap(d)
    assert (low, high) == inf.bootstrap(d) and min(d) <= low < np.mean(d) < high <= max(d)
    reference = stats.bootstrap(
        (d,), np.mean, method="percentile", n_resamples=9999
    ).confidence_interval
    assert (low, high) == pytest.approx(
        tuple(reference), abs=0.02
    )  # two draws of the same resampling
    assert inf.bootstrap([2.0, 2.0]) == (2.0, 2.0)


def test_levels_of_holm_equal_hand_computed_values():
    """The smallest of four is below 5 % / 4, the next one is not below 5 % / 3, where the procedure ends."""
    levels = levels_of_holm([0.03, 0.01, 0.5, 0.02], 0.05)
    assert levels == pytest.approx([0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3])
    assert levels_of_holm([math.nan, 0.04], 0.05)[1] == 0.05


def test_holm_equals_hand_computed_values():
    """0.01 x 4, 0.02 x 3, 0.03 x 2 = 0.06, and 0.5; sorted, non-decreasing."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9]) and holm([0.9, 0.8]) == pytest.approx(
        [1, 1]
    )
    found = holm([math.nan, 0.04])
    assert math.isnan(found[0]) and found[1] == 0.04
    assert holm([[0.01, 0.02], [0.5, 0.01]]) == pytest.approx(np.array([[0.02, 0.02], [0.5, 0.02]]))


def test_family_scores_equal_up_to_rounding_have_no_difference():
    """The RMSE of methods with the same shared model may differ in the last bits of float32."""
    found = compared([2.3615726, 2.1, 1.9], [2.3615728, 2.1000001, 1.9], sign=-1)
    assert found[["difference", "ci_low", "ci_high", "p", "better"]].tolist() == [0, 0, 0, 1, 0.5]
    assert math.isnan(compared([math.inf, 1.0], [math.inf, 1.0])["p"])
