"""Samples of several arrays, from all that they are read from, and what a run does with them."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import unalike as ua
from unalike import UnalikeError

SAMPLES = 60
IMAGES = np.random.default_rng(0).normal(size=(SAMPLES, 1, 4, 4)).astype("float32")
ROWS = np.random.default_rng(1).normal(size=(SAMPLES, 3)).astype("float32")
LABELS = (IMAGES.mean((1, 2, 3)) + ROWS[:, 0] > 0).astype("int64")
INPUTS = {"image": IMAGES, "row": ROWS}


class TwoInputs(nn.Module):
    """Reads an image and a row of a table."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(2 * 4 + 3, 2)

    def forward(self, x):
        return self.head(torch.cat([self.image(x["image"]), x["row"]], 1))


class Listed(torch.utils.data.Dataset):
    """A torch data set of a list of samples."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def two_inputs():
    return Listed(
        [
            ({"image": image, "row": row}, label)
            for image, row, label in zip(IMAGES, ROWS, LABELS, strict=True)
        ]
    )


def archive(tmp_path):
    path = tmp_path / "samples.npz"
    np.savez(path, x_image=IMAGES, x_row=ROWS, y=LABELS)
    return path


def assert_are_inputs(x):
    assert list(x) == ["image", "row"]
    np.testing.assert_array_equal(x["image"], IMAGES)
    np.testing.assert_array_equal(x["row"], ROWS)


def test_trees_of_arrays_torch_sets_loaders_and_archives_are_the_same_samples(tmp_path):
    sources = [(INPUTS, LABELS), two_inputs(), DataLoader(two_inputs()), archive(tmp_path)]
    datasets = [ua.load(source) for source in sources]
    for dataset in datasets:
        assert_are_inputs(dataset.train[0])
        assert dataset.input_shape == ((1, 4, 4), (3,))
    assert len({dataset.fingerprint for dataset in datasets}) == 1


def test_training_and_test_samples_of_trees_are_read_and_divided(tmp_path):
    path = tmp_path / "divided.npz"
    np.savez(
        path,
        train_x_image=IMAGES[:40],
        train_x_row=ROWS[:40],
        train_y=LABELS[:40],
        test_x_image=IMAGES[40:],
        test_x_row=ROWS[40:],
        test_y=LABELS[40:],
    )
    dataset = ua.load(path)
    assert_are_inputs(dataset.merged()[0])
    clients = ua.partition(dataset, "iid", clients=3, val=0.2)
    np.testing.assert_array_equal(clients[1].train[0]["row"], ROWS[clients.train[1]])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"image": IMAGES, "row": ROWS[1:]}, r"x\['image'\]: 60, x\['row'\]: 59.*every sample"),
        ((IMAGES, ROWS[1:]), r"x\[0\]: 60, x\[1\]: 59"),
        ({"image": IMAGES, "row": ROWS[:, 0]}, r"x\['row'\] has shape \[60\], expected \[N, ...\]"),
        ({"image": IMAGES, "row": ROWS * np.nan}, r"x\['row'\] holds 180 NaN"),
        ({}, "an empty dictionary"),
        ({1: IMAGES}, "the name 1"),
        ([IMAGES, ROWS], "a list of values of unlike shapes.*a tuple or a dictionary"),
    ],
)
def test_faulty_trees_are_refused_by_the_place_of_the_fault(x, message):
    with pytest.raises(UnalikeError, match=message):
        ua.ClientData(train=(x, LABELS), name="north")


def test_clients_and_samples_of_unlike_trees_are_refused():
    clients = {"north": (INPUTS, LABELS), "south": ({"image": IMAGES}, LABELS)}
    with pytest.raises(
        UnalikeError, match=r"'south', train: inputs are \{'image'.*as in .*'north'"
    ):
        ua.Population.of(clients)
    with pytest.raises(UnalikeError, match="sample 1 has image, expected image, row"):
        ua.load(Listed([two_inputs()[0], ({"image": IMAGES[1]}, 1)]))
    with pytest.raises(UnalikeError, match=r"test inputs are \{'image'.*expected"):
        ua.Dataset("two", train=(INPUTS, LABELS), test=({"image": IMAGES}, LABELS))
    with pytest.raises(UnalikeError, match=r"'mlp' takes one array.*torch\.nn.Module"):
        ua.run("fedavg", ua.Population.of([ua.ClientData((INPUTS, LABELS))]), model="mlp", rounds=1)


def test_run_on_trees_predicts_is_opened_and_exported(tmp_path):
    dataset = ua.load(archive(tmp_path))
    clients = ua.partition(dataset, "iid", clients=2, split=0.5)
    torch.manual_seed(0)
    run = ua.run("fedavg", clients, model=TwoInputs, rounds=2, out=tmp_path / "run")
    predicted = run.predict(INPUTS)
    opened = ua.open_run(tmp_path / "run", model=TwoInputs)
    assert opened.predict(dataset).equals(predicted)
    with pytest.raises(UnalikeError, match=r"have shape .*'image'.*the model takes .*'row'"):
        run.predict({"image": IMAGES})

    folder = run.export(tmp_path / "exported")
    samples = tmp_path / "samples.json"
    samples.write_text(json.dumps({"image": IMAGES.tolist(), "row": ROWS.tolist()}))
    command = [sys.executable, folder / "predict.py", samples]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = np.genfromtxt(written.splitlines(), delimiter=",", skip_header=1)
    np.testing.assert_allclose(table[:, -1], predicted["probability_1"], atol=1e-5)


class JoinedInputs(TwoInputs):
    """The same model on one array that holds the pixels and the row."""

    def forward(self, x):
        return super().forward({"image": x[:, :16].unflatten(1, (1, 4, 4)), "row": x[:, 16:]})


@pytest.mark.parametrize("method", ["feddf(steps=3)", "fedcurv(lam=1)"])
def test_methods_and_samples_of_the_server_read_trees_as_the_arrays_joined_to_one(method):
    scores = []
    joined = np.concatenate([IMAGES.reshape(SAMPLES, -1), ROWS], axis=1)
    for x, model in ((INPUTS, TwoInputs), (joined, JoinedInputs)):
        clients = ua.partition(ua.load((x, LABELS)), "iid", clients=2, split=0.5)
        torch.manual_seed(0)
        run = ua.run(method, clients, model=model, rounds=2, proxy=(x, LABELS), test=(x, LABELS))
        scores.append(run.history.rounds["loss"].to_numpy())
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)


def padded(samples):
    """A collate rule: texts padded to the longest, with a mask, and labels that do not count there."""
    tokens, labels = zip(*samples, strict=True)
    padding = {"batch_first": True}
    tokens = pad_sequence(tokens, **padding)
    return (tokens, tokens > 0), pad_sequence(labels, padding_value=-100, **padding)


class Tagger(nn.Module):
    """Classes of tokens, from each token and the mean of the tokens that the mask has."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        tokens, mask = x
        each = self.embedding(tokens)
        mean = (each * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(torch.cat([each, mean[:, None].expand_as(each)], 2))


def test_texts_of_unequal_length_are_padded_by_the_collate_rule_and_padding_counts_nowhere():
    rng = np.random.default_rng(0)
    texts = [torch.from_numpy(rng.integers(1, 5, length)) for length in (2, 7, 3, 5, 4, 6, 2, 3)]
    samples = Listed([(text, text % 2) for text in texts])
    short = DataLoader(samples, batch_size=2, collate_fn=padded)
    dataset = ua.load(short, task="token_classification(classes=2)")
    tokens, mask = dataset.train[0]
    assert tokens.shape == mask.shape == dataset.train[1].shape == (8, 7)
    assert mask.sum(1).tolist() == [2, 7, 3, 5, 4, 6, 2, 3]

    # Longer padding changes nothing that is learned.
    longer = [nn.functional.pad(t, (0, 5)) for t in (tokens, mask)]
    more = nn.functional.pad(dataset.train[1], (0, 5), value=-100)
    found = {}
    for executor in ("loop", "batched"):
        for length, pair in ((7, dataset.train), (12, (tuple(longer), more))):
            clients = ua.Population.of(
                [ua.ClientData(train=pair, test=pair)] * 2, task=dataset.task
            )
            torch.manual_seed(0)
            run = ua.run("fedavg", clients, model=Tagger(), rounds=3, executor=executor)
            found[executor, length] = run.params
    expected = found["loop", 7]
    for params in found.values():
        torch.testing.assert_close(params, expected)
