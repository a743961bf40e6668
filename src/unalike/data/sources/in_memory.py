"""Data sets of objects in memory: arrays, data frames, data sets of torch and Hugging Face, and mappings of these."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import join_rows
from unalike.data import array_checks
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.other_libraries import class_names
from unalike.data.sources.hub import of_tables
from unalike.data.sources.registry import call_reader
from unalike.data.sources.table_files import read_table
from unalike.data.table_encoding import Encoding

SPLITS = ("train", "test")
CLIENT_GROUP = "client"
"""The group of data that is a mapping from the names of clients to their samples."""


def of_object(data: Any, encoding: Encoding | None = None, **options: Any) -> Dataset:
    """Make a data set of an object in memory.

    Args:
        data: (x, y); a data frame, with the options of `read_table`; a torch `Dataset`, `Subset` or `DataLoader` with samples
            (x, y), of which a loader's order and batches are ignored; a `datasets.Dataset` or `DatasetDict`, with the options of
            `hub`, or with `target=` those of `read_table`. A mapping has such objects by the names "train" and "test", or by the
            names of clients, which become the group "client". Arrays and torch data take `task=` alone.
        encoding: The encoding to read a data frame with.
        options: The options of the reader.

    Raises `UnalikeError` for any other object, and as the readers do.
    """
    splits = data if isinstance(data, Mapping) else {"train": data}
    if splits and all(hasattr(split, "column_names") for split in splits.values()):
        # Tables of Hugging Face: with a target they are read as any table.
        if "target" not in options:
            test = "test" if "test" in splits else None
            return of_tables("data", splits, encoding, **{"test": test} | options)
        splits = {name: splits[name].to_pandas() for name in SPLITS if name in splits}
    elif not splits.keys() & {"train", "test", "val"}:
        return _of_clients(splits, encoding, **options)
    if "train" not in splits or splits.keys() - set(SPLITS):
        raise UnalikeError(
            f"found {', '.join(map(str, splits))}; expected 'train' and 'test', or names of clients"
        )

    are_frames = all(hasattr(split, "iloc") for split in splits.values())
    if not are_frames:
        task = options.pop("task", None)
        if options:
            raise UnalikeError(
                f"found {', '.join(options)} beside a {type(data).__name__}, whose samples have no "
                "options"
            )
        train = splits["train"]
        return Dataset("data", train, splits.get("test"), class_names(train), task=task)
    if len(splits) == 1:
        return call_reader(read_table, splits["train"], "the table", encoding, options)

    # One table of both, so that they have one encoding; a column says which rows test.
    import pandas as pd

    joined = pd.concat(dict(splits), names=["(split)"]).reset_index(level=0)
    return call_reader(read_table, joined, "the table", encoding, {"split": "(split)"} | options)


def _of_clients(clients: Mapping[Any, Any], encoding: Encoding | None, **options: Any) -> Dataset:
    """The samples of several clients, by their names."""
    task = options.get("task")
    names = [str(name) for name in clients]
    values = list(clients.values())
    if not names:
        raise UnalikeError(
            "found no clients in the mapping, expected samples by the names of clients"
        )
    if all(hasattr(value, "iloc") for value in values):
        # One table of all clients, so that they have one encoding.
        import pandas as pd

        tables = pd.concat(dict(zip(names, values)), names=[CLIENT_GROUP])
        joined = tables.reset_index(level=0)
        options = {"group": CLIENT_GROUP} | options
        return call_reader(read_table, joined, "the table", encoding, options)
    if any(isinstance(value, ClientData | Dataset) for value in values):
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise UnalikeError(
            f"found {kinds}, which may have test samples of their own; give them as clients, without "
            "data="
        )
    pairs = [
        array_checks.pair_for_any_task(value, f"client {name!r}")
        for name, value in zip(names, values)
    ]
    x = join_rows([x for x, _ in pairs])
    y = np.concatenate([y for _, y in pairs])
    clients_of_samples = np.repeat(names, [len(y) for _, y in pairs])
    return Dataset(
        name="data",
        train=(x, y),
        classes=class_names(values[0]),
        groups={CLIENT_GROUP: clients_of_samples},
        published=False,
        task=task,
    )
