"""A data set before it is divided among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike.core.errors import UnalikeError
from unalike.core.task import Task, task_for
from unalike.data import check
from unalike.data.check import Pair
from unalike.data.fingerprint import digest

if TYPE_CHECKING:
    from unalike.data.columns import Encoding


@dataclass(frozen=True, eq=False)
class Dataset:
    """Named inputs and labels, with the published train/test division where there is one.

    `train` and `test` are (x, y): x is float32 images [N, C, H, W] in 0..1, float32 rows [N, D] or int64 tokens [N, T];
    y [N] is int64 (classes 0..C-1), bool (binary) or float32 (regression). Arrays of other widths are converted.
    `classes` names the classes; None names them "0", "1", ... (and stays None for regression).
    `groups` says where each sample comes from, such as {"domain": [N]}: integers or texts, over the training
    samples and then the test samples. Models never see them; partitions by domain, hospital or writer do.
    `encoding` says how a table's columns became x; None for what was no table.

    Raises `UnalikeError` for unequal lengths, no samples, numbers that are not finite, labels out of range, and a test
    set whose shape or kind differs from the training set's.
    """

    name: str
    train: Pair
    test: Pair | None = None
    classes: list[str] | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    encoding: Encoding | None = None
    _whole: Pair = field(init=False, repr=False)

    def __post_init__(self) -> None:
        train = check.pair(self.train, f"{self.name}, train")
        test = None if self.test is None else check.pair(self.test, f"{self.name}, test")
        if not len(train[1]):
            raise UnalikeError(f"{self.name}: found no training samples, expected at least one")
        if test is not None:
            self._check_alike(train, test)
        whole = train if test is None else (_joined(train[0], test[0]), _joined(train[1], test[1]))
        classes = check.class_names(whole[1], self.classes)
        for part, found in (("train", train), ("test", test)):
            if found is not None and classes is not None:
                check.label_range(found[1], len(classes), f"{self.name}, {part}")
        if test is not None:
            # Both parts become views of one tensor, so that merging them for every partition costs no memory.
            n = len(train[1])
            train, test = (whole[0][:n], whole[1][:n]), (whole[0][n:], whole[1][n:])
        groups = {
            column: check.group(values, len(whole[1]), f"{self.name}, group {column!r}")
            for column, values in self.groups.items()
        }
        made = {"train": train, "test": test, "classes": classes, "groups": MappingProxyType(groups), "_whole": whole}
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @classmethod
    def divided(
        cls,
        name: str,
        x: Any,
        y: Any,
        train: int,
        classes: list[str] | None = None,
        groups: Mapping[str, Any] | None = None,
        encoding: Encoding | None = None,
    ) -> Dataset:
        """The data set whose first `train` samples are for training and whose others test; nothing is copied."""
        x, y = check.pair((x, y), name)
        test = (x[train:], y[train:]) if train < len(y) else None
        return cls(name, (x[:train], y[:train]), test, classes, groups or {}, encoding)

    def _check_alike(self, train: Pair, test: Pair) -> None:
        for what, a, b in zip(("inputs", "labels"), train, test):
            found, expected = [(list(t.shape[1:]), str(t.dtype).removeprefix("torch.")) for t in (b, a)]
            if found != expected:
                raise UnalikeError(
                    f"{self.name}: test {what} have shape {found[0]} and dtype {found[1]}, "
                    f"expected those of the training set, {expected[0]} and {expected[1]}"
                )

    @property
    def task(self) -> Task:
        """What the labels ask for: classification, binary or regression."""
        return task_for(self.train[1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W), (D,) or (T,)."""
        return tuple(self.train[0].shape[1:])

    def merged(self) -> Pair:
        """Training and test samples in one (x, y), the training samples first."""
        return self._whole

    def numbered(self, y: Tensor, names: Sequence[str] | None, whose: str) -> Tensor:
        """Labels of this data set as others number their classes `names`, by name: a file that lacks a class numbers the rest anew.

        A file without names has their numbers already. Raises `UnalikeError` for a class that is not among theirs.
        """
        own = self.classes
        if names is None or own is None:
            return y
        if set(own) <= set(names):
            return torch.tensor([names.index(name) for name in own])[y.long()]
        if self.encoding is None and own == [str(i) for i in range(len(own))] and len(own) <= len(names):
            return y
        unknown, known = (", ".join(map(repr, found)) for found in ([n for n in own if n not in names], names))
        raise UnalikeError(f"found the classes {unknown}; expected those of {whose}, {known}: rename or leave them out")

    @cached_property
    def fingerprint(self) -> str:
        """The blake2b hash of all arrays, shapes and dtypes, and of the groups; other names do not enter."""
        groups = [part for column in sorted(self.groups) for part in (f"group {column}", self.groups[column])]
        return digest("train", *self.train, "test", *(self.test or ()), *groups)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Both in one tensor: a view where `second` follows `first` in memory, as after `divided`; else a copy."""
    storages = {part.untyped_storage().data_ptr() for part in (first, second)}
    follows = second.storage_offset() == first.storage_offset() + first.numel()
    if len(storages) == 1 and follows and first.is_contiguous() and second.is_contiguous():
        return first.as_strided((len(first) + len(second), *first.shape[1:]), first.stride())
    return torch.cat([first, second])
