"""Partitions and clients as plain files, to exchange them with other tools.

Index files are a folder with one folder per client, which holds `train.txt`, `test.txt` and optionally `val.txt`: one sample
number per line, counted from 0. Two more forms are read: one text file per client (`north.txt`, not split), and a JSON file with a
list of lists, `{"north": [0, 4], ...}` or `{"north": {"train": [0], "test": [4]}, ...}`.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.client_data import SPLITS
from unalike.data.partition_plan import PartitionPlan
from unalike.data.plain_pickles import read_plain_pickle
from unalike.data.population import Population
from unalike.data.ragged import client_name

MAX_NAME_BYTES = 255
"""Longest file name that file systems allow, in bytes."""
_NONE = np.empty(0, np.int64)


class ClientIndices(NamedTuple):
    """The sample numbers of one client; `test` and `val` are empty if the client has none."""

    name: str
    train: np.ndarray
    test: np.ndarray
    val: np.ndarray = _NONE


def write_partition(plan: PartitionPlan, folder: Path | str) -> Path:
    """Write a partition as index files: one folder per client with `train.txt`, `test.txt` and, if it has any, `val.txt`.

    Numbers count through the training and then the test samples of the data set; in a plan with `merge=False` through its
    training samples. `partition(data, "index_files(path='folder')")` reads them.

    Raises `UnalikeError` for a folder that is not empty, and a client's name that is too long for a folder.
    """
    root = _new_folder(folder)
    for name, train, test, val in zip(plan.names, plan.train, plan.test, plan.val):
        place = _client_folder(root, name)
        np.savetxt(place / "train.txt", train, fmt="%d")
        np.savetxt(place / "test.txt", test, fmt="%d")
        if len(val):
            np.savetxt(place / "val.txt", val, fmt="%d")
    return root


def write_clients(population: Population, folder: Path | str) -> Path:
    """Write the clients' samples: one folder per client with `train.npz`, `test.npz`, `val.npz`, each with `x` and `y`.

    Labels that do not imply their task have its name as `task`. A split that a client lacks is not written. Errors are those of
    `write_partition`.
    """
    root = _new_folder(folder)
    task: dict[str, Any] = {}
    if population.task_to_name is not None:
        task["task"] = np.array(population.task_to_name)
    for client in population:
        place = _client_folder(root, client.name or "")
        for split, (x, y) in client.splits().items():
            arrays = task | {"x": x.cpu().numpy(), "y": y.cpu().numpy()}
            np.savez_compressed(place / f"{split}.npz", **arrays)
    return root


def read_indices(path: Path | str, samples: int) -> list[ClientIndices]:
    """Read the clients of a folder or JSON file; those of a folder are sorted by name, digits by their value.

    Raises `UnalikeError` without index files at the path, for a number outside 0..samples-1, and one that a client has twice.
    """
    source = Path(path)
    if not source.exists():
        raise UnalikeError(
            f"found no index files at {source}; expected a folder of them or a JSON file"
        )
    clients = _read_folder(source) if source.is_dir() else _read_json(source)
    if not clients:
        raise UnalikeError(
            f"{source} holds no client; expected a folder per client with train.txt, or files such "
            "as a.txt"
        )
    for client in clients:
        _check(client, samples, source)
    return clients


def read_fl_bench(path: Path | str, samples: int) -> list[ClientIndices]:
    """Read the clients of FL-bench's `partition.pkl`: the file, or the folder of the data set that holds it.

    Its entry `data_indices` has for each client {"train": numbers, "val": numbers, "test": numbers}, or in older files all numbers.
    Raises `UnalikeError` for any other file, and as `read_indices` does.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "partition.pkl"
    kind = "a partition of FL-bench"
    with reading(file, kind):
        data = file.read_bytes()
    table = read_plain_pickle(data, file, kind)
    clients = []
    try:
        for k, rows in enumerate(_by_text(table)["data_indices"]):
            splits = _by_text(rows) if isinstance(rows, dict) else {"train": rows}
            numbers = {split: _index_array(splits.get(split, ())) for split in SPLITS}
            clients.append(ClientIndices(client_name(k), **numbers))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnalikeError(
            f"{file} is not {kind} ({error!r:.80}); expected data_indices with train, val and test"
        ) from None
    for client in clients:
        _check(client, samples, file)
    return clients


def _by_text(table: dict[Any, Any]) -> dict[str, Any]:
    """The table by texts: pickles of other versions have bytes as keys."""
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in table.items()}


