"""Data in memory: torch data sets and loaders, Hugging Face data sets, data frames, and clients by name."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import unalike as ua

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 2


class Pictures(Dataset):
    """Pictures as torchvision has them: without a transform, and with the names of the classes."""

    classes = ("cat", "dog")

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return Image.fromarray(np.full((5, 6, 3), 51 * (i % 6), np.uint8)), i % 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class CountedStream(Stream):
    def __init__(self, told=40):
        self.told = told

    def __len__(self):
        return self.told


class Doubled(TensorDataset):
    """A tensor data set that changes a sample as it is asked for."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return 2 * x, 1 - y


class EndlessSampler:
    def __iter__(self):
        while True:
            yield 0


class EndlessLoader(DataLoader):
    def __iter__(self):
        while True:
            yield from super().__iter__()


class FirstBatchLoader(DataLoader):
    def _get_iterator(self):
        yield next(super()._get_iterator())


class DoubledInBatches(TensorDataset):
    """A tensor data set that changes samples where a loader asks for several at once."""

    def __getitems__(self, rows):
        return [(2 * self.tensors[0][i], 1 - self.tensors[1][i]) for i in rows]


class Noisy(TensorDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + torch.rand(3), y


PAIRS = TensorDataset(X, Y)


def first_feature_negated(samples):
    """A collate function that changes inputs and labels."""
    x, y = zip(*samples)
    return -torch.stack(x), 1 - torch.stack(y)


def padded(samples):
    """A collate function that makes batches of several lengths."""
    return torch.zeros(len(samples), 3 + int(samples[0][1])), torch.zeros(len(samples))


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        ((X.numpy(), Y.numpy()), range(40)),
        (PAIRS, range(40)),
        (Subset(PAIRS, [3, 1, 2]), [3, 1, 2]),
        (DataLoader(PAIRS, batch_size=7, shuffle=True, drop_last=True), range(40)),
        (DataLoader(Subset(PAIRS, [5, 4]), batch_size=1), [5, 4]),
        (ConcatDataset([Subset(PAIRS, [0]), Subset(PAIRS, [9, 8])]), [0, 9, 8]),
        (DataLoader(PAIRS, batch_size=4, sampler=SubsetRandomSampler([9, 3, 30])), [3, 9, 30]),
        (DataLoader(PAIRS, sampler=[7, 7, 2]), [2, 7, 7]),
        (DataLoader(PAIRS, sampler=SequentialSampler(range(6))), range(6)),
        (DataLoader(PAIRS, batch_sampler=[[1, 5], [4]]), [1, 4, 5]),
        (
            DataLoader(PAIRS, batch_sampler=BatchSampler(SubsetRandomSampler([8, 6, 1]), 2, True)),
            [1, 6, 8],
        ),
        (DataLoader(PAIRS, batch_size=None, sampler=BatchSampler([0, 2, 5], 2, False)), [0, 2, 5]),
        (DataLoader(Subset(Subset(PAIRS, range(20, 40)), [3, 9, 4]), sampler=[0, 2]), [23, 24]),
        (
            DataLoader(PAIRS, sampler=DistributedSampler(PAIRS, 4, 1, shuffle=False)),
            range(1, 40, 4),
        ),
        (
            DataLoader(PAIRS, sampler=WeightedRandomSampler([1.0] * 40, 40, replacement=False)),
            range(40),
        ),
        (DataLoader(list(zip(X, Y)), sampler=[3, 5]), [3, 5]),
        (DataLoader(CountedStream(), batch_size=7), range(40)),
        (CountedStream(), range(40)),
    ],
)
def test_torch_data_is_read_in_its_order(found, rows):
    data, client = ua.load(found), ua.ClientData(train=found, test=found)
    for x, y in (data.train, client.train, client.test):
        assert torch.equal(x, X[list(rows)]) and torch.equal(y, Y[list(rows)])


