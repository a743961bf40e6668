import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from unalike._utils.errors import UnalikeError
from unalike.data import load
from unalike.data.sources.registry import registry


def save(folder: Path, name: str = "mine", **arrays: np.ndarray) -> Path:
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def test_digits_have_every_sample_once_and_stratified_test_set():
    data = load("digits")
    assert (
        len(data.merged()[1]) == 1797 and data.input_shape == (1, 8, 8) and len(data.classes) == 10
    )
    assert data.train[0].min() == 0 and data.train[0].max() == 1
    share = torch.bincount(data.test[1]) / torch.bincount(data.merged()[1])
    assert ((share - 0.2).abs() < 0.006).all()
    assert load("digits").fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((5, 6, 7), (1, 6, 7)), ((5, 6, 7, 3), (3, 6, 7)), ((5, 3, 6, 7), (3, 6, 7))],
)
def test_npz_bytes_become_images_in_0_to_1(tmp_path, shape, expected):
    x = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    data = load(
        save(tmp_path, train_x=x, train_y=np.zeros(5, np.uint8), classes=np.array(["only"]))
    )
    assert data.input_shape == expected and data.classes == ["only"] and data.test is None
    assert data.train[0].sum().item() == pytest.approx(x.sum() / 255, rel=1e-6)


@pytest.mark.parametrize("channels", [3, 4])
def test_npz_channels_last_keeps_each_pixel_in_its_place(tmp_path, channels):
    x = np.random.default_rng(0).integers(0, 256, (2, 6, 5, channels), np.uint8)
    image = load(save(tmp_path, x=x, y=np.zeros(2, int))).train[0]
    assert image[1, 2, 3, 4].item() == pytest.approx(x[1, 3, 4, 2] / 255)


@pytest.mark.parametrize(
    "names", ["train_x train_y test_x test_y", "x_train y_train x_test y_test"]
)
def test_npz_rows_round_trip_with_a_test_set_and_float_labels(tmp_path, names):
    x, y = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), np.linspace(0, 1, 9)
    data = load(
        save(tmp_path, **dict(zip(names.split(), (x[:6], y[:6], x[6:], y[6:]), strict=True)))
    )
    assert (
        np.array_equal(data.merged()[0].numpy(), x)
        and data.task.name == "regression"
        and data.classes is None
    )


def test_load_finds_name_in_data_folder(tmp_path, monkeypatch):
    save(tmp_path, "mine", x=np.zeros((2, 3)), y=np.zeros(2, int))
    assert load("mine", data_dir=tmp_path).name == load("mine.npz", tmp_path).name == "mine"
    monkeypatch.setenv("UNALIKE_DATA", str(tmp_path))
    assert load("mine").input_shape == (3,)


def test_load_of_unknown_name_lists_known_names_and_folder(tmp_path, monkeypatch):
    with pytest.raises(
        UnalikeError,
        match=rf"digits.*no yours\.npz or the like in {tmp_path}.*put a folder yours or a file",
    ):
        load("yours", tmp_path)
    monkeypatch.delenv("UNALIKE_DATA", raising=False)
    with pytest.raises(UnalikeError, match="UNALIKE_DATA names no folder"):
        load("yours")
    with pytest.raises(UnalikeError, match="found nothing at"):
        load(tmp_path / "yours.npz")
    (tmp_path / "table.xyz").touch()
    with pytest.raises(UnalikeError, match="suffix that cannot be read"):
        load(tmp_path / "table.xyz")


def test_npz_of_other_arrays_raises(tmp_path):
    with pytest.raises(UnalikeError, match="holds pictures; expected train_x"):
        load(save(tmp_path, pictures=np.zeros(3)))
    with pytest.raises(UnalikeError, match="cannot be read as an archive of plain arrays"):
        load(save(tmp_path, x=np.array([{}], object), y=np.zeros(1)))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(UnalikeError, match="cannot be read as an archive"):
        load(tmp_path / "text.npz")


def test_load_passes_parameters_to_registered_source(monkeypatch, blobs):
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))
    registry.register("made")(lambda *, size=1: blobs if size == 2 else None)
    assert load("made(size=2)") is blobs


@pytest.mark.skipif(
    "UNALIKE_DATA" not in os.environ, reason="UNALIKE_DATA names no folder of data files"
)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mnist", (1, 28, 28)),
        ("fashion_mnist", (1, 28, 28)),
        ("cifar10", (3, 32, 32)),
        ("cifar100", (3, 32, 32)),
    ],
)
def test_published_archive_has_expected_shape(name, shape):
    data = load(name)
    assert (
        data.name == name
        and data.input_shape == shape
        and data.train[0].max() == 1
        and len(data.classes) == int(data.train[1].max()) + 1
    )


