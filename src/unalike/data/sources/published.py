"""Published images and news by name: read from the folder of data files, or fetched from the Hugging Face hub."""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError, reading, unknown
from unalike.data.dataset import Dataset
from unalike.data.sources.arrays import joined
from unalike.data.sources.hub import available, hub
from unalike.data.sources.idx import parts
from unalike.data.sources.registry import NAMED_BY, first_file, read, registry, searched
from unalike.data.sources.table_files import tokens
from unalike.data.table_encoding import Encoding

CLOTHES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
IDX_FILES = "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz"
# EMNIST merges letters that look alike in upper and lower case; these lower-case letters stay separate classes.
MERGED_CLASSES = string.digits + string.ascii_uppercase + "abdefghnqrt"
EMNIST_CLASSES = {
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "bymerge": MERGED_CLASSES,
    "balanced": MERGED_CLASSES,
    "letters": string.ascii_uppercase,
    "digits": string.digits,
    "mnist": string.digits,
}

EMNIST_SAMPLE = Path(__file__).with_name("emnist_sample.npz")
"""The images of `emnist_sample`, which come with the package; `emnist_sample.md` has their source and licence."""

AG_CLASSES = ["World", "Sports", "Business", "Sci/Tech"]
SOGOU_CLASSES = ["sports", "finance", "entertainment", "automobile", "technology"]
NEWS_FILES = "train.csv and test.csv"


@registry.register("mnist")
def mnist(data_dir: Path | None) -> Dataset:
    """60000 + 10000 handwritten digits, 28x28 gray (LeCun et al. 1998)."""
    return find("mnist", data_dir, ["mnist", "MNIST/raw"], IDX_FILES, {"path": "ylecun/mnist"})


@registry.register("fashion_mnist")
def fashion_mnist(data_dir: Path | None) -> Dataset:
    """60000 + 10000 pictures of clothes, 28x28 gray, 10 classes (Xiao et al. 2017)."""
    places = ["fashion_mnist", "FashionMNIST/raw"]
    data = find(
        "fashion_mnist", data_dir, places, IDX_FILES, {"path": "zalando-datasets/fashion_mnist"}
    )
    return replace(data, classes=CLOTHES)


@registry.register("emnist")
def emnist(data_dir: Path | None, *, split: str = "byclass") -> Dataset:
    """Handwritten digits and letters, 28x28 gray (Cohen et al. 2017): byclass (62 classes), balanced, letters, ..."""
    if split not in EMNIST_CLASSES:
        raise unknown("split of EMNIST", split, EMNIST_CLASSES)
    places = ["emnist", "EMNIST/raw", "gzip"]
    files = f"emnist-{split}-train-images-idx3-ubyte.gz, its labels and its test files"
    reader = partial(_upright, prefix=f"emnist-{split}-", classes=EMNIST_CLASSES[split])
    return find(f"emnist_{split}", data_dir, places, files, fetch=None, reader=reader)


@registry.register("emnist_sample")
def emnist_sample() -> Dataset:
    """5,920 + 1,393 handwritten digits and letters of EMNIST by class, 28x28 gray, 62 unequal classes (Cohen et al. 2017).

    It comes with the package (public domain); `emnist` is the whole data set.
    """
    return replace(read(EMNIST_SAMPLE), name="emnist_sample")


@registry.register("cifar10")
def cifar10(data_dir: Path | None) -> Dataset:
    """50000 + 10000 photographs, 32x32 color, 10 classes (Krizhevsky 2009)."""
    places = ["cifar-10-batches-py", "cifar-10-batches-bin", "cifar10"]
    fetch = {"path": "uoft-cs/cifar10", "x": "img"}
    return find("cifar10", data_dir, places, "data_batch_1 ... test_batch", fetch)


@registry.register("cifar100")
def cifar100(data_dir: Path | None) -> Dataset:
    """50000 + 10000 photographs, 32x32 color, 100 classes in 20 coarse ones (Krizhevsky 2009)."""
    places = ["cifar-100-python", "cifar-100-binary", "cifar100"]
    fetch = {"path": "uoft-cs/cifar100", "x": "img", "y": "fine_label"}
    return find("cifar100", data_dir, places, "train, test and meta", fetch)


@registry.register("tiny_imagenet")
def tiny_imagenet(data_dir: Path | None) -> Dataset:
    """100000 + 10000 photographs, 64x64 color, 200 classes (Le and Yang 2015); the validation set tests."""
    places = ["tiny-imagenet-200", "tiny_imagenet"]
    files = "train/, val/val_annotations.txt and val/images/"
    fetch = {"path": "zh-plus/tiny-imagenet", "test": "valid"}
    return find("tiny_imagenet", data_dir, places, files, fetch)