@pytest.mark.parametrize(
    ("found", "x", "y"),
    [
        (Doubled(X, Y), 2 * X, 1 - Y),
        (DataLoader(Doubled(X, Y), sampler=[4, 2]), 2 * X[[2, 4]], 1 - Y[[2, 4]]),
        (DataLoader(DoubledInBatches(X, Y), sampler=[4, 2]), 2 * X[[2, 4]], 1 - Y[[2, 4]]),
        (DoubledInBatches(X, Y), X, Y),
        (Subset(Doubled(X, Y), [4, 2]), 2 * X[[4, 2]], 1 - Y[[4, 2]]),
        (DataLoader(PAIRS, batch_size=7, collate_fn=first_feature_negated), -X, 1 - Y),
        (
            DataLoader(PAIRS, batch_sampler=[[5], [1, 3]], collate_fn=first_feature_negated),
            -X[[1, 3, 5]],
            1 - Y[[1, 3, 5]],
        ),
    ],
)
def test_samples_are_those_that_the_loader_makes(found, x, y):
    train = ua.load(found).train
    assert torch.equal(train[0], x) and torch.equal(train[1], y)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            DataLoader(PAIRS, sampler=WeightedRandomSampler([1.0] * 40, 40)),
            "WeightedRandomSampler draws with replacement.*give the data set itself",
        ),
        (
            DataLoader(PAIRS, sampler=RandomSampler(PAIRS, replacement=True, num_samples=9)),
            "RandomSampler draws with replacement",
        ),
        (
            DataLoader(PAIRS, batch_sampler=BatchSampler(WeightedRandomSampler(Y, 9), 3, False)),
            "WeightedRandomSampler draws with replacement",
        ),
        (
            DataLoader(PAIRS, sampler=RandomSampler(PAIRS, num_samples=9)),
            "RandomSampler draws other samples at each pass.*Subset",
        ),
        (
            DataLoader(PAIRS, sampler=DistributedSampler(PAIRS, 4, 1, shuffle=True)),
            "DistributedSampler draws other samples at each pass",
        ),
        (DataLoader(PAIRS, sampler=EndlessSampler()), "EndlessSampler does not end"),
        (FirstBatchLoader(PAIRS), "FirstBatchLoader with an iteration of its own"),
        (EndlessLoader(PAIRS), "EndlessLoader with an iteration of its own"),
        (DataLoader(PAIRS, collate_fn=lambda samples: {"x": 1}), "collate_fn gives dict"),
        (DataLoader(CountedStream(), collate_fn=padded), "CountedStream with a collate_fn"),
        (CountedStream(30), "length 30 that gives more than 30"),
        (ChainDataset([CountedStream(50)]), "length 50 that gives 40 samples"),
    ],
)
def test_loaders_that_cannot_be_honoured_are_refused(found, message):
    with pytest.raises(ua.UnalikeError, match=message):
        ua.load(found)


def test_a_loader_is_read_without_a_change_of_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    sampler = DistributedSampler(PAIRS, 2, 0, shuffle=False)
    ua.load(DataLoader(PAIRS, shuffle=True))
    ua.load(DataLoader(PAIRS, sampler=sampler, collate_fn=first_feature_negated))
    assert torch.equal(torch.rand(2), expected) and sampler.epoch == 0


def test_samples_that_change_at_each_reading_are_noted():
    with pytest.warns(UserWarning, match="Noisy whose samples differ each time they are read"):
        ua.load(Noisy(X, Y))
    missing = torch.where(X > 1, torch.nan, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ua.load(Subset(TensorDataset(missing, Y), [1, 2]))


def test_a_wrapper_may_have_other_classes_than_its_data_set():
    class LivingOrNot(Dataset):
        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return 10

        def __getitem__(self, i):
            return self.dataset[i][0], 0

    assert ua.load(LivingOrNot(Pictures())).classes == ["0"]


def test_clients_of_one_data_set_have_the_samples_of_their_samplers():
    """15 + 5 of 60 samples are 15 + 5, as the loaders that docs/data.md names."""
    x, y = torch.arange(60.0)[:, None].expand(60, 2), torch.arange(60) % 2
    data = TensorDataset(x, y)
    clients = []
    for k in range(3):
        rows = torch.arange(20 * k, 20 * k + 20)
        clients.append(
            (
                DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(rows[:15])),
                DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(rows[15:])),
            )
        )
    population = ua.Population.of(clients)
    assert population.sizes.tolist() == [15] * 3 and population.test.sizes.tolist() == [5] * 3
    assert population[1].train[0][:, 0].tolist() == list(range(20, 35))
    assert population[1].test[0][:, 0].tolist() == list(range(35, 40))


