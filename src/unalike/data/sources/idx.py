"""Reader of IDX files, the format of MNIST, Fashion-MNIST and EMNIST (`train-images-idx3-ubyte.gz`)."""

from pathlib import Path

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.dataset import Dataset
from unalike.data.sources.arrays import Arrays, joined
from unalike.data.sources.registry import content, first_file, formats, layouts

# The third byte of the header, from LeCun's description of the format; numbers are big-endian.
KINDS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
TEST_PREFIXES = ("t10k", "test")


@formats.register("-ubyte")
@formats.register("-ubyte.gz")
def read_idx(path: Path) -> Dataset:
    """One IDX file of images, with the labels file beside it (`...-images-idx3-...` and `...-labels-idx1-...`)."""
    if "-images-idx" not in path.name:
        raise UnalikeError(
            f"{path} holds labels, expected the file of images: give "
            f"{_labels_of(path, 'images-idx3')}"
        )
    return joined(path.name.split("-images")[0], _pair(path))


@layouts.register("*images-idx3-ubyte")
@layouts.register("*images-idx3-ubyte.gz")
def read_idx_folder(path: Path, *, prefix: str = "") -> Dataset:
    """A folder of IDX files, `train-images-idx3-ubyte[.gz]` and so on; the test set starts with `t10k` or `test`.

    `prefix` chooses one of several sets in the folder: "emnist-letters-".
    """
    return joined(path.name, *parts(path, prefix))


def parts(path: Path, prefix: str) -> tuple[Arrays, Arrays | None]:
    """Read a folder's training and test arrays as they are stored; None if there is no test set."""
    train = first_file(path, f"{prefix}train-images-idx?-ubyte*")
    if train is None:
        raise UnalikeError(
            f"{path} holds no {prefix}train-images-idx3-ubyte or .gz, expected it there; "
            "where the files' names start otherwise, say how with prefix="
        )
    patterns = [f"{prefix}{part}-images-idx?-ubyte*" for part in TEST_PREFIXES]
    test = first_file(path, *patterns)
    return _pair(train), None if test is None else _pair(test)


def read_array(path: Path) -> np.ndarray:
    """Read the array in one IDX file.

    Raises `UnalikeError` unless the magic number is 0, 0, kind, dimensions, and the file as long as its header says.
    """
    data = content(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in KINDS or len(data) < 4 + 4 * data[3]:
        raise UnalikeError(
            f"{path} starts with the bytes {data[:4].hex(' ')}, expected an IDX file's "
            "00 00, a kind (08 for bytes) and the number of dimensions; the file is "
            "mislabelled or damaged: fetch it again"
        )
    # The header: two zeros, the kind, the number of dimensions, and the length of each in four bytes.
    kind = np.dtype(KINDS[data[2]])
    dimensions = data[3]
    start = 4 + 4 * dimensions
    shape = np.frombuffer(data, ">u4", dimensions, 4).astype(np.int64)
    expected = int(shape.prod()) * kind.itemsize
    size = len(data) - start
    if size != expected:
        fault = "truncated" if size < expected else "too long"
        raise UnalikeError(
            f"{path} holds {size} bytes of values, expected {expected} for shape {shape.tolist()}; "
            f"the file is {fault}: fetch it again"
        )
    values = np.frombuffer(data, kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="), copy=False)


def _pair(file: Path) -> Arrays:
    """Read a file of images and the file of labels beside it. Raises `UnalikeError` if they do not belong together."""
    labels = _labels_of(file, "labels-idx1")
    # The labels may be compressed although the images are not, or the other way round.
    label_file = first_file(file.parent, labels, labels.removesuffix(".gz"), f"{labels}.gz")
    if label_file is None:
        raise UnalikeError(
            f"{file} has no labels beside it, expected {labels} in {file.parent}: put it there"
        )
    x = read_array(file)
    y = read_array(label_file)
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise UnalikeError(
            f"{file.name} has shape {list(x.shape)} and {label_file.name} "
            f"{list(y.shape)}, expected [N, height, width] and [N]; the files do not "
            "belong together: fetch both again"
        )
    return x, y


def _labels_of(file: Path, part: str) -> str:
    """The name of the other file of a pair: `part` in the place of images or labels."""
    other = "-images-idx" if "labels" in part else "-labels-idx"
    head, _, tail = file.name.partition(other)
    return f"{head}-{part}{tail[1:]}"
