"""IDX, CIFAR and image files, written here byte by byte as their authors publish them."""

import gzip
import struct
import sys

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from unalike._utils.errors import UnalikeError
from unalike.data import load, partition

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (7, 28, 28), np.uint8)
LABELS = np.arange(7, dtype=np.uint8) % 3


def idx(path, array, kind=8, cut=0):
    data = (
        bytes([0, 0, kind, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )
    data = data[: len(data) - cut]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def idx_set(folder, prefix="", zipped=".gz", test="t10k", labels=LABELS):
    for part, rows in (("train", slice(0, 5)), (test, slice(5, 7))):
        idx(folder / f"{prefix}{part}-images-idx3-ubyte{zipped}", PIXELS[rows])
        idx(folder / f"{prefix}{part}-labels-idx1-ubyte{zipped}", labels[rows])


@pytest.mark.parametrize("zipped", [".gz", ""])
def test_idx_folder_and_file_give_stored_pixels(tmp_path, zipped):
    idx_set(tmp_path / "mine", zipped=zipped)
    data = load(tmp_path / "mine")
    assert (len(data.train[1]), len(data.test[1]), data.input_shape) == (5, 2, (1, 28, 28))
    assert torch.equal((data.merged()[0][:, 0] * 255).round().byte(), torch.from_numpy(PIXELS))
    assert data.merged()[1].tolist() == LABELS.tolist()
    alone = load(tmp_path / "mine" / f"train-images-idx3-ubyte{zipped}")
    assert alone.test is None and torch.equal(alone.train[0], data.train[0])


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_named_set_in_official_layout_is_found(tmp_path, name):
    idx_set(tmp_path / name)
    data = load(name, tmp_path)
    assert data.name == name and len(data.train[1]) == 5
    if name == "fashion_mnist":
        assert data.classes[9] == "Ankle boot"


def test_emnist_is_transposed_and_letters_start_at_zero(tmp_path):
    idx_set(tmp_path / "emnist", "emnist-letters-", test="test", labels=LABELS + 1)
    idx_set(tmp_path / "emnist", "emnist-byclass-", test="test")
    letters, whole = load("emnist(split='letters')", tmp_path), load("emnist", tmp_path)
    assert letters.merged()[1].tolist() == LABELS.tolist() and letters.classes[:2] == ["A", "B"]
    assert torch.equal(
        (whole.train[0][0, 0] * 255).round().byte(), torch.from_numpy(PIXELS[0].T.copy())
    )
    assert len(whole.classes) == 62 and whole.classes[10] == "A" and whole.classes[61] == "z"
    with pytest.raises(
        UnalikeError, match="unknown split of EMNIST 'letter'; did you mean 'letters'"
    ):
        load("emnist(split='letter')", tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda f: idx(f, PIXELS[:5], cut=10),
            r"holds 3910 bytes of values, expected 3920.*truncated",
        ),
        (
            lambda f: idx(f, PIXELS[:5], kind=7),
            r"starts with the bytes 00 00 07 03, expected an IDX file's 00 00",
        ),
        (
            lambda f: idx(f, PIXELS[:4]),
            r"shape \[4, 28, 28\] and train-labels-idx1-ubyte \[5\].*do not belong together",
        ),
        (lambda f: f.write_bytes(b"<html>not here</html>"), "starts with the bytes 3c 68 74 6d"),
        (lambda f: f.with_name("train-labels-idx1-ubyte").unlink(), "no labels beside it"),
    ],
)
def test_damaged_idx_file_raises_with_its_name(tmp_path, spoil, message):
    idx_set(tmp_path, zipped="")
    spoil(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(UnalikeError, match=message):
        load(tmp_path)


def test_idx_set_with_prefix_is_chosen_by_option(tmp_path):
    idx_set(tmp_path, "other-")
    assert len(load(tmp_path, prefix="other-").train[1]) == 5
    with pytest.raises(UnalikeError, match=r"holds no train-images-idx3-ubyte or \.gz.*prefix="):
        load(tmp_path)


def test_broken_compressed_file_raises(tmp_path):
    idx_set(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(
        UnalikeError, match=r"train-images-idx3-ubyte\.gz cannot be read as a compressed file"
    ):
        load(tmp_path)


# CIFAR's Python batches as Python 2 wrote them: every opcode by hand, so that no test depends on how Python 3 stores.


def text(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def numbers(values) -> bytes:
    return b"](" + b"".join(map(number, values)) + b"e"


def array(pixels: np.ndarray) -> bytes:
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    made = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n("
        + number(0)
        + b"t"
        + text(b"b")
        + b"tR"
    )
    shape = b"(" + b"".join(map(number, pixels.shape)) + b"t"
    return made + b"(" + number(1) + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"


def table(**entries: bytes) -> bytes:
    return (
        b"\x80\x02}("
        + b"".join(text(key.encode()) + value for key, value in entries.items())
        + b"u."
    )


IMAGES = RNG.integers(0, 256, (3, 3072), np.uint8)


def cifar10(folder, **replaced):
    folder.mkdir()
    for part in range(1, 6):
        (folder / f"data_batch_{part}").write_bytes(
            table(data=array(IMAGES), labels=numbers([0, 1, part]))
        )
    (folder / "test_batch").write_bytes(table(data=array(IMAGES), labels=numbers([2, 1, 0])))
    names = b"](" + b"".join(text(f"class {k}".encode()) for k in range(6)) + b"e"
    (folder / "batches.meta").write_bytes(table(label_names=names))
    for name, content in replaced.items():
        (folder / name).write_bytes(content)
    return folder.parent


def test_cifar10_python_batches_are_read(tmp_path):
    data = load("cifar10", cifar10(tmp_path / "cifar-10-batches-py"))
    assert (data.name, len(data.train[1]), len(data.test[1]), data.classes[5]) == (
        "cifar10",
        15,
        3,
        "class 5",
    )
    assert torch.equal((data.test[0] * 255).round().byte().flatten(1), torch.from_numpy(IMAGES))
    assert data.train[1].tolist()[:6] == [0, 1, 1, 0, 1, 2]


def test_cifar100_keeps_the_coarse_classes_as_a_group(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part in ("train", "test"):
        labels = {"fine_labels": numbers([4, 1, 2]), "coarse_labels": numbers([1, 0, 1])}
        (folder / part).write_bytes(table(data=array(IMAGES), **labels))
    (folder / "meta").write_bytes(
        table(fine_label_names=b"](" + b"".join(text(b"c%d" % k) for k in range(5)) + b"e")
    )
    data = load("cifar100", tmp_path)
    assert data.train[1].tolist() == [4, 1, 2] and data.groups["coarse"].tolist() == [1, 0, 1] * 2


@pytest.mark.parametrize(
    ("labels", "names"), [(1, "batches.meta.txt"), (2, "fine_label_names.txt")]
)
def test_cifar_binary_records_are_read(tmp_path, labels, names):
    records = np.concatenate(
        [np.array([[1, 0], [0, 1], [1, 1]], np.uint8)[:, :labels], IMAGES], 1
    ).tobytes()
    files = (
        [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
        if labels == 1
        else ["train.bin", "test.bin"]
    )
    for file in files:
        (tmp_path / file).write_bytes(records)
    (tmp_path / names).write_text("cat\ndog\n\n")
    data = load(tmp_path)
    assert data.test[1].tolist() == ([1, 0, 1] if labels == 1 else [0, 1, 1]) and data.classes == [
        "cat",
        "dog",
    ]
    assert torch.equal((data.test[0] * 255).round().byte().flatten(1), torch.from_numpy(IMAGES))
    (tmp_path / files[0]).write_bytes(records[:-1])
    with pytest.raises(
        UnalikeError, match=f"{files[0]} holds .* bytes, expected a multiple of {3072 + labels}"
    ):
        load(tmp_path)


def test_hostile_cifar_batch_raises_and_runs_nothing(tmp_path):
    mark = tmp_path / "was-run"
    attack = b"\x80\x02cos\nsystem\n(" + text(f"touch {mark}".encode()) + b"tR."
    cifar10(tmp_path / "cifar10", data_batch_3=attack)
    with pytest.raises(
        UnalikeError, match=r"data_batch_3 asks for os\.system.*nothing of it was run"
    ):
        load("cifar10", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            table(data=array(IMAGES), labels=numbers([1, 2, 3]))[:-900],
            "data_batch_2 cannot be read as a CIFAR batch",
        ),
        (b"plain text", "data_batch_2 cannot be read as a CIFAR batch"),
        (
            table(data=array(IMAGES), labels=numbers([1, 2])),
            r"data is uint8 \[3, 3072\], expected uint8 \[2, 3072\]",
        ),
        (table(data=array(IMAGES)), r"data is uint8 \[3, 3072\], expected uint8 \[0, 3072\]"),
        (table(labels=numbers([1])), "expected a table with data"),
        (
            table(data=array(IMAGES), labels=b"](" + numbers([1]) + numbers([1, 2]) + b"e"),
            "cannot be read as a CIFAR batch",
        ),
        (
            table(data=array(IMAGES), labels=b"](" + numbers([1]) * 3 + b"e"),
            r"labels have shape \[3, 1\], expected one for each",
        ),
        (
            table(data=array(IMAGES), labels=number(1)),
            r"labels have shape \[\], expected one for each image",
        ),
        (
            table(data=array(IMAGES), labels=numbers([1, 2, 9])),
            r"labels lie in 0\.\.9, expected 0\.\.5",
        ),
    ],
)
def test_damaged_cifar_batch_raises(tmp_path, content, message):
    cifar10(tmp_path / "cifar10", data_batch_2=content)
    with pytest.raises(UnalikeError, match=message):
        load("cifar10", tmp_path)


def picture(path, size=(6, 4), colour=(255, 0, 51), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_image_folder_classes_are_its_subfolders(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        for kind in ("cat", "dog"):
            for k in range(count):
                picture(tmp_path / part / kind / f"{k}.png")
    data = load(tmp_path)
    assert (data.input_shape, len(data.train[1]), len(data.test[1]), data.classes) == (
        (3, 4, 6),
        6,
        2,
        ["cat", "dog"],
    )
    assert data.train[0][0, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    picture(tmp_path / "test" / "cow" / "1.png")
    with pytest.raises(UnalikeError, match="test has classes that train has not: cow"):
        load(tmp_path)


def test_image_folder_without_division_tests_every_fifth_and_stays_gray(tmp_path):
    for kind in ("a", "b"):
        for k in range(6):
            picture(tmp_path / kind / f"{k}.png", colour=k * 51, mode="L")
    data = load(tmp_path)
    assert data.input_shape == (1, 4, 6) and len(data.train[1]) == 10
    assert data.test[0][:, 0, 0, 0].tolist() == pytest.approx([0.8, 0.8]) and data.test[
        1
    ].tolist() == [0, 1]


def test_image_with_exif_orientation_is_rotated_upright(tmp_path):
    (tmp_path / "a").mkdir()
    pixels = np.zeros((4, 6), np.uint8)
    pixels[:2] = 255
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright: its left is up
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png", exif=turned)
    Image.fromarray(np.rot90(pixels, -1)).save(tmp_path / "a" / "1.png")
    x = load(tmp_path).train[0]
    assert x.shape == (2, 1, 6, 4) and torch.equal(x[0], x[1])


def test_image_folders_of_several_clients_become_a_group(tmp_path):
    for client, part, kind, count in [
        ("north", ".", "ant", 6),
        ("north", ".", "bee", 5),
        ("south", "train", "ant", 3),
        ("south", "test", "bee", 2),  # which only the north trains on
    ]:
        for k in range(count):
            picture(tmp_path / client / part / kind / f"{k}.png", colour=10 * k)
    with pytest.raises(
        UnalikeError, match=r"north has no images.*sub-folders are ant, bee.*group='client'"
    ):
        load(tmp_path)
    data = load(tmp_path, group="hospital")
    assert (
        data.groups["hospital"].tolist()
        == ["north"] * 9 + ["south"] * 3 + ["north"] * 2 + ["south"] * 2
    )
    assert data.train[1].tolist() == [0] * 5 + [1] * 4 + [0] * 3 and data.test[1].tolist() == [
        0,
        1,
        1,
        1,
    ]
    clients = partition(data, "natural(column='hospital')")
    assert clients.names == ["north", "south"] and clients.sizes.tolist() == [9, 3]
    assert [len(c.test[1]) for c in clients] == [2, 2]
    assert load(tmp_path, group=["hospital"]).groups.keys() == {
        "hospital"
    }  # as `--group hospital` says it
    with pytest.raises(
        UnalikeError, match="found the groups hospital, ward; folders of images have one"
    ):
        load(tmp_path, group=["hospital", "ward"])


def test_image_folder_split_names_ignore_case(tmp_path):
    for part in ("Train", "TEST"):
        for kind in ("cat", "dog"):
            picture(tmp_path / part / kind / "0.png")
    data = load(tmp_path)
    assert (len(data.train[1]), len(data.test[1]), data.classes) == (2, 2, ["cat", "dog"])


@pytest.mark.parametrize(("ending", "order"), [("png", "<"), ("tif", "<"), ("tif", ">")])
def test_sixteen_bit_image_is_scaled_alone_and_among_color_images(tmp_path, ending, order):
    grey = np.array([[0, 13107], [52428, 65535]], f"{order}u2")
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        Image.fromarray(grey).save(tmp_path / kind / f"1.{ending}")
    assert load(tmp_path).train[0][1].flatten().tolist() == pytest.approx([0, 0.2, 0.8, 1])
    assert load(tmp_path, size=1).train[0][1].item() == pytest.approx(0.5)
    picture(tmp_path / "a" / "2.png", size=(2, 2))
    data = load(tmp_path)
    assert data.input_shape == (3, 2, 2)
    assert data.train[0][2].flatten(1).tolist() == [pytest.approx([0, 0.2, 0.8, 1])] * 3


@pytest.mark.parametrize(("kind", "mode"), [(np.int32, "I"), (np.float32, "F")])
def test_image_with_unbounded_pixels_raises(tmp_path, kind, mode):
    picture(tmp_path / "a" / "1.png")
    Image.fromarray(np.ones((4, 6), kind)).save(tmp_path / "a" / "2.tif")
    with pytest.raises(
        UnalikeError,
        match=rf"2\.tif holds pixels of mode '{mode}' \(32 bits each\), expected 8 bits",
    ):
        load(tmp_path)


@pytest.mark.parametrize("size", [-3, 0, (4, 0), "a", (1, 2, 3), 2.5])
def test_image_folder_with_invalid_size_raises(tmp_path, size):
    picture(tmp_path / "a" / "1.png")
    with pytest.raises(UnalikeError, match=r"found size=.*, expected"):
        load(tmp_path, size=size)


def test_images_of_several_sizes_without_size_raise(tmp_path):
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "a" / "2.png")
    picture(tmp_path / "b" / "1.jpg", size=(5, 5))
    with pytest.raises(
        UnalikeError, match=r"2 sizes .*4x6 \(2\), 5x5 \(1\).*resize them with size=\(4, 6\)"
    ):
        load(tmp_path)
    assert load(tmp_path, size=8).input_shape == (3, 8, 8)
    assert load(f"file(path={str(tmp_path)!r}, size=(3, 2))").input_shape == (3, 3, 2)
    assert load(tmp_path, size=[3, 2]).input_shape == (3, 3, 2)
    assert load(tmp_path, size=np.int64(8)).input_shape == (3, 8, 8)


def test_empty_class_or_broken_image_raises_with_its_name(tmp_path):
    picture(tmp_path / "a" / "1.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(UnalikeError, match=r"the class .*b has no images"):
        load(tmp_path)
    (tmp_path / "b" / "1.png").write_bytes((tmp_path / "a" / "1.png").read_bytes()[:40])
    with pytest.raises(UnalikeError, match=r"b.1\.png cannot be read as an image"):
        load(tmp_path)


def test_tiny_imagenet_as_published_is_read(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for kind in ("n01", "n02"):
        for k in range(2):
            picture(root / "train" / kind / "images" / f"{kind}_{k}.JPEG")
    picture(root / "val" / "images" / "val_0.JPEG")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t5\t3\n")
    (root / "words.txt").write_text("n01\tgoldfish\nn02\tsalamander\n")
    data = load("tiny_imagenet", tmp_path)
    assert (data.train[1].tolist(), data.test[1].tolist()) == ([0, 0, 1, 1], [1])
    assert data.classes == ["goldfish", "salamander"] and data.input_shape == (3, 4, 6)


def test_folder_of_unknown_layout_raises(tmp_path):
    with pytest.raises(UnalikeError, match="is a folder of no known layout; expected"):
        load(tmp_path)


def test_npy_files_stay_mapped_and_unchanged(tmp_path):
    x, y = RNG.normal(size=(50, 4)).astype(np.float32), np.arange(50) % 2
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "group_site.npy", np.array(["north", "south"])[y])
    data = load(tmp_path)
    assert torch.equal(data.merged()[0], torch.from_numpy(x)) and data.groups["site"][1] == "south"
    data.merged()[0][0, 0] = 7
    assert np.load(tmp_path / "x.npy")[0, 0] == x[0, 0]


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not say which memory is shared with files"
)
def test_npy_rows_take_no_memory(tmp_path):
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (40000, 500)).flush()
    np.save(tmp_path / "y.npy", np.zeros(40000, np.int64))

    def private() -> int:
        memory = psutil.Process().memory_info()
        return memory.rss - memory.shared

    before = private()
    data = load(tmp_path)
    assert (
        data.merged()[0].shape == (40000, 500) and private() - before < 40e6
    )  # the file holds 80e6 bytes


@pytest.mark.parametrize("kind", ["int32", "uint16", "int64"])
def test_integer_images_keep_their_scale_as_floats(tmp_path, kind):
    x = np.arange(24 * 6).reshape(24, 2, 3).astype(kind)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(24) % 2)
    data = load(tmp_path / "x.npz")
    assert data.train[0].dtype == torch.float32 and np.array_equal(data.train[0][:, 0].numpy(), x)
    assert len(partition(data, "iid", clients=2)) == 2


def test_npz_groups_become_dataset_groups(tmp_path):
    np.savez(
        tmp_path / "mine.npz", x=np.zeros((3, 2)), y=np.arange(3), group_writer=np.array([5, 5, 6])
    )
    assert load("mine", tmp_path).groups["writer"].tolist() == [5, 5, 6]
    np.savez(tmp_path / "mine.npz", x=np.zeros((3, 2)), y=np.arange(3), test_x=np.zeros((3, 2)))
    with pytest.raises(UnalikeError, match="expected test_x and test_y, or neither"):
        load("mine", tmp_path)


def test_npz_with_single_array_or_unreadable_class_names_raises(tmp_path):
    file = tmp_path / "mine.npz"
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    (tmp_path / "x.npy").rename(file)
    with pytest.raises(
        UnalikeError, match=r"mine\.npz holds one array without a name, expected an archive"
    ):
        load(file)
    np.savez(file, x=np.zeros((3, 2)), y=np.arange(3), classes=np.array([b"\xff", b"b", b"c"]))
    with pytest.raises(
        UnalikeError, match=r"mine\.npz cannot be read as arrays with class names in UTF-8"
    ):
        load(file)


@pytest.mark.parametrize("part", ["train", "test"])
def test_npz_with_scalar_label_raises(tmp_path, part):
    arrays = {
        f"{name}_{kind}": np.zeros((3, 2)[: 2 if kind == "x" else 1])
        for name in ("train", "test")
        for kind in "xy"
    }
    np.savez(tmp_path / "mine.npz", **(arrays | {f"{part}_y": np.array(1.0)}))
    with pytest.raises(UnalikeError, match=rf"mine, {part}: y has shape \[\], expected \[N\]"):
        load(tmp_path / "mine.npz")


def damaged(good: bytes, rng: np.random.Generator) -> bytes:
    """The bytes cut somewhere, or with up to 20 of the first 400 replaced."""
    if rng.random() < 0.3:
        return good[: rng.integers(len(good))]
    spoilt = np.frombuffer(good, np.uint8).copy()
    where = rng.integers(min(len(spoilt), 400), size=rng.integers(1, 21))
    spoilt[where] = rng.integers(0, 256, len(where))
    return spoilt.tobytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "ending", ["idx", "batch", "names", "npz", "npy", "png", "jpg", "gif", "tif", "bmp"]
)
def test_damaged_file_of_any_format_is_read_or_raises_unalike_error(tmp_path, ending):
    if ending == "idx":
        idx_set(tmp_path)
        file, path = tmp_path / "train-images-idx3-ubyte.gz", tmp_path
    elif ending in ("batch", "names"):
        path = cifar10(tmp_path / "cifar") / "cifar"
        file = path / ("data_batch_1" if ending == "batch" else "batches.meta")
    elif ending == "npz":
        file = path = tmp_path / "a.npz"
        np.savez_compressed(file, x=np.zeros((9, 3)), y=np.arange(9))
    elif ending == "npy":
        file, path = tmp_path / "x.npy", tmp_path
        np.save(file, np.zeros((9, 3), np.float32))
        np.save(tmp_path / "y.npy", np.arange(9))
    else:
        file, path = tmp_path / "a" / f"1.{ending}", tmp_path
        picture(file, (40, 30))
        picture(tmp_path / "b" / f"1.{ending}", (40, 30))
    good, rng = file.read_bytes(), np.random.default_rng(1)
    for _ in range(60):
        file.write_bytes(damaged(good, rng))
        try:
            load(path)
        except UnalikeError as error:
            assert str(error)
