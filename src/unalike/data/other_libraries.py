"""Samples that objects of other libraries hold, as arrays: torch data sets and loaders, and images as they are stored."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, TensorDataset

from unalike._utils.errors import UnalikeError

CHANNELS = (1, 3, 4)
"""Possible lengths of a channel axis: gray, color, color with transparency."""


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
    in_color = any(array.ndim == 3 for array in arrays)
    arrays = [
        np.stack([array] * 3, -1) if in_color and array.ndim == 2 else array for array in arrays
    ]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise UnalikeError(
            f"{where} holds samples of shapes {sorted(shapes)[:5]}, expected one: save it with one size"
        )
    return images(np.stack(arrays))


def samples_of(found: Any, where: str) -> tuple[Any, Any] | None:
    """The inputs and labels of a torch data set or of that of a loader, in its order; None for any other object.

    Every sample is read once, so that a transform that draws random numbers is applied once. Raises `UnalikeError` for samples that
    are no pairs.
    """
    data: Any = found.dataset if isinstance(found, DataLoader) else found
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors
    if not isinstance(data, Dataset):
        return None
    if not hasattr(data, "__len__"):
        raise UnalikeError(
            f"{where}: found a {type(data).__name__} of unknown length, expected one that tells its length"
        )
    items = [data[i] for i in range(len(data))]
    wrong = next(
        (
            item
            for item in items
            if isinstance(item, Mapping) or not hasattr(item, "__len__") or len(item) != 2
        ),
        None,
    )
    if wrong is not None or not items:
        held = "no samples" if wrong is None else f"samples that are {type(wrong).__name__}"
        raise UnalikeError(
            f"{where}: found a {type(data).__name__} with {held}, expected pairs (x, y)"
        )
    return stacked([x for x, _ in items], where), np.asarray([np.asarray(y) for _, y in items])


def torch_splits(found: Any) -> tuple[Any, ...]:
    """A torch data set or loader, or a tuple of two for training and test; empty for any other object."""
    splits = found if isinstance(found, tuple) else (found,)
    return (
        splits
        if len(splits) <= 2 and all(isinstance(split, Dataset | DataLoader) for split in splits)
        else ()
    )


def class_names(found: Any) -> list[str] | None:
    """The names of the classes of a torch data set, as those of torchvision have them; None if there are none."""
    while not hasattr(found, "classes") and hasattr(found, "dataset"):
        found = found.dataset
    names = getattr(found, "classes", None)
    return None if names is None else [str(name) for name in names]
