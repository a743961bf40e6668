"""Conversion and validation of arrays that users give: inputs, labels, groups and class names.

In every function `where` is the text that error messages start with, such as "client 'north', train".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError, warn
from unalike.core.inputs import Inputs, is_one_tensor, row_count, tensors_by_place
from unalike.core.tasks.registry import all_tasks, task_for
from unalike.core.tasks.task import CLASSES, Task
from unalike.data.other_libraries import channels_last, samples_of

MOST_CLASSES = 100_000
"""Most classes that labels may number."""
MOST_TOKENS = 2**24
"""Tokens are below this number; larger ones are probably no tokens."""

Pair = tuple[Inputs, Tensor]
"""Inputs [N, ...], or a tree of them, and labels [N], or [N, ...] of tasks whose labels have more dimensions."""
Arrays = tuple[Inputs | npt.ArrayLike, Tensor | npt.ArrayLike]
"""Inputs and labels that `pair` converts to a `Pair`."""
Samples = tuple[Inputs | npt.ArrayLike, Tensor | npt.ArrayLike | None]
"""The same, or inputs alone, (x, None), for tasks that make labels of them."""


def pair(data: Any, where: str, task: Task | None = None) -> Pair:
    """Convert (x, y), or the samples of a torch data set or loader, to tensors of equal length, with the labels of a task.

    Raises `UnalikeError` for anything that is not a pair, for unequal lengths, and as `inputs` and `labels` do.
    """
    x, y = pair_for_any_task(data, where)
    return x, labels_of((x, y), where, task)


def pair_for_any_task(data: Any, where: str) -> Pair:
    """`pair` with labels of any shape, whose task is not known yet; they are NaN where they are given as None."""
    arrays = samples_of(data, where) or data
    if not isinstance(arrays, Sequence) or len(arrays) != 2:
        raise UnalikeError(
            f"{where}: found {type(arrays).__name__}, expected (x, y), inputs [N, ...] and labels "
            "[N], or a torch data set of them"
        )
    if arrays[1] is None:
        return unlabelled(arrays[0], where)
    x = inputs(arrays[0], where)
    y = _tensor(arrays[1], f"{where}: y")
    if not is_unlabelled(y):
        y = _label_numbers(y, where)
    if row_count(x) != len(y):
        raise UnalikeError(
            f"{where}: found {row_count(x)} inputs and {len(y)} labels, expected one label per input"
        )
    return x, y


def inputs(values: Any, where: str) -> Inputs:
    """Convert inputs to float32 images [N, C, H, W] or rows [N, D], or to int64 tokens [N, T], or to a tree of such.

    A dictionary is a tree, and so is a tuple with an array of two dimensions or more, or with a tree.

    Raises `UnalikeError` for arrays of a tree that differ in their numbers of samples, and for each array as `_one_input` does.
    """
    x = _branch(values, f"{where}: x")
    if is_one_tensor(x):
        return x
    counts = {place: len(t) for place, t in tensors_by_place(x).items()}
    if len({*counts.values()}) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise UnalikeError(
            f"{where}: found arrays with unlike numbers of samples ({listed}); expected a row of each array for every sample"
        )
    return x


def _branch(values: Any, what: str) -> Inputs:
    """The inputs `values`, or a part of them; `what` names it."""
    if isinstance(values, Mapping):
        wrong = [name for name in values if not isinstance(name, str)]
        if wrong or not values:
            found = f"the name {wrong[0]!r}" if wrong else "an empty dictionary"
            raise UnalikeError(f"{what}: found {found}, expected arrays by names that are texts")
        # in the order of the names, which is the same for all who give these arrays
        return {name: _branch(values[name], f"{what}[{name!r}]") for name in sorted(values)}
    if is_tuple_of_inputs(values):
        return tuple(_branch(branch, f"{what}[{i}]") for i, branch in enumerate(values))
    return _one_input(values, what)


def is_tuple_of_inputs(values: Any, dimensions: int = 2) -> bool:
    """Whether a tuple is a tree: it has an array of so many `dimensions` or more, or a tree. Other tuples are rows of numbers."""
    if not isinstance(values, tuple):
        return False
    return any(
        isinstance(branch, Mapping)
        or getattr(branch, "ndim", 0) >= dimensions
        or is_tuple_of_inputs(branch, dimensions)
        for branch in values
    )


def _one_input(values: Any, what: str) -> Tensor:
    """Convert one array of inputs.

    Raises `UnalikeError` for uint8, which could be pixels or tokens, fewer than two dimensions, numbers that are not finite,
    and negative tokens.
    """
    x = _tensor(values, what)
    if x.dtype == torch.uint8:
        raise UnalikeError(
            f"{what} is uint8, which may be pixels or tokens; write x.astype('float32') / 255 "
            "or x.astype('int64')"
        )
    if x.dim() < 2:
        raise UnalikeError(
            f"{what} has shape {list(x.shape)}, expected [N, ...]; for one feature write x[:, None]"
        )
    if channels_last(x.shape):
        warn(
            f"{what} has shape {list(x.shape)}, read as images [N, C, H, W] with "
            f"{x.shape[1]} channels; if the channels are last, write x.transpose(0, 3, "
            "1, 2), of a tensor x.permute(0, 3, 1, 2)",
        )

    # Numbers are features; whole numbers are tokens, which index the rows of a table of embeddings.
    if x.is_floating_point() or x.dtype == torch.bool:
        return _finite(x.to(torch.float32), what)
    x = x.to(torch.int64)
    if x.numel() and x.max() >= MOST_TOKENS:
        raise UnalikeError(
            f"{what} holds the token {int(x.max())}, expected less than {MOST_TOKENS}; numbers "
            "are float32"
        )
    if x.numel() and x.min() < 0:
        raise UnalikeError(
            f"{what} holds the token {int(x.min())}, expected 0 or more; use float32 for "
            "signed numbers"
        )
    return x


def labels(values: Any, where: str, task: Task | None = None) -> Tensor:
    """Convert labels to the shape and type of a task.

    Without one the type implies it: integers become int64 classes, floats float32 amounts, and booleans stay; [N, 1] becomes [N].
    Raises `UnalikeError` for labels of another shape, and for those that the task's type would round.
    """
    y = _label_numbers(values, where)
    if task is not None:
        return _of_type(_of_shape(y, task, where), task, where)
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    return _of_shape(y, task_for(y), where)


def labels_of(samples: Pair, where: str, task: Task | None = None) -> Tensor:
    """The labels of samples, as `labels` converts them for a task; of samples without any, those that the task makes of the inputs.

    Raises `UnalikeError` where there are no labels and the task needs some.
    """
    x, y = samples
    if not is_unlabelled(y):
        return labels(y, where, task)
    made = labels_of_inputs(x, where, task)
    if made is None and not len(y):
        return labels(y, where, task)
    if made is None:
        without = [
            task.name
            for task in all_tasks()
            if type(task).labels_of_inputs is not Task.labels_of_inputs
        ]
        raise UnalikeError(
            f"{where}: found no labels, expected (x, y); only the tasks {' and '.join(without)} need none: name one, as in "
            f"task={without[0]!r}"
        )
    return made


def labels_of_inputs(x: Inputs, where: str, task: Task | None) -> Tensor | None:
    """The labels that a task makes of inputs; None if it needs labels, or is not known.

    Raises `UnalikeError` for inputs of which it makes none, such as a tree.
    """
    if task is None or type(task).labels_of_inputs is Task.labels_of_inputs:
        return None
    if not is_one_tensor(x):
        raise UnalikeError(
            f"{where}: found several arrays as inputs, of which the task {task.name} makes no labels; expected labels y beside them"
        )
    try:
        return task.labels_of_inputs(x)
    except ValueError as error:
        raise UnalikeError(
            f"{where}: found {type_name(x.dtype)} inputs of shape {list(x.shape)} without labels, {error} (task {task.name})"
        ) from None


def _label_numbers(values: Any, where: str) -> Tensor:
    """Labels of any shape as int64, float32 or booleans."""
    y = _tensor(values, f"{where}: y")
    if y.dim() == 0:
        raise UnalikeError(f"{where}: y has shape [], expected [N]: a label for each sample")
    if y.is_floating_point():
        return _finite(y.to(torch.float32), f"{where}: y")
    return y if y.dtype == torch.bool else y.to(torch.int64)


def _of_shape(y: Tensor, task: Task, where: str) -> Tensor:
    """Labels in the shape of the task. Raises `UnalikeError` for another one."""
    try:
        return task.as_labels(y)
    except ValueError as error:
        raise UnalikeError(
            f"{where}: y has shape {list(y.shape)}, {error} for the task {task.name}; {_instead_of(y)}"
        ) from None


def _of_type(y: Tensor, task: Task, where: str) -> Tensor:
    """Labels in the type of the task. Raises `UnalikeError` if that would round a label or merge two."""
    expected = task.label_type
    converted = y.to(expected)
    if (converted.to(y.dtype) != y).any():
        raise UnalikeError(
            f"{where}: labels are {type_name(y.dtype)} in {y.min().item()}..{y.max().item()}, which task {task.name} cannot take; "
            f"expected {type_name(expected)}, or another task="
        )
    return converted


def type_name(dtype: torch.dtype) -> str:
    """The type of numbers in words: float32."""
    return str(dtype).removeprefix("torch.")


def _instead_of(y: Tensor) -> str:
    """The advice about labels of a shape that the task has not, which depends on their values."""
    is_indicator = y.dim() == 2 and bool(((y == 0) | (y == 1)).all())
    if is_indicator and bool((y.sum(1) == 1).all()):
        return (
            "these are one-hot labels, whose classes are y.argmax(1); if samples may have several "
            "labels, write task='multilabel'"
        )
    if is_indicator:
        return "if samples have several labels, or none, write task='multilabel', or y.astype(bool)"
    fitting = [task.name for task in all_tasks() if task.label_dimensions == y.dim() - 1]
    if not fitting:
        return f"no task has labels of {y.dim()} dimensions: write one, or give one label for each sample"
    return f"where they mean something else, name their task, task= one of {', '.join(fitting)}"


def note_truths(y: Tensor, where: str) -> None:
    """Warn of labels that are two whole numbers, or 0, 1, ..., C - 1, as floats, which are read as amounts."""
    if not y.is_floating_point():
        return
    values = y.unique()
    if len(values) < 2:
        return
    if len(values) == 2:
        whole = values.round()
        content = " and ".join(f"{value:.1f}" for value in values)
    else:
        whole = torch.arange(len(values), dtype=values.dtype)
        content = f"0.0, 1.0, ..., {values[-1]:.1f}"
    if torch.equal(values.cpu(), whole.cpu()):
        warn(
            f"{where}: the labels are {content}, read as amounts (regression) as they "
            "are floats; for classes write y.astype('int64'), of a tensor y.long()",
        )


def is_unlabelled(y: Tensor) -> bool:
    """Whether labels are those of `unlabelled`: none is known."""
    return y.dim() == 1 and y.is_floating_point() and bool(y.isnan().all())


def unlabelled(values: Any, where: str) -> Pair:
    """Convert inputs whose labels are not known, which become NaN."""
    x = inputs(values, where)
    return x, torch.full((row_count(x),), torch.nan)


def check_labels(task: Task, y: Tensor, classes: Sequence[str] | None, where: str) -> None:
    """Raise `UnalikeError` for labels that the task cannot have, such as one outside its classes."""
    fault = task.label_fault(y, None if classes is None else len(classes))
    if fault:
        raise UnalikeError(f"{where}: {fault}")


def group(column: Any, samples: int, where: str) -> np.ndarray:
    """Convert a group column to a read-only array of integers or texts, [N]. Raises `UnalikeError` for missing values too."""
    values = np.asarray(column)
    if values.dtype == object and all(isinstance(value, str) for value in values.flat):
        values = values.astype(str)
    if values.dtype.kind not in "biuU" or values.shape != (samples,):
        raise UnalikeError(
            f"{where}: found {values.dtype} of shape {list(values.shape)}, expected "
            f"one integer or text for each of {samples} samples, training and test "
            "samples together; fill missing values first"
        )
    kind = values.dtype if values.dtype.kind == "U" else np.int64
    values = np.array(values, kind)
    values.flags.writeable = False
    return values


def time(moments: Any, samples: int, where: str) -> np.ndarray | None:
    """Convert the moments of samples to a read-only array of float64, [N]; None stays None. Raises `UnalikeError` for gaps, too."""
    if moments is None:
        return None
    values = np.asarray(moments)
    is_right = values.dtype.kind in "iuf" and values.shape == (samples,)
    if not is_right or not np.isfinite(values).all():
        raise UnalikeError(
            f"{where}: found a time of {values.dtype} and shape {list(values.shape)}, expected one finite number, such as days "
            f"since 1970, for each of {samples} samples, training and test samples together"
        )
    values = np.array(values, np.float64)
    values.flags.writeable = False
    return values


def class_names(task: Task, y: Tensor, names: Sequence[str] | None) -> list[str] | None:
    """Return the given names, or those of the task, or "0", "1", ... up to the largest label; None for a task without classes.

    Raises `UnalikeError` for a name that occurs twice, and a label too large for the index of a class.
    """
    if not task.offers(CLASSES):
        return None
    if names is not None:
        twice = [name for name, times in Counter(map(str, names)).items() if times > 1]
        if twice:
            raise UnalikeError(
                f"two classes have the name {twice[0]!r}; expected each name once: rename one"
            )
        return [str(name) for name in names]
    if task.class_names:
        return list(task.class_names)
    # Without names the classes are the numbers up to the largest label, whether or not each of them occurs.
    largest = int(y.max()) if len(y) else -1
    if largest >= MOST_CLASSES:
        raise UnalikeError(
            f"found the label {largest}, expected classes numbered from 0; for regression give "
            "float labels"
        )
    return [str(label) for label in range(largest + 1)]


def _tensor(values: Any, what: str) -> Tensor:
    """Convert numbers to a contiguous tensor with integers of 64 bits or floats of 32 bits; bytes and truths stay."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise UnalikeError(
                f"{what} holds complex numbers; expected real ones: split them into two features"
            )
        fault = ""
        if values.is_meta:
            fault = "has no values (device meta)"
        elif values.layout != torch.strided:
            fault = f"is {values.layout}, see to_dense()"
        if fault:
            raise UnalikeError(f"{what} {fault}; expected a tensor with all its numbers")
        return values.detach().contiguous()  # the compiled loops need contiguous memory

    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(values))
        if masked:
            raise UnalikeError(
                f"{what} holds {masked} masked values; fill them or leave those samples out"
            )
    try:
        array = np.asarray(values)
    except ValueError:
        raise UnalikeError(
            f"{what} is a list of values of unlike shapes, expected equal ones; several arrays for each sample are a tuple or "
            "a dictionary"
        ) from None
    if array.dtype.kind not in "biuf":
        raise UnalikeError(
            f"{what} has dtype {array.dtype}, expected numbers; encode texts and objects as "
            "numbers first"
        )
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.int64, copy=False)
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
    # A tensor needs memory that is in order and may be written to; only other arrays are copied.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _finite(values: Tensor, what: str) -> Tensor:
    # Check a block at a time: data mapped from disk may be larger than memory, and so may a mask of it.
    if all(block.isfinite().all() for block in values.split(4096)):
        return values
    wrong = ~values.isfinite()
    sample, *place = wrong.nonzero()[0].tolist()
    nan = int(values.isnan().sum())
    infinite = int(wrong.sum()) - nan
    raise UnalikeError(
        f"{what} holds {nan} NaN and {infinite} infinite values, the first in sample {sample} "
        f"at {place}; expected finite numbers: fill them or leave those samples out"
    )
