"""Sites whose samples are several arrays train as in a simulation, and refuse samples of another layout."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from deployed_methods import agree
from secure_federation import TERMS
from small_federation import SmallFederation
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.array_checks import pair
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.operations.run_coordinator import write_site
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import Federation, Schema
from unalike.federation.site.site_data import site_data
from unalike.models.registry import registry

LAYOUT = {"image": "float32 [1, 3, 3]", "tokens": "int64 [4]"}
TWO_INPUTS = Schema(shape=LAYOUT, classes=4)


class ImageAndTokens(nn.Module):
    """Reads an image and a text, from a dictionary or a tuple."""

    def __init__(self, layout, classes):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(9 + 3, classes)

    def forward(self, x):
        image, tokens = x.values() if isinstance(x, dict) else x
        mean = self.embedding(tokens).mean(1)
        return self.head(torch.cat([image.flatten(1), mean], 1))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The model by its name, for these tests alone."""
    monkeypatch.setitem(registry._builders, "image_and_tokens", ImageAndTokens)


def samples(count, number=0):
    rng = np.random.default_rng(number)
    image = rng.normal(size=(count, 1, 3, 3)).astype(np.float32)
    tokens = rng.integers(0, 5, (count, 4))
    y = (image.mean((1, 2, 3)) > 0) + 2 * (tokens[:, 0] > 1)
    return {"tokens": tokens, "image": image}, y.astype(np.int64)


def clients(sizes=((16, 6), (9, 5)), form=dict):
    found = []
    for number, (train, test) in enumerate(sizes):
        splits = []
        for count in (train, test):
            x, y = samples(count, 10 * number + count)
            splits.append((x if form is dict else (x["image"], x["tokens"]), y))
        found.append(ua.ClientData(*splits, name=f"site{number}"))
    return found


def federation(folder, method="fedavg", **more):
    usual = {"clients": clients(), "data": TWO_INPUTS, "model": "image_and_tokens"}
    return SmallFederation(folder, method=method, **(usual | more))


@pytest.mark.parametrize("method", ["fedavg", "data_sharing(fraction=0.3)", "fedlc", "fedmd"])
def test_sites_with_two_inputs_train_as_in_a_simulation(tmp_path, method):
    agree(federation(tmp_path, method, proxy=samples(20, 7)))


def test_public_samples_with_two_inputs_are_those_of_the_bundle(tmp_path):
    public = pair(samples(8), "proxy")
    folder = FederationFolder.create(
        tmp_path / "fed",
        {"north": 9},
        host="localhost",
        port=1,
        name="two",
        method="fedmd",
        model="image_and_tokens",
        rounds=1,
        data=TWO_INPUTS,
        own={"proxy": public},
    )
    for x, y in (Bundle.read(folder.bundles["north"]).public, folder.samples("proxy")):
        assert all(x[name].equal(values) for name, values in public[0].items())
        assert y.equal(public[1])


def test_sites_with_a_tuple_of_inputs_train_as_in_a_simulation(tmp_path):
    data = Schema(shape=list(LAYOUT.values()), classes=4)
    agree(federation(tmp_path, clients=clients(form=tuple), data=data))


def test_model_of_such_a_federation_is_opened_and_predicts(tmp_path):
    fed = federation(tmp_path / "fed", rounds=1)
    fed.run()
    x, _ = samples(5)
    opened = ua.open_run(fed.out)
    assert opened.predict(x).equals(fed.simulated().predict(x))
    with pytest.raises(UnalikeError, match=r"'image'.*the model takes .*'tokens'"):
        opened.predict({"image": x["image"]})


def test_secure_sums_of_sites_with_two_inputs_are_those_of_a_simulation(tmp_path):
    four = clients(((16, 6), (9, 5), (12, 6), (8, 5)))
    fed = federation(tmp_path, clients=four, protocol=("clients",), **TERMS)
    run = fed.run()
    for name, value in fed.simulated().params.items():
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=1e-6)


X, Y = samples(16)


@pytest.mark.parametrize(
    ("x", "found"),
    [
        ({"image": X["image"], "text": X["tokens"]}, r"'text': 'int64 \[4\]'"),
        ({"image": X["image"]}, r"\{'image': 'float32 \[1, 3, 3\]'\}"),
        (X | {"tokens": X["tokens"][:, :2]}, r"'tokens': 'int64 \[2\]'"),
        (X | {"tokens": X["tokens"].astype(np.float32)}, r"'tokens': 'float32 \[4\]'"),
        ((X["image"], X["tokens"]), r"\['float32 \[1, 3, 3\]', 'int64 \[4\]'\]"),
        (X["image"], r"\[N, 1, 3, 3\] of float32"),
    ],
)
def test_site_refuses_samples_of_another_layout(tmp_path, x, found):
    odd = ua.ClientData(train=(x, Y), name="site1")
    with pytest.raises(
        UnalikeError, match=f"found inputs .*{found}.*; the federation agreed on .*'image'"
    ):
        federation(tmp_path, clients=[clients()[0], odd])


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"shape": {"image": "pickle [3]"}}, r"'pickle \[3\]' at x\['image'\]; expected the type"),
        ({"shape": ["float32 [3]", {}]}, r"found \{\} at x\[1\]"),
        ({"shape": ["float32 [0]"]}, r"'float32 \[0\]' at x\[0\]"),
        ({"shape": LAYOUT, "tokens": True}, "leave tokens out"),
    ],
)
def test_faulty_layouts_of_a_federation_file_are_refused(terms, message):
    with pytest.raises(UnalikeError, match=message):
        Schema(classes=4, **terms)


def test_layout_is_agreed_in_the_file_and_read_from_archives(tmp_path):
    terms = federation(tmp_path / "fed").federation
    terms.save(tmp_path / "federation.toml")
    read = Federation.load(tmp_path / "federation.toml")
    assert read == terms and read.terms == terms.terms
    other = Schema(shape=LAYOUT | {"tokens": "int64 [5]"}, classes=4)
    assert replace(terms, data=other).terms != terms.terms

    client = ua.ClientData(train=samples(30))
    write_site(tmp_path / "own.npz", client, ["0", "1", "2", "3"])
    dataset = ua.load(tmp_path / "own.npz")
    assert (
        Schema.like(dataset.train, ["0", "1", "2", "3"], dataset.known_task, None).shape == LAYOUT
    )
    own = site_data(read, str(tmp_path / "own.npz"), None, "site0")
    train, test = own.train[0], own.test[0]
    assert list(train) == list(test) == ["image", "tokens"]
    assert len(train["image"]) + len(test["tokens"]) == 30
    client = ua.ClientData(train=((*samples(5)[0].values(),), np.arange(5)))
    with pytest.raises(UnalikeError, match=r"\['int64 \[4\]', .*one dictionary of arrays"):
        write_site(tmp_path / "tuple.npz", client, None)
