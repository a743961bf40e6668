"""An encoding of a table: fitted once, written down, read again, and the same for whoever reads with it."""

import tomllib
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import load
from unalike.data.table_encoding import Category, Encoding, Number, Words, fit
from unalike.runtime.records.run_directory import plain

SAMPLE = pd.DataFrame(
    {
        "age": [1.0, 3.0, None, 5.0],
        "sex": ["f", "m", "f", None],
        "ill": [True, False, True, True],
        "y": [0, 1, 0, 1],
    }
)


def sample() -> Encoding:
    return fit(SAMPLE.drop(columns="y"), 4, "sample")


def test_fit_gives_plain_values():
    found = sample()
    age = Number("age", fill=3.0, mean=3.0, scale=np.sqrt(2.0), gaps=True)  # of 1, 3, 3, 5
    ill = Number("ill", fill=1.0, mean=0.75, scale=np.sqrt(3) / 4, truth=True)
    assert found.categories == (Category("sex", ("(missing)", "f", "m")),) and found.width == 6
    for got, wanted in zip(found.numbers, (age, ill), strict=True):
        assert got.name == wanted.name and (got.gaps, got.truth) == (wanted.gaps, wanted.truth)
        # sums of four numbers in float64
        np.testing.assert_allclose(
            (got.fill, got.mean, got.scale), (wanted.fill, wanted.mean, wanted.scale), rtol=1e-15
        )


def test_encoding_round_trip_is_equal():
    random = np.random.default_rng(0).normal(size=(9, 3)) * [1e-9, 1.0, 1e9]
    for made in (
        sample(),
        fit(pd.DataFrame(random, columns=list("abc")), 9, "t"),
        Encoding(words=Words("t", ("a",), 3, 9)),
    ):
        assert Encoding(**tomllib.loads(tomli_w.dumps(plain(asdict(made))))) == made


def test_encoding_applied_to_other_rows_uses_fitted_values():
    other = pd.DataFrame(
        {"sex": ["m", "x", None], "more": 0, "ill": [None, True, False], "age": [3, 5, 9]}
    )
    x = sample().apply(other, "other").double()
    root, third = np.sqrt(2), np.sqrt(3) / 4
    wanted = [
        [0, 0.25 / third, 0, 0, 0, 1],
        [2 / root, 0.25 / third, 0, 0, 0, 0],
        [6 / root, -0.75 / third, 0, 1, 0, 0],
    ]
    torch.testing.assert_close(
        x, torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=0
    )  # float32
    nothing = pd.DataFrame({"age": [None], "sex": [np.nan], "ill": [None]}, dtype=object)
    assert sample().apply(nothing, "other")[0, 2:].tolist() == [1, 1, 0, 0]
    unseen = fit(SAMPLE[["age"]].dropna(), 3, "sample").apply(
        pd.DataFrame({"age": [np.nan]}), "other"
    )
    assert unseen.tolist() == [
        [0.0]
    ]  # the sample's median, 3, is its mean; it had no gap, so none is said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["old"]}, "other: column 'age' holds texts, expected numbers; convert it"),
        ({"age": [True]}, "column 'age' holds true/false, expected numbers"),
        ({"ill": [0.5]}, "column 'ill' holds numbers, expected true/false"),
        (
            {"sex": [1]},
            r"column 'sex' holds numbers, expected texts or true/false, such as '\(missing\)', 'f', 'm'",
        ),
        ({"sex": [pd.Timestamp("2020-01-01")]}, "column 'sex' holds Timestamp"),
        ({"age": [np.inf]}, "column 'age' is infinite in row 0"),
    ],
)
def test_encoding_of_column_with_wrong_type_raises_with_name(change, message):
    row = {"age": [1.0], "sex": ["f"], "ill": [True]}
    with pytest.raises(UnalikeError, match=message):
        sample().apply(pd.DataFrame(row | change), "other")


def test_encoding_of_missing_column_raises_with_name():
    with pytest.raises(
        UnalikeError,
        match=r"other: found no column 'sex', expected one of texts .* it has age, ill",
    ):
        sample().apply(SAMPLE[["age", "ill"]], "other")


def test_load_with_encoding_of_another_table_uses_it(tmp_path):
    SAMPLE.to_parquet(tmp_path / "sample.parquet")
    wider = SAMPLE.assign(age=[100.0, 200, 300, 400], sex="m", id=range(4))
    wider.to_parquet(tmp_path / "other.parquet")
    first = load(tmp_path / "sample.parquet", target="y")
    assert torch.equal(first.merged()[0], first.encoding.apply(SAMPLE, "sample"))
    other = load(
        f"file(path={str(tmp_path / 'other.parquet')!r}, target='y')", encoding=first.encoding
    )
    assert (
        torch.equal(other.merged()[0], first.encoding.apply(wider, "other"))
        and other.encoding == first.encoding
    )
    for options, message in (
        ({"drop": "age"}, "'age' is the target, the split or dropped here, but a feature"),
        ({"text": "sex"}, "found text='sex', but the encoding that was agreed reads age, ill, sex"),
    ):
        with pytest.raises(UnalikeError, match=message):
            load(tmp_path / "other.parquet", target="y", encoding=first.encoding, **options)


@pytest.mark.parametrize("bag", [False, True])
def test_load_of_text_with_encoding_uses_its_vocabulary(tmp_path, bag):
    for name, texts in (("sample", ["a b", "b c", "b"]), ("other", ["c c z", "a", "z"])):
        pd.DataFrame({"t": texts, "y": [0, 1, 0]}).to_json(
            tmp_path / f"{name}.jsonl", orient="records", lines=True
        )
    agreed = load(
        tmp_path / "sample.jsonl", target="y", text="t", length=3, vocabulary=6, bag=bag
    ).encoding
    x, _ = load(tmp_path / "other.jsonl", target="y", encoding=agreed).merged()  # b a c are 2 3 4
    assert x.tolist() == (
        [[0, 0, 2, 0], [0, 1, 0, 0], [0] * 4] if bag else [[4, 4, 1], [3, 0, 0], [1, 0, 0]]
    )
    assert agreed.width == x.shape[1]


def test_load_of_other_data_ignores_encoding(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((4, 2), np.float32), y=np.arange(4) % 2)
    assert load(tmp_path / "x.npz", encoding=sample()).encoding is None
    assert load("digits", encoding=sample()).input_shape == (1, 8, 8)


def test_encoding_recognizes_true_and_false_in_any_spelling(tmp_path):
    for name, true, false in (("sample", "true", "false"), ("other", "TRUE", "False")):
        rows = "".join(f"{(true, false, '')[i % 3]},{i % 2}\n" for i in range(12))
        (tmp_path / f"{name}.csv").write_text(f"smokes,y\n{rows}")
    sample = load(tmp_path / "sample.csv", target="y")
    assert sample.encoding.categories == (Category("smokes", ("(missing)", "False", "True")),)
    for name in ("sample", "other"):
        again = load(tmp_path / f"{name}.csv", target="y", encoding=sample.encoding)
        assert torch.equal(again.merged()[0], sample.merged()[0])
    (tmp_path / "odd.csv").write_text("smokes,y\ntrue,0\nmaybe,1\nFALSE,0\nTrue,1\n")
    odd = load(tmp_path / "odd.csv", target="y", encoding=sample.encoding)
    assert odd.merged()[0].tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
