"""All clients of a federation as index arrays into one tensor of samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.notebook import bubbles, paragraph
from unalike._utils.registry import figures
from unalike.core.inputs import Inputs, join_rows, map_inputs, row_count, sample_shape, take_rows
from unalike.core.nests import tensors_of
from unalike.core.tasks.registry import task_for
from unalike.core.tasks.task import Task
from unalike.core.types import Batch
from unalike.data.array_checks import Pair
from unalike.data.client_data import SPLITS, ClientData
from unalike.data.dataset import Dataset
from unalike.data.dataset_clients import clients_of_datasets
from unalike.data.fingerprint import digest
from unalike.data.heterogeneity import label_counts
from unalike.data.leaks import leak_notes
from unalike.data.other_libraries import torch_splits
from unalike.data.population_arrays import join_clients
from unalike.data.ragged import Ragged, client_name

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from unalike.data.partition_plan import PartitionPlan
    from unalike.data.table_encoding import Encoding


MAX_DRAWN = 40
"""Most clients and classes that a notebook draws at once."""


@dataclass(frozen=True, eq=False)
class Population(Sequence[ClientData]):
    """K clients as index arrays into one set of samples, so that a million clients need no Python objects.

    It is a sequence of `ClientData`: `population[k]` is client k. `ua.partition` makes one from a data set,
    `Population.of` from separate clients.

    >>> population = Population.of([ClientData(train=([[0.1, 0.2], [0.3, 0.4]], [0, 1])) for _ in range(3)])
    >>> population.sizes, population.classes
    (array([2, 2, 2]), ['0', '1'])

    Args:
        x: The inputs of all samples.
        y: The labels of all samples.
        train: The indices of each client's training samples. Several clients may have the same sample.
        test: The indices of each client's test samples.
        val: The indices of each client's validation samples.
        names: The clients' names.
        classes: The names of the classes; None for regression.
        task: The task; of the classes, where there are two.
        plan: The partition plan, if a partition made the population.
        clusters: The true cluster of each client, if it is known.
        encoding: The encoding that turned a table into x.

    Shapes:
        x: [N, C, H, W], [N, D] or [N, T].
        y: [N]; [N, ...] of tasks with several numbers a label.

    Raises:
        UnalikeError: Lengths do not fit together, or an index is not in 0..N-1.
    """

    x: Inputs
    y: Tensor
    train: Ragged
    test: Ragged
    val: Ragged
    names: Sequence[str]
    classes: list[str] | None
    task: Task
    plan: PartitionPlan | None = field(default=None, repr=False)
    clusters: Sequence[int] | None = None
    encoding: Encoding | None = field(default=None, repr=False)

    def plot(self) -> go.Figure:
        """Draw the training samples by client and class, as the report does: a Plotly figure.

        Raises `UnalikeError` where labels are no classes.
        """
        return figures["clients"](self)

    def _repr_html_(self) -> str:
        text = paragraph(repr(self))
        if self.classes is None or max(len(self), len(self.classes)) > MAX_DRAWN:
            return text
        return text + bubbles(self.label_counts().tolist(), list(self.names), self.classes)

    def __repr__(self) -> str:
        clients = f"{len(self.train)} clients"
        samples = f"{len(self.train.values)} training and {len(self.test.values)} test samples"
        return f"<Population of {clients}, {samples} of shape {self.input_shape}, {self.task.name}>"

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", self.task.of(self.classes))
        samples = row_count(self.x)
        clients = len(self.train)
        fits = {"y": len(self.y) == samples}
        for part in ("test", "val", "names"):
            fits[part] = len(getattr(self, part)) == clients
        fits["clusters"] = self.clusters is None or len(self.clusters) == clients
        wrong = [part for part, is_right in fits.items() if not is_right]
        if wrong:
            raise UnalikeError(
                f"{', '.join(wrong)}: the length does not fit {samples} samples and {clients} "
                "clients"
            )
        # An index beyond the samples would fail in the middle of a run, and a negative one would not fail at all.
        for rows in (self.train, self.test, self.val):
            if not len(rows.values):
                continue
            low, high = rows.values.min(), rows.values.max()
            if low < 0 or high >= samples:
                raise UnalikeError(
                    f"indices lie in {low}..{high}, expected 0..{samples - 1} for {samples} samples"
                )

    @classmethod
    def of(
        cls,
        clients: Iterable[Any] | Mapping[str, Any],
        classes: Sequence[str] | None = None,
        task: Task | str | None = None,
    ) -> Population:
        """Join separate clients; their inputs must have one shape and dtype.

        Args:
            clients: The clients; or a mapping from their names to clients, to training samples as `ClientData` takes them, or to
                {"train": ..., "test": ..., "val": ...}; or a list of torch data sets or loaders, or of pairs of them for
                training and test; or a mapping or list of `Dataset`, one for each client.
            classes: The names of the classes; without them C is the largest label + 1.
            task: The task, if it is not the one that the labels' dtype implies: 0/1 integers as binary, integers as
                regression.

        Returns:
            The population, which holds a copy of the samples.

        Raises:
            UnalikeError: `clients` holds something else than clients, or shapes, dtypes or labels do not fit together. The
                message names the client.
        """
        datasets = _datasets(clients)
        if datasets:
            owners = clients_of_datasets(datasets)
            joined = cls(**join_clients(owners.clients, classes or owners.classes, task))
            return replace(joined, encoding=owners.encoding)
        if isinstance(clients, Mapping):
            clients = [_named(str(name), value) for name, value in clients.items()]
        elif isinstance(clients, list):
            clients = [_with_torch_data(value) for value in clients]
        values: list[Any] = list(clients) if isinstance(clients, Iterable) else [clients]
        wrong = next((value for value in values if not isinstance(value, ClientData)), None)
        if wrong is not None:
            raise UnalikeError(
                f"found a {type(wrong).__name__} where clients were expected; give "
                "what ua.partition(data, 'iid', clients=10) returns, a list of "
                "ua.ClientData(train=(x, y), test=(x, y)) or of torch loaders "
                "(train, test), or a mapping from names to clients, to training "
                "samples or to {'train': ..., 'test': ...}"
            )
        return cls(**join_clients(values, classes, task))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W), (D,) or (T,)."""
        return sample_shape(self.x)

    @property
    def outputs(self) -> int | None:
        """The argument `classes` of `ua.model`: the number of classes; None (one output) for binary and regression."""
        return self.task.outputs(self.class_count, self.y.shape[1:])

    @property
    def class_count(self) -> int | None:
        """The number of classes; None where a label is no class."""
        return None if self.classes is None else len(self.classes)

    @property
    def task_to_name(self) -> str | None:
        """The spec of the task, for files; None where the type of the labels implies it."""
        return None if task_for(self.y).of(self.classes) == self.task else self.task.spec

    @property
    def sizes(self) -> np.ndarray:
        """Number of training samples per client, [K]."""
        return self.train.sizes

    @property
    def empty(self) -> np.ndarray:
        """The indices of clients without a training sample, which are listed but never selected."""
        return np.flatnonzero(self.sizes == 0)

    @cached_property
    def fingerprint(self) -> str:
        """The blake2b hash of the samples, of each client's indices and of the names."""
        indices = [*self.train.hashed, *self.test.hashed, *self.val.hashed]
        return digest(*tensors_of(self.x), self.y, *indices, "\n".join(self.names))

    @cached_property
    def leak_notes(self) -> tuple[str, ...]:
        """Sentences about copies and overlapping windows among the samples; none where the samples are elsewhere."""
        return tuple(leak_notes(self.x, self.train, self.test)) if self.is_here else ()

    def is_scored(self, protocols: Sequence[str]) -> bool:
        """Whether there are samples to score models on: clients' test samples, or the server's."""
        return bool(len(self.test.values)) or "server" in protocols

    def __len__(self) -> int:
        return len(self.train)

    @overload
    def __getitem__(self, k: int) -> ClientData: ...
    @overload
    def __getitem__(self, k: slice) -> list[ClientData]: ...
    def __getitem__(self, k: int | slice) -> ClientData | list[ClientData]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        train = self._take(self.train[k])
        test = self._take_any(self.test[k])
        val = self._take_any(self.val[k])
        return ClientData(train, test, val, self.names[k])

    @property
    def example_samples(self) -> Batch | None:
        """The training samples of the first client that has some; None if there is none."""
        with_samples = np.flatnonzero(self.sizes)
        return Batch(*self._take(self.train[int(with_samples[0])])) if len(with_samples) else None

    def _take_any(self, rows: np.ndarray) -> Pair | None:
        """The samples of these rows; None if there are no rows."""
        return self._take(rows) if len(rows) else None

    def _take(self, rows: np.ndarray) -> Pair:
        index = torch.from_numpy(rows).to(self.y.device)
        return take_rows(self.x, index), self.y[index]

    def index(self, client: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a client given by name or by position (negative from the end)."""
        if isinstance(client, int | np.integer):
            if not -len(self) <= client < len(self):
                raise UnalikeError(
                    f"client {client} was asked for, expected 0..{len(self) - 1}: there are "
                    f"{len(self)}"
                )
            return int(client) % len(self)
        try:
            return self.names.index(client)
        except ValueError:
            raise unknown("client", str(client), self.names) from None

    def to(self, device: torch.device | str) -> Population:
        """Return the population with its samples on `device`; itself if they are there."""
        if all(t.device == torch.device(device) for t in (*tensors_of(self.x), self.y)):
            return self
        x = map_inputs(lambda t: t.to(device), self.x)
        return replace(self, x=x, y=self.y.to(device))

    @property
    def positives(self) -> np.ndarray | None:
        """Number of test samples of the second of two classes per client, [K]; None for more classes and for regression."""
        if self.classes is None or len(self.classes) != 2:
            return None
        return self.test_counts()[:, 1]

    @property
    def is_here(self) -> bool:
        """Whether the samples are here; a coordinator knows their numbers alone, and all its indices are those of one sample."""
        return len(self.y) > 1 or len(self.train.values) + len(self.test.values) < 2

    def label_counts(self) -> np.ndarray:
        """Count training samples per client and class, int64 [K, C]. Raises `UnalikeError` where a label is no class."""
        if self.classes is None:
            raise UnalikeError(
                f"label_counts needs classes, found labels of {self.task.name}; use `sizes` instead"
            )
        return label_counts(self.y, self.classes, self.train)

    def test_counts(self) -> np.ndarray:
        """Count test samples per client and class, int64 [K, C]."""
        return label_counts(self.y, self.classes, self.test)

    def describe(self) -> pd.DataFrame:
        """Make a table with one row per client: client, n_train, n_test; with classes also n_classes and a count of each."""
        import pandas as pd

        table = pd.DataFrame(
            {"client": list(self.names), "n_train": self.sizes, "n_test": self.test.sizes}
        )
        if self.classes is None:
            return table
        counts = self.label_counts()
        table["n_classes"] = (counts > 0).sum(1)
        return pd.concat([table, pd.DataFrame(counts, columns=self.classes)], axis=1)

    def with_shared(self, shared: Batch) -> Population:
        """Let every client train on the `shared` samples, too; clients without samples of their own still have none."""
        added = len(self.y) + np.arange(len(shared.y))
        train = Ragged.of(
            np.concatenate([rows, added]) if len(rows) else rows for rows in self.train
        )
        x = join_rows([self.x, map_inputs(lambda t: t.to(self.y.device), shared.x)])
        y = torch.cat([self.y, shared.y.to(self.y)])
        return replace(self, x=x, y=y, train=train, plan=None)

    def pooled(self) -> Population:
        """Make one client with all training data and all test data, for the centralized reference.

        A sample that several clients have (`zipf`) counts once. It may be a training sample of one client and a test sample of
        another.
        """
        return replace(
            self,
            train=_pooled(self.train),
            test=_pooled(self.test),
            val=_pooled(self.val),
            names=["pooled"],
            plan=None,
            clusters=None,
        )


def _named(name: str, value: Any) -> ClientData:
    """The client of this name, from a client, its training samples, or its samples by the names of the splits."""
    if isinstance(value, ClientData):
        return replace(value, name=name)
    if isinstance(value, Mapping) and set(value) <= set(SPLITS):
        return ClientData(**value, name=name)
    return ClientData(train=value, name=name)


def _datasets(clients: Any) -> dict[str, Dataset]:
    """The data sets of clients by their names, if each client is a data set; empty otherwise."""
    named = clients
    if isinstance(clients, Sequence):
        named = {client_name(k): value for k, value in enumerate(clients)}
    if not isinstance(named, Mapping) or not all(isinstance(v, Dataset) for v in named.values()):
        return {}
    return {str(name): dataset for name, dataset in named.items()}


def _with_torch_data(value: Any) -> Any:
    """The client of a torch data set or loader, or of two for training and test; any other object as it is."""
    splits = torch_splits(value)
    return ClientData(*splits) if splits else value


def _pooled(rows: Ragged) -> Ragged:
    """One row with every sample of all rows once."""
    return Ragged.of([np.unique(rows.values)])
