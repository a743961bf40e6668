"""Readers of image folders: one sub-folder per class, and the layout of Tiny-ImageNet."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import every_fifth, layouts

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
DEEP = {"I;16", "I;16L", "I;16B", "I;16N"}
GREY = {"1", "L", "LA"} | DEEP
UNBOUNDED = {"I", "F"}
"""Pillow's modes with 16 bits (DEEP), of gray images (GREY), and without a largest value (UNBOUNDED)."""

ORIENTATION, SIDEWAYS = 0x0112, 5
"""EXIF's tag for the orientation of the camera, and its first value for which height and width are exchanged."""

TESTS = ("test", "val", "valid")

Size = int | tuple[int, int] | None


class Image(NamedTuple):
    """One image: its file, the name of its class, whether it is a test image, and its client's folder if there are several."""

    file: Path
    name: str
    tests: bool
    client: str = ""


@layouts.register("*/")
def read_image_folder(
    path: Path, *, group: str | Sequence[str] | None = None, size: Size = None
) -> Dataset:
    """`cats/1.png`, `dogs/7.jpg`, ...: the sub-folder is the class, classes in alphabetical order.

    If the classes lie in `train/` and `test/` (or `val/`; case does not matter), that division is kept; otherwise every fifth
    image of a class tests. Images are rotated upright by their EXIF tag and become float32 [C, H, W] in 0..1: gray (C = 1) if
    all are gray, else RGB. `size` (a number, or (height, width)) resizes them; without it all must have one size. With
    `group="hospital"` each sub-folder is such a folder itself, one per hospital: `north/cats/1.png`.

    Raises `UnalikeError` for several groups, a class without images, images that differ in size, pixels that are floats or 32-bit
    integers, and a file that is no image.
    """
    group, *more = (group,) if group is None or isinstance(group, str) else group
    if more:
        raise UnalikeError(
            f"{path.name}: found the groups {group}, {', '.join(more)}; folders of images have one: name it"
        )
    if group is None:
        images = _divided(path)
    else:
        images = [
            image._replace(client=folder.name)
            for folder in _folders(path)
            for image in _divided(folder)
        ]
    images.sort(key=lambda image: image.tests)
    unknown = sorted(
        {image.name for image in images if image.tests} - {i.name for i in images if not i.tests}
    )
    if unknown:
        raise UnalikeError(
            f"{path}: test has classes that train has not: {', '.join(unknown[:5])}; add or remove them"
        )
    groups = {} if group is None else {group: np.array([image.client for image in images])}
    divided = [path] if group is None else _folders(path)
    return _dataset(
        path.name, images, size, groups, published=any(_parts(folder) for folder in divided)
    )


def _divided(path: Path) -> list[Image]:
    """List the images of a folder with its own division, or with every fifth image of a class for testing."""
    parts = _parts(path)
    if not parts:
        images = _by_folder(path)
        tests = every_fifth(
            np.unique([image.name for image in images], return_inverse=True)[1]
        ).tolist()
        return [image._replace(tests=test) for image, test in zip(images, tests)]
    train = _by_folder(parts["train"])
    part = next((part for part in TESTS if part in parts), None)
    tested = [] if part is None else _by_folder(parts[part])
    return train + [image._replace(tests=True) for image in tested]


def _parts(path: Path) -> dict[str, Path]:
    """The sub-folders of a folder that is divided into `train` and others, by name in small letters; empty for any other folder."""
    parts = {folder.name.lower(): folder for folder in _folders(path)}
    return parts if "train" in parts else {}


@layouts.register("val/val_annotations.txt")
def read_tiny_imagenet(path: Path, *, size: Size = None) -> Dataset:
    """Tiny-ImageNet as published (`tiny-imagenet-200`): train/<id>/images and val/val_annotations.txt; val tests.

    `size` is as for a folder of images. If there is a `words.txt`, it names the classes.
    """
    images = [
        Image(file, folder.name, False)
        for folder in _folders(path / "train")
        for file in _images(folder / "images")
    ]
    rows = [line.split("\t") for line in _text(path / "val" / "val_annotations.txt").splitlines()]
    if any(len(row) < 2 for row in rows):
        raise UnalikeError(
            f"{path / 'val' / 'val_annotations.txt'}: expected lines of a file name, a tab and a class"
        )
    images += [Image(path / "val" / "images" / row[0], row[1], True) for row in rows]
    words = path / "words.txt"
    named = (
        dict(line.split("\t", 1) for line in _text(words).splitlines() if "\t" in line)
        if words.is_file()
        else {}
    )
    return _dataset(path.name, images, size, named=named)