@pytest.mark.skipif(
    "UNALIKE_DATA" not in os.environ, reason="UNALIKE_DATA names no folder of data files"
)
def test_published_news_and_reviews_are_read():
    news = load("ag_news(length=20, vocabulary=5000)")
    assert (
        news.input_shape == (20,) and len(news.test[1]) == 7600 and news.merged()[0].max() == 4999
    )
    reviews = load("amazon_reviews(features=300)")
    kinds, counts = np.unique(reviews.groups["domain"][len(reviews.train[1]) :], return_counts=True)
    assert dict(zip(kinds.tolist(), counts.tolist())) == {
        "books": 4465,
        "dvd": 3586,
        "electronics": 5681,
        "kitchen": 5945,
    }
    assert reviews.input_shape == (300,) and torch.bincount(reviews.train[1]).tolist() == [
        4000,
        4000,
    ]


def test_load_with_unknown_option_raises_and_lists_options(tmp_path):
    file = save(tmp_path, x=np.zeros((2, 3)), y=np.zeros(2, int))
    with pytest.raises(
        UnalikeError, match=r"mine\.npz: found target='y', but files of this kind have no options"
    ):
        load(file, target="y")
    with pytest.raises(UnalikeError, match=r"it takes emnist\(split='byclass'\)"):
        load("emnist", size=3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "mnist",
            r"no mnist\.npz and no folder mnist or MNIST/raw in .*train-images-idx3-ubyte\.gz.*unalike\[hub\]",
        ),
        ("emnist", r"no emnist_byclass\.npz .*emnist-byclass-train-images-idx3-ubyte\.gz"),
        ("cifar10", "folder cifar-10-batches-py with data_batch_1"),
        ("tiny_imagenet", "folder tiny-imagenet-200 with train/, val/val_annotations.txt"),
        ("ag_news", r"folder ag_news_csv with train\.csv and test\.csv"),
        ("sogou_news", "folder sogou_news_csv with"),
        ("amazon_reviews", r"no amazon_reviews\.npz or amazon\.npz in"),
    ],
)
def test_load_of_missing_published_set_names_files_to_add(tmp_path, monkeypatch, name, expected):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as where the package is not installed
    with pytest.raises(UnalikeError, match=expected):
        load(name, tmp_path)


def test_amazon_reviews_of_both_archives_are_equal(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 3, (8010, 12)).astype(np.uint8)
    y, sizes = rng.integers(0, 2, 8010), np.array([2001, 2002, 2003, 2004])
    rows, domain = csr_matrix(counts), np.repeat(np.arange(4, dtype=np.uint8), sizes)
    split = np.concatenate([np.arange(size) >= 2000 for size in sizes]).astype(np.uint8)
    sparse = {"indptr": rows.indptr, "indices": rows.indices.astype(np.uint16), "counts": rows.data}
    names = {
        "domains": np.array(["books", "dvd", "electronics", "kitchen"]),
        "n_features": np.array([12]),
    }
    save(tmp_path, "amazon_reviews", **sparse, **names, y=y, domain=domain, split=split)
    columns = csr_matrix(counts).tocoo()
    entries = {
        "xx_data": columns.data,
        "xx_col": columns.row,
        "xx_row": columns.col,
        "xx_shape": np.array([12, 8010]),
    }
    (tmp_path / "other").mkdir()
    save(
        tmp_path / "other",
        "amazon",
        **entries,
        yy=2 * y - 1,
        offset=np.concatenate([[0], np.cumsum(sizes)]),
    )
    data, other = load("amazon_reviews", tmp_path), load("amazon_reviews", tmp_path / "other")
    assert len(data.train[1]) == 8000 and data.groups["domain"][[1999, 2000, 8000]].tolist() == [
        "books",
        "dvd",
        "books",
    ]
    assert (
        torch.equal(data.train[0][0], torch.from_numpy(counts[0]).float())
        and data.fingerprint == other.fingerprint
    )
    save(tmp_path, "amazon_reviews", y=y)
    with pytest.raises(UnalikeError, match="cannot be read as an archive of sparse rows"):
        load("amazon_reviews", tmp_path)


def test_emnist_sample_has_all_classes_as_unequal_as_the_data_set():
    data = load("emnist_sample")
    counts = torch.bincount(data.train[1], minlength=62)
    assert (data.input_shape, len(data.classes)) == ((1, 28, 28), 62)
    assert "".join(data.classes[8:12]) == "89AB"
    assert counts.min() >= 20 and counts[:10].sum() > 0.4 * counts.sum()
    x = data.merged()[0]
    assert x.min() == 0 and x.max() == 1 and 0.1 < x.mean() < 0.25