def test_pictures_become_channels_first_and_keep_the_names_of_classes():
    data = ua.load({"train": Subset(Pictures(), range(8)), "test": DataLoader(Pictures())})
    assert (data.input_shape, data.classes, len(data.test[1])) == ((3, 5, 6), ["cat", "dog"], 10)
    assert data.train[0][:, 2, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1, 0, 0.2])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Stream(), "Stream of unknown length"),
        (TensorDataset(X), "found a TensorDataset with samples that are tuple, expected pairs"),
        (Subset(PAIRS, []), "found a Subset with no samples"),
        (7, r"found int, expected \(x, y\)"),
        (
            {"train": (X, Y), "val": (X, Y)},
            "found train, val; expected 'train' and 'test', or names of clients",
        ),
        ({"test": (X, Y)}, "found test; expected 'train' and 'test'"),
        ({"north": (X, Y), "south": (X, Y[:3])}, "client 'south': found 40 inputs and 3 labels"),
        ({}, "no clients"),
    ],
)
def test_objects_that_hold_no_pairs_are_refused(found, message):
    with pytest.raises(ua.UnalikeError, match=message):
        ua.load(found)


def test_options_beside_arrays_are_refused():
    with pytest.raises(ua.UnalikeError, match="found target beside a TensorDataset"):
        ua.load(PAIRS, target="y")


