"""A partition as a value: which sample is whose, from which draw, of which data set. Saved, shown and applied again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import generator
from unalike._utils.spec import parse
from unalike._utils.tensor_files import write_bytes
from unalike.core.tasks import task_for
from unalike.data import text
from unalike.data.dataset import Dataset
from unalike.data.fingerprint import digest
from unalike.data.partitioning import feature_skew, heterogeneity
from unalike.data.partitioning.partition_files import PARTS, Indices, write_indices
from unalike.data.population import Population
from unalike.data.ragged import NumberedNames, Ragged

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

PLAIN = ("spec", "clients", "seed", "split", "val_share", "merge", "data", "fingerprint", "named", "clusters")
SHOWN = 20


@dataclass(frozen=True, eq=False)
class PartitionPlan:
    """The record of one partition of the data set `data` with this `fingerprint`.

    `spec` is the scheme with every parameter; `merge` says whether the indices count through training and test samples
    or through training samples only; `train`, `test` and `val` are the clients' indices; `counts` [K, C] their training labels
    (no columns for regression). `named` holds the clients' names where the scheme knows them, `clusters` the true
    cluster of each where it has any. Two plans with the same `hash` give the same population.
    """

    spec: str
    clients: int
    seed: int
    split: float
    val_share: float
    merge: bool
    data: str
    fingerprint: str
    named: list[str] | None
    clusters: list[int] | None
    train: Ragged
    test: Ragged
    val: Ragged
    counts: np.ndarray

    @cached_property
    def hash(self) -> str:
        """The blake2b hash of every field."""
        plain = json.dumps([getattr(self, name) for name in PLAIN])
        arrays = (array for part in PARTS for array in getattr(self, part).hashed)
        return digest(plain, *arrays, self.counts)

    @property
    def names(self) -> Sequence[str]:
        """The clients' names."""
        return NumberedNames(self.clients) if self.named is None else self.named

    def apply(self, data: Dataset) -> Population:
        """The population this plan makes of `data`: its samples, or copies of them where the spec changes features.

        Words that no client trains on become unknown, so that no test sample shapes the vocabulary.

        Raises `UnalikeError` for another data set than the plan's.
        """
        if data.fingerprint != self.fingerprint:
            raise UnalikeError(
                f"the plan divides {self.data!r} with fingerprint {self.fingerprint}, found {data.name!r} with "
                f"{data.fingerprint}; load the plan's data set, or draw a new partition of this one"
            )
        x, y = data.merged() if self.merge else data.train
        train, test, val = self.train, self.test, self.val
        calls = [call for call in parse(self.spec) if call.name in feature_skew.registry]
        if calls:
            x, y, (train, test, val) = self._changed(x, y, [feature_skew.registry.build(call) for call in calls])
        known = (self.names, data.classes, task_for(y), self, self.clusters, data.encoding)
        made = Population(x, y, train, test, val, *known)
        return made if x.is_floating_point() else text.from_training_clients(made)

    def _changed(self, x: Tensor, y: Tensor, changes: list[feature_skew.Change]) -> tuple[Tensor, Tensor, list[Ragged]]:
        """Every client's samples one client after the other, since a sample with two owners is changed in two ways."""
        parts = [getattr(self, part) for part in PARTS]
        blocks, rows = [], [np.concatenate(own) for own in zip(*parts)]
        for k, mine in enumerate(rows):
            order = np.argsort(mine)  # what a sample becomes does not depend on the part that it is in
            block = x[torch.from_numpy(mine[order])]
            for i, change in enumerate(changes):
                block = change(block, k, self.clients, generator(self.seed, "features", i, k))
            blocks.append(block[torch.from_numpy(np.argsort(order))])
        starts = Ragged.of(rows).offsets[:-1]
        placed = []
        for part in parts:
            placed.append(Ragged.ranges(starts, part.sizes))
            starts = starts + part.sizes
        return torch.cat(blocks), y[torch.from_numpy(np.concatenate(rows))], placed

    def export(self, folder: Path | str) -> Path:
        """Write index files for other tools: a folder per client with `train.txt`, `test.txt` and maybe `val.txt`.

        Numbers count through the training and then the test samples of the data set (without `merge`, through its
        training samples). `partition(data, "index_files(path='folder')")` reads them. Returns the folder.
        """
        return write_indices(folder, map(Indices, self.names, self.train, self.test, self.val))

    def save(self, path: Path | str) -> Path:
        """Write JSON to `path` (in a folder: to `plan.json` there), whole or not at all. Returns the file's path."""
        file = _file(path)
        table = {name: getattr(self, name) for name in PLAIN}
        table |= {"hash": self.hash, "counts": self.counts.tolist()}
        table |= {part: [row.tolist() for row in getattr(self, part)] for part in PARTS}
        write_bytes(file, (json.dumps(table, separators=(",", ":")) + "\n").encode())
        return file

    @classmethod
    def load(cls, path: Path | str) -> PartitionPlan:
        """Read what `save` wrote. Raises `UnalikeError` for a missing, unreadable or changed file."""
        file = _file(path)
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
            plan = cls._of(table)
        except FileNotFoundError:
            raise UnalikeError(
                f"found no plan at {file}; write one with `population.plan.save({str(file)!r})`"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UnalikeError(
                f"{file} is not a partition plan ({error!r}); expected what `PartitionPlan.save` wrote"
            ) from None
        if plan.hash != table["hash"]:
            raise UnalikeError(
                f"{file} was changed: its content hashes to {plan.hash}, expected {table['hash']}; save it again"
            )
        return plan

    @classmethod
    def _of(cls, table: dict[str, Any]) -> PartitionPlan:
        counts = np.asarray(table["counts"], np.int64).reshape(table["clients"], -1)
        parts: dict[str, Any] = {part: Ragged.of(table[part]) for part in PARTS}
        return cls(**{name: table[name] for name in PLAIN}, **parts, counts=counts)

    def show(self, classes: Sequence[str] | None = None) -> Table:
        """A table to print with Rich: each client's sizes and most frequent of the `classes`, and how unlike the clients are."""
        from rich.table import Table

        numbers = heterogeneity.summary(self.train.sizes, self.counts)
        caption = "  ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        title = f"{self.data}: {self.spec}, {self.clients} clients, seed {self.seed} ({self.hash[:8]})"
        parts = [part for part in PARTS if len(getattr(self, part).values) or part != "val"]
        table = Table("client", *parts, "classes", "top class", title=title, caption=caption)
        for k in range(min(self.clients, SHOWN)):
            table.add_row(
                self.names[k], *(str(len(getattr(self, part)[k])) for part in parts), *self._labels(k, classes)
            )
        if self.clients > SHOWN:
            table.add_row(f"and {self.clients - SHOWN} more")
        return table

    def figure(self, classes: Sequence[str] | None = None) -> Figure:
        """The bubble chart of clients and `classes` (Matplotlib); save it with `.savefig("plan.png")`."""
        from unalike.data.partitioning.partition_figures import bubbles

        return bubbles(self.counts, classes, sizes=self.train.sizes, title=f"{self.data}: {self.spec}")

    def _labels(self, k: int, classes: Sequence[str] | None) -> tuple[str, str]:
        held = self.counts[k]
        if not held.sum():
            return "-", "-"
        top = held.argmax() if classes is None else classes[held.argmax()]
        return str((held > 0).sum()), f"{top} ({held.max() / held.sum():.0%})"


def _file(path: Path | str) -> Path:
    path = Path(path)
    return path / "plan.json" if path.is_dir() else path
