"""Columns that differ from the agreed encoding, found in the encoded rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from unalike.data.agreed_columns import class_counts, compare_with_encoding
from unalike.data.table_encoding import fit

ROWS = 100


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "area": rng.normal(600, 100, ROWS),
            "age": np.where(np.arange(ROWS) % 10 == 0, np.nan, rng.normal(50, 10, ROWS)),
            "ward": rng.choice(["a", "b", "c"], ROWS),
        }
    )


@pytest.fixture
def encoding(frame):
    return fit(frame, ROWS, "agreed")


@pytest.mark.filterwarnings("ignore")
def found(frame, encoding):
    return compare_with_encoding(encoding, encoding.apply(frame, "mine"))


def test_agreed_columns_are_not_odd(frame, encoding):
    odd, wrong = found(frame, encoding)
    assert odd == ["'age': 10% of the rows have no number"] and not wrong


@pytest.mark.parametrize(
    "change, is_wrong, text",
    [
        (lambda f: f.assign(area=f.area * 1e6), True, "'area': its mean is 6"),
        (lambda f: f.assign(age=np.nan), True, "'age': 100% of the rows have no number"),
        (lambda f: f.assign(area=700.0), False, "'area': the same number in all rows"),
        (
            lambda f: f.assign(ward="canon"),
            True,
            "'ward': 100% of the rows have a value that was not agreed on",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_odd_and_wrong_columns_are_named(change, is_wrong, text, frame, encoding):
    odd, wrong = found(change(frame), encoding)
    assert any(text in line for line in (wrong if is_wrong else odd))
    assert bool(wrong) is is_wrong


def test_classes_are_counted():
    assert (
        class_counts(torch.tensor([0, 2, 2]), ["no", "maybe", "yes"]) == "no: 1, maybe: 0, yes: 2"
    )
    assert class_counts(torch.tensor([True, False, True]), ["False", "True"]) == "False: 1, True: 2"
