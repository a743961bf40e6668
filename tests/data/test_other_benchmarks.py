"""Divisions of PFLlib and FL-bench are read as they are, and nothing that their files name is run."""

from __future__ import annotations

import json
import pickle
import tracemalloc

import numpy as np
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.plain_pickles import read_plain_pickle

SIZES = ((6, 2), (9, 3), (4, 1))


@pytest.fixture
def pfllib(tmp_path):
    """A folder as PFLlib writes it; returns it with the samples by split and client."""
    folder = tmp_path / "MNIST"
    rng = np.random.default_rng(0)
    made = {}
    for place, split in enumerate(("train", "test")):
        (folder / split).mkdir(parents=True)
        for client, sizes in enumerate(SIZES):
            size = sizes[place]
            samples = {"x": rng.random((size, 1, 4, 4), np.float32), "y": np.arange(size) % 3}
            with open(folder / split / f"{client}.npz", "wb") as file:
                np.savez_compressed(file, data=samples)
            made[split, client] = samples
    config = {"num_clients": len(SIZES), "num_classes": 3, "non_iid": True, "batch_size": 10}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, made


def test_pfllib_clients_keep_their_samples_and_tests(pfllib):
    folder, made = pfllib
    data = ua.load(f"pfllib(path={str(folder)!r})")
    assert data.classes == ["0", "1", "2"] and data.name == "MNIST"
    clients = ua.partition(data)
    assert len(clients) == len(SIZES)
    for k, client in enumerate(clients):
        for split, (x, y) in client.splits().items():
            assert np.array_equal(x.numpy(), made[split, k]["x"])
            assert np.array_equal(y.numpy(), made[split, k]["y"])
    assert len(ua.run("fedavg", clients, model="linear", rounds=1).history.rounds) == 2


@pytest.fixture
def fl_bench(tmp_path):
    """A folder as FL-bench writes it, for 60 samples; returns it with the partition."""
    numbers = np.random.default_rng(0).permutation(60).astype(np.int32)
    indices = []
    for rows in np.split(numbers, [10, 35]):
        indices.append({"train": rows[4:], "val": rows[2:4], "test": rows[:2]})
    separation = {"train": [0, 1, 2], "val": [0, 1, 2], "test": [0, 1, 2], "total": 3}
    folder = tmp_path / "cifar10"
    folder.mkdir()
    with open(folder / "partition.pkl", "wb") as file:
        pickle.dump({"separation": separation, "data_indices": indices}, file)
    return folder, indices


def dataset():
    x = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    y = np.arange(60) % 3
    return ua.Dataset("own", (x[:45], y[:45]), (x[45:], y[45:]))


@pytest.mark.parametrize("as_file", [False, True])
def test_fl_bench_partition_has_its_numbers(fl_bench, as_file):
    folder, indices = fl_bench
    path = folder / "partition.pkl" if as_file else folder
    clients = ua.partition(dataset(), f"fl_bench(path={str(path)!r})")
    for k, rows in enumerate(indices):
        assert set(clients.train[k]) == set(rows["train"].tolist())
        assert set(clients.val[k]) == set(rows["val"].tolist())
        assert clients.test[k].tolist() == rows["test"].tolist()


def test_older_fl_bench_partition_is_divided_by_split(fl_bench):
    folder, indices = fl_bench
    whole = [np.concatenate(list(rows.values())) for rows in indices]
    (folder / "partition.pkl").write_bytes(pickle.dumps({"data_indices": whole}))
    clients = ua.partition(dataset(), f"fl_bench(path={str(folder)!r})", split=0.8)
    for k, rows in enumerate(whole):
        assert {*clients.train[k], *clients.test[k]} == set(rows.tolist())
        assert len(clients.test[k])


def test_partition_of_another_data_set_is_refused(fl_bench):
    folder, _ = fl_bench
    small = dataset().subset(30)
    with pytest.raises(UnalikeError, match="the files divide another data set"):
        ua.partition(small, f"fl_bench(path={str(folder)!r})")
    with pytest.raises(UnalikeError, match="holds 3 clients, found clients=5"):
        ua.partition(dataset(), f"fl_bench(path={str(folder)!r})", clients=5)


class Harmful:
    """Names a function that would run."""

    def __reduce__(self):
        return print, ("this was run",)


class HiddenObjects:
    """A type of which NumPy believes that it holds no objects, so that its values would be addresses in memory."""

    def __reduce__(self):
        fields = {"a": (np.dtype("O"), 0)}
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, 0)


class Addresses:
    """An array of such a type."""

    def __reduce__(self):
        empty = np.empty(0).__reduce__()
        return *empty[:2], (1, (1,), HiddenObjects(), False, b"A" * 8)


@pytest.mark.parametrize(
    "content",
    [
        Harmful(),
        {"data_indices": Harmful()},
        Addresses(),
        {"data_indices": [Addresses()]},
        {"other": 1},
        {"data_indices": [[0.5]]},
    ],
)
def test_other_pickles_are_refused_and_not_run(content, fl_bench, pfllib, capsys):
    folder, _ = fl_bench
    (folder / "partition.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UnalikeError, match=r"partition\.pkl"):
        ua.partition(dataset(), f"fl_bench(path={str(folder)!r})")
    samples, _ = pfllib
    with open(samples / "test" / "1.npz", "wb") as file:
        np.savez_compressed(file, data=np.array(content, object))
    with pytest.raises(UnalikeError, match=r"1\.npz"):
        ua.load(f"pfllib(path={str(samples)!r})")
    assert not capsys.readouterr().out


def test_small_pickle_takes_little_memory(tmp_path):
    """A value that is numbered by a million, for which C's unpickler makes room for two million."""
    content = (
        pickle.PROTO + b"\2" + pickle.NONE + pickle.LONG_BINPUT + (2**20).to_bytes(4, "little")
    )
    tracemalloc.start()
    found = read_plain_pickle(content + pickle.STOP, tmp_path / "a.pkl", "a partition")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is None
    assert peak_bytes < 2**20


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UnalikeError, match=r"found no .*away/config.json, expected the settings"):
        ua.load(f"pfllib(path={str(tmp_path / 'away')!r})")
