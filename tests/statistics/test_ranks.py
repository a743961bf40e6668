"""Ranks over partitions compared with published and hand-computed numbers."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from unalike._utils.errors import UnalikeError
from unalike.statistics import ranks as inf


def test_ranks_critical_difference_equals_demsar():
    """Demsar (2006), table 5: q = 2.569 for four methods, so CD = 2.569 sqrt(4 x 5 / (6 x 14)) = 1.25 on 14 data sets."""
    generator = np.random.default_rng(0)
    many = inf.ranks(pd.DataFrame(generator.normal(size=(14, 4)), columns=list("abcd")))
    assert many.critical == pytest.approx(1.25, abs=0.005) and many.mean.sum() == pytest.approx(10)
    table = pd.DataFrame({"a": [0.9, 0.8, 0.7], "b": [0.5, 0.8, 0.6], "c": [0.1, 0.2, 0.3]})
    found = inf.ranks(table)
    assert found.mean.tolist() == pytest.approx([(1 + 1.5 + 1) / 3, (2 + 1.5 + 2) / 3, 3])
    assert inf.ranks(-table, sign=-1).mean.equals(found.mean)
    assert found.friedman == pytest.approx(
        stats.friedmanchisquare(*(table[c] for c in table)).pvalue
    )


def test_groups_are_largest_sets_within_critical_difference():
    """Computed by hand for mean ranks 1.0, 1.8, 2.6, 4.6 for several critical differences."""

    def groups(critical):
        mean = pd.Series({"d": 4.6, "a": 1.0, "c": 2.6, "b": 1.8})
        return inf.Ranks(mean, critical, 10, math.nan).groups

    assert groups(0.5) == []
    assert groups(1.0) == [
        ["a", "b"],
        ["b", "c"],
    ]  # a and c are 1.6 apart: two bars that overlap in b
    assert groups(1.7) == [["a", "b", "c"]]  # b, c lies inside
    assert groups(2.0) == [["a", "b", "c"], ["c", "d"]]  # 4.6 - 2.6 is not more than 2.0
    assert groups(4.0) == [["a", "b", "c", "d"]]


def test_groups_ties_are_together_and_distant_methods_apart():
    table = pd.DataFrame(
        [[1.0, 1.0, 0.0]] * 8, columns=["x", "y", "z"]
    )  # ranks 1.5, 1.5, 3; CD = 2.343 sqrt(12 / 48)
    found = inf.ranks(table)
    assert found.groups == [["x", "y"]] and found.apart == [("x", "z"), ("y", "z")]


def test_ranks_apart_lists_distant_pairs():
    table = pd.DataFrame({"good": [0.9] * 6, "bad": [0.1] * 6})
    assert inf.ranks(table).apart == [("good", "bad")] and math.isnan(inf.ranks(table).friedman)
    assert inf.ranks(table.head(2)).apart == []  # CD = 1.96 sqrt(6 / 12) = 1.39 > 1
    with pytest.raises(UnalikeError, match="2 methods on 1 partitions"):
        inf.ranks(table.head(1))


def test_ranks_scores_equal_up_to_rounding_share_a_rank():
    table = pd.DataFrame(
        {"a": [185.20276524394, 2.0], "b": [185.20276524284, math.inf], "c": [185.3, 1.0]}
    )
    assert inf.ranks(table, sign=-1).mean.to_dict() == {
        "a": (1.5 + 2) / 2,
        "b": (1.5 + 3) / 2,
        "c": 2,
    }
