"""Masks and texts from torch data sets, tables of Hugging Face and archives."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.sources.hub import of_tables

IMAGES = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
MASKS = (IMAGES[:, 0] > 0.5).long()
TEXTS = np.arange(12).reshape(4, 3)


class Words(Dataset):
    """Tokens with a class for each, of texts of unlike lengths."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return np.arange(5), np.zeros(3 + i, np.int64)


class Rows(dict):
    """A table as the package datasets has it."""

    features: dict[str, object] = {"image": None, "mask": None, "ids": None}  # noqa: RUF012
    column_names = tuple(features)


def test_masks_of_a_torch_data_set_are_labels():
    data = ua.load(TensorDataset(IMAGES, MASKS), task="segmentation")
    assert data.task.spec == "segmentation(classes=2)" and data.train[1].equal(MASKS)
    population = ua.Population.of({"north": TensorDataset(IMAGES, MASKS)}, task="segmentation")
    assert population.outputs == 2 and population.y.equal(MASKS)


def test_labels_of_unlike_lengths_are_refused_with_the_label_to_fill_them_up_with():
    with pytest.raises(UnalikeError, match=r"labels of shapes \[\(3,\), \(4,\), \(5,\)\].*-100"):
        ua.ClientData(train=Words())


def test_masks_and_tokens_of_a_hugging_face_table_are_labels():
    table = Rows(image=list(IMAGES.numpy()), mask=list(MASKS.numpy()), ids=TEXTS.tolist())
    masks = of_tables("photos", {"train": table}, y="mask", test=None, task="segmentation")
    assert masks.train[1].equal(MASKS)
    table = Rows(ids=TEXTS.tolist())
    texts = of_tables("texts", {"train": table}, x="ids", y=None, test=None, task="next_token")
    assert texts.train[1].tolist() == [[1, 2, -100], [4, 5, -100], [7, 8, -100], [10, 11, -100]]


def test_archive_without_labels_is_read_for_a_task_that_needs_none(tmp_path):
    np.savez(tmp_path / "texts.npz", train_x=TEXTS, test_x=TEXTS[:1], task="next_token")
    texts = ua.load(tmp_path / "texts.npz")
    assert texts.task.spec == "next_token(classes=12)"
    assert texts.test[1].tolist() == [[1, 2, -100]]
    np.savez(tmp_path / "masks.npz", x=IMAGES.numpy(), task="segmentation")
    with pytest.raises(UnalikeError, match="the labels of masks are not known"):
        ua.partition(ua.load(tmp_path / "masks.npz"), "iid", clients=2)
