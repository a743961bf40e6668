"""The record of one partition: sample indices per client, the spec and seed that drew them, and the data set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike._utils.errors import UnalikeError, refuse_empty_path
from unalike._utils.tensor_files import write_bytes
from unalike.data import heterogeneity
from unalike.data.client_data import SPLITS
from unalike.data.fingerprint import digest
from unalike.data.ragged import NumberedNames, Ragged

if TYPE_CHECKING:
    from rich.table import Table

JSON_FIELDS = (
    "spec",
    "clients",
    "seed",
    "split",
    "val_share",
    "merge",
    "data",
    "fingerprint",
    "named",
    "clusters",
)
"""The fields that are written as they are; the others are arrays, or follow from them."""
MAX_ROWS = 20
"""Most clients that a printed table shows."""


@dataclass(frozen=True, eq=False)
class PartitionPlan:
    """The record of one partition, which makes the same clients again.

    `apply_plan(plan, data)` turns it into a population. Two plans with the same `hash` give the same population.

    >>> clients.plan.save("plan.json")   # doctest: +SKIP
    >>> apply_plan(PartitionPlan.load("plan.json"), load("digits"))   # doctest: +SKIP

    Args:
        spec: The scheme and the feature changes with every parameter.
        clients: The number of clients K.
        seed: The seed of the partition.
        split: The training share of each client.
        val_share: The share of the training samples that is set apart for validation.
        merge: Whether indices count through training and test samples; False: through training samples only.
        data: The name of the data set.
        fingerprint: The fingerprint of the data set.
        named: The clients' names where the scheme knows them.
        clusters: The true cluster of each client where there is one.
        train: The indices of each client's training samples.
        test: The indices of each client's test samples.
        val: The indices of each client's validation samples.
        counts: Training samples per client and class.
        notes: Warnings of the scheme. They follow from the other fields and are not hashed.

    Shapes:
        counts: int64 [K, C]; [K, 0] for regression.
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
    notes: tuple[str, ...] = ()

    @cached_property
    def hash(self) -> str:
        """The blake2b hash of every field but the notes."""
        fields = json.dumps([getattr(self, name) for name in JSON_FIELDS])
        indices = [*self.train.hashed, *self.test.hashed, *self.val.hashed]
        return digest(fields, *indices, self.counts)

    @property
    def names(self) -> Sequence[str]:
        """The clients' names."""
        return NumberedNames(self.clients) if self.named is None else self.named

    def save(self, path: Path | str) -> Path:
        """Write the plan as JSON to a file, or to `plan.json` in a folder; a reader never sees half a file.

        Returns:
            The path of the file.
        """
        refuse_empty_path("the plan", path)
        file = _file(path)
        table: dict[str, Any] = {name: getattr(self, name) for name in JSON_FIELDS}
        table["hash"] = self.hash
        table["counts"] = self.counts.tolist()
        for split in SPLITS:
            table[split] = [rows.tolist() for rows in getattr(self, split)]
        if self.notes:
            table["notes"] = list(self.notes)
        text = json.dumps(table, separators=(",", ":")) + "\n"
        write_bytes(file, text.encode())
        return file

    @classmethod
    def load(cls, path: Path | str) -> PartitionPlan:
        """Read a plan that `save` wrote.

        Raises:
            UnalikeError: The file is missing, unreadable or changed.
        """
        file = _file(path)
        # What is no plan, and what is another plan than was written, are different faults.
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
            plan = cls._of(table)
        except FileNotFoundError:
            raise UnalikeError(
                f"found no plan at {file}; write one with `population.plan.save({str(file)!r})`"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnalikeError(
                f"{file} is not a partition plan ({error!r}); expected a file that "
                "`PartitionPlan.save` wrote"
            ) from None
        if plan.hash != table["hash"]:
            raise UnalikeError(
                f"{file} was changed: its content hashes to {plan.hash}, expected {table['hash']}; "
                "save it again"
            )
        return plan

    @classmethod
    def _of(cls, table: dict[str, Any]) -> PartitionPlan:
        splits: dict[str, Any] = {split: Ragged.of(table[split]) for split in SPLITS}
        counts = np.asarray(table["counts"], np.int64)
        fields = {name: table[name] for name in JSON_FIELDS}
        return cls(
            **fields,
            **splits,
            counts=counts.reshape(table["clients"], -1),
            notes=tuple(map(str, table.get("notes", ()))),
        )

    def summary(self, classes: Sequence[str] | None = None) -> dict[str, Any]:
        """The partition as JSON values: the heterogeneity measures, and of each client its samples by split and by class."""
        names = list(range(self.counts.shape[1])) if classes is None else list(classes)
        clients = []
        for k, row in enumerate(self.counts.tolist()):
            client: dict[str, Any] = {"client": self.names[k]}
            for split in SPLITS:
                client[split] = len(getattr(self, split)[k])
            client["classes"] = {str(name): count for name, count in zip(names, row)}
            clients.append(client)
        return {
            "data": self.data,
            "spec": self.spec,
            "seed": self.seed,
            "hash": self.hash,
            "measures": heterogeneity.summary(self.train.sizes, self.counts),
            "clients": clients,
        }

    def show(self, classes: Sequence[str] | None = None) -> Table:
        """Make a table to print with Rich: each client's sizes and most frequent class, and the heterogeneity measures."""
        from rich.table import Table

        measures = heterogeneity.summary(self.train.sizes, self.counts)
        caption = "  ".join(f"{name} {value:.3g}" for name, value in measures.items())
        title = (
            f"{self.data}: {self.spec}, {self.clients} clients, seed {self.seed} ({self.hash[:8]})"
        )
        splits = ["train", "test"]
        if len(self.val.values):
            splits.append("val")
        table = Table("client", *splits, "classes", "top class", title=title, caption=caption)
        for k in range(min(self.clients, MAX_ROWS)):
            sizes = [str(len(getattr(self, split)[k])) for split in splits]
            table.add_row(self.names[k], *sizes, *self._labels(k, classes))
        if self.clients > MAX_ROWS:
            table.add_row(f"and {self.clients - MAX_ROWS} more")
        return table

    def _labels(self, k: int, classes: Sequence[str] | None) -> tuple[str, str]:
        """The number of a client's classes, and its most frequent one with its share, in words."""
        counts = self.counts[k]
        total = counts.sum()
        if not total:
            return "-", "-"
        number = counts.argmax()
        name = number if classes is None else classes[number]
        return str((counts > 0).sum()), f"{name} ({counts.max() / total:.0%})"


def _file(path: Path | str) -> Path:
    path = Path(path)
    return path / "plan.json" if path.is_dir() else path
