"""Tables with a target column: csv, parquet and jsonl."""

import datetime
import json
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import load


def patients() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(60, 10, 40).round(2)
    age[[3, 8]] = np.nan
    sex = np.array(["f", "m"], object)[rng.integers(0, 2, 40)]
    sex[5] = None
    return pd.DataFrame(
        {
            "age": age,
            "visits": rng.integers(0, 9, 40),
            "sex": sex,
            "hospital": np.repeat(["north", "south"], 20),
            "outcome": np.array(["ill", "well"])[np.arange(40) % 2],
            "part": ["train"] * 30 + ["test"] * 10,
        }
    )


def save(frame, path):
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        (frame.to_parquet if path.suffix == ".parquet" else frame.to_csv)(path, index=False)
    return path


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet", ".jsonl"])
def test_table_columns_are_encoded_by_training_statistics(tmp_path, ending):
    frame = patients()
    data = load(save(frame, tmp_path / f"p{ending}"), target="outcome", group="hospital", split="part")
    x, train = data.merged()[0].numpy(), frame[:30]
    assert data.name == "p" and data.classes == ["ill", "well"] and data.train[1].tolist() == [0, 1] * 15
    filled = frame["age"].fillna(train["age"].median())
    mean, std = filled[:30].mean(), filled[:30].std(ddof=0)
    np.testing.assert_allclose(x[:, 0], (filled - mean) / std, rtol=1e-5)
    assert abs(x[:30, 1].mean()) < 1e-6 and x[:30, 1].std() == pytest.approx(1)
    assert x[:, 2].nonzero()[0].tolist() == [3, 8]  # age is missing
    assert x.shape[1] == 6 and x[5, 3:].tolist() == [1, 0, 0]  # (missing), f, m
    assert data.groups["hospital"].tolist() == frame["hospital"].tolist()


def test_table_test_rows_do_not_change_the_encoding(tmp_path):
    frame = patients()
    changed = frame.copy()
    changed.loc[30:, "age"], changed.loc[30:, "visits"], changed.loc[30:, "sex"] = 1e6, 77, "other"
    options = {"target": "outcome", "split": "part", "drop": "hospital"}
    first, second = (load(save(f, tmp_path / f"{n}.csv"), **options) for n, f in (("a", frame), ("b", changed)))
    assert torch.equal(first.train[0], second.train[0])
    assert (second.test[0][:, 3:] == 0).all()  # a category that training never saw


def test_table_without_split_tests_every_fifth_row_and_keeps_groups(tmp_path):
    frame = patients().drop(columns="part")
    file = save(frame, tmp_path / "p.csv")
    data = load(file, target="outcome", group=("hospital", "visits"), drop="age")
    test = [row for row in range(40) if (row // 2) % 5 == 4]
    order = [row for row in range(40) if row not in test] + test
    assert len(data.test[1]) == 8 and data.groups["hospital"].tolist() == frame["hospital"][order].tolist()
    again = load(f"file(path={str(file)!r}, target='outcome', group=('hospital', 'visits'), drop='age')")
    assert again.fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        ([1.5, 2.0], "regression", None),
        ([True, False], "classification", ["False", "True"]),
        ([3, 7], "classification", ["3", "7"]),
    ],
)
def test_table_target_decides_the_task(tmp_path, values, task, classes):
    file = save(pd.DataFrame({"x": [0.5] * 10, "y": values * 5}), tmp_path / "t.csv")
    data = load(file, target="y")
    assert (data.task.name, data.classes, len(data.test[1])) == (task, classes, 2)


