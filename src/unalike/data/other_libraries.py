"""Samples that objects of other libraries hold, as arrays: torch data sets and loaders, and images as they are stored."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.seeds import isolated
from unalike.core.inputs import Inputs
from unalike.data.loader_samples import collated, has_own_collation, rows_of

CHANNELS = (1, 3, 4)
"""Possible lengths of a channel axis: gray, color, color with transparency."""
SAMPLES_READ_AGAIN = 8
"""Samples that are read twice, to see whether their data set draws random numbers."""


def channels_last(shape: Sequence[int]) -> bool:
    """Whether a shape is that of images [N, H, W, C], not [N, C, H, W]."""
    return len(shape) == 4 and shape[3] in CHANNELS and shape[1] not in CHANNELS


def images(x: np.ndarray) -> np.ndarray:
    """Convert images to [N, C, H, W], bytes to 0..1 and other integers to float32; rows [N, D] and tokens [N, T] stay."""
    if x.ndim == 3:
        x = x[:, None]
    elif channels_last(x.shape):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.dtype.kind not in "iu":
        return x
    if x.dtype != np.uint8:
        return x.astype(np.float32)
    scaled = np.empty(x.shape, np.float32)
    return np.divide(x, np.float32(255), out=scaled)


def stacked(samples: Sequence[Any], where: str) -> np.ndarray:
    """Stack images of one size, or rows, into one array. If any image has colors, gray ones become RGB."""
    arrays = [np.asarray(sample) for sample in samples]
    if any(array.ndim == 3 for array in arrays):
        arrays = [np.stack([array] * 3, -1) if array.ndim == 2 else array for array in arrays]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise UnalikeError(
            f"{where} holds samples of shapes {sorted(shapes)[:5]}, expected one: save it with one "
            "size; sequences are padded by the collate_fn of a torch DataLoader"
        )
    return images(np.stack(arrays))


def stacked_inputs(samples: Sequence[Any], where: str) -> Inputs:
    """Stack the inputs of samples, as `stacked`; of samples that are dictionaries or tuples of arrays, each array by itself.

    Raises `UnalikeError` for samples that lack a name or a place, and as `stacked`.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or sample.keys() != first.keys():
                raise UnalikeError(
                    f"{where}: sample {i} has {_content(sample)}, expected {_content(first)}, as sample 0 has"
                )
        by_name = {}
        for name in first:
            by_name[name] = stacked_inputs([sample[name] for sample in samples], f"{where}, {name}")
        return by_name
    if not is_sample_of_several(first):
        return stacked(samples, where)
    for i, sample in enumerate(samples):
        if not isinstance(sample, tuple) or len(sample) != len(first):
            raise UnalikeError(
                f"{where}: sample {i} has {_content(sample)}, expected {_content(first)}, as sample 0 has"
            )
    columns = zip(*samples, strict=True)
    return tuple(stacked_inputs(column, f"{where}, array {i}") for i, column in enumerate(columns))


def is_sample_of_several(sample: Any) -> bool:
    """Whether one sample is a tuple of arrays; a tuple of numbers is a row."""
    if not isinstance(sample, tuple):
        return False
    return any(
        isinstance(value, Mapping | tuple) or getattr(value, "ndim", 0) > 0 for value in sample
    )


def _content(sample: Any) -> str:
    """The shape of a sample, in words."""
    if isinstance(sample, Mapping):
        return ", ".join(map(str, sample)) or "no arrays"
    return f"{len(sample)} arrays" if isinstance(sample, tuple) else type(sample).__name__


def stacked_labels(labels: Sequence[Any], where: str) -> np.ndarray:
    """Stack labels of one shape: numbers, masks, or rows of numbers. Raises `UnalikeError` for unlike shapes."""
    arrays = [np.asarray(label) for label in labels]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise UnalikeError(
            f"{where} holds labels of shapes {sorted(shapes)[:5]}, expected one: fill them up with a label that the task ignores, "
            "as in task='token_classification(ignored=-100)'"
        )
    return np.stack(arrays) if arrays else np.zeros(0)


