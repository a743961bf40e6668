"""Load samples in the federation's schema: a site's, or the coordinator's test and proxy samples."""

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.system.process_pool import in_processes
from unalike.core.inputs import take_rows
from unalike.data.agreed_columns import class_counts, compare_with_encoding
from unalike.data.array_checks import Pair
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.partitioning.partition import draw_validation
from unalike.data.population import Population
from unalike.data.sources.load import load, table_at
from unalike.data.sources.registry import a_fifth
from unalike.data.suspect_values import suspect_values
from unalike.data.table_encoding import OtherCoding
from unalike.federation.protocol.federation_file import Federation, Schema


def site_data(
    federation: Federation, data: str, data_dir: Path | None, site: str, least_test: int = 0
) -> ClientData:
    """A site's samples. Without a test set every fifth of a class (of its units, if it names any) tests; `val` validates.

    With a time the later fifth tests, and the later of the training samples validate. Where fewer than `least_test` would test or
    validate, which no score may be made of, they train, and a warning says so.
    """
    schema = federation.data
    dataset = _read(schema, data, data_dir)
    x, y = dataset.train
    test = dataset.test
    units = None if dataset.unit is None else dataset.units[: len(y)]
    time = None if dataset.time is None else dataset.time[: len(y)]

    # 1. The test samples: a unit, such as a patient, is on one side as a whole.
    if test is None:
        is_test = a_fifth(y.numpy(), units, time)
        if _too_few(int(is_test.sum()), "test", least_test):
            is_test[:] = False
        tests = torch.from_numpy(np.flatnonzero(is_test))
        trains = torch.from_numpy(np.flatnonzero(~is_test))
        test = (take_rows(x, tests), y[tests])
        x, y = take_rows(x, trains), y[trains]
        units = None if units is None else units[~is_test]
        time = None if time is None else time[~is_test]

    # 2. Labels in the numbers of the federation's classes.
    test_x, test_y = test
    y = _labelled(y, dataset, schema)
    test = (test_x, _labelled(test_y, dataset, schema))
    if not federation.val:
        return ClientData(train=(x, y), test=test, name=site)

    # 3. The validation samples, drawn as a simulation draws them for this client.
    rows = np.arange(len(y))
    val_rows, train_rows = draw_validation(
        rows, federation.val, federation.seed, federation.number(site), units, time
    )
    if _too_few(len(val_rows), "validation", least_test):
        val_rows, train_rows = rows[:0], rows
    val = torch.from_numpy(val_rows)
    train = torch.from_numpy(train_rows)
    return ClientData(
        train=(take_rows(x, train), y[train]),
        test=test,
        val=(take_rows(x, val), y[val]),
        name=site,
    )


def _too_few(samples: int, kind: str, least_test: int) -> bool:
    """Whether so many samples are too few to be evaluated; warns of it where there are some."""
    if samples >= least_test:
        return False
    if samples:
        warn(
            f"{samples} {kind} samples would be fewer than least_test in site.toml ({least_test}), and no score would leave this "
            "site: they train instead"
        )
    return True


def site_data_apart(
    federation: Federation,
    data: str,
    data_dir: Path | None,
    site: str,
    accept: bool = False,
    least_test: int = 0,
) -> ClientData:
    """`site_data`. A process of its own reads a table, so that the 66 MB of pandas do not stay in this one.

    Columns that may be written in another way than those that were agreed on raise `UnalikeError`; with `accept` it warns of them.
    """
    if table_at(data, data_dir) is None:
        # arrays, without pandas
        return site_data(federation, data, data_dir, site, least_test)
    arrays_of = partial(_arrays, federation, data, data_dir, least_test)
    [(arrays, notes)] = in_processes(arrays_of, [site], 1, 1)
    for note in notes:
        if isinstance(note, OtherCoding) and not accept:
            raise UnalikeError(f"{note}. Write the values as agreed, or join with --accept")
        warn(note)
    return ClientData(**arrays, name=site)


def _arrays(
    federation: Federation, data: str, data_dir: Path | None, least_test: int, site: str
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], list[str | OtherCoding]]:
    """A site's samples by split, and the warnings about them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = site_data(federation, data, data_dir, site, least_test)
    arrays = {split: (x.numpy(), y.numpy()) for split, (x, y) in samples.splits().items()}
    # A warning of another library may not cross to another process as it is.
    notes: list[str | OtherCoding] = []
    for warning in caught:
        note = warning.message
        notes.append(note if isinstance(note, OtherCoding) else str(note))
    return arrays, notes


def looked_at(federation: Federation, own: ClientData, accept: bool) -> list[str]:
    """Lines about a site's training samples, for its own terminal.

    Columns that are far from the encoding raise `UnalikeError`; with `accept` they are lines, too.
    """
    schema = federation.data
    x, y = own.train
    lines = []
    if schema.names is not None:
        lines.append(f"training samples by class: {class_counts(y, schema.names)}")
    if schema.encoding is None:
        return lines
    population = replace(Population.of([own], task=schema.task), encoding=schema.encoding)
    lines += suspect_values(population)
    odd, wrong = compare_with_encoding(schema.encoding, x)
    if wrong and not accept:
        raise UnalikeError(
            f"the table is not like the one that was agreed on: {'; '.join(wrong)}. Mend it, or join with --accept"
        )
    for text in (*wrong, *odd):
        lines.append(f"look at the column {text}")
    return lines


def own_samples(schema: Schema, data: str) -> Pair:
    """All samples of a data set or file as (x, y)."""
    dataset = _read(schema, data, None)
    x, y = dataset.merged()
    return x, _labelled(y, dataset, schema)


def _read(schema: Schema, data: str, data_dir: Path | None) -> Dataset:
    """Load a data set or file; tables use the federation's encoding. Raises `UnalikeError` for texts without an encoding."""
    table_options: dict[str, Any] = {}
    if table_at(data, data_dir) is not None:
        table_options = {"task": schema.task, "labelled": True}
    dataset = load(data, data_dir, encoding=schema.encoding, **table_options)

    # A table that is encoded by its own rows has other inputs than the tables of the other sites.
    if schema.encoding is None and dataset.encoding is not None:
        if dataset.encoding.words is not None:
            raise UnalikeError(
                f"{data}: the federation agreed on no vocabulary, and this table's own would number words in its own way; "
                "make the federation with `--like` a table of texts, or hand out tokens of one vocabulary (.npz)"
            )
        warn(
            f"{data}: the federation agreed on no encoding of tables, so this one is scaled by its own rows and has its own "
            "categories; make the federation with `--like` a table, or agree on numbers (.npz)",
        )
    return dataset


def _labelled(y: Tensor, dataset: Dataset, schema: Schema) -> Tensor:
    """Labels in the federation's classes. Raises `UnalikeError` for an unknown class and for labels of another type."""
    return dataset.labelled(y, schema.task, schema.names, "the federation")
