"""Tables with a target column: csv, parquet and jsonl."""

import datetime
import importlib.util
import json
import re
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.io.common import get_handle

from unalike._utils.errors import UnalikeError
from unalike.data import load, partition
from unalike.data.sources.delimited import read_delimited
from unalike.data.sources.registry import every_fifth


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
    data = load(
        save(frame, tmp_path / f"p{ending}"), target="outcome", group="hospital", split="part"
    )
    x, train = data.merged()[0].numpy(), frame[:30]
    assert (
        data.name == "p"
        and data.classes == ["ill", "well"]
        and data.train[1].tolist() == [0, 1] * 15
    )
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
    first, second = (
        load(save(f, tmp_path / f"{n}.csv"), **options) for n, f in (("a", frame), ("b", changed))
    )
    assert torch.equal(first.train[0], second.train[0])
    assert (second.test[0][:, 3:] == 0).all()  # a category that training never saw


def test_table_without_split_tests_every_fifth_row_and_keeps_groups(tmp_path):
    frame = patients().drop(columns="part")
    file = save(frame, tmp_path / "p.csv")
    data = load(file, target="outcome", group=("hospital", "visits"), drop="age")
    test = [row for row in range(40) if (row // 2) % 5 == 4]
    order = [row for row in range(40) if row not in test] + test
    assert (
        len(data.test[1]) == 8
        and data.groups["hospital"].tolist() == frame["hospital"][order].tolist()
    )
    again = load(
        f"file(path={str(file)!r}, target='outcome', group=('hospital', 'visits'), drop='age')"
    )
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
        UnalikeError,
        match=rf"the target 'y' holds {kind}, expected texts, numbers or true/false; convert it",
    ):
        load(file, target="y")


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1, "a", 2], "int and str"), ([-1, 2**63, 3], "whole numbers beyond 64 bits")],
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
    found = [
        "1" if value is pd.NA or value is None or value != value else str(value).lower()
        for value in values
    ]
    assert data.train[0][:, 0].tolist() == [known.get(value, 1) for value in found]


@pytest.mark.parametrize(
    "options",
    [{"vocabulary": 3.5, "text": "hospital"}, {"target": 3}, {"length": "a"}, {"bag": 1}],
)
def test_table_option_of_wrong_type_raises(tmp_path, options):
    file = save(patients(), tmp_path / "p.csv")
    with pytest.raises(
        UnalikeError, match=r"found (vocabulary|target|length|bag)=.*, expected (a|True)"
    ):
        load(file, **{"target": "outcome", **options})


@pytest.mark.parametrize("bag", [False, True])
def test_text_column_becomes_tokens_of_training_vocabulary(tmp_path, bag):
    frame = pd.DataFrame(
        {"text": ["a b", "b c", "", "d d d"], "label": [0, 1, 0, 1], "split": [0, 0, 0, 1]}
    )
    for path in (tmp_path / "t.jsonl", tmp_path / "t.jsonl.gz"):
        frame.to_json(path, orient="records", lines=True)
    data = load(
        tmp_path / "t.jsonl",
        target="label",
        text="text",
        split="split",
        length=3,
        vocabulary=10,
        bag=bag,
    )
    if bag:
        assert data.merged()[0][:, :3].tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0]]
    else:
        assert data.merged()[0].tolist() == [[3, 2, 0], [2, 4, 0], [1, 0, 0], [1, 1, 1]]
        assert load(tmp_path / "t.jsonl.gz", target="label", text="text").input_shape == (64,)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {},
            {"target": "result"},
            r"no column 'result'; it has the columns age, visits, sex, hospital, outcome, part",
        ),
        ({}, {"target": "outcom"}, "no column 'outcom'; did you mean 'outcome'"),
        ({}, {"group": "ward"}, "no column 'ward'"),
        ({}, {"traget": "outcome"}, r"p.csv: unknown option 'traget'; did you mean 'target'"),
        (
            {},
            {},
            "a table with the columns age, visits, sex, .*; name the one to predict, with --target COLUMN",
        ),
        (
            {"outcome": [None] + ["ill"] * 39},
            {},
            "'outcome' is missing in 1 of 40 rows, the first in line 2; .*--labelled-only",
        ),
        ({"age": [1.0, np.inf] * 20}, {}, "p.csv: column 'age' is infinite in line 3"),
        (
            {"age": [None] * 40},
            {},
            "column 'age' has no value in the training rows; --drop age, in Python drop='age'",
        ),
        (
            {"hospital": None},
            {"group": "hospital"},
            "group 'hospital' is missing in 40 of 40 rows, the first in line 2; .*--labelled-only",
        ),
        (
            {"part": "later"},
            {"split": "part"},
            "the split 'part' holds later; expected train and test",
        ),
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
    with pytest.raises(
        UnalikeError, match="column 'day' holds Timestamp, expected numbers, texts or true/false"
    ):
        load(save(frame, tmp_path / "p.parquet"), target="outcome")
    many = pd.DataFrame({"name": [f"n{k}" for k in range(400)], "y": [0, 1] * 200})
    with pytest.raises(
        UnalikeError, match=r"column 'name' has 320 different texts in 320 rows, .*--model textcnn"
    ):
        load(save(many, tmp_path / "m.csv"), target="y")
    with pytest.raises(
        UnalikeError, match=r"column 'name' has 7\d different texts in 80 rows"
    ):  # sentences, few of them twice
        load(many[:100].assign(name=[f"n{max(k, 5)}" for k in range(100)]), target="y")