def samples_of(value: Any, where: str) -> tuple[Any, Any] | None:
    """The inputs and labels of a torch data set, or those that a loader gives, in the order of the data set; None for others.

    Every sample is kept as it was read, so that a transform that draws random numbers is applied once; a warning says so. Raises
    `UnalikeError` for samples that are no pairs, and for loaders as `rows_of` does.
    """
    is_loader = isinstance(value, DataLoader)
    data: Any = value.dataset if is_loader else value
    if not is_loader and not isinstance(data, Dataset):
        return None
    kind = type(data).__name__
    if not hasattr(data, "__len__"):
        raise UnalikeError(
            f"{where}: found a {kind} of unknown length, expected one that tells its length"
        )

    # A transform may draw random numbers, so each sample is asked for once, and all are kept before they are checked.
    if isinstance(data, IterableDataset):
        samples = _stream(data, where)
        if is_loader and has_own_collation(value):
            raise UnalikeError(
                f"{where}: found a loader of a {kind} with a collate_fn of its own, expected samples "
                "(x, y) from the data set itself: do there what collate_fn does"
            )
    elif is_loader and has_own_collation(value):
        return collated(value, where)
    else:
        rows = rows_of(value, where) if is_loader else list(range(len(data)))
        # a subclass may change samples as they are asked for
        if type(data) is TensorDataset and len(data.tensors) == 2 and rows:
            is_whole = rows == list(range(len(data)))
            return data.tensors if is_whole else data[rows]
        # torch's loaders ask for the samples of a batch at once, where a data set offers it
        asks_at_once = getattr(data, "__getitems__", None) if is_loader else None
        if asks_at_once and value.batch_sampler is not None:
            samples = list(asks_at_once(rows))
        else:
            samples = [data[i] for i in rows]
            _note_random_samples(data, dict(zip(rows, samples, strict=True)), where)
    if not samples:
        raise UnalikeError(f"{where}: found a {kind} with no samples, expected pairs (x, y)")
    for sample in samples:
        if isinstance(sample, Mapping) or not hasattr(sample, "__len__") or len(sample) != 2:
            raise UnalikeError(
                f"{where}: found a {kind} with samples that are {type(sample).__name__}, expected "
                "pairs (x, y)"
            )
    x = stacked_inputs([sample[0] for sample in samples], where)
    return x, stacked_labels([sample[1] for sample in samples], where)


def _note_random_samples(data: Any, samples: Mapping[int, Any], where: str) -> None:
    """Warn where the first samples, by their numbers, are others when they are asked for again."""
    with isolated(0):
        is_random = any(
            not _is_same(sample, data[i])
            for i, sample in islice(samples.items(), SAMPLES_READ_AGAIN)
        )
    if is_random:
        warn(
            f"{where}: found a {type(data).__name__} whose samples differ each time they are read, as by a random transform; "
            "they are kept as they were read once. Give the transform to the run: transform='crop(padding=4) + flip'"
        )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two samples hold the same numbers."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    first, second = np.asarray(one), np.asarray(other)
    return first.dtype.kind == "O" or first.tobytes() == second.tobytes()


def _stream(data: Any, where: str) -> list[Any]:
    """The samples of a data set that is iterated. Raises `UnalikeError` where there are not as many as it says."""
    samples = list(islice(data, len(data) + 1))
    if len(samples) == len(data):
        return samples
    found = f"more than {len(data)}" if len(samples) > len(data) else f"{len(samples)}"
    raise UnalikeError(
        f"{where}: found a {type(data).__name__} of length {len(data)} that gives {found} samples; "
        "expected as many as its length"
    )


def torch_splits(value: Any) -> tuple[Any, ...]:
    """A torch data set or loader, or a tuple of two for training and test; empty for any other object."""
    splits = value if isinstance(value, tuple) else (value,)
    if len(splits) > 2 or not all(isinstance(split, Dataset | DataLoader) for split in splits):
        return ()
    return splits


def class_names(data: Any) -> list[str] | None:
    """The names of the classes of a torch data set, as those of torchvision have them; None if there are none."""
    # A subset or a loader has the labels of its data set; any other wrapper may have changed them.
    while isinstance(data, Subset | DataLoader) and not hasattr(data, "classes"):
        data = data.dataset
    names = getattr(data, "classes", None)
    return None if names is None else [str(name) for name in names]