@pytest.mark.parametrize(
    ("values", "task", "classes", "labels"),
    [
        ([Decimal("1.5"), Decimal("2.25")], "regression", None, [1.5, 2.25]),
        (pd.Categorical(["b", "a"]), "classification", ["a", "b"], [1, 0]),
        (pd.array([10, 9], "Int64"), "classification", ["9", "10"], [1, 0]),
        (pd.array([0.5, 2.5], "Float64"), "regression", None, [0.5, 2.5]),
        (pd.array([True, False], "boolean"), "classification", ["False", "True"], [1, 0]),
        (pd.array([True, True], "boolean"), "classification", ["False", "True"], [1, 1]),
    ],
)
def test_parquet_target_keeps_its_type(tmp_path, values, task, classes, labels):
    data = load(save(pd.DataFrame({"x": [1, 2], "y": values}), tmp_path / "t.parquet"), target="y")
    assert (data.task.name, data.classes, data.train[1].tolist()) == (task, classes, labels)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)], "date"),
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), "Timestamp"),
        ([[1], [2]], "ndarray"),
    ],
)
def test_table_target_of_other_type_raises(tmp_path, values, kind):
    file = save(pd.DataFrame({"x": [1, 2], "y": values}), tmp_path / "t.parquet")
    with pytest.raises(
        UnalikeError, match=rf"the target 'y' holds {kind}, expected texts, numbers or true/false; convert it"
    ):
        load(file, target="y")


@pytest.mark.parametrize(
    ("values", "kind"), [([1, "a", 2], "int and str"), ([-1, 2**63, 3], "whole numbers beyond 64 bits")]
)
def test_column_of_mixed_types_or_huge_integers_raises(tmp_path, values, kind):
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps({"a": value, "y": 0}) + "\n" for value in values))
    with pytest.raises(UnalikeError, match=f"column 'a' holds {kind}, expected numbers"):
        load(file, target="y")


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (pd.Categorical(["hot", None, "cold"]), {"hot": 3, "cold": 2}),
        (pd.array([7, None, 7], "Int64"), {"7": 2}),
        (pd.array([True, None, True], "boolean"), {"true": 2}),
    ],
)
def test_text_column_with_gaps_has_missing_category(tmp_path, values, known):
    file = save(pd.DataFrame({"a": values, "y": [0, 1, 0]}), tmp_path / "t.parquet")
    data = load(file, target="y", text="a", length=1)
    found = ["1" if value is pd.NA or value is None or value != value else str(value).lower() for value in values]
    assert data.train[0][:, 0].tolist() == [known.get(value, 1) for value in found]


@pytest.mark.parametrize(
    "options", [{"vocabulary": 3.5, "text": "hospital"}, {"target": ["outcome"]}, {"length": "a"}, {"bag": 1}]
)
def test_table_option_of_wrong_type_raises(tmp_path, options):
    file = save(patients(), tmp_path / "p.csv")
    with pytest.raises(UnalikeError, match=r"found (vocabulary|target|length|bag)=.*, expected (a|True)"):
        load(file, **{"target": "outcome", **options})