def frame(rows=40):
    return pd.DataFrame(X.double().numpy()[:rows], columns=list("abc")).assign(
        ward=["n", "s"] * (rows // 2), ill=Y.numpy()[:rows]
    )


def test_data_frame_is_read_as_its_file_is(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    options = {"target": "ill", "group": "ward"}
    shuffled = frame().set_axis(np.arange(40)[::-1] * 3)  # the index says nothing
    data = ua.load(shuffled, **options)
    assert data.fingerprint == ua.load(tmp_path / "t.csv", **options).fingerprint
    both = ua.load({"train": frame(), "test": frame(6)}, target="ill", group="ward")
    assert (len(both.train[1]), len(both.test[1]), both.published) == (40, 6, True)
    assert torch.equal(both.test[0], both.train[0][:6])
    hospitals = ua.load({"north": frame(30), "south": frame(10)}, target="ill", drop="ward")
    assert pd.Series(hospitals.groups["client"]).value_counts().to_dict() == {
        "north": 30,
        "south": 10,
    }
    with pytest.raises(
        ua.UnalikeError, match="the table: unknown option 'traget'; did you mean 'target'"
    ):
        ua.load(frame(), traget="ill")
    with pytest.raises(
        ua.UnalikeError,
        match="the table is a table with the columns a, b, c, ward, ill; name the one",
    ):
        ua.load(frame())


class Rows:
    """A stand-in for `datasets.Dataset`: columns by name, and the names of the classes."""

    def __init__(self, classes, **columns):
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: SimpleNamespace() for name in columns} | {
            "label": SimpleNamespace(names=classes)
        }

    def __getitem__(self, name):
        return self.columns[name]

    def to_pandas(self):
        return pd.DataFrame(self.columns)


def test_hugging_face_data_is_read_by_column_names():
    pictures = [Image.fromarray(np.full((28, 28), 51 * k, np.uint8)) for k in range(4)]
    splits = {
        "train": Rows(["u", "v"], image=pictures, label=[0, 1, 1, 0]),
        "test": Rows(["u", "v"], image=pictures[:2], label=[1, 0]),
        "unlabelled": Rows(["u", "v"], image=pictures),
    }
    data = ua.load(splits)
    assert (data.input_shape, data.classes, data.test[1].tolist()) == (
        (1, 28, 28),
        ["u", "v"],
        [1, 0],
    )
    assert ua.load(splits["train"]).test is None
    with pytest.raises(
        ua.UnalikeError,
        match="data has no column text; it has image, label: name those of inputs and labels",
    ):
        ua.load(splits, x="text")
    table = Rows([], **{name: list(values) for name, values in frame().items()})
    assert (
        ua.load(table, target="ill", group="ward").fingerprint
        == ua.load(frame(), target="ill", group="ward").fingerprint
    )


def test_clients_are_given_by_name():
    given = {
        "north": PAIRS,
        "south": {"train": (X, Y), "test": Subset(PAIRS, range(9))},
        "west": ua.ClientData(train=(X, Y)),
    }
    clients = ua.run("fedavg", given, rounds=1, model="linear").run_config.population
    assert list(clients.names) == ["north", "south", "west"] and clients.test.sizes.tolist() == [
        0,
        9,
        0,
    ]
    drawn = ua.run(
        "fedavg", data={"north": PAIRS, "south": (X, Y)}, rounds=1, model="linear"
    ).run_config.population
    assert list(drawn.names) == ["north", "south"] and drawn.test.sizes.tolist() == [10, 10]
    assert len(ua.partition(PAIRS, "iid", clients=4)) == 4


def test_clients_with_test_samples_are_no_data_set():
    own = {
        name: ua.ClientData(train=(np.zeros((4, 2)), [0, 1, 0, 1])) for name in ("north", "south")
    }
    with pytest.raises(
        ua.UnalikeError, match=r"found ClientData.*give them as clients, without data="
    ):
        ua.run("fedavg", data=own, rounds=1, model="linear")
    run = ua.run("fedavg", own, rounds=1, model="linear", protocol="local")
    assert list(run.run_config.population.names) == ["north", "south"]


def test_clients_are_given_as_a_list_of_loaders():
    """As other libraries have them: a loader for training, and one for test."""
    train, test = DataLoader(PAIRS, batch_size=7, shuffle=True), DataLoader(Subset(PAIRS, range(9)))
    clients = ua.Population.of([(train, test), PAIRS, ua.ClientData(train=(X, Y), name="west")])
    assert clients.sizes.tolist() == [40, 40, 40] and clients.test.sizes.tolist() == [9, 0, 0]
    assert list(clients.names) == ["client-0", "client-1", "west"]


def test_subset_keeps_the_shares_of_classes_and_parts():
    y = np.repeat([0, 1, 2], [100, 60, 40])
    data = ua.Dataset(
        "d",
        (np.arange(200.0)[:, None], y),
        (np.arange(40.0)[:, None], y[::5]),
        groups={"g": np.arange(240)},
    )
    part = data.subset(24)
    assert part.train[1].bincount().tolist() == [10, 6, 4] and len(part.test[1]) == 4
    assert part.groups["g"].tolist() == [
        *part.train[0][:, 0].long().tolist(),
        *(200 + part.test[0][:, 0]).long().tolist(),
    ]
    assert part.fingerprint == data.subset(24).fingerprint != data.subset(24, seed=1).fingerprint
    assert data.subset(240) is data and len(data.subset(1).merged()[1]) == 1
    with pytest.raises(ua.UnalikeError, match=r"d: found subset\(0\), expected at least one"):
        data.subset(0)
    with pytest.raises(
        ua.UnalikeError,
        match=r"found subset\(\[5, 3\]\), .* for chosen rows: taken\(np.sort\(rows\)\)",
    ):
        data.subset([5, 3])
    assert data.taken(np.sort([5, 3])).train[0][:, 0].tolist() == [3, 5]
    amounts = ua.Dataset("r", (X, X[:, 0])).subset(10).train[1]
    assert abs(amounts.median() - X[:, 0].median()) < 0.3


def test_subset_keeps_units_whole():
    patients = np.repeat(np.arange(30), 4)
    data = ua.Dataset(
        "d", (np.zeros((120, 1)), np.arange(120) % 2), groups={"p": patients}, unit="p"
    )
    kept = data.subset(50).groups["p"]
    assert (
        len(kept) == 48
        and set(np.bincount(kept)) == {0, 4}
        and len(data.subset(1).groups["p"]) == 4
    )


@pytest.mark.parametrize(
    ("y", "x", "note"),
    [
        ([0.0, 1.0], (3,), r"labels are 0\.0 and 1\.0, read as amounts"),
        ([0.5, 1.0], (3,), None),
        ([0.0, 1.0, 2.0, 3.0], (3,), r"labels are 0\.0, 1\.0, \.\.\., 3\.0, read as amounts"),
        ([1.0, 2.0, 3.0, 4.0], (3,), None),
        ([0, 1], (3,), None),
        (
            [0, 1],
            (32, 32, 3),
            r"x has shape \[8, 32, 32, 3\], read as images .* 32 channels; .*x\.transpose\(0, 3, 1, 2\)",
        ),
        ([0, 1], (3, 32, 32), None),
        ([0, 1], (1, 3, 3), None),
    ],
)
def test_types_that_are_guessed_are_noted(y, x, note):
    pair = (np.zeros((8, *x), np.float32), np.resize(y, 8))
    for make in (
        lambda: ua.Dataset("d", pair),
        lambda: ua.Population.of([ua.ClientData(train=pair)]),
    ):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            make()
        assert len(found) == (note is not None)
    if note:
        with pytest.warns(UserWarning, match=note):
            ua.Population.of([ua.ClientData(train=pair)])


def test_artificial_clients_of_a_table_are_noted():
    with pytest.warns(
        UserWarning,
        match="no column says whose row is whose, so the clients are artificial; .* --group",
    ):
        clients = ua.partition(ua.load(frame(), target="ill"), clients=3)
    assert len(clients.plan.notes) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ua.partition(ua.load(frame(), target="ill"), "iid", clients=3)
        ua.partition(ua.load(frame(), target="ill", group="ward"))
        ua.partition(ua.load(frame(), target="ill", text="ward"), clients=3)
