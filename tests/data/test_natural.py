"""Data sets that are divided by nature: their samples, owners and labels are those of the published tables."""

import gzip
import hashlib
import os

import numpy as np
import pandas as pd
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import load, partition
from unalike.data.sources import natural_arrays
from unalike.data.sources.natural import HEART_DISEASE, TABLES, NaturalTable
from unalike.data.sources.registry import registry

HOSPITALS = {"Cleveland": 303, "Hungary": 294, "Switzerland": 123, "VA Long Beach": 200}


def test_heart_disease_has_every_patient_of_the_table_once_with_the_diagnosis_and_the_hospital():
    table, data = pd.read_csv(HEART_DISEASE), load("heart_disease")
    hospital, sick = data.groups["hospital"], data.merged()[1].numpy() == 1
    assert table["dataset"].value_counts().to_dict() == HOSPITALS
    for name in HOSPITALS:
        ill = (table.loc[table["dataset"] == name, "num"] > 0).sum()
        assert (hospital == name).sum() == HOSPITALS[name] and sick[hospital == name].sum() == ill
    assert data.classes == ["no disease", "disease"] and data.task.name == "classification"
    age = data.encoding.numbers[0]
    years = data.merged()[0][:, 0].numpy() * age.scale + age.mean
    assert np.sort(years) == pytest.approx(np.sort(table["age"]), rel=1e-5)


def test_heart_disease_reads_no_identifier_hospital_or_diagnosis_as_a_feature():
    names = set(load("heart_disease").encoding.names)
    assert names == set(pd.read_csv(HEART_DISEASE)) - {"id", "dataset", "num"} and len(names) == 13
    assert torch.isfinite(load("heart_disease").merged()[0]).all()


def test_heart_disease_is_divided_by_hospital_unless_another_partition_is_named():
    clients = partition(load("heart_disease"))
    assert list(clients.names) == list(HOSPITALS)
    assert [len(c.train[1]) + len(c.test[1]) for c in clients] == list(HOSPITALS.values())
    assert len(partition(load("heart_disease"), "iid", clients=3)) == 3


def test_heart_disease_takes_no_options():
    with pytest.raises(UnalikeError, match=r"it takes heart_disease\(\)"):
        load("heart_disease", target="chol")


def table_file(folder, rows, name="mine"):
    """A CSV file, and its checksum."""
    text = pd.DataFrame(rows).to_csv(index=False).encode()
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text))
    return hashlib.sha256(text).hexdigest()


def rows_of(target):
    """Twenty rows of two owners with a target."""
    return {"size": np.arange(20.0) ** 2, "owner": ["north", "south"] * 10, "outcome": target}


def test_a_natural_table_has_its_positive_class_last_and_amounts_in_its_unit(tmp_path):
    words = ["bad", "good", "good", "good"] * 5
    table = NaturalTable(
        "", "outcome", "owner", "", table_file(tmp_path, rows_of(words)), positive="bad"
    )
    data = table.read("mine", tmp_path)
    assert (
        data.classes == ["good", "bad"]
        and data.merged()[1].sum() == 5
        and set(data.groups["owner"]) == {"north", "south"}
    )
    plain = load(tmp_path / "mine.csv.gz", target="outcome", group="owner")
    assert torch.equal(data.merged()[1], 1 - plain.merged()[1]) and torch.equal(
        data.merged()[0], plain.merged()[0]
    )
    amounts = np.arange(20) * 1000
    table = NaturalTable(
        "", "outcome / 1000", "owner", "", table_file(tmp_path, rows_of(amounts)), regression=True
    )
    data = table.read("mine", tmp_path)
    assert data.task.name == "regression" and sorted(data.merged()[1].tolist()) == list(range(20))


def test_a_natural_table_that_is_missing_or_another_one_is_refused_with_its_source_and_checksum(
    tmp_path,
):
    table = NaturalTable("", "outcome", "owner", "rows of a package (MIT)", "0" * 64)
    with pytest.raises(
        UnalikeError,
        match=rf"found no mine\.csv\.gz in .*rows of a package \(MIT\); SHA-256 .*{'0' * 64}",
    ):
        table.read("mine", tmp_path)
    with pytest.raises(UnalikeError, match="UNALIKE_DATA names no folder"):
        table.read("mine", None)
    (tmp_path / "natural").mkdir()
    checksum = table_file(tmp_path / "natural", rows_of([1, 2] * 10))
    with pytest.raises(UnalikeError, match=f"checksum {checksum}. Expected: rows of a package"):
        table.read("mine", tmp_path)


SIZES = {
    "flights": (65470, 16),
    "covid_testing": (15223, 88),
    "pancreatitis": (602, 4),
    "math_achievement": (7185, 160),
    "chemistry_grades": (31022, 131),
    "lecture_ratings": (73421, 14),
    "loans": (9857, 50),
    "house_prices": (2930, 28),
    "smartwatch": (2369, 10),
    "parkinsons": (5875, 42),
    "wisdm": (5418, 36),
    "landmine": (14820, 29),
    "school_exams": (15362, 139),
    "beijing_air": (64275, 12),
    "gas_drift": (6697, 8),
    "pacs": (9991, 4),
    "omniglot": (4840, 8),
    "mnist_writers": (70000, 836),
}
ARRAYS = {"smartwatch", "beijing_air", "gas_drift", "pacs", "omniglot", "mnist_writers"}
"""Those that are no table of `natural.toml`."""


@pytest.mark.skipif(
    "UNALIKE_DATA" not in os.environ, reason="UNALIKE_DATA names no folder of data files"
)
@pytest.mark.parametrize("name", SIZES)
def test_published_natural_data_have_their_rows_and_owners(name):
    try:
        data = load(name)
    except UnalikeError as error:
        if "found no" in str(error):
            pytest.skip(str(error))
        raise
    owners = next(iter(data.groups.values()))
    assert (len(owners), len(set(owners))) == SIZES[name] and torch.isfinite(data.merged()[0]).all()
    # the rarer of two classes is the positive one
    has_two_classes = data.classes is not None and len(data.classes) == 2
    assert not has_two_classes or data.merged()[1].float().mean() < 0.5


def test_every_natural_data_set_has_a_size_here():
    assert {*SIZES} == {*TABLES, *ARRAYS} and {*SIZES} <= {*registry}


def test_smartwatch_keeps_recordings_whole_and_scales_each_channel_by_its_training_windows(
    tmp_path, monkeypatch
):
    rng = np.random.default_rng(0)
    recording = np.repeat(np.arange(20, dtype=np.uint8), 3)
    arrays = {
        "x": rng.normal(3, 2, (60, 100, 6)).astype(np.float32),
        "y": recording % 2,
        "recording": recording,
    }
    path = tmp_path / "smartwatch.npz"
    np.savez(
        path, **arrays, subject=recording % 4, side=recording % 2, classes=np.array(["PEN", "ROW"])
    )
    monkeypatch.setattr(natural_arrays, "file_of", lambda *asked: path)
    data = load("smartwatch", tmp_path)
    train = len(data.train[1])
    owners = data.groups["recording"]
    assert (
        train == 48
        and not set(owners[:train]) & set(owners[train:])
        and data.input_shape == (1, 100, 6)
    )
    assert data.train[0].mean((0, 1, 2)).numpy() == pytest.approx(0, abs=1e-4)
    assert data.train[0].std((0, 1, 2)).numpy() == pytest.approx(1, abs=1e-3)
    assert next(iter(data.groups)) == "subject"
