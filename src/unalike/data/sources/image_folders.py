"""Readers of image folders: one sub-folder per class, and the layout of Tiny-ImageNet."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import every_fifth, layouts

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
DEEP_MODES = {"I;16", "I;16L", "I;16B", "I;16N"}
"""Pillow's modes with 16 bits."""
GRAY_MODES = {"1", "L", "LA"} | DEEP_MODES
"""Pillow's modes of gray images."""
UNBOUNDED_MODES = {"I", "F"}
"""Pillow's modes without a largest value."""

ORIENTATION_TAG = 0x0112
"""EXIF's tag for the orientation of the camera."""
FIRST_SIDEWAYS = 5
"""EXIF's first orientation for which height and width are exchanged."""

TEST_FOLDERS = ("test", "val", "valid")

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
            f"{path.name}: found the groups {group}, {', '.join(more)}; folders of images have "
            "one: name it"
        )
    folders = [path] if group is None else _folders(path)
    images: list[Image] = []
    for folder in folders:
        client = "" if group is None else folder.name
        images += [image._replace(client=client) for image in _divided(folder)]
    images.sort(key=lambda image: image.tests)  # training images first, in their order
    trained = {image.name for image in images if not image.tests}
    tested = {image.name for image in images if image.tests}
    unknown = sorted(tested - trained)
    if unknown:
        raise UnalikeError(
            f"{path}: test has classes that train has not: {', '.join(unknown[:5])}; add or remove "
            "them"
        )
    groups = {}
    if group is not None:
        groups[group] = np.array([image.client for image in images])
    is_divided = any(_parts(folder) for folder in folders)
    return _dataset(path.name, images, size, groups, published=is_divided)


def _divided(path: Path) -> list[Image]:
    """List the images of a folder with its own division, or with every fifth image of a class for testing."""
    parts = _parts(path)
    if not parts:
        images = _by_folder(path)
        classes = np.unique([image.name for image in images], return_inverse=True)[1]
        tests = every_fifth(classes).tolist()
        return [image._replace(tests=test) for image, test in zip(images, tests)]
    images = _by_folder(parts["train"])
    part = next((part for part in TEST_FOLDERS if part in parts), None)
    if part is not None:
        images += [image._replace(tests=True) for image in _by_folder(parts[part])]
    return images


def _parts(path: Path) -> dict[str, Path]:
    """The sub-folders of a folder that is divided into `train` and others, by name in small letters; empty for any other folder."""
    parts = {folder.name.lower(): folder for folder in _folders(path)}
    return parts if "train" in parts else {}


@layouts.register("val/val_annotations.txt")
def read_tiny_imagenet(path: Path, *, size: Size = None) -> Dataset:
    """Tiny-ImageNet as published (`tiny-imagenet-200`): train/<id>/images and val/val_annotations.txt; val tests.

    `size` is as for a folder of images. If there is a `words.txt`, it names the classes.
    """
    images = []
    for folder in _folders(path / "train"):
        for file in _images(folder / "images"):
            images.append(Image(file, folder.name, tests=False))

    # One line for each test image: the file's name, the class, and a box that is not read.
    annotations = path / "val" / "val_annotations.txt"
    for line in _text(annotations).splitlines():
        fields = line.split("\t")
        if len(fields) < 2:
            raise UnalikeError(f"{annotations}: expected lines of a file name, a tab and a class")
        images.append(Image(path / "val" / "images" / fields[0], fields[1], tests=True))

    words = path / "words.txt"
    class_names = {}
    if words.is_file():
        for line in _text(words).splitlines():
            name, tab, meaning = line.partition("\t")
            if tab:
                class_names[name] = meaning
    return _dataset(path.name, images, size, class_names=class_names)


