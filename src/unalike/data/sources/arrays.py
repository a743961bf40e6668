"""Readers of NumPy files: `.npz` archives, and folders of `.npy` files that are mapped from disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.other_libraries import images
from unalike.data.sources.registry import formats, layouts

KERAS = {"x_train": "train_x", "y_train": "train_y", "x_test": "test_x", "y_test": "test_y"}
"""Names in the archives of Keras -> ours."""
NAMES = (*KERAS, *KERAS.values(), "x", "y", "classes", "unit", "time", "task")
GROUP_PREFIX = "group_"
INPUT_PREFIXES = ("x_", "train_x_", "test_x_")
"""The starts of the names of inputs that are several arrays; what follows is the name of one."""
Arrays = tuple[np.ndarray, np.ndarray]
"""Inputs [N, ...] and labels [N, ...] as stored in a file."""
StoredInputs = np.ndarray | dict[str, np.ndarray]
"""Inputs: one array, or several by their names."""
SomeArrays = tuple[StoredInputs, np.ndarray | None]
"""The same, or inputs without labels."""


@formats.register(".npz")
def read_npz(path: Path) -> Dataset:
    """NumPy archive with `train_x train_y [test_x test_y] [classes]`, or `x y [classes]`; `x_train` is `train_x`, as Keras has it.

    Bytes of three or four dimensions are images and are divided by 255. [N, H, W] becomes [N, 1, H, W], and [N, H, W, C] with C
    of 1, 3 or 4 becomes [N, C, H, W]. Integer labels are classes, floats are regression. `group_hospital` [N] becomes the group
    "hospital": one value per sample, training samples first. A text `unit` names the group whose values, such as
    patients, are never divided between training and test samples. `time` [N] are the moments of the samples: later ones test. A
    text `task` names the task of labels whose type does not imply it, such as "counts", "survival" or "segmentation"; an archive
    for "next_token" or "reconstruction" needs no labels. Inputs of several arrays are `x_image`, `x_row` and so on
    (`train_x_image`, `test_x_image`): a dictionary with the names "image" and "row".
    """
    with reading(path, "an archive of plain arrays"):
        archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise UnalikeError(
            f"{path} holds one array without a name, expected an archive: write it with "
            "numpy.savez(x=x, y=y)"
        )
    with reading(path, "an archive of plain arrays"), archive:
        arrays = {
            name: archive[name]
            for name in archive.files
            if name in NAMES or name.startswith((GROUP_PREFIX, *INPUT_PREFIXES))
        }
        names = ", ".join(archive.files)
    return _dataset(path, arrays, names)


@layouts.register("*y.npy")
def read_npy_folder(path: Path) -> Dataset:
    """A folder with the arrays of an archive as files: `x.npy` and `y.npy`, or `train_x.npy`, `train_y.npy`, ...

    Files are mapped, not read: float32 images [N, C, H, W] or rows [N, D], and int64 tokens [N, T], may be larger than memory
    and are read when a client's samples are used. Other dtypes and axis orders are converted in memory, and `train_x` and
    `test_x` are joined in memory: save data larger than memory as `x.npy` and `y.npy`.
    """
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        with reading(file, "a plain array"):
            # "c" makes pages private, so that a write to a tensor by mistake does not reach the file.
            arrays[file.stem] = np.load(file, mmap_mode="c", allow_pickle=False)
    return _dataset(path, arrays, ", ".join(arrays))


def joined(
    name: str,
    train: SomeArrays,
    test: SomeArrays | None = None,
    classes: list[str] | None = None,
    groups: Mapping[str, np.ndarray] | None = None,
    unit: str | None = None,
    time: np.ndarray | None = None,
    task: str | None = None,
) -> Dataset:
    """Make a data set of raw training and test arrays; they are joined while they are bytes, which halves the memory."""
    details: dict[str, Any] = {
        "classes": classes,
        "groups": groups or {},
        "unit": unit,
        "time": time,
        "task": task,
    }
    if test is None:
        return Dataset(name, (_images(train[0]), train[1]), **details)
    if not (_is_array(train[0]) and _is_array(test[0])) or not _fit_together(train, test):
        # `Dataset` reports arrays that do not fit together.
        train = (_images(train[0]), train[1])
        test = (_images(test[0]), test[1])
        return Dataset(name, train, test, **details)
    x = np.concatenate([train[0], test[0]])
    y = None
    if train[1] is not None and test[1] is not None:
        y = np.concatenate([train[1], test[1]])
    return Dataset.divided(name, images(x), y, len(train[0]), **details)


def _is_array(x: StoredInputs) -> TypeGuard[np.ndarray]:
    return not isinstance(x, dict)


def _images(x: StoredInputs) -> StoredInputs:
    """The inputs with `images` applied to each array."""
    if isinstance(x, dict):
        return {name: images(values) for name, values in x.items()}
    return images(x)


def _fit_together(train: SomeArrays, test: SomeArrays) -> bool:
    """Whether training and test arrays can be joined: of one kind and shape, with a label for each input."""
    for a, b in zip(train, test):
        if a is None or b is None:
            continue
        if isinstance(a, dict) or isinstance(b, dict):
            return False
        if a.dtype != b.dtype or a.shape[1:] != b.shape[1:]:
            return False
    return all(
        y is None or (isinstance(x, np.ndarray) and y.ndim > 0 and x.shape[:1] == y.shape[:1])
        for x, y in (train, test)
    )


def _dataset(path: Path, arrays: Mapping[str, np.ndarray], names: str) -> Dataset:
    """The data set of the arrays of a file or folder, which holds `names`."""
    arrays = {KERAS.get(name, name): values for name, values in arrays.items()}
    inputs = {prefix: _inputs(path, arrays, prefix) for prefix in ("", "train_", "test_")}
    part = "" if inputs["train_"] is None else "train_"
    x = inputs[part]
    test_x = inputs["test_"]
    has_labels = f"{part}y" in arrays
    # a task may make labels of the inputs, and says itself if it does not
    if x is None or not (has_labels or "task" in arrays):
        raise UnalikeError(
            f"{path} holds {names}; expected train_x and train_y (and test_x, test_y), or x and y"
        )
    train = (x, arrays.get(f"{part}y"))
    if has_labels and (test_x is not None) != ("test_y" in arrays):
        raise UnalikeError(f"{path} holds {names}; expected test_x and test_y, or neither")
    test = None if test_x is None else (test_x, arrays.get("test_y"))
    groups = {
        name.removeprefix(GROUP_PREFIX): values
        for name, values in arrays.items()
        if name.startswith(GROUP_PREFIX)
    }
    with reading(path, "arrays with class names in UTF-8"):
        classes = None
        if "classes" in arrays:
            classes = [_as_text(name) for name in arrays["classes"].tolist()]
        unit = str(arrays["unit"]) if "unit" in arrays else None
        task = str(arrays["task"]) if "task" in arrays else None
    return joined(path.stem, train, test, classes, groups, unit, arrays.get("time"), task)


def _inputs(path: Path, arrays: Mapping[str, np.ndarray], part: str) -> StoredInputs | None:
    """The inputs of a part of the samples; None if it has none. Raises `UnalikeError` for one array beside several with names."""
    prefix = f"{part}x_"
    several = {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }
    one = arrays.get(f"{part}x")
    if several and one is not None:
        listed = ", ".join(prefix + name for name in several)
        raise UnalikeError(
            f"{path} holds {part}x beside {listed}; expected one array of inputs, or several that all have names"
        )
    return one if one is not None else several or None


def _as_text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
