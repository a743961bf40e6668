"""Data sets as clients: each belongs to one client, with its training and test samples."""

from collections.abc import Mapping
from typing import NamedTuple

from unalike._utils.errors import UnalikeError, warn
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.table_encoding import Encoding
from unalike.data.value_sets import spelt_alike


class DatasetClients(NamedTuple):
    """Clients, the names of all their classes, and the encoding of their tables."""

    clients: list[ClientData]
    classes: list[str] | None
    encoding: Encoding | None


def clients_of_datasets(datasets: Mapping[str, Dataset]) -> DatasetClients:
    """The clients that own these data sets, by their names. Classes are matched by name.

    Raises `UnalikeError` for tables that were encoded by their own rows, each in another way, and for labels of other kinds.
    """
    first_name, first = next(iter(datasets.items()))
    names: dict[str, None] = {}
    for name, dataset in datasets.items():
        if dataset.encoding != first.encoding:
            raise UnalikeError(
                f"the tables of {first_name} and {name} have other scales or categories, since each was read by its own rows; "
                f"read them together: ua.load({{{first_name!r}: table, {name!r}: table}}, target=...), or the others as the first "
                "one: ua.load(table, target=..., encoding=first.encoding)"
            )
        names |= dict.fromkeys(dataset.classes or ())
    for alike in spelt_alike(names):
        listed = " and ".join(map(repr, alike))
        warn(f"the classes {listed} differ only in case, space or number format; write them alike")

    classes = [*names] or None
    clients = []
    for name, dataset in datasets.items():
        splits = {}
        for split, pair in (("train", dataset.train), ("test", dataset.test)):
            if pair is not None:
                x, y = pair
                labels = dataset.labelled(
                    y, first.known_task.spec, classes, f"client {first_name!r}"
                )
                splits[split] = (x, labels)
        clients.append(ClientData(**splits, name=name))
    return DatasetClients(clients, classes, first.encoding)
