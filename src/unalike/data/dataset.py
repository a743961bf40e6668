"""A data set before it is divided among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.tasks import Task, task_for
from unalike.data import array_checks
from unalike.data.array_checks import Arrays, Pair
from unalike.data.fingerprint import digest
from unalike.data.table_encoding import Encoding

TRUTHS = {"0": False, "false": False, "1": True, "true": True}
VALUES: Mapping[str, Callable[[str], float]] = {"binary": lambda name: TRUTHS[name.lower()], "regression": float}
"""Task without classes -> the value that a class's name stands for."""
KINDS = {"classification": "classes", "binary": "true/false", "regression": "numbers"}


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

    if TYPE_CHECKING:  # what is given as arrays is held as tensors

        def __init__(
            self,
            name: str,
            train: Arrays,
            test: Arrays | None = None,
            classes: list[str] | None = None,
            groups: Mapping[str, np.ndarray] = ...,
            encoding: Encoding | None = None,
        ) -> None: ...

    def __repr__(self) -> str:
        tests = 0 if self.test is None else len(self.test[1])
        samples = f"{len(self.train[1])} training and {tests} test samples"
        return f"<Dataset {self.name}: {samples} of shape {self.input_shape}, {self.task.name}>"

    def __post_init__(self) -> None:
        train = array_checks.pair(self.train, f"{self.name}, train")
        test = None if self.test is None else array_checks.pair(self.test, f"{self.name}, test")
        if not len(train[1]):
            raise UnalikeError(f"{self.name}: found no training samples, expected at least one")
        if test is not None:
            self._check_alike(train, test)
        whole = train if test is None else (_joined(train[0], test[0]), _joined(train[1], test[1]))
        classes = array_checks.class_names(whole[1], self.classes)
        for part, found in (("train", train), ("test", test)):
            if found is not None and classes is not None:
                array_checks.label_range(found[1], len(classes), f"{self.name}, {part}")
        if test is not None:
            # Both parts become views of one tensor, so that merging them for every partition costs no memory.
            n = len(train[1])
            train, test = (whole[0][:n], whole[1][:n]), (whole[0][n:], whole[1][n:])
        groups = {
            column: array_checks.group(values, len(whole[1]), f"{self.name}, group {column!r}")
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
        x, y = array_checks.pair((x, y), name)
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

    def labelled(self, y: Tensor, task: str, names: Sequence[str] | None, whose: str) -> Tensor:
        """Labels y [N] of this data set as others have them, who train for `task` and number their classes `names`: int64, bool or
        float32, as the task asks for.

        Classes go by their names, since a file that lacks one numbers the rest anew; numbers by their values, of which a table has
        classes where they are whole: 9, 10 and 12 are 9.0, 10.0 and 12.0, or the classes "9", "10" and "12". A file of numbers
        without names has the others' numbers already.

        Raises `UnalikeError` for a class that is not among theirs, and for labels that the task cannot have.
        """
        if self.task.name == task != "classification":
            return y
        own, places = (self.classes, y.long()) if self.classes is not None else _kinds(y)
        if own is not None:
            if task == "classification":
                return self._numbered(places, own, names or own, whose)
            with suppress(KeyError, ValueError):
                return array_checks.labels(torch.tensor([VALUES[task](name) for name in own])[places], self.name)
        found = ", ".join(own[:5] if own is not None else [f"{value:g}" for value in y[:5].tolist()])
        raise UnalikeError(
            f"{self.name}: the labels are {KINDS[self.task.name]} ({found}); {whose} has {KINDS[task]}: "
            "write the labels as it has them"
        )

    def _numbered(self, places: Tensor, own: Sequence[str], names: Sequence[str], whose: str) -> Tensor:
        """The numbers that classes called `own` have among `names`."""
        numbers = [str(i) for i in range(len(names))]
        nameless = self.encoding is None and (self.classes is None or own == numbers[: len(own)])
        known = numbers if nameless and not set(own) <= set(names) else names
        unknown = [name for name in own if name not in known]
        if unknown:
            found, expected = (", ".join(map(repr, some)) for some in (unknown, names))
            raise UnalikeError(
                f"found the classes {found}; expected those of {whose}, {expected}: rename or leave them out"
            )
        return torch.tensor([known.index(name) for name in own], dtype=torch.int64)[places]

    @cached_property
    def fingerprint(self) -> str:
        """The blake2b hash of all arrays, shapes and dtypes, and of the groups; other names do not enter."""
        groups = [part for column in sorted(self.groups) for part in (f"group {column}", self.groups[column])]
        return digest("train", *self.train, "test", *(self.test or ()), *groups)


def _kinds(y: Tensor) -> tuple[list[str] | None, Tensor]:
    """Decimals as classes: the names of those there are and the place of each label among them; no names where one is not whole."""
    kinds, places = y.unique(return_inverse=True)
    return [str(int(kind)) for kind in kinds] if torch.equal(kinds, kinds.round()) else None, places


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Both in one tensor: a view where `second` follows `first` in memory, as after `divided`; else a copy."""
    storages = {part.untyped_storage().data_ptr() for part in (first, second)}
    follows = second.storage_offset() == first.storage_offset() + first.numel()
    if len(storages) == 1 and follows and first.is_contiguous() and second.is_contiguous():
        return first.as_strided((len(first) + len(second), *first.shape[1:]), first.stride())
    return torch.cat([first, second])
