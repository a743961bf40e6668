"""Data sets of objects in memory: arrays, data frames, data sets of torch and Hugging Face, and mappings of these."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data import array_checks
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.other_libraries import class_names
from unalike.data.sources.hub import of_tables
from unalike.data.sources.registry import call_reader
from unalike.data.sources.table_files import read_table
from unalike.data.table_encoding import Encoding

SPLITS = ("train", "test")
CLIENT = "client"
"""The group of data that is a mapping from the names of clients to their samples."""


def of_object(found: Any, encoding: Encoding | None = None, **options: Any) -> Dataset:
    """Make a data set of an object in memory.

    Args:
        found: (x, y); a data frame, with the options of `read_table`; a torch `Dataset`, `Subset` or `DataLoader` with samples
            (x, y), of which a loader's order and batches are ignored; a `datasets.Dataset` or `DatasetDict`, with the options of
            `hub`, or with `target=` those of `read_table`. A mapping has such objects by the names "train" and "test", or by the
            names of clients, which become the group "client".
        encoding: The encoding to read a data frame with.
        options: The options of the reader.

    Raises `UnalikeError` for any other object, and as the readers do.
    """
    splits = found if isinstance(found, Mapping) else {"train": found}
    if splits and all(hasattr(split, "column_names") for split in splits.values()):
        if "target" not in options:
            return of_tables(
                "data", splits, encoding, **{"test": "test" if "test" in splits else None} | options
            )
        splits = {name: splits[name].to_pandas() for name in SPLITS if name in splits}
    elif "train" not in splits and not {"test", "val"} & {*splits}:
        return _of_clients(splits, encoding, **options)
    if "train" not in splits or {*splits} - {*SPLITS}:
        raise UnalikeError(
            f"found {', '.join(map(str, splits))}; expected 'train' and 'test', or names of clients"
        )
    frames = all(hasattr(split, "iloc") for split in splits.values())
    if options and not frames:
        raise UnalikeError(
            f"found {', '.join(options)} beside a {type(found).__name__}, whose samples have no options"
        )
    if not frames:
        return Dataset("data", splits["train"], splits.get("test"), class_names(splits["train"]))
    if len(splits) == 1:
        return call_reader(read_table, splits["train"], "the table", encoding, options)
    import pandas as pd

    joined = pd.concat(dict(splits), names=["(split)"]).reset_index(level=0)
    return call_reader(read_table, joined, "the table", encoding, {"split": "(split)"} | options)


def _of_clients(found: Mapping[Any, Any], encoding: Encoding | None, **options: Any) -> Dataset:
    """The samples of several clients."""
    names = [str(name) for name in found]
    if not names:
        raise UnalikeError(
            "found no clients in the mapping, expected samples by the names of clients"
        )
    if all(hasattr(own, "iloc") for own in found.values()):
        import pandas as pd

        joined = pd.concat(dict(zip(names, found.values())), names=[CLIENT]).reset_index(level=0)
        return call_reader(read_table, joined, "the table", encoding, {"group": CLIENT} | options)
    if any(isinstance(own, ClientData) for own in found.values()):
        raise UnalikeError(
            "found ClientData, which have test samples of their own; give them as clients, without data="
        )
    pairs = [array_checks.pair(own, f"client {name!r}") for name, own in zip(names, found.values())]
    x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    groups = {CLIENT: np.repeat(names, [len(labels) for _, labels in pairs])}
    return Dataset(
        "data", (x, y), None, class_names(next(iter(found.values()))), groups, published=False
    )