def decode(files: Sequence[Path], size: Size) -> np.ndarray:
    """Decode images to float32 [N, C, H, W] in 0..1, all of one size."""
    from PIL import Image, ImageOps

    shape = (size, size) if isinstance(size, int | np.integer) else size
    if shape is not None and min(shape) < 1:
        raise UnalikeError(
            f"found size={size!r}, expected 1 or more pixels, such as 64 or (48, 64) for height and width"
        )
    headers: Counter[tuple[int, int]] = Counter()
    grey = True
    for file in files:
        with reading(file, "an image", Image.DecompressionBombError), Image.open(file) as image:
            # Pillow's sizes of TIFF files take the orientation into account
            sideways = image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) >= SIDEWAYS
            headers[(image.width, image.height) if sideways else (image.height, image.width)] += 1
            grey = grey and image.mode in GREY
            if image.mode in UNBOUNDED:
                raise UnalikeError(
                    f"{file} holds pixels of mode {image.mode!r} (32 bits each), expected 8 bits, or 16 of grey in a PNG or TIFF "
                    "file: convert it, so that its largest number is white"
                )
    if shape is None and len(headers) > 1:
        sizes = ", ".join(f"{h}x{w} ({count})" for (h, w), count in headers.most_common(5))
        raise UnalikeError(
            f"{files[0].parent.parent} holds images of {len(headers)} sizes (height x width, how many): {sizes}; "
            f"expected one size: resize them with size={headers.most_common(1)[0][0]}"
        )
    height, width = next(iter(headers)) if shape is None else shape
    x = np.empty((len(files), 1 if grey else 3, height, width), np.float32)
    for row, file in zip(x, files):
        with reading(file, "an image", Image.DecompressionBombError), Image.open(file) as image:
            ImageOps.exif_transpose(image, in_place=True)
            deep = image.mode in DEEP  # `convert` would clip these to 8 bits
            pixels = (
                Image.fromarray(np.asarray(image, np.float32))
                if deep
                else image.convert("L" if grey else "RGB")
            )
            if pixels.size != (width, height):
                pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
            row[:] = np.asarray(pixels, np.float32).reshape(height, width, -1).transpose(
                2, 0, 1
            ) / (65535 if deep else 255)
    return x


def _dataset(
    name: str,
    images: list[Image],
    size: Size,
    groups: Mapping[str, np.ndarray] | None = None,
    named: Mapping[str, str] | None = None,
    published: bool = True,
) -> Dataset:
    """Make a data set of images; the test images must come last."""
    classes, y = np.unique([image.name for image in images], return_inverse=True)
    called = [(named or {}).get(text, text) for text in classes.tolist()]
    train = sum(not image.tests for image in images)
    x = decode([image.file for image in images], size)
    return Dataset.divided(name, x, y, train, called, groups, published=published)


def _by_folder(path: Path) -> list[Image]:
    return [
        Image(file, folder.name, False) for folder in _folders(path) for file in _images(folder)
    ]


def _folders(path: Path) -> list[Path]:
    folders = sorted(
        folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    )
    if not folders:
        raise UnalikeError(
            f"{path} holds no sub-folders, expected one per class with its images in it"
        )
    return folders


def _images(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in ENDINGS)
    if not files:
        below, hint = sorted(sub.name for sub in folder.glob("*/")), ""
        if below:
            hint = f"; its sub-folders are {', '.join(below[:3])}: where {folder.name} is a client, write group='client'"
        raise UnalikeError(
            f"the class {folder} has no images, expected at least one {' or '.join(sorted(ENDINGS))}{hint}"
        )
    return files


def _text(file: Path) -> str:
    with reading(file, "UTF-8 text"):
        return file.read_text(encoding="utf-8")
