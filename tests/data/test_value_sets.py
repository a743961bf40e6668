"""One set of names that is written in several ways is told from several sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.value_sets import in_two_ways, side_by_side, spelling, two_numbers

ROWS = 60


@pytest.mark.parametrize(
    "one, other",
    [
        ("yes", "Yes"),
        ("No ", "no"),
        ("1", "1.0"),
        ("01", "1"),
        ("1,50", "1.5"),
        ("+3", "3"),
        ("non smoker", "Non Smoker"),
        ("TRUE", "true"),
        ("Straße", "STRASSE"),
        ("Hämatom", "Ha\u0308matom"),
        ("yes", "yes\u200b"),
        ("1", "\uff11"),
        ("-1", "\u22121"),
        ("0-10", "0\u201310"),
    ],
)
def test_spelling_of_one_name_is_equal(one, other):
    assert spelling(one) == spelling(other)


@pytest.mark.parametrize(
    "one, other",
    [("1", "-1"), ("1", "1.5"), ("10", "1"), ("12e4", "120000"), ("a", "b"), ("", "0")],
)
def test_spelling_of_two_names_differs(one, other):
    assert spelling(one) != spelling(other)


@pytest.mark.parametrize(
    "sets, whole, reason",
    [
        ({"a": "01", "b": "12"}, True, "shifted"),
        ({"a": ["1", "2", "3"], "b": ["2", "3", "4"]}, False, "shifted"),
        ({"a": ["-1", "1"], "b": ["0", "1"]}, True, "two names each, and together 3"),
        ({"a": ["no", "yes"], "b": ["N", "Y"]}, False, "no name in common"),
        ({"a": ["neg", "pos"], "b": ["0", "1"]}, True, "no name in common"),
        ({"a": ["no", "yes"], "b": ["No", "yes"]}, False, "case, space or number format"),
        ({"a": ["0", "1", "2"], "b": ["1", "2", "3", "4"]}, True, "each have one"),
        ({"a": ["0", "1", "2"], "b": ["1", "2"]}, True, ""),  # a class that one site lacks
        ({"a": ["a", "b"], "b": ["b", "c"]}, False, ""),  # wards
        ({"a": ["a"], "b": ["b"]}, True, ""),
        ({"a": ["(missing)", "x", "y"], "b": ["x", "y"]}, True, ""),
        ({"a": ["a", "b", "c"], "b": ["b", "c", "d", "e"]}, True, ""),
    ],
)
def test_sets_in_two_ways_are_told_from_two_sets(sets, whole, reason):
    found = in_two_ways({owner: list(names) for owner, names in sets.items()}, whole)
    assert (reason in found) if reason else not found


def test_equal_sets_stand_together():
    sets = {"north": ["0", "1"], "south": ["1", "2"], "west": ["0", "1"]}
    assert side_by_side(sets) == "north, west: 0, 1; south: 1, 2"


@pytest.mark.parametrize("values", [(0, 1), (1, 2), (-1, 1), (0.5, 4)])
def test_two_numbers_follow_from_sums(values):
    x = np.random.default_rng(0).choice(values, 500, p=[0.7, 0.3])
    quantiles = np.quantile(x, np.arange(1, 20) / 20)
    found = two_numbers(len(x), x.mean(), x.var(), quantiles.tolist())
    assert found == tuple(f"{value:g}" for value in values)


def test_other_numbers_are_no_pair():
    x = np.random.default_rng(0).choice([0, 1, 2], 500)
    assert two_numbers(len(x), x.mean(), x.var(), [0, 1, 2]) == ()
    assert two_numbers(3, 1.0, 0.0, [1.0]) == ()


def table(**changed):
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.normal(50, 9, ROWS),
        "ward": rng.choice(["a", "b"], ROWS),
        "hospital": rng.choice(["North", "South"], ROWS),
        "outcome": rng.choice(["no", "yes"], ROWS),
    }
    return pd.DataFrame(columns | changed)


@pytest.mark.parametrize(
    "column, values, message",
    [
        (
            "outcome",
            ["yes", "no", "Yes", "No "],
            r"target 'outcome' holds 'Yes' \(15\) and 'yes' \(15\)",
        ),
        ("outcome", ["1", "1.0", "0", "0"], r"target 'outcome' holds '1' \(15\) and '1.0' \(15\)"),
        ("outcome", ["True", "true", "no", "no"], r"holds 'True' \(15\) and 'true' \(15\)"),
        ("outcome", ["ä", "a\u0308", "b", "b"], r"holds 'a\\u0308' \(15\) and '\\xe4' \(15\)"),
        ("ward", ["a", "A", "b", "b"], r"column 'ward' holds 'A' \(15\) and 'a' \(15\)"),
        ("ward", ["3", "03", "x", "x"], r"column 'ward' holds '03' \(15\) and '3' \(15\)"),
        ("hospital", ["North", "north ", "S", "S"], r"group 'hospital' holds 'North' \(15\) and"),
    ],
)
def test_table_with_one_name_in_two_spellings_is_refused(column, values, message):
    frame = table(**{column: values * (ROWS // 4)})
    with pytest.raises(UnalikeError, match=message):
        ua.load(frame, target="outcome", group="hospital")
    accepted = ua.load(frame, target="outcome", group="hospital", accept=True)
    assert len(accepted.classes) == frame["outcome"].nunique()
    assert len(np.unique(accepted.groups["hospital"])) == frame["hospital"].nunique()


def test_table_with_clear_names_is_read():
    assert ua.load(table(), target="outcome", group="hospital").classes == ["no", "yes"]