@registry.register("ag_news")
def ag_news(
    data_dir: Path | None,
    encoding: Encoding | None = None,
    *,
    length: int = 64,
    vocabulary: int = 20000,
) -> Dataset:
    """120000 + 7600 English news of 4 topics (Zhang et al. 2015): the tokens of the first `length` words."""
    columns = {"path": "fancyzhx/ag_news", "x": "text"}
    return _news("ag_news", data_dir, AG_CLASSES, columns, length, vocabulary, encoding)


@registry.register("sogou_news")
def sogou_news(
    data_dir: Path | None,
    encoding: Encoding | None = None,
    *,
    length: int = 256,
    vocabulary: int = 20000,
) -> Dataset:
    """450000 + 60000 Chinese news in pinyin, 5 topics (Zhang et al. 2015): the tokens of the first `length` words."""
    columns = {"path": "community-datasets/sogou_news", "x": ("title", "content")}
    return _news("sogou_news", data_dir, SOGOU_CLASSES, columns, length, vocabulary, encoding)


def find(
    name: str,
    data_dir: Path | None,
    places: Sequence[str],
    files: str,
    fetch: Mapping[str, Any] | None,
    reader: Callable[[Path], Dataset] = read,
) -> Dataset:
    """Read `name.npz` in `data_dir`, else with `reader` the first of the folders `places` there, else call `hub(**fetch)`.

    Raises `UnalikeError`, which says which `files` to put where and how to have them fetched, if none is there.
    """
    if data_dir is not None:
        archive = data_dir / f"{name}.npz"
        if archive.is_file():
            return replace(read(archive), name=name)
        for place in places:
            if (data_dir / place).is_dir():
                return replace(reader(data_dir / place), name=name)
    if fetch is not None and available():
        return replace(hub(**fetch), name=name)
    alternative = ", or have it fetched: pip install 'unalike[hub]'" if fetch is not None else ""
    raise UnalikeError(
        f"{name}: found no {name}.npz and no folder {' or '.join(places)} "
        f"{searched(data_dir)}; put a folder {places[0]} with {files} into the folder of "
        f"data files ({NAMED_BY}){alternative}"
    )


def _upright(path: Path, prefix: str, classes: str) -> Dataset:
    """Read EMNIST's files, which store each image with rows and columns exchanged and count the letters from 1."""
    first = np.uint8(prefix == "emnist-letters-")
    (x, y), test = parts(path, prefix)
    train = (x.swapaxes(1, 2), y - first)
    if test is not None:
        test_x, test_y = test
        test = (test_x.swapaxes(1, 2), test_y - first)
    return joined(path.name, train, test, list(classes))


def _news(
    name: str,
    data_dir: Path | None,
    classes: list[str],
    columns: Mapping[str, Any],
    length: int,
    vocabulary: int,
    encoding: Encoding | None,
) -> Dataset:
    """Read news from the folder of data files, or have them fetched; both files may lie there without a folder of their own."""

    def read_files(folder: Path, prefix: str = "") -> Dataset:
        train_y, train = _rows(_part(folder, f"{prefix}train"))
        test_y, test = _rows(_part(folder, f"{prefix}test"))
        x, used = tokens([*train, *test], len(train), length, vocabulary, encoding)
        y = np.concatenate([train_y, test_y])
        return Dataset.divided(name, x, y, len(train), classes, encoding=used)

    if data_dir is not None and first_file(data_dir, f"{name}_train.csv*"):
        return read_files(data_dir, f"{name}_")
    fetch = {**columns, "length": length, "vocabulary": vocabulary, "encoding": encoding}
    return find(name, data_dir, [f"{name}_csv", name], NEWS_FILES, fetch, read_files)


def _part(folder: Path, stem: str) -> Path:
    file = first_file(folder, f"{stem}.csv", f"{stem}.csv.gz")
    if file is None:
        raise UnalikeError(f"{folder} holds no {stem}.csv or {stem}.csv.gz, expected {NEWS_FILES}")
    return file


def _rows(file: Path) -> tuple[np.ndarray, Sequence[str]]:
    """Read labels and texts of one file: as published (no header; class from 1, title, text), or `label,text` from 0."""
    with reading(file, "a table of news"):
        import pandas as pd

        frame = pd.read_csv(file, header=None, dtype=str, keep_default_na=False)
        if len(frame.columns) < 2:
            raise UnalikeError(
                f"{file} holds one column, expected the class and then the texts; fetch it again"
            )
        first = 0 if frame.iloc[0, 0] == "label" else 1
        frame = frame.iloc[1 - first :]
        y = frame[0].to_numpy().astype(np.int64) - first
    # The published files write a line break as a backslash and the letter n.
    text = frame[1].str.cat(frame.iloc[:, 2:], sep=" ").str.replace("\\n", " ", regex=False)
    return y, text.tolist()
