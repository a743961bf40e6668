"""Rows that belong together stay on one side of a division, and columns that give away the target or the owner are named."""

import warnings

import numpy as np
import pandas as pd
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.belonging import COPIES

HOSPITALS = ("north", "south", "east", "west")


def patients(rows=300, name="id"):
    """Visits of about 110 patients of four hospitals, whose traits are the same at all visits."""
    rng = np.random.default_rng(0)
    owner = np.sort(rng.integers(0, 110, rows))
    traits = pd.DataFrame(
        {
            name: np.arange(110) * 3 + 1000,
            "hospital": [HOSPITALS[k % 4] for k in range(110)],
            "age": rng.normal(60, 12, 110).round(1),
            "height": rng.normal(170, 9, 110).round(0),
            "weight": rng.normal(75, 12, 110).round(1),
        }
    )
    visits = traits.iloc[owner].reset_index(drop=True)
    return visits.assign(crp=rng.gamma(2, 20, rows).round(2), died=rng.integers(0, 2, rows))


def read(frame, **options):
    """The data set of a table and the warnings about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = ua.load(frame, target="died", **{"group": "hospital"} | options)
    return data, [str(warning.message) for warning in caught]


def divided(population, values):
    """The number of units, given by the `values` of all samples, with training and test samples."""
    train = set(values[population.train.values].tolist())
    return len(train & set(values[population.test.values].tolist()))


@pytest.mark.parametrize("name", ["id", "Patient_ID", "subject no", "MRN", "pseudonym"])
def test_rows_of_one_person_stay_on_one_side_without_being_asked(name):
    data, notes = read(patients(name=name))
    assert data.unit == name and name not in data.encoding.names
    found = f"{name!r} repeats: {len(np.unique(data.groups[name]))} values in 300 rows"
    assert any(found in note and "--unit none" in note for note in notes)
    for seed in (0, 1):
        clients = ua.partition(data, seed=seed)
        assert list(clients.names) == sorted(HOSPITALS)
        assert divided(clients, data.groups[name]) == 0
        # the report says it, too
        assert any(found in note for note in clients.plan.notes)


def test_copies_of_rows_stay_on_one_side_although_their_numbers_differ():
    frame = patients().drop(columns="id").drop_duplicates()
    doubled = pd.concat([frame, frame], ignore_index=True).assign(row=np.arange(2 * len(frame)))
    data, notes = read(doubled, drop="row")
    assert data.unit == COPIES
    assert any(f"{len(frame)} of {len(doubled)} rows are copies" in note for note in notes)
    clients = ua.partition(data)
    assert divided(clients, data.groups[COPIES]) == 0 and not clients.leak_notes


def test_rows_that_belong_to_nobody_are_divided_as_before():
    frame = patients()
    alone, notes = read(frame, unit="none")
    assert alone.unit is None and not any("repeats" in note for note in notes)
    assert divided(ua.partition(alone), np.unique(alone.merged()[0][:, 1], return_inverse=True)[1])
    # few categories are equal by chance, and one number at each owner is another name of the owner
    few = pd.DataFrame({"sex": ["f", "m"] * 150, "grade": np.arange(300) % 3})
    frame = few.assign(hospital=frame["hospital"], died=frame["died"])
    assert read(frame)[0].unit is None
    codes = frame["hospital"].map({name: k for k, name in enumerate(HOSPITALS)})
    assert read(frame.assign(id=codes))[0].unit is None


@pytest.mark.parametrize(
    "copy",
    [
        lambda died: died,
        lambda died: died.map({0: "alive", 1: "dead"}),
        lambda died: 2.5 * died - 1,
    ],
)
def test_a_copy_of_the_target_is_refused(copy):
    frame = patients().assign(outcome2=lambda rows: copy(rows["died"]))
    with pytest.raises(UnalikeError, match=r"'outcome2' is the target 'died' .*--drop outcome2"):
        read(frame)
    _, notes = read(frame, accept=True)
    assert any("'outcome2' is the target 'died' in other words" in note for note in notes)
    read(frame, drop="outcome2")


def test_columns_that_tell_the_target_or_the_owner_are_named():
    rng = np.random.default_rng(1)
    frame = patients().assign(
        ward=lambda rows: rows["hospital"].str.upper(),
        beds=lambda rows: rows["hospital"].map(dict(zip(HOSPITALS, (100, 100, 300, 400)))),
        cause=lambda rows: np.where(rows["died"] == 1, rng.integers(0, 3, 300), 3),
        score=lambda rows: rows["died"] * 10 + rng.random(300),
    )
    _, notes = read(frame)
    assert any("'ward' is 'hospital' in other words" in note for note in notes)
    assert any("'beds' is the same in all rows of each 'hospital'" in note for note in notes)
    assert any("'cause', 'score' alone tell the target 'died'" in note for note in notes)
    assert read(patients())[1] == [note for note in read(patients())[1] if "repeats" in note]
    with pytest.raises(UnalikeError, match="'died' as the target and as the group"):
        read(frame, group="died")


def test_owners_that_are_missing_are_told_by_row_and_left_out_if_asked():
    frame = patients().astype({"hospital": object})
    frame.loc[[3, 9], "hospital"] = None
    with pytest.raises(
        UnalikeError, match=r"'hospital' is missing in 2 of 300 rows.*labelled_only"
    ):
        read(frame)
    data, _ = read(frame, labelled_only=True)
    assert len(data.merged()[1]) == 298
    numbers = patients()["hospital"].map({name: k for k, name in enumerate(HOSPITALS)})
    numbers = numbers.where(numbers.index != 5)
    data, _ = read(patients().assign(hospital=numbers), labelled_only=True)
    assert set(ua.partition(data).names) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (
            lambda los: los.where(los.index != 7, 999999.38),
            r"'los' \(999999 in 1 row, .* far|far .*'los' \(999999 in 1 row",
        ),
        (lambda los: los.where(los.index % 40 != 7, -999), r"codes .*'los' \(-999 in \d+ rows\)"),
        (
            lambda los: (1000 * los).where(los.index % 40 != 7, -9999),
            r"codes .*'los' \(-9999 in \d+ rows\)",
        ),
    ],
)
def test_numbers_that_are_no_amounts_are_noted_by_run_and_diagnosis(values, found):
    rng = np.random.default_rng(2)
    los = pd.Series(rng.gamma(2, 4, 300).round(0) + 1)
    data, _ = read(patients().assign(los=values(los)).iloc[rng.permutation(300)], unit="none")
    diagnosis = ua.diagnose(ua.partition(data, split=1.0))
    [note] = [note for note in diagnosis.notes if "'los'" in note]
    assert pd.Series([note.lower()]).str.contains(found).all()
    plain, _ = read(patients().assign(los=los), unit="none")
    assert not any("'los'" in note for note in ua.diagnose(ua.partition(plain, split=1.0)).notes)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (lambda rng: [f"{k} d" for k in rng.integers(1, 30, 300)], "amounts as texts, such as '"),
        (lambda rng: [f"€ {k}" for k in rng.integers(1, 30, 300)], "amounts as texts, such as '"),
        (
            lambda rng: [
                f"{k / 2:.1f}".replace(".", ",."[k % 2]) for k in rng.integers(1, 60, 300)
            ],
            "amounts as texts",
        ),
        (lambda rng: [f"I{k}" for k in rng.integers(0, 150, 300)], "different texts in .* hardly"),
    ],
)
def test_texts_that_make_many_categories_are_named_at_load(column, found):
    rng = np.random.default_rng(3)
    _, notes = read(patients().assign(size=column(rng)))
    assert pd.Series(notes).str.contains(found).sum() == 1
    _, notes = read(patients().assign(zip=rng.integers(10000, 99999, 300)))
    assert any("'zip': numbers that look like codes" in note for note in notes)


@pytest.mark.parametrize("file", ["a.sas7bdat", "b.dta", "c.rds"])
def test_tables_of_other_programs_say_how_they_are_converted(tmp_path, file):
    (tmp_path / file).touch()
    with pytest.raises(UnalikeError, match=r"is a table of .*, which is not read here; convert it"):
        ua.load(tmp_path / file, target="y")
    with pytest.raises(UnalikeError, match=r"is a folder, and --target.* is for the columns"):
        ua.load(tmp_path, target="y")
