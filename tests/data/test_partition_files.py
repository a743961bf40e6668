import json

import numpy as np
import pytest

from unalike._utils.errors import UnalikeError
from unalike.data import ClientData, Dataset, Population, partition, partition_labels
from unalike.data.partitioning.partition_files import write_clients, write_partition


def test_write_partition_and_index_files_round_trip(blobs, tmp_path):
    everyone = partition(blobs, "dirichlet(alpha=0.5)", clients=12, seed=5)
    folder = write_partition(everyone.plan, tmp_path / "split")
    assert len(list(folder.iterdir())) == 12
    assert np.array_equal(
        np.loadtxt(folder / "client-3" / "train.txt", dtype=int), everyone.train[3]
    )
    again = partition(blobs, f"index_files(path={str(folder)!r})")
    assert again.names == [f"client-{k}" for k in range(12)]
    for k in range(12):
        assert set(again.train[k]) == set(everyone.train[k]) and np.array_equal(
            again.test[k], everyone.test[k]
        )


def test_write_clients_escapes_forbidden_names(blobs, tmp_path):
    names = ["../ward", ".", "north/south", "ä b%"]
    everyone = Population.of([ClientData(blobs.train, name=name) for name in names])
    folder = write_clients(everyone, tmp_path / "samples")
    assert len(list(folder.iterdir())) == 4 and not (tmp_path / "ward").exists()
    x = np.load(folder / "ä b%".replace("ä", "%C3%A4").replace("b%", "b%25") / "train.npz")["x"]
    assert np.array_equal(x, blobs.train[0].numpy())


def test_index_files_folders_are_sorted_by_whole_name(blobs, tmp_path):
    names = ["ward.10", "ward.2", ".ward.1", "ward.01", "ward.1"]
    for k, name in enumerate(names):
        folder = tmp_path / name.replace(".ward", "%2Eward")
        folder.mkdir()
        (folder / "train.txt").write_text(f"{k}\n")
    read = partition(blobs, f"index_files(path={str(tmp_path)!r})")
    assert read.names == [".ward.1", "ward.01", "ward.1", "ward.2", "ward.10"]
    assert read.train.values.tolist() == [2, 3, 4, 1, 0]


@pytest.mark.parametrize(("name", "length"), [("", 0), ("n" * 300, 300), ("\u533b" * 40, 360)])
def test_write_with_empty_or_too_long_name_raises(tmp_path, name, length):
    data = Dataset(
        "one",
        (np.zeros((4, 1)), np.zeros(4, int)),
        groups={"client": [name, name, "south", "south"]},
    )
    everyone = partition(data, "natural")
    for write, written in ((write_partition, everyone.plan), (write_clients, everyone)):
        with pytest.raises(
            UnalikeError, match=f"a folder with a name of {length} characters, expected 1 to 255"
        ):
            write(written, tmp_path / write.__name__)


def test_write_clients_writes_each_clients_samples(blobs, tmp_path):
    everyone = partition(blobs, "iid", clients=3)
    folder = write_clients(everyone, tmp_path / "samples")
    archive = np.load(folder / "client-1" / "test.npz", allow_pickle=False)
    assert np.array_equal(archive["y"], everyone[1].test[1].numpy())
    with pytest.raises(UnalikeError, match="not an empty folder"):
        write_clients(everyone, folder)


def test_index_files_of_other_tools_are_read(tmp_path):
    labels = [0, 1, 2, 3, 4]
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, rows in {"c10": "3", "c2": "0 4", "c1": "1\n2\n"}.items():
        (texts / f"{name}.txt").write_text(rows)
    rows = [part.tolist() for part in partition_labels(f"index_files(path={str(texts)!r})", labels)]
    assert rows == [[1, 2], [0, 4], [3]]
    file = tmp_path / "split.json"
    for table in ([[1, 2], [0, 4], [3]], {"a": [1, 2], "b": {"train": [0], "test": [4]}, "c": [3]}):
        file.write_text(json.dumps(table))
        rows = [
            part.tolist() for part in partition_labels(f"index_files(path={str(file)!r})", labels)
        ]
        assert rows == [[1, 2], [0, 4], [3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[0, 9]]",
            r"'client-0' has samples 0\.\.9, expected 0\.\.4: the files divide another data set",
        ),
        ("[[0, 0]]", "has a sample twice"),
        ("[[0, 1.5]]", "not whole numbers"),
        ("[", "no list of sample numbers"),
        ("[" * 100_000, "no list of sample numbers"),
        ("3", "no list of sample numbers"),
        ("[]", "holds no client"),
        ("[[0, 9223372036854775808]]", "no list of sample numbers per client .*too large"),
        (
            '{"north": {"train": [0], "tset": [1]}}',
            "client 'north' has tset beside train, test, val",
        ),
        ('{"north": [0], "north": [1]}', "the name 'north' stands there twice"),
    ],
)
def test_index_files_that_do_not_fit_raise(tmp_path, text, message):
    file = tmp_path / "split.json"
    file.write_text(text)
    with pytest.raises(UnalikeError, match=message):
        partition_labels(f"index_files(path={str(file)!r})", [0, 1, 2, 3, 4])


def test_index_files_at_empty_path_raise(tmp_path):
    with pytest.raises(UnalikeError, match="found no index files"):
        partition_labels("index_files(path='nowhere')", [0, 1])
    with pytest.raises(UnalikeError, match="holds no client"):
        partition_labels(f"index_files(path={str(tmp_path)!r})", [0, 1])
    (tmp_path / "a.txt").write_text("0 one")
    with pytest.raises(UnalikeError, match="holds 'one', expected sample numbers"):
        partition_labels(f"index_files(path={str(tmp_path)!r})", [0, 1])
    (tmp_path / "a.txt").write_text("0 9223372036854775808")
    with pytest.raises(UnalikeError, match=r"a\.txt cannot be read as sample numbers of 64 bits"):
        partition_labels(f"index_files(path={str(tmp_path)!r})", [0, 1])
    (tmp_path / "a.txt").write_bytes(b"0 \xff")
    with pytest.raises(
        UnalikeError, match=r"a\.txt cannot be read as a text file of sample numbers"
    ):
        partition_labels(f"index_files(path={str(tmp_path)!r})", [0, 1])
    (tmp_path / "a.txt").write_text("0 1")
    with pytest.raises(UnalikeError, match="holds 1 clients, found clients=2"):
        partition_labels(f"index_files(path={str(tmp_path)!r})", [0, 1], clients=2)
