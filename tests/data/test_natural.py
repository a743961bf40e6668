"""Data sets that are divided by nature: their samples, owners and labels are those of the published tables."""

import numpy as np
import pandas as pd
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import load, partition
from unalike.data.sources.natural import HEART_DISEASE

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