@pytest.mark.parametrize(
    "rows",
    ["r7,1,2,ill\nr9,3,4,well\n", "0,1,2,ill\n1,3,4,well\n", "1,2,ill\n3,4,well,\n5,6,7,8,9\n"],
)
def test_csv_rows_longer_than_header_raise(tmp_path, rows):
    file = tmp_path / "t.csv"
    file.write_text("a,b,outcome\n" + rows)
    with pytest.raises(
        UnalikeError,
        match=r"rows have more fields than the header has names.*',' between columns.*--sep",
    ):
        load(file, target="outcome")


def test_csv_trailing_commas_are_ignored_and_question_marks_are_missing(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,outcome\n1,ill,\n?,well,\n3,ill,\n")
    data = load(file, target="outcome")
    assert data.classes == ["ill", "well"]
    assert data.merged()[0][:, 1].tolist() == [0, 1, 0]  # whether it is missing


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(
    ("sep", "ending"), [(",", ".csv"), (";", ".csv"), ("\t", ".tsv"), ("\t", ".csv"), ("|", ".csv")]
)
def test_separator_and_encoding_are_found_or_named(tmp_path, sep, ending, charset):
    lines = [
        ["a", "città, paese", "outcome"],
        *(["1", f'"Köln{sep}\n""{k % 2}"""', "xy"[k // 2 % 2]] for k in range(60)),
    ]
    lines[0][1] = f'"{lines[0][1]}"'
    file = tmp_path / f"t{ending}"
    file.write_bytes("\n".join(map(sep.join, lines)).encode(charset))
    named = {}
    if charset == "cp1252":
        with pytest.raises(
            UnalikeError, match=r"is not written in utf-8; .* --charset cp1252, .*città, paes"
        ):
            load(file, target="outcome", drop="a")
        named = {"charset": "cp1252"}
    data = load(file, target="outcome", drop="a", **named)
    assert data.encoding.categories[0].name == "città, paese"
    assert data.encoding.categories[0].values == (f'Köln{sep}\n"0"', f'Köln{sep}\n"1"')
    again = load(file, target="outcome", drop="a", sep=sep, **named)
    assert again.fingerprint == data.fingerprint


def test_columns_in_one_flag_are_told_to_repeat_it():
    with pytest.raises(UnalikeError) as error:
        load(patients(), target="outcome", drop="age, part")
    assert str(error.value).endswith(
        "has no column 'age, part', but 'age' and 'part'; repeat the flag for each column, in Python ['age', 'part']"
    )
    with pytest.raises(UnalikeError, match="it has the columns"):
        load(patients(), target="outcome", drop="age,weight")


@pytest.mark.parametrize(
    ("written", "sep", "values", "note"),
    [
        (
            ["1.062,5", "3,25", "-2"],
            ";",
            [1062.5, 3.25, -2],
            "decimal commas, as in '1.062,5' of 'a'",
        ),
        (
            ["1.062,5", "3,25", "-2"],
            ",",
            [1062.5, 3.25, -2],
            "decimal commas, as in '1.062,5' of 'a'",
        ),
        (
            ["1,062.5", "3.25", "-2"],
            ",",
            [1062.5, 3.25, -2],
            "the commas in 'a' are read as groups of thousands",
        ),
        (
            ["1,062", "3", "-2"],
            ",",
            [1062, 3, -2],
            "the commas in 'a' are read as groups of thousands",
        ),
        (["1,062", "3", "-2"], ";", [1.062, 3, -2], "decimal commas, as in '1,062' of 'a'"),
        (["1.062", "3", "-2"], ";", [1.062, 3, -2], ""),
    ],
)
def test_numbers_with_commas_are_numbers_with_a_note(tmp_path, written, sep, values, note):
    file = tmp_path / "t.csv"
    rows = [f'"{text}"{sep}{"xy"[k % 2]}' for k, text in enumerate(written * 5)]
    file.write_text("\n".join([f"a{sep}y", *rows]))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        data = load(file, target="y")
    assert [note in str(w.message) for w in found] == [True] * bool(note)
    [number] = data.encoding.numbers
    x = data.merged()[0][:, 0].double() * number.scale + number.mean
    order = np.argsort(every_fifth(np.arange(15) % 2), kind="stable")
    np.testing.assert_allclose(x, np.array(values * 5)[order], rtol=1e-5)


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize("sep", [",", ";"])
def test_names_of_owners_keep_their_zeros_in_front(tmp_path, sep, zipped):
    frame = pd.DataFrame(
        {
            "zip": ["01067", "80331"] * 8,
            "ward": [7, 10] * 8,
            "a": np.arange(16) + 0.5,
            "y": ["u", "v"] * 8,
        }
    )
    file = tmp_path / f"t.csv{zipped}"
    frame.to_csv(file, sep=sep, decimal="." if sep == "," else ",", index=False)
    data = load(file, target="y", group=["zip", "ward"])
    assert sorted(set(data.groups["zip"])) == ["01067", "80331"]
    assert sorted(set(data.groups["ward"].tolist())) == [7, 10]
    assert partition(data, "natural(column='zip')").names == ["01067", "80331"]
    assert [number.name for number in data.encoding.numbers] == ["a"]


def test_separator_of_a_very_long_line_is_found(tmp_path):
    """The line is one field where another mark divides it, and longer than fields of `csv` may be."""
    file = tmp_path / "genes.csv"
    names = [f"{'expression of gene ' * 50}{k}" for k in range(150)]
    rows = [",".join(map(str, range(150))), ",".join(map(str, range(1, 151)))]
    file.write_text("\n".join([",".join(names), *rows]))
    assert list(read_delimited(file, ())) == names


def test_decimal_and_separator_can_be_named(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text('a,b,y\n"1,062",0.5,u\n"2,500",1.5,v\n' * 1 + '"3,125",2.5,u\n' * 8)
    data = load(file, target="y", decimal=",")
    assert [n.name for n in data.encoding.numbers] == ["a", "b"] and data.encoding.numbers[
        0
    ].mean < 4
    for options, message in (
        ({"sep": "#"}, r"found sep='#', expected one of ',', ';'"),
        ({"decimal": ";"}, "found decimal=';', expected one of ',', '.'"),
        (
            {"charset": "latin-99"},
            "found charset='latin-99', expected a character encoding such as",
        ),
        ({"sep": ";"}, "has no column 'y'"),
    ):
        with pytest.raises(UnalikeError, match=message):
            load(file, target="y", **options)
    file.write_text("a;y\n" + "3,5;u\n7,25;v\n" * 8)
    with pytest.raises(UnalikeError, match="'a' holds numbers with decimal commas; leave out"):
        load(file, target="y", decimal=".")
    with pytest.raises(UnalikeError, match="found sep=';', which is for delimited text"):
        load(save(patients(), tmp_path / "p.parquet"), target="outcome", sep=";")


@pytest.mark.parametrize("ending", [".csv.zip", ".tsv.gz", ".json"])
def test_other_tables_are_read_as_csv_is(tmp_path, ending):
    frame = patients().drop(columns=["hospital", "part"])
    wanted = load(save(frame, tmp_path / "p.csv"), target="outcome")
    file = tmp_path / f"p{ending}"
    frame.to_json(file, orient="records") if ending == ".json" else frame.to_csv(
        file, index=False, sep="\t"
    )
    assert load(file, target="outcome").fingerprint == wanted.fingerprint


def test_excel_file_is_read_or_names_the_extra(tmp_path, monkeypatch):
    frame, file = patients().drop(columns=["hospital", "part"]), tmp_path / "p.xlsx"
    if importlib.util.find_spec("openpyxl") is not None:
        with pd.ExcelWriter(file) as book:
            frame.to_excel(book, sheet_name="visits", index=False)
            frame[:3].to_excel(book, sheet_name="notes", index=False)
        with pytest.warns(
            UserWarning, match=r"p.xlsx: read the first of the sheets 'visits', 'notes'"
        ):
            data = load(file, target="outcome")
        assert (
            data.fingerprint == load(save(frame, tmp_path / "p.csv"), target="outcome").fingerprint
        )
    file.write_bytes(b"PK")
    monkeypatch.setattr("unalike._utils.errors.find_spec", lambda name: None)
    with pytest.raises(
        UnalikeError,
        match=r"p.xlsx needs openpyxl; install the extra: pip install 'unalike\[excel\]'",
    ):
        load(file, target="outcome")


DAYS = pd.date_range("2020-01-30", periods=6, freq="7D").repeat(2)


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M"]
)
def test_dates_become_days(tmp_path, form):
    frame = pd.DataFrame({"admitted": DAYS.strftime(form), "y": list("uv") * 6})
    frame.loc[4, "admitted"] = None
    file = save(frame, tmp_path / "t.csv")
    with pytest.warns(
        UserWarning,
        match=r"t.csv: 'admitted': dates, read as categories; .* --date admitted.*--drop admitted",
    ):
        assert load(file, target="y", labelled_only=True).encoding.categories
    data = load(file, target="y", date="admitted")
    [number] = data.encoding.numbers
    assert number.gaps and number.date == ("ISO8601" if form.startswith("%Y") else form)
    days = data.merged()[0][:, 0].double() * number.scale + number.mean
    order = np.argsort(every_fifth(np.arange(12) % 2), kind="stable")
    wanted = (DAYS - pd.Timestamp("1970-01-01")).days.to_numpy().astype(float)
    wanted[4] = number.fill
    np.testing.assert_allclose(days, wanted[order], rtol=1e-6)
    typed = frame.assign(admitted=DAYS.where(frame["admitted"].notna()))
    again = load(save(typed, tmp_path / "t.parquet"), target="y", date=["admitted"])
    assert torch.equal(again.train[0], data.train[0])
    wrong = save(frame.assign(admitted="soon"), tmp_path / "w.csv")
    with pytest.raises(UnalikeError, match=r"'admitted' holds 'soon' in line 2, expected a date"):
        load(wrong, target="y", encoding=data.encoding)


def test_dates_that_may_be_read_in_two_ways_are_asked_about(tmp_path):
    frame = pd.DataFrame(
        {"seen": ["01/02/2020", "03/04/2020"] * 6, "n": ["a", "b"] * 6, "y": list("uv") * 6}
    )
    file = save(frame, tmp_path / "t.csv")
    with pytest.raises(
        UnalikeError, match=r"dates that may be %d/%m/%Y or %m/%d/%Y; .* --date 'seen=%d/%m/%Y'"
    ):
        load(file, target="y", date="seen")
    data = load(file, target="y", date="seen=%d/%m/%Y")
    assert data.encoding.numbers[0].date == "%d/%m/%Y"
    with pytest.raises(UnalikeError, match="'n' holds no dates"):
        load(file, target="y", date="n")


@pytest.mark.parametrize(
    ("columns", "note"),
    [
        (
            {"id": np.arange(60) * 7 % 61},
            "'id': numbers that look like identifiers .*--drop id, in Python drop='id'",
        ),
        (
            {"a b": np.arange(60) * 7, "n": 10**12 + np.arange(60) // 3},
            r"'a b', 'n': .*--drop 'a b' --drop n, .*\['a b', 'n'\]",
        ),
        (
            {"site": "north"},
            "'site': one value in all rows, which says nothing; leave out: --drop site",
        ),
        (
            {"Hospital": ["a", "b", "c"] * 20},
            "'Hospital': read as features; if .*: --group Hospital, in Python group='Hospital'",
        ),
        ({"age": np.arange(60) % 40, "size": np.arange(60) % 20}, ""),
    ],
)
def test_identifiers_owners_and_constant_columns_are_named(tmp_path, columns, note):
    x = np.sort([0.5, 1.5, 2.5] * 20)
    frame = pd.DataFrame({"x": x, **columns, "y": list("uv") * 30})
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        load(save(frame, tmp_path / "t.csv"), target="y")
        assert len(found) == bool(note) and all(re.search(note, str(w.message)) for w in found)
        load(tmp_path / "t.csv", target="y", group=[*columns])  # origins are no features
    assert len(found) == bool(note)


@pytest.mark.parametrize(
    ("ending", "place"), [(".csv", "line 4"), (".jsonl", "line 3"), (".parquet", "row 3")]
)
def test_first_row_without_target_is_named_by_its_place_in_the_file(tmp_path, ending, place):
    frame = pd.DataFrame({"x": np.arange(24) % 5 / 2, "died": ["no", "yes", None, "yes"] * 6})
    with pytest.raises(
        UnalikeError, match=f"'died' is missing in 6 of 24 rows, the first in {place};"
    ):
        load(save(frame, tmp_path / f"t{ending}"), target="died")


@pytest.mark.parametrize(
    ("ending", "rows", "line"),
    [
        (".csv", ["x,died", "", "1.5,no", '"two\nlines",yes', "  ", "2,"], 7),
        (".csv.gz", ["", "x,died", "1.5,no", "", "2,"], 5),
        (".csv.zip", ["x;died", "1.5;no", "", "", "2;"], 5),
        (".csv", ["x,died", '5" pipe,no', "2,"], 3),  # a quotation mark that quotes nothing
        (".jsonl", ['{"x": 1, "died": "no"}', "", '{"x": 2, "died": null}'], 3),
    ],
)
def test_line_of_a_message_counts_blank_lines_and_lines_of_quoted_texts(
    tmp_path, ending, rows, line
):
    file = tmp_path / f"t{ending}"
    with get_handle(file, "w", compression="infer") as opened:
        opened.handle.write("\n".join([*rows, "", ""]))
    with pytest.raises(
        UnalikeError, match=f"'died' is missing in 1 of . rows, the first in line {line};"
    ):
        load(file, target="died")


def test_rows_without_target_are_left_out_when_asked(tmp_path):
    frame = pd.DataFrame(
        {"x": np.arange(24) % 5 / 2, "died": [0, 1, None, 1] * 6, "num": [0, 2, None, 1] * 6}
    )
    file = save(frame, tmp_path / "t.csv")
    with pytest.warns(UserWarning, match="left out 6 of 24 rows, which have no target"):
        data = load(file, target="died", labelled_only=True, drop="num", regression=False)
    assert data.classes == ["0", "1"] and len(data.merged()[1]) == 18
    with pytest.raises(
        UnalikeError, match="'num > 0' is missing in 6 of 24 rows, the first in line 4"
    ):
        load(file, target="num > 0")
    with pytest.warns(UserWarning, match="left out 6 of 24"):
        data = load(file, target="num > 0", labelled_only=True)
    assert data.classes == ["False", "True"] and data.merged()[1].sum() == 12
    assert data.encoding.names == ["x", "died"]  # the column of the comparison is no feature


@pytest.mark.parametrize(
    ("target", "true"),
    [("age>=3", 3), ("age == 4", 1), ("ward != 'east'", 2), ("ward == east", 3), ("age < 2.5", 2)],
)
def test_target_may_be_a_comparison(tmp_path, target, true):
    frame = pd.DataFrame(
        {"age": [1, 2, 3, 4, 5], "ward": ["east", "west"] * 2 + ["east"], "x": [0.5] * 4 + [1]}
    )
    data = load(save(frame, tmp_path / "t.csv"), target=target)
    assert data.classes == ["False", "True"] and int(data.merged()[1].sum()) == true


def test_columns_beside_the_samples_follow_them_and_change_nothing_else(tmp_path):
    """Missing cells stay missing; the column is still a feature."""
    file = save(patients().assign(row=np.arange(40)), tmp_path / "p.csv")
    plain = load(file, target="outcome", group="hospital", drop="row")
    data = load(file, target="outcome", group="hospital", drop="row", beside=["age", "row"])
    assert data.fingerprint == plain.fingerprint

    # The samples are in another order than the rows, and some of them are taken.
    half = data.subset(20)
    rows = half.beside["row"].to_numpy()
    assert len(half.beside) == len(half.merged()[1]) and not (rows == np.sort(rows)).all()
    pd.testing.assert_series_equal(
        half.beside["age"], patients()["age"].iloc[rows], check_index=False
    )
    assert half.groups["hospital"].tolist() == patients()["hospital"].iloc[rows].tolist()


def test_target_in_another_unit(tmp_path):
    frame = pd.DataFrame({"cost": np.arange(24) * 100.5 + 10, "x": [0.5, 1, 2] * 8})
    file = save(frame, tmp_path / "t.csv")
    with pytest.warns(
        UserWarning,
        match="'cost' has values up to 2,322, and is not scaled: .*--target 'cost / 1000'",
    ):
        data = load(file, target="cost")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = load(file, target="cost / 1000")
    assert scaled.encoding.names == ["x"]
    torch.testing.assert_close(scaled.merged()[1] * 1000, data.merged()[1])


def test_many_whole_numbers_are_classes_with_a_note(tmp_path):
    frame = pd.DataFrame({"visits": np.arange(60) % 12, "x": [0.5, 1, 2] * 20})
    file = save(frame, tmp_path / "t.csv")
    with pytest.warns(
        UserWarning,
        match="'visits' holds 12 different whole numbers, read as classes; .*--regression",
    ):
        load(file, target="visits")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load(file, target="visits", regression=False).classes) == 12


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("num > many", "expected a number after >"),
        ("ward > a", "'ward' holds no numbers; expected =="),
        ("nm > 0", "no column 'nm'"),
    ],
)
def test_comparison_that_cannot_be_made_raises(tmp_path, target, message):
    frame = pd.DataFrame({"num": [0, 1] * 6, "ward": ["a", "b"] * 6, "x": [0.5, 1] * 6})
    with pytest.raises(UnalikeError, match=message):
        load(save(frame, tmp_path / "t.csv"), target=target)


def test_row_number_column_warns_or_raises(tmp_path):
    frame = pd.DataFrame({"x": [0.5, 1.5] * 20, "y": [0] * 20 + [1] * 20})
    frame.to_csv(tmp_path / "i.csv")
    with pytest.raises(
        UnalikeError, match=r"a column has no name in the header.*drop='Unnamed: 0'"
    ):
        load(tmp_path / "i.csv", target="y")
    assert load(tmp_path / "i.csv", target="y", drop="Unnamed: 0").encoding.names == ["x"]
    with pytest.warns(
        UserWarning, match=r"'id': numbers that look like .* read as features; .*drop='id'"
    ):
        load(save(frame.assign(id=range(41, 1, -1)), tmp_path / "n.csv"), target="y")
    with pytest.warns(
        UserWarning,
        match=r"clients of .*--group clinic, .*; at a site of a federation, leave out: --drop clinic",
    ):
        load(save(frame.assign(clinic=["a", "b"] * 20), tmp_path / "c.csv"), target="y")
    with pytest.raises(
        UnalikeError, match=r"column 'id' has 32 different texts in 32 rows, expected .*drop='id'"
    ):
        load(save(frame.assign(id=[f"P{k}" for k in range(40)]), tmp_path / "t.csv"), target="y")


def test_number_column_with_few_texts_raises(tmp_path):
    values = [f"{k / 2}" for k in range(30)]
    frame = pd.DataFrame({"lab": [*values, "<0.5", "<0.5"], "y": [0, 1] * 16})
    with pytest.raises(
        UnalikeError, match=r"column 'lab' holds numbers and, between them, texts such as '<0.5'"
    ):
        load(save(frame, tmp_path / "t.csv"), target="y")
    few = pd.DataFrame({"children": ["0", "1", "2", "3+"] * 8, "y": [0, 1] * 16})
    assert load(save(few, tmp_path / "f.csv"), target="y").input_shape == (4,)


def test_integer_target_with_many_values_raises(tmp_path):
    frame = pd.DataFrame(
        {"x": [0.5, 1.5] * 20, "price": np.arange(40) * 1000, "name": [f"n{k}" for k in range(40)]}
    )
    file = save(frame, tmp_path / "t.csv")
    with pytest.raises(
        UnalikeError,
        match=r"'price' has 40 different values in 40 rows; expected classes .*regression=True",
    ):
        load(file, target="price", drop="name")
    with pytest.raises(
        UnalikeError, match=r"'name' has 40 different values in 40 rows; .*name another column"
    ):
        load(file, target="name", drop="price")
    with pytest.raises(
        UnalikeError, match="the target 'name' holds texts; expected numbers for regression"
    ):
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
        with pytest.raises(
            UnalikeError,
            match=r"cannot be read as a table|has no column|not written in utf-8; .*mislabelled",
        ):
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
    assert sorted(
        torch.cat([found.train[0], *([found.test[0]] if found.test else [])]).tolist()
    ) == [
        [0, 0],
        [1, 0],
        [1, 0],
    ]


def test_table_with_duplicate_column_name_raises(tmp_path):
    rows = "".join(f"{i * i % 7},{i % 2},{i % 2}\n" for i in range(20))
    (tmp_path / "t.csv").write_text("age,y,y\n" + rows)
    with pytest.raises(
        UnalikeError, match="two columns have the name 'y'; expected each name once"
    ):
        load(tmp_path / "t.csv", target="y")


@pytest.mark.parametrize("options", [{"text": "y"}, {"drop": "t"}, {"group": "t"}, {"split": "t"}])
def test_text_column_with_second_role_raises(tmp_path, options):
    (tmp_path / "t.csv").write_text(
        "t,y\n" + "".join(f"{i % 2},{'ab'[i % 2]}\n" for i in range(20))
    )
    with pytest.raises(
        UnalikeError, match="which is the target, a group, the split or dropped, too"
    ):
        load(tmp_path / "t.csv", target="y", **{"text": "t", **options})


@pytest.mark.parametrize("options", [{"length": 3}, {"vocabulary": 9}, {"bag": True}])
def test_text_options_without_text_column_raise(tmp_path, options):
    (tmp_path / "t.csv").write_text(
        "t,y\n" + "".join(f"{i % 2},{'ab'[i % 2]}\n" for i in range(20))
    )
    with pytest.raises(UnalikeError, match="say how a column of text is read; name it with text="):
        load(tmp_path / "t.csv", target="y", **options)


def test_text_length_zero_raises(tmp_path):
    (tmp_path / "t.csv").write_text(
        "t,y\n" + "".join(f"w{i % 3},{'ab'[i % 2]}\n" for i in range(20))
    )
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
        pd.DataFrame({"size": np.arange(12) ** 2, "died": np.arange(12) / 2}).to_csv(
            file, index=False
        )
        assert load(file, target="died").task.name == "regression"


def test_a_few_whole_numbers_with_decimals_are_asked_about(tmp_path):
    """Both answers are named."""
    file, frame = (
        tmp_path / "visits.csv",
        pd.DataFrame({"size": np.arange(12) ** 2, "grade": [1.0, 2.0, 3.0] * 4}),
    )
    frame.to_csv(file, index=False)
    why = r"holds 1\.0, 2\.0, 3\.0, which may be classes or amounts: .* --no-regression, .*=False; .* --regression, .*=True"
    with pytest.raises(UnalikeError, match=why):
        load(file, target="grade")
    assert load(file, target="grade", regression=False).classes == ["1", "2", "3"]
    assert load(file, target="grade", regression=True).task.name == "regression"
    frame.assign(grade=np.arange(12) / 2).to_csv(file, index=False)
    with pytest.raises(
        UnalikeError, match="'grade' holds fractions; expected whole numbers for classes"
    ):
        load(file, target="grade", regression=False)


@pytest.mark.parametrize(
    ("own", "theirs"), [([False, True], ["0", "1"]), ([0, 1], ["False", "True"])]
)
def test_true_and_false_are_the_classes_one_and_zero_of_another_table(tmp_path, own, theirs):
    data = load(save(pd.DataFrame({"x": range(8), "y": own * 4}), tmp_path / "t.csv"), target="y")
    y = data.merged()[1]
    assert data.labelled(y, "classification", theirs, "the run").tolist() == y.tolist()
    with pytest.raises(UnalikeError, match="found the classes"):
        data.labelled(y, "classification", ["no", "yes"], "the run")
