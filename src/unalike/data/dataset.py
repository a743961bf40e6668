"""A data set that is not divided among clients yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import generator
from unalike.core.inputs import (
    is_one_tensor,
    layout_of,
    sample_shape,
    split_rows,
    take_rows,
)
from unalike.core.nests import join_nests, tensors_of
from unalike.core.tasks.classification import TRUTHS
from unalike.core.tasks.registry import find_task, task_for
from unalike.core.tasks.task import Task
from unalike.data import array_checks
from unalike.data.array_checks import Pair, Samples
from unalike.data.fingerprint import digest
from unalike.data.table_encoding import Encoding

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and labels under a name, with the published division into training and test samples if there is one.

    >>> Dataset("mine", train=([[0.1, 0.2], [0.3, 0.4]], [0, 1]))
    <Dataset mine: 2 training and 0 test samples of shape (2,), classification>

    Args:
        name: The name of the data set.
        train: The training samples (x, y). Arrays of other widths are converted. With (x, None) the labels are not known: the
            samples can be predicted, and nothing else, unless the task makes labels of the inputs (`next_token`,
            `reconstruction`).
        test: The test samples (x, y).
        classes: The names of the classes; None names them "0", "1", ..., and stays None for regression.
        groups: The origin of each sample, such as {"domain": [N]}: integers or texts, for the training samples and then
            the test samples. Models never see groups; partitions by domain, hospital or writer use them.
        encoding: The encoding that turned a table's columns into x; None for data that was no table.
        unit: The column of `groups` with the units, such as patients or recordings, that are never divided: all samples of one
            train, or all test. None: every sample is a unit.
        published: Whether the test set is given with the data, so that clients keep their test samples (`natural`). False: the
            reader set it apart, and every division draws test samples of its own.
        task: The task, or its name, where the type of the labels does not imply it: "counts", "survival", "multilabel".
        time: The moment of each sample, such as a day or its place in a series, training samples first. Every division then lets
            the later samples of a client test, and validate, instead of random ones. None: the order says nothing.
        notes: Sentences of the reader about the samples, which reports repeat.
        beside: A data frame of columns of the table that were asked for, [N, ...], training samples first; models never see it, and
            it is not hashed. None: none was asked for.

    Shapes:
        x: float32 images [N, C, H, W] in 0..1 or rows [N, D], or int64 tokens [N, T].
        y: [N], int64 for classes 0..C-1, bool for binary labels, float32 for regression; NaN for unknown labels. [N, ...] of tasks
            with several numbers a label, such as [time, event], or a mask [H, W].
        time: [N], finite numbers.

    Raises:
        UnalikeError: Lengths differ, there are no samples, numbers are not finite, labels are out of range, or the test set
            has another shape or type than the training set; or `unit` is no group, or a
            unit has both training and test samples; or `time` is not a finite number for each sample.
    """

    name: str
    train: Pair
    test: Pair | None = None
    classes: list[str] | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    encoding: Encoding | None = None
    unit: str | None = None
    published: bool = True
    time: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    task: Task | None = None
    """None where the labels are not known."""
    beside: pd.DataFrame | None = None
    _whole: Pair = field(init=False, repr=False)

    if TYPE_CHECKING:  # the arguments may be arrays, the fields are tensors

        def __init__(
            self,
            name: str,
            train: Samples,
            test: Samples | None = None,
            classes: list[str] | None = None,
            groups: Mapping[str, np.ndarray] = ...,
            encoding: Encoding | None = None,
            unit: str | None = None,
            published: bool = True,
            time: np.ndarray | None = None,
            notes: tuple[str, ...] = (),
            task: Task | str | None = None,
            beside: pd.DataFrame | None = None,
        ) -> None: ...

    def __repr__(self) -> str:
        tests = 0 if self.test is None else len(self.test[1])
        samples = f"{len(self.train[1])} training and {tests} test samples"
        task = "without labels" if self.task is None else self.task.name
        return f"<Dataset {self.name}: {samples} of shape {self.input_shape}, {task}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """The call that makes the same data set in another process of this machine."""
        x, y = self.merged()
        arguments = (
            self.name,
            x,
            y,
            len(self.train[1]),
            self.classes,
            dict(self.groups),
            self.encoding,
            self.unit,
            self.published,
            self.time,
            self.notes,
            self.task,
            self.beside,
        )
        return type(self).divided, arguments

    def __post_init__(self) -> None:
        where = f"{self.name}, train"
        named = find_task(self.task) if isinstance(self.task, str) else self.task
        if isinstance(self.train, Sequence) and self.train[-1] is None:
            x, unknown = array_checks.unlabelled(self.train[0], where)
            made = array_checks.labels_of_inputs(x, where, named)
            train = (x, unknown if made is None else made)
        else:
            train = array_checks.pair(self.train, where, named)
        test = None
        if self.test is not None:
            test = array_checks.pair(self.test, f"{self.name}, test", named)
        count = len(train[1])
        if not count:
            raise UnalikeError(f"{self.name}: found no training samples, expected at least one")
        whole = train
        if test is not None:
            self._check_alike(train, test)
            x = join_nests([train[0], test[0]], lambda tensors: _joined(*tensors))
            whole = (x, _joined(train[1], test[1]))
        if self.encoding is None and named is None:  # of a table its reader has asked
            array_checks.note_truths(whole[1], self.name)

        task = named or task_for(whole[1])
        is_known = not array_checks.is_unlabelled(train[1])
        if is_known:
            task = task.fitted_to(whole[1])
        classes = array_checks.class_names(task, whole[1], self.classes)
        if is_known:
            array_checks.check_labels(task, train[1], classes, f"{self.name}, train")
        if is_known and test is not None:
            array_checks.check_labels(task, test[1], classes, f"{self.name}, test")
        groups = {
            column: array_checks.group(values, len(whole[1]), f"{self.name}, group {column!r}")
            for column, values in self.groups.items()
        }
        self._check_unit(groups, count)

        if test is not None:
            # Both sets become views of one tensor, so that merging them for every partition costs no memory.
            train_x, test_x = split_rows(whole[0], [count, len(whole[1]) - count])
            train = (train_x, whole[1][:count])
            test = (test_x, whole[1][count:])
        checked = {
            "train": train,
            "test": test,
            "classes": classes,
            "groups": MappingProxyType(groups),
            "time": array_checks.time(self.time, len(whole[1]), self.name),
            "task": task if is_known else None,
            "_whole": whole,
        }
        for name, value in checked.items():
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
        unit: str | None = None,
        published: bool = True,
        time: np.ndarray | None = None,
        notes: tuple[str, ...] = (),
        task: Task | str | None = None,
        beside: pd.DataFrame | None = None,
    ) -> Dataset:
        """Make a data set from one pair of arrays without a copy: the first `train` samples train, the others test."""
        named = find_task(task) if isinstance(task, str) else task
        x, y = array_checks.pair((x, y), name, named)
        if named is not None:
            named = named.fitted_to(y)
        train_x, test_x = split_rows(x, [train, len(y) - train])
        return cls(
            name=name,
            train=(train_x, y[:train]),
            test=(test_x, y[train:]) if train < len(y) else None,
            classes=classes,
            groups=groups or {},
            encoding=encoding,
            unit=unit,
            published=published,
            time=time,
            notes=notes,
            task=named,
            beside=beside,
        )

    def taken(self, rows: np.ndarray) -> Dataset:
        """The data set with these samples alone, numbered as in `merged` and in ascending order."""
        x, y = self.merged()
        index = torch.from_numpy(rows)
        return self.divided(
            name=self.name,
            x=take_rows(x, index),
            y=y[index],
            train=int((rows < len(self.train[1])).sum()),
            classes=self.classes,
            groups={column: values[rows] for column, values in self.groups.items()},
            encoding=self.encoding,
            unit=self.unit,
            published=self.published,
            time=None if self.time is None else self.time[rows],
            notes=self.notes,
            task=self.task,
            beside=None if self.beside is None else self.beside.iloc[rows],
        )

    def in_order(self) -> Dataset:
        """The data set with a time: its own one, or the places of its samples, training samples first.

        Raises `UnalikeError` if it has none and its reader has put the samples in another order.
        """
        if self.time is not None:
            return self
        if self.test is not None and not self.published:
            raise UnalikeError(
                f"{self.name}: its reader has set test samples apart, so their order is lost; name the column of the time "
                "(--split-by COLUMN, in Python split_by='COLUMN'), or give Dataset(..., time=one number for each sample)"
            )
        return replace(self, time=np.arange(len(self._whole[1])))

    def subset(self, samples: int, seed: int = 0) -> Dataset:
        """So many of the samples, at random; every class, and the training and test samples, keep their shares.

        Labels of a regression keep their distribution. Data with units keeps whole units, and then has at most so many samples, or
        one unit. All samples if there are no more.

        >>> Dataset("mine", (torch.rand(100, 2), torch.arange(100) % 2)).subset(10).train[1].sum()
        tensor(5)
        """
        if np.ndim(samples) or samples < 1:
            raise UnalikeError(
                f"{self.name}: found subset({samples}), expected at least one sample; for chosen "
                "rows: taken(np.sort(rows))"
            )
        y = self.outcomes
        if samples >= len(y):
            return self
        rng = generator(seed, "subset")

        if self.unit is not None:
            # Whole units in random order, as many as fit, but one at least.
            order = rng.permutation(self.units.max() + 1)
            sizes = np.bincount(self.units)[order]
            fitting = (np.cumsum(sizes) <= samples).sum()
            units = order[: max(fitting, 1)]
            return self.taken(np.flatnonzero(np.isin(self.units, units)))

        # Sorted by training or test, then by label, then at random: samples at equal distances keep all shares.
        is_test = np.arange(len(y)) >= len(self.train[1])
        order = np.lexsort((rng.random(len(y)), y, is_test))
        places = (np.arange(samples) + rng.random()) * len(y) / samples
        return self.taken(np.sort(order[places.astype(int)]))

    def _check_unit(self, groups: Mapping[str, np.ndarray], train: int) -> None:
        """Raise `UnalikeError` if `unit` is no group, or a unit has some of the first `train` samples and others, too."""
        if self.unit is None:
            return
        if self.unit not in groups:
            raise UnalikeError(
                f"{self.name}: found unit={self.unit!r}, expected a column of groups "
                f"({', '.join(groups) or 'there are none'})"
            )
        units = groups[self.unit]
        if np.isin(units[:train], units[train:]).any():
            raise UnalikeError(
                f"{self.name}: training and test samples share values of {self.unit!r}; expected "
                "all samples of a unit on one side"
            )

    def _check_alike(self, train: Pair, test: Pair) -> None:
        compared = {"inputs": (train[0], test[0]), "labels": (train[1], test[1])}
        if not (is_one_tensor(train[0]) and is_one_tensor(test[0])):
            expected, found = (layout_of(x) for x in compared.pop("inputs"))
            if found != expected:
                raise UnalikeError(
                    f"{self.name}: test inputs are {found}, expected those of the training set, {expected}"
                )
        for what, (a, b) in compared.items():
            if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                raise UnalikeError(
                    f"{self.name}: test {what} have shape {list(b.shape[1:])} "
                    f"and dtype {_type_name(b)}, expected those of the "
                    f"training set, {list(a.shape[1:])} and {_type_name(a)}"
                )

    @property
    def known_task(self) -> Task:
        """The task. Raises `UnalikeError` if the labels are not known."""
        if self.task is None:
            raise UnalikeError(
                f"the labels of {self.name} are not known, so it can only be "
                "predicted (run.predict); to train or evaluate, name the column to "
                "predict, with --target COLUMN or in Python target='COLUMN'"
            )
        return self.task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W), (D,) or (T,)."""
        return sample_shape(self.train[0])

    @property
    def owners(self) -> list[str]:
        """The columns of groups that say who holds a sample: all but that of the units."""
        return [column for column in self.groups if column != self.unit]

    @cached_property
    def units(self) -> np.ndarray:
        """The number of each sample's unit, [N], training samples first."""
        if self.unit is None:
            return np.arange(len(self._whole[1]))
        return np.unique(self.groups[self.unit], return_inverse=True)[1]

    @property
    def outcomes(self) -> np.ndarray:
        """One number of each sample's label, [N], training samples first, by which divisions are stratified (`Task.outcome`)."""
        y = self._whole[1] if self.task is None else self.task.outcome(self._whole[1])
        return y.cpu().numpy()

    def merged(self) -> Pair:
        """Return the training samples and then the test samples as one (x, y)."""
        return self._whole

    def labelled(self, y: Tensor, task: str, names: Sequence[str] | None, owner: str) -> Tensor:
        """Translate labels of this data set to the task and the class order of another one, such as the data of a finished run.

        Classes are matched by name, because a file that lacks a class numbers the remaining ones differently; true and false may be
        written as 1 and 0. Numbers are matched by value: a table turns whole numbers into classes, so the classes "9" and "12"
        match 9.0 and 12.0. Class indices without names are taken to be in the other data set's order already.

        Args:
            y: Labels [N] of this data set.
            task: The spec of the other task.
            names: The other data set's class names in order.
            owner: The name of the other data set for error messages.

        Returns:
            Labels [N]: int64, bool or float32, as the task needs.

        Raises:
            UnalikeError: A class is unknown there, or the task cannot have these labels.
        """
        other = find_task(task)
        if self.known_task == other and not other.takes_class_names:
            return y
        if self.classes is None and not other.takes_class_names:
            with suppress(UnalikeError):
                return array_checks.labels(y, self.name, other)
        # The labels as the places of names: of the classes, or of whole numbers among amounts.
        if self.classes is not None:
            classes: list[str] | None = self.classes
            places = y.long()
        else:
            classes, places = _whole_numbers(y)
        if classes is not None:
            if other.takes_class_names:
                return self._numbered(places, classes, names or classes, owner)
            with suppress(ValueError):
                values = torch.tensor([other.label_from_text(name) for name in classes])
                return array_checks.labels(values[places], self.name, other)
        examples = classes
        if examples is None:
            examples = [f"{value:g}" for value in y.flatten()[:5].tolist()]
        raise UnalikeError(
            f"{self.name}: the labels are {self.known_task.labels_in_words} "
            f"({', '.join(examples[:5])}); {owner} has {other.labels_in_words}: write the labels "
            "as it has them"
        )

    def _numbered(
        self, places: Tensor, classes: Sequence[str], names: Sequence[str], owner: str
    ) -> Tensor:
        """Map class indices `places` from the order of `classes` to the order of `names`."""
        spellings = {name.lower() for name in (*classes, *names)}
        if spellings <= TRUTHS.keys():
            # 0 and 1 mean false and true, if nothing else is among the classes.
            classes = [str(TRUTHS[name.lower()]) for name in classes]
            names = [str(TRUTHS[name.lower()]) for name in names]
        numbers = [str(i) for i in range(len(names))]
        is_numbered = self.classes is None or classes == numbers[: len(classes)]
        if self.encoding is None and is_numbered and not set(classes) <= set(names):
            # Classes without names of their own are indices in the order of `names`.
            known: Sequence[str] = numbers
        else:
            known = names
        unknown = [repr(name) for name in classes if name not in known]
        if unknown:
            expected = ", ".join(repr(name) for name in names)
            raise UnalikeError(
                f"found the classes {', '.join(unknown)}; expected those of {owner}, {expected}: "
                "rename or leave them out"
            )
        new_places = [known.index(name) for name in classes]
        return torch.tensor(new_places, dtype=torch.int64)[places]

    @cached_property
    def fingerprint(self) -> str:
        """The blake2b hash of all arrays, shapes, dtypes and groups; the names of data set and classes are not hashed."""
        parts: list[Tensor | np.ndarray | str] = ["train", *tensors_of(self.train), "test"]
        parts += tensors_of(self.test or ())
        for column in sorted(self.groups):
            parts.append(f"group {column}")
            parts.append(self.groups[column])
        return digest(*parts)


def _whole_numbers(y: Tensor) -> tuple[list[str] | None, Tensor]:
    """Read whole float labels as classes: their names and each label's index; None instead of names if one is not whole."""
    kinds, places = y.unique(return_inverse=True)
    if not torch.equal(kinds, kinds.round()):
        return None, places
    return [str(int(kind)) for kind in kinds], places


def _type_name(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate two tensors: a view if `second` follows `first` in memory, as after `divided`, else a copy."""
    one_storage = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    follows = second.storage_offset() == first.storage_offset() + first.numel()
    if one_storage and follows and first.is_contiguous() and second.is_contiguous():
        shape = (len(first) + len(second), *first.shape[1:])
        return first.as_strided(shape, first.stride())
    return torch.cat([first, second])