@pytest.mark.parametrize("bag", [False, True])
def test_text_column_becomes_tokens_of_training_vocabulary(tmp_path, bag):
    frame = pd.DataFrame({"text": ["a b", "b c", "", "d d d"], "label": [0, 1, 0, 1], "split": [0, 0, 0, 1]})
    for path in (tmp_path / "t.jsonl", tmp_path / "t.jsonl.gz"):
        frame.to_json(path, orient="records", lines=True)
    data = load(tmp_path / "t.jsonl", target="label", text="text", split="split", length=3, vocabulary=10, bag=bag)
    if bag:
        assert data.merged()[0][:, :3].tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0]]
    else:
        assert data.merged()[0].tolist() == [[3, 2, 0], [2, 4, 0], [1, 0, 0], [1, 1, 1]]
        assert load(tmp_path / "t.jsonl.gz", target="label", text="text").input_shape == (64,)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"target": "result"}, r"no column 'result'; it has the columns age, visits, sex, hospital, outcome, part"),
        ({}, {"target": "outcom"}, "no column 'outcom'; did you mean 'outcome'"),
        ({}, {"group": "ward"}, "no column 'ward'"),
        ({}, {"traget": "outcome"}, r"p.csv: unknown option 'traget'; did you mean 'target'"),
        ({}, {}, "a table with the columns age, visits, sex, .*; name the one to predict, with --target COLUMN"),
        ({"outcome": [None] + ["ill"] * 39}, {}, "'outcome' is missing in 1 rows, the first row 0"),
        ({"age": [np.inf] + [1.0] * 39}, {}, "column 'age' is infinite in row 0"),
        ({"age": [None] * 40}, {}, "column 'age' has no value in the training rows; --drop age, in Python drop='age'"),
        ({"hospital": None}, {"group": "hospital"}, "group 'hospital': found .*expected one integer or text"),
        ({"part": "later"}, {"split": "part"}, "the split 'part' holds later; expected train and test"),
        ({"part": "test"}, {"split": "part"}, "no training rows"),
        (
            {"part": ["train"] * 39 + [None]},
            {"split": "part"},
            r"the split 'part' holds \(missing\); expected train and test",
        ),
        ({}, {"drop": ["age", "visits", "sex", "hospital", "part"]}, "no column left for features"),
    ],
)
def test_table_without_requested_columns_raises(tmp_path, change, options, message):
    file = save(patients().assign(**change), tmp_path / "p.csv")
    if options or change:
        options = {"target": "outcome"} | options
    with pytest.raises(UnalikeError, match=message):
        load(file, **options)


def test_table_feature_of_other_type_raises_with_name(tmp_path):
    frame = patients().assign(day=pd.Timestamp("2020-01-01"))
    with pytest.raises(UnalikeError, match="column 'day' holds Timestamp, expected numbers, texts or true/false"):
        load(save(frame, tmp_path / "p.parquet"), target="outcome")
    many = pd.DataFrame({"name": [f"n{k}" for k in range(400)], "y": [0, 1] * 200})
    with pytest.raises(UnalikeError, match="column 'name' has 320 different texts, expected at most 256"):
        load(save(many, tmp_path / "m.csv"), target="y")


@pytest.mark.parametrize("rows", ["r7,1,2,ill\nr9,3,4,well\n", "0,1,2,ill\n1,3,4,well\n", "1,5;2;ill\n3,5;4;well\n"])
def test_csv_rows_longer_than_header_raise(tmp_path, rows):
    file = tmp_path / "t.csv"
    file.write_text(("a;b;outcome\n" if ";" in rows else "a,b,outcome\n") + rows)
    with pytest.raises(UnalikeError, match=r"rows have more fields than the header has names.*commas between columns"):
        load(file, target="outcome")