def decode(files: Sequence[Path], size: Size) -> np.ndarray:
    """Decode images to float32 [N, C, H, W] in 0..1, all of one size."""
    from PIL import Image

    shape = (size, size) if isinstance(size, int | np.integer) else size
    if shape is not None and min(shape) < 1:
        raise UnalikeError(
            f"found size={size!r}, expected 1 or more pixels, such as 64 or (48, 64) for height "
            "and width"
        )

    # The headers first: sizes and colors of all images are known before the memory is taken.
    sizes: Counter[tuple[int, int]] = Counter()
    is_gray = True
    for file in files:
        with reading(file, "an image", Image.DecompressionBombError), Image.open(file) as image:
            sizes[_upright_size(image)] += 1
            is_gray = is_gray and image.mode in GRAY_MODES
            if image.mode in UNBOUNDED_MODES:
                raise UnalikeError(
                    f"{file} holds pixels of mode {image.mode!r} (32 bits "
                    "each), expected 8 bits, or 16 of grey in a PNG or TIFF "
                    "file: convert it, so that its largest number is white"
                )
    if shape is None and len(sizes) > 1:
        most_common = ", ".join(f"{h}x{w} ({count})" for (h, w), count in sizes.most_common(5))
        raise UnalikeError(
            f"{files[0].parent.parent} holds images of {len(sizes)} sizes (height x "
            f"width, how many): {most_common}; expected one size: resize them with "
            f"size={sizes.most_common(1)[0][0]}"
        )
    height, width = next(iter(sizes)) if shape is None else shape

    x = np.empty((len(files), 1 if is_gray else 3, height, width), np.float32)
    for row, file in zip(x, files):
        with reading(file, "an image", Image.DecompressionBombError), Image.open(file) as image:
            row[:] = _pixels(image, height, width, is_gray)
    return x


def _upright_size(image: Any) -> tuple[int, int]:
    """Height and width of an image of Pillow when it is turned upright."""
    # Pillow's sizes of TIFF files take the orientation into account
    if image.format != "TIFF" and image.getexif().get(ORIENTATION_TAG, 1) >= FIRST_SIDEWAYS:
        return image.width, image.height
    return image.height, image.width


def _pixels(image: Any, height: int, width: int, is_gray: bool) -> np.ndarray:
    """The pixels of an image of Pillow, upright and of this size: float32 [C, height, width] in 0..1."""
    from PIL import Image, ImageOps

    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in DEEP_MODES:  # `convert` would clip these to 8 bits
        pixels = Image.fromarray(np.asarray(image, np.float32))
        white = 65535
    else:
        pixels = image.convert("L" if is_gray else "RGB")
        white = 255
    if pixels.size != (width, height):
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    values = np.asarray(pixels, np.float32).reshape(height, width, -1)
    return values.transpose(2, 0, 1) / white


def _dataset(
    name: str,
    images: list[Image],
    size: Size,
    groups: Mapping[str, np.ndarray] | None = None,
    class_names: Mapping[str, str] | None = None,
    published: bool = True,
) -> Dataset:
    """Make a data set of images; the test images must come last. `class_names`: folder -> the name of its class."""
    folders, y = np.unique([image.name for image in images], return_inverse=True)
    names = class_names or {}
    return Dataset.divided(
        name=name,
        x=decode([image.file for image in images], size),
        y=y,
        train=sum(not image.tests for image in images),
        classes=[names.get(folder, folder) for folder in folders.tolist()],
        groups=groups,
        published=published,
    )


def _by_folder(path: Path) -> list[Image]:
    images = []
    for folder in _folders(path):
        for file in _images(folder):
            images.append(Image(file, folder.name, tests=False))
    return images


def _folders(path: Path) -> list[Path]:
    folders = [
        place for place in path.iterdir() if place.is_dir() and not place.name.startswith(".")
    ]
    if not folders:
        raise UnalikeError(
            f"{path} holds no sub-folders, expected one per class with its images in it"
        )
    return sorted(folders)


def _images(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in ENDINGS)
    if not files:
        below = sorted(sub.name for sub in folder.glob("*/"))
        hint = ""
        if below:
            hint = f"; its sub-folders are {', '.join(below[:3])}: where {folder.name} is a client, write group='client'"
        raise UnalikeError(
            f"the class {folder} has no images, expected at least one "
            f"{' or '.join(sorted(ENDINGS))}{hint}"
        )
    return files


def _text(file: Path) -> str:
    with reading(file, "UTF-8 text"):
        return file.read_text(encoding="utf-8")
