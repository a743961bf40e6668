"""Samples from files: labels mean the same class at every site; the coordinator tests and learns with samples of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import MODEL, WORK, people, states

import unalike as ua
from unalike.cli.options import table
from unalike.core.errors import UnalikeError
from unalike.deploy.bundle import Bundle
from unalike.deploy.coordinate import rounds
from unalike.deploy.federation import Schema
from unalike.deploy.folder import Folder
from unalike.deploy.local import Local
from unalike.deploy.samples import own_samples, site_data
from unalike.deploy.trainer import Trainer

KINDS = Schema(shape=(2,), classes=("benign", "malignant", "other"))


def written(path, labels):
    first = [float(label == labels[0]) for label in labels]
    frame = pd.DataFrame({"a": first, "b": np.arange(len(labels), dtype=float), "label": labels})
    frame.to_csv(path, index=False)
    return table(str(path), "label")


def folder_of(root, names, **terms):
    usual = {"name": "own", "method": "fedavg", "model": "linear", "rounds": 2, "data": KINDS}
    return Folder.create(root, dict.fromkeys(names, 1000), host="localhost", port=1, **(usual | terms))


def test_a_site_that_lacks_a_class_numbers_the_others_as_everybody_does(tmp_path):
    federation = folder_of(tmp_path / "fed", ["north"]).federation
    path = written(tmp_path / "north.csv", ["other", "benign"] * 10)
    found = site_data(federation, path, None, "north")
    for x, y in (found.train, found.test):  # the first column says which rows are "other"
        assert len(y) and torch.equal(y, torch.where(x[:, 0] > 0, 2, 0))
    _, y = own_samples(KINDS, path)
    assert len(y) == 20 and set(y.tolist()) == {0, 2}
    with pytest.raises(
        UnalikeError,
        match="found the classes 'benin'; expected those of the federation, 'benign', 'malignant', 'other'",
    ):
        site_data(federation, written(tmp_path / "typo.csv", ["benin", "other"] * 10), None, "north")


def test_numbers_without_names_are_the_federations_own(tmp_path):
    x, y = np.ones((12, 2), np.float32), np.array([0, 1, 2] * 4)
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    assert own_samples(KINDS, str(tmp_path / "plain.npz"))[1].tolist() == y.tolist()
    np.savez(tmp_path / "more.npz", x=x, y=y + 1)
    with pytest.raises(UnalikeError, match="those of the federation"):
        own_samples(KINDS, str(tmp_path / "more.npz"))
    few = Schema(shape=(2,), classes=5)  # by number: a table whose labels are 3 and 1
    assert own_samples(few, written(tmp_path / "few.csv", [3, 1] * 6))[1].tolist() == [3, 1] * 6


@pytest.mark.parametrize("method", ["feddf", "data_sharing"])
def test_the_coordinator_tests_and_learns_with_its_own(method, tmp_path):
    clients, extra = people(), people(((8, 8),))[0]
    own = {"test": extra.test, "proxy": extra.train}
    terms = {"method": method, "model": MODEL, "work": WORK, "data": Schema(shape=(6,), classes=4), "repeat": 0.05}
    folder = folder_of(tmp_path / "fed", [c.name for c in clients], protocol=("server", "clients"), **terms)
    for name, (x, y) in own.items():
        folder.keep(name, (torch.as_tensor(x), torch.as_tensor(y)))
    trainers = {}
    for client in clients:
        bundle = Bundle.read(folder.bundles[client.name])
        trainers[client.name] = Trainer(bundle.federation, client.name, bundle.key, client, tmp_path / client.name)
    ours = rounds(folder, Local(trainers), lambda line: None)
    theirs = ua.run(
        method, clients, model=MODEL, rounds=2, work=WORK, executor="loop", protocol=("server", "clients"), **own
    )
    for group, tensors in states(theirs).items():
        for name, t in tensors.items():
            assert torch.equal(states(ours)[group][name], t), name
    assert ours.history.rounds["accuracy"].tolist() == theirs.history.rounds["accuracy"].tolist()
