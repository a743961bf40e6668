"""Clients of PFLlib: a folder of its data sets, with the samples of each client."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.plain_pickles import read_plain_pickle
from unalike.data.sources.registry import registry

CONFIG = "config.json"
KIND = "the samples of a client of PFLlib"
SPLITS = ("train", "test")


@registry.register("pfllib")
def pfllib(data_dir: Path | None, *, path: str) -> Dataset:
    """A data set that PFLlib has divided: `config.json`, and `train/0.npz`, `test/0.npz`, ... with the samples of client 0, ...

    The clients are the group "client", of which each keeps its test samples (partition "natural"). PFLlib keeps no sample numbers,
    so the samples are those of the folder, scaled as PFLlib has scaled them.
    """
    folder = Path(path)
    if data_dir is not None and not folder.exists():
        folder = data_dir / path
    with reading(folder / CONFIG, "the settings of a data set of PFLlib", KeyError):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        clients = int(config["num_clients"])
        classes = int(config["num_classes"])

    inputs = []
    labels = []
    owners = []
    train = 0
    for split in SPLITS:
        for client in range(clients):
            x, y = _samples(folder / split / f"{client}.npz")
            inputs.append(x)
            labels.append(y)
            owners.append(np.full(len(y), client))
            if split == "train":
                train += len(y)
    return Dataset.divided(
        name=folder.name,
        x=np.concatenate(inputs),
        y=np.concatenate(labels),
        train=train,
        classes=[str(label) for label in range(classes)],
        groups={"client": np.concatenate(owners)},
    )


def _samples(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The samples of a client: x float32 [n, ...] and y int64 [n]. Raises `UnalikeError` for any other file."""
    with reading(file, KIND, KeyError), ZipFile(file) as archive:
        data = archive.read("data.npy")
    table = _object(data, file)
    if not isinstance(table, dict) or not {b"x", b"y"} <= {_bytes(key) for key in table}:
        raise UnalikeError(f"{file} holds {type(table).__name__}, expected a table of x and y")
    by_name = {_bytes(key): value for key, value in table.items()}
    with reading(file, KIND, TypeError):
        x = np.asarray(by_name[b"x"], np.float32)
        y = np.asarray(by_name[b"y"]).astype(np.int64)
    if len(x) != len(y):
        raise UnalikeError(f"{file} holds {len(x)} inputs and {len(y)} labels, expected as many")
    return x, y


def _object(data: bytes, file: Path) -> Any:
    """The object in a `.npy` file, whose array has this one entry. Its header ends in a line of its own."""
    with reading(file, KIND):
        header, _, pickled = data.partition(b"\n")
        if not header.startswith(b"\x93NUMPY") or b"'|O'" not in header:
            raise UnalikeError(f"{file} holds plain numbers, expected {KIND}")
    array = read_plain_pickle(pickled, file, KIND)
    return array.item() if isinstance(array, np.ndarray) and array.size == 1 else array


def _bytes(key: object) -> object:
    return key.encode() if isinstance(key, str) else key