def test_csv_trailing_commas_are_ignored_and_question_marks_are_missing(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,outcome\n1,ill,\n?,well,\n3,ill,\n")
    data = load(file, target="outcome")
    assert data.classes == ["ill", "well"]
    assert data.merged()[0][:, 1].tolist() == [0, 1, 0]  # whether it is missing


def test_csv_with_other_separator_names_it(tmp_path):
    (tmp_path / "t.csv").write_text("a;outcome\n1;x\n2;y\n")
    with pytest.raises(UnalikeError, match="no column 'outcome'; expected commas between columns, found ';'"):
        load(tmp_path / "t.csv", target="outcome")


def test_row_number_column_warns_or_raises(tmp_path):
    frame = pd.DataFrame({"x": [0.5, 1.5] * 20, "y": [0] * 20 + [1] * 20})
    frame.to_csv(tmp_path / "i.csv")
    with pytest.raises(UnalikeError, match=r"a column has no name in the header.*drop='Unnamed: 0'"):
        load(tmp_path / "i.csv", target="y")
    assert load(tmp_path / "i.csv", target="y", drop="Unnamed: 0").encoding.names == ["x"]
    with pytest.warns(UserWarning, match=r"column 'id' counts the rows and is read as a feature; .*drop='id'"):
        load(save(frame.assign(id=range(41, 1, -1)), tmp_path / "n.csv"), target="y")
    with pytest.raises(UnalikeError, match=r"column 'id' has 32 different texts, expected .*drop='id'"):
        load(save(frame.assign(id=[f"P{k}" for k in range(40)]), tmp_path / "t.csv"), target="y")


def test_number_column_with_few_texts_raises(tmp_path):
    values = [f"{k / 2}" for k in range(30)]
    frame = pd.DataFrame({"lab": [*values, "<0.5", "<0.5"], "y": [0, 1] * 16})
    with pytest.raises(UnalikeError, match=r"column 'lab' holds numbers and, between them, texts such as '<0.5'"):
        load(save(frame, tmp_path / "t.csv"), target="y")
    few = pd.DataFrame({"children": ["0", "1", "2", "3+"] * 8, "y": [0, 1] * 16})
    assert load(save(few, tmp_path / "f.csv"), target="y").input_shape == (4,)


def test_integer_target_with_many_values_raises(tmp_path):
    frame = pd.DataFrame({"x": [0.5, 1.5] * 20, "price": np.arange(40) * 1000, "name": [f"n{k}" for k in range(40)]})
    file = save(frame, tmp_path / "t.csv")
    with pytest.raises(
        UnalikeError, match=r"'price' has 40 different values in 40 rows; expected classes .*regression=True"
    ):
        load(file, target="price", drop="name")
    with pytest.raises(UnalikeError, match=r"'name' has 40 different values in 40 rows; .*name another column"):
        load(file, target="name", drop="price")
    with pytest.raises(UnalikeError, match="the target 'name' holds texts; expected numbers for regression"):
        load(file, target="name", drop="price", regression=True)
    data = load(file, target="price", drop="name", regression=True)
    assert (data.task.name, data.train[1][1].item()) == ("regression", 1000.0)
    many = pd.DataFrame({"x": [0.5, 1.5] * 600, "price": np.arange(1200) % 300})
    with pytest.raises(UnalikeError, match="'price' has 300 different values in 1200 rows"):
        load(save(many, tmp_path / "m.csv"), target="price")


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet", ".jsonl"])
def test_mislabelled_or_empty_table_raises(tmp_path, ending):
    file = tmp_path / f"t{ending}"
    for content in (b"\x89PNG\r\n\x1a\n\0\xff\xfe", b""):
        file.write_bytes(content)
        with pytest.raises(UnalikeError, match=r"cannot be read as a table|has no column"):
            load(file, target="y")


def test_parquet_categories_and_nullable_columns_are_encoded(tmp_path):
    ward = pd.Categorical(["b", "a"] * 5, categories=["c", "b", "a"])
    frame = pd.DataFrame({"beds": pd.array([1, None] * 5, "Int64"), "ward": ward, "y": [0, 1] * 5})
    data = load(save(frame, tmp_path / "t.parquet"), target="y")
    assert data.train[0][:2].tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]


def test_encoding_reads_numeric_codes_as_categories(tmp_path):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("grade,y\n" + "1,a\n2a,b\n" * 10)
    second.write_text("grade,y\n1,a\n,b\n1,b\n")
    encoding = load(first, target="y").encoding
    found = load(second, target="y", encoding=encoding)
    assert encoding.categories[0].values == ("1", "2a")
    assert sorted(torch.cat([found.train[0], *([found.test[0]] if found.test else [])]).tolist()) == [
        [0, 0],
        [1, 0],
        [1, 0],
    ]


def test_table_with_duplicate_column_name_raises(tmp_path):
    rows = "".join(f"{i * i % 7},{i % 2},{i % 2}\n" for i in range(20))
    (tmp_path / "t.csv").write_text("age,y,y\n" + rows)
    with pytest.raises(UnalikeError, match="two columns have the name 'y'; expected each name once"):
        load(tmp_path / "t.csv", target="y")