def _index_array(numbers: Any) -> np.ndarray:
    array = np.asarray(numbers)
    if not len(array):
        return _NONE
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(f"{array.dtype} of shape {list(array.shape)} are not sample numbers")
    return array.astype(np.int64)


def _read_folder(root: Path) -> list[ClientIndices]:
    """Read a folder per client, or if there are none a file per client."""
    clients = []
    for place in root.iterdir():
        if (place / "train.txt").is_file() or (place / "test.txt").is_file():
            rows = {split: _numbers(place / f"{split}.txt") for split in SPLITS}
            clients.append(ClientIndices(unquote(place.name), **rows))
    if not clients:
        for file in root.iterdir():
            if file.suffix == ".txt":
                clients.append(ClientIndices(unquote(file.stem), train=_numbers(file), test=_NONE))
    return sorted(clients, key=lambda client: (_counted(client.name), client.name))


def _counted(name: str) -> list[tuple[bool, int | str]]:
    """Make a sort key from a name, so that client-2 comes before client-10."""
    key: list[tuple[bool, int | str]] = []
    for token in re.split(r"(\d+)", name):
        if token.isdecimal():
            key.append((False, int(token)))
        elif token:
            key.append((True, token))
    return key


def _numbers(file: Path) -> np.ndarray:
    with reading(file, "a text file of sample numbers"):
        words = file.read_text(encoding="utf-8").split() if file.is_file() else []
    wrong = [word for word in words if not word.isdecimal()]
    if wrong:
        raise UnalikeError(
            f"{file} holds {wrong[0]!r}, expected sample numbers of 0 or more, one per line"
        )
    with reading(file, "sample numbers of 64 bits", OverflowError):
        return np.array(words, np.int64)


def _read_json(file: Path) -> list[ClientIndices]:
    try:
        table = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_once)
        if isinstance(table, list):
            table = {client_name(k): rows for k, rows in enumerate(table)}
        return [_client(name, rows) for name, rows in table.items()]
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UnalikeError(
            f"{file} is no list of sample numbers per client ({error}); expected for example "
            '[[0, 3], [1, 2]] or {"north": {"train": [0], "test": [3]}}'
        ) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict from a JSON object. Raises `ValueError` if a name occurs twice."""
    names = Counter(name for name, _ in pairs)
    twice = [name for name, times in names.items() if times > 1]
    if twice:
        raise ValueError(f"the name {twice[0]!r} stands there twice")
    return dict(pairs)


def _client(name: str, rows: Any) -> ClientIndices:
    """A client of a JSON file: its training samples, or its samples by the names of the splits."""
    splits = rows if isinstance(rows, dict) else {"train": rows}
    strange = sorted(set(splits) - set(SPLITS))
    if strange:
        raise ValueError(f"client {name!r} has {', '.join(strange)} beside {', '.join(SPLITS)}")
    numbers = {split: _whole(splits.get(split, [])) for split in SPLITS}
    return ClientIndices(name, **numbers)


def _whole(numbers: list[Any]) -> np.ndarray:
    if not all(type(n) is int for n in numbers):
        raise ValueError(f"{numbers!r:.40} are not whole numbers")
    return np.array(numbers, np.int64)


def _check(client: ClientIndices, samples: int, source: Path) -> None:
    owned = np.concatenate([client.train, client.test, client.val])
    if len(owned) and not 0 <= owned.min() <= owned.max() < samples:
        raise UnalikeError(
            f"{source}: client {client.name!r} has samples "
            f"{owned.min()}..{owned.max()}, expected 0..{samples - 1}: the files "
            "divide another data set"
        )
    if len(np.unique(owned)) < len(owned):
        raise UnalikeError(
            f"{source}: client {client.name!r} has a sample twice; expected each once, in train, "
            "test or val"
        )


def _new_folder(folder: Path | str) -> Path:
    root = Path(folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UnalikeError(f"{root} exists and is not an empty folder; name a new one")
    root.mkdir(parents=True, exist_ok=True)
    return root


def _client_folder(root: Path, name: str) -> Path:
    """Make a client's folder. Characters that file systems forbid are escaped; an empty or too long name is an error."""
    safe = quote(name, safe=" ")
    stem = safe.replace(".", "%2E") if safe.startswith(".") else safe
    if not 0 < len(stem) <= MAX_NAME_BYTES:
        raise UnalikeError(
            f"the client {name!r} would need a folder with a name of {len(stem)} "
            f"characters, expected 1 to {MAX_NAME_BYTES} (other than plain letters and "
            "digits take 3 to 12 each); rename it"
        )
    (root / stem).mkdir()
    return root / stem
