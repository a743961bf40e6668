"""The Hugging Face hub, with a stand-in for the package `datasets`."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from unalike._utils.errors import UnalikeError
from unalike.data import load


class Split(dict):
    """One split: columns by name, and the features' class names."""

    def __init__(self, classes, **columns):
        super().__init__(columns)
        self.features = {name: SimpleNamespace() for name in columns} | {
            "label": SimpleNamespace(names=classes)
        }


@pytest.fixture
def served(monkeypatch):
    """What the stand-in serves, by name; asking for another name fails as it does without a network."""
    sets: dict[str, dict[str, Split]] = {}

    def load_dataset(path, config=None):
        if path not in sets:
            raise ConnectionError(f"Couldn't reach '{path}' on the Hub")
        return sets[path]

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.delenv("UNALIKE_DATA", raising=False)
    return sets


def pictures(count, mode="L"):
    shape = (28, 28) if mode == "L" else (28, 28, 3)
    return [Image.fromarray(np.full(shape, 51 * (k % 6), np.uint8)) for k in range(count)]


def test_named_set_missing_in_folder_comes_from_hub(served, tmp_path):
    served["ylecun/mnist"] = {
        "train": Split(list("0123456789"), image=pictures(6), label=[0, 1, 2, 3, 4, 9]),
        "test": Split(list("0123456789"), image=pictures(2), label=[7, 8]),
    }
    data = load("mnist", tmp_path)
    assert (data.name, data.input_shape, data.test[1].tolist(), len(data.classes)) == (
        "mnist",
        (1, 28, 28),
        [7, 8],
        10,
    )
    assert data.train[0][:, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


def test_hub_set_with_named_columns_is_loaded(served):
    text = {"title": ["a b", "b"], "content": ["c", "c c"]}
    served["some/news"] = {"train": Split(["x", "y"], label=[0, 1], **text)}
    data = load("hub(path='some/news', x=('title', 'content'), test=None, length=4)")
    assert (
        data.train[0].tolist() == [[4, 3, 2, 0], [3, 2, 2, 0]]
        and data.test is None
        and data.classes == ["x", "y"]
    )
    served["some/colours"] = {
        "train": Split(["x"], image=pictures(1, "RGB") + pictures(1), label=[0, 0])
    }
    assert load("hub(path='some/colours', test=None)").train[0].shape == torch.Size([2, 3, 28, 28])


def test_hub_missing_set_split_or_column_raises(served):
    with pytest.raises(
        UnalikeError, match=r"could not be fetched .*Couldn't reach.*check the name and the network"
    ):
        load("hub(path='some/thing')")
    served["some/thing"] = {"train": Split(["x"], image=pictures(1), label=[0])}
    with pytest.raises(UnalikeError, match="has no split test; expected one of train"):
        load("hub(path='some/thing')")
    with pytest.raises(
        UnalikeError, match=r"has no column pixels; it has image, label: name those .* x= and y="
    ):
        load("hub(path='some/thing', x='pixels', test=None)")


def test_hub_without_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnalikeError, match=r"pip install 'unalike\[hub\]'"):
        load("hub(path='some/thing')")


def test_several_columns_that_are_no_texts_become_a_dictionary_of_arrays(served):
    tokens, masks = [[5, 2], [3, 0]], [[1, 1], [1, 0]]
    served["me/tokens"] = {"train": Split(["x", "y"], ids=tokens, mask=masks, label=[0, 1])}
    data = load("hub(path='me/tokens', x=('ids', 'mask'), test=None)")
    assert data.train[0]["ids"].tolist() == tokens
    assert data.train[0]["mask"].tolist() == masks