@pytest.mark.parametrize("options", [{"text": "y"}, {"drop": "t"}, {"group": "t"}, {"split": "t"}])
def test_text_column_with_second_role_raises(tmp_path, options):
    (tmp_path / "t.csv").write_text("t,y\n" + "".join(f"{i % 2},{'ab'[i % 2]}\n" for i in range(20)))
    with pytest.raises(UnalikeError, match="which is the target, a group, the split or dropped, too"):
        load(tmp_path / "t.csv", target="y", **{"text": "t", **options})


@pytest.mark.parametrize("options", [{"length": 3}, {"vocabulary": 9}, {"bag": True}])
def test_text_options_without_text_column_raise(tmp_path, options):
    (tmp_path / "t.csv").write_text("t,y\n" + "".join(f"{i % 2},{'ab'[i % 2]}\n" for i in range(20)))
    with pytest.raises(UnalikeError, match="say how a column of text is read; name it with text="):
        load(tmp_path / "t.csv", target="y", **options)


def test_text_length_zero_raises(tmp_path):
    (tmp_path / "t.csv").write_text("t,y\n" + "".join(f"w{i % 3},{'ab'[i % 2]}\n" for i in range(20)))
    with pytest.raises(UnalikeError, match=r"t\.csv: length=0: "):
        load(tmp_path / "t.csv", target="y", text="t", length=0)


@pytest.mark.parametrize(
    ("values", "task", "classes", "message"),
    [
        (
            [0.0, 1.0, 1.0] * 4,
            "classification",
            ["0", "1"],
            r"holds 0\.0, 1\.0, read as classes; if they are amounts, write --reg",
        ),
    ],
)
def test_two_whole_numbers_with_decimals_are_classes(tmp_path, values, task, classes, message):
    file = tmp_path / "visits.csv"
    pd.DataFrame({"size": np.arange(12) ** 2, "died": values}).to_csv(file, index=False)
    with pytest.warns(UserWarning, match=message):
        data = load(file, target="died")
    assert (data.task.name, data.classes) == (task, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(file, target="died", regression=False).classes == classes
        assert load(file, target="died", regression=True).task.name == "regression"
        pd.DataFrame({"size": np.arange(12) ** 2, "died": np.arange(12) / 2}).to_csv(file, index=False)
        assert load(file, target="died").task.name == "regression"


def test_a_few_whole_numbers_with_decimals_are_asked_about(tmp_path):
    """Both answers are named."""
    file, frame = tmp_path / "visits.csv", pd.DataFrame({"size": np.arange(12) ** 2, "grade": [1.0, 2.0, 3.0] * 4})
    frame.to_csv(file, index=False)
    why = r"holds 1\.0, 2\.0, 3\.0, which may be classes or amounts: .* --no-regression, .*=False; .* --regression, .*=True"
    with pytest.raises(UnalikeError, match=why):
        load(file, target="grade")
    assert load(file, target="grade", regression=False).classes == ["1", "2", "3"]
    assert load(file, target="grade", regression=True).task.name == "regression"
    frame.assign(grade=np.arange(12) / 2).to_csv(file, index=False)
    with pytest.raises(UnalikeError, match="'grade' holds fractions; expected whole numbers for classes"):
        load(file, target="grade", regression=False)


@pytest.mark.parametrize(("own", "theirs"), [([False, True], ["0", "1"]), ([0, 1], ["False", "True"])])
def test_true_and_false_are_the_classes_one_and_zero_of_another_table(tmp_path, own, theirs):
    data = load(save(pd.DataFrame({"x": range(8), "y": own * 4}), tmp_path / "t.csv"), target="y")
    y = data.merged()[1]
    assert data.labelled(y, "classification", theirs, "the run").tolist() == y.tolist()
    with pytest.raises(UnalikeError, match="found the classes"):
        data.labelled(y, "classification", ["no", "yes"], "the run")
