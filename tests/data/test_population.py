import tracemalloc

import numpy as np
import pytest
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import find_task
from unalike.data import ClientData, Population, partition
from unalike.data.ragged import NumberedNames, Ragged


def client(labels, name=None, width=2, test=None):
    y = np.asarray(labels)
    x = np.full((len(y), width), len(y), np.float32)
    return ClientData(
        (x, y),
        None if test is None else (np.zeros((len(test), width)), np.asarray(test)),
        name=name,
    )


def test_population_of_clients_returns_their_samples():
    clients = [
        client([0, 1, 1], "a", test=[2]),
        client([3], "b"),
        client(np.zeros(0, int), "c", test=[1, 0]),
    ]
    everyone = Population.of(clients)
    assert len(everyone) == 3 and everyone.classes == ["0", "1", "2", "3"] and everyone.outputs == 4
    assert everyone.sizes.tolist() == [3, 1, 0] and everyone.empty.tolist() == [2]
    for given, kept in zip(clients, everyone):
        assert kept.name == given.name
        assert all(torch.equal(a, b) for a, b in zip(given.train, kept.train))
        assert (kept.test is None) == (given.test is None)
    assert torch.equal(everyone[-1].test[1], torch.tensor([1, 0]))


def test_label_counts_and_describe_count_each_client():
    everyone = Population.of([client([0, 1, 1], test=[2]), client([2])])
    assert everyone.label_counts().tolist() == [[1, 2, 0], [0, 0, 1]]
    table = everyone.describe()
    assert table.columns.tolist() == ["client", "n_train", "n_test", "n_classes", "0", "1", "2"]
    assert table.loc[0].tolist() == ["client-0", 3, 1, 2, 1, 2, 0]


def test_pooled_has_one_client_with_every_sample_once(blobs):
    overlapping = partition(blobs, "zipf(size=100)", clients=5)
    pooled = overlapping.pooled()
    assert (
        len(pooled) == 1
        and pooled.names == ["pooled"]
        and pooled.fingerprint != overlapping.fingerprint
    )
    assert pooled.train[0].tolist() == sorted(set(overlapping.train.values.tolist()))
    assert pooled.test[0].tolist() == sorted(set(overlapping.test.values.tolist()))


def test_repr_shows_data_in_one_line(blobs):
    people = partition(blobs, "iid", clients=4)
    for shown, words in (
        (blobs, "Dataset"),
        (people, "Population of 4 clients"),
        (people[0], "ClientData client-0"),
    ):
        assert (
            repr(shown).startswith(f"<{words}")
            and "samples" in repr(shown)
            and len(repr(shown)) < 132
        )
    sizes = f"{len(people.train.values)} training and {len(people.test.values)} test samples"
    assert sizes in repr(people)


def test_population_of_something_else_than_clients_raises(blobs):
    for wrong, found in (([blobs.train], "tuple"), (blobs, "Dataset"), ("digits", "str")):
        with pytest.raises(UnalikeError, match=f"found a {found} where clients were expected"):
            Population.of(wrong)


def test_index_accepts_names_and_positions():
    everyone = Population.of([client([0], "north"), client([1], "south")])
    assert everyone.index("south") == everyone.index(1) == everyone.index(-1) == 1
    with pytest.raises(UnalikeError, match="did you mean 'south'"):
        everyone.index("suoth")
    with pytest.raises(UnalikeError, match=r"expected 0\.\.1"):
        everyone.index(2)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "no clients"),
        ([client([0], "a"), client([0], "a")], "two clients have the name 'a'"),
        (
            [client([0], "a"), client([0], "b", width=3)],
            r"'b', train: inputs are \[N, 3\].*expected \[N, 2\]",
        ),
        ([client([0], "a"), client([0, -2], "b")], "'b', train: labels lie in -2"),
        ([client([0], "a"), client([0.5], "b")], "'b', train: labels are float32"),
    ],
)
def test_population_of_different_clients_raises_with_name(clients, message):
    with pytest.raises(UnalikeError, match=message):
        Population.of(clients)


def test_labels_of_unlike_lengths_raise_with_name_of_their_owner():
    x = np.zeros((3, 2))
    two, three = (ClientData((x, np.ones((3, n)) * 0.5), name=f"of {n}") for n in (2, 3))
    message = r"'of 3', train: labels are \[N, 3\], expected \[N, 2\] as in client 'of 2', train"
    with pytest.raises(UnalikeError, match=message):
        Population.of([two, three])
    with pytest.raises(UnalikeError, match=r"test: labels are \[N, 3\], expected \[N, 2\], as the"):
        ua.run("fedavg", [two], model="linear", rounds=1, protocol="server", test=three.train)


def test_client_data_errors_name_the_client():
    with pytest.raises(UnalikeError, match="client 'west', train: found 2 inputs and 1 labels"):
        ClientData((np.zeros((2, 1)), np.zeros(1)), name="west")
    with pytest.raises(UnalikeError, match="client 'west', test: x holds 1 NaN"):
        ClientData(
            (np.zeros((1, 1)), np.zeros(1)), test=(np.array([[np.nan]]), np.zeros(1)), name="west"
        )
    with pytest.raises(UnalikeError, match=r"client 'west', train: .*expected \(x, y\)"):
        ClientData(None, name="west")
    with pytest.raises(
        UnalikeError, match="found a client with name=3, expected a text: write name='3'"
    ):
        ClientData((np.zeros((1, 1)), np.zeros(1)), name=3)


def test_population_with_label_outside_classes_raises():
    with pytest.raises(UnalikeError, match=r"client 'client-1', train: .*expected 0\.\.1"):
        Population.of([client([0]), client([2])], classes=["no", "yes"])


@pytest.mark.parametrize("task", ["binary", find_task("binary")])
def test_population_task_converts_labels(task):
    everyone = Population.of([client([0, 1])], task=task)
    assert (
        everyone.y.dtype == torch.bool
        and everyone.outputs is None
        and everyone.classes == ["False", "True"]
    )
    assert Population.of([client([0, 7])], task="regression").y.dtype == torch.float32
    with pytest.raises(UnalikeError, match="task binary cannot take"):
        Population.of([client([0, 2])], task=task)


def test_fingerprint_hashes_samples_owners_and_names():
    def made(*clients):
        return Population.of(list(clients)).fingerprint

    base = made(client([0, 1]), client([1]))
    assert base == made(client([0, 1]), client([1]))
    assert (
        len(
            {
                base,
                made(client([0, 1]), client([0])),
                made(client([1]), client([0, 1])),
                made(client([0, 1], "n"), client([1])),
            }
        )
        == 4
    )


def test_describe_of_regression_has_sizes_only():
    everyone = Population.of([client([0.5, 1.5]), client([2.5])])
    assert (
        everyone.describe().columns.tolist() == ["client", "n_train", "n_test"]
        and everyone.outputs is None
    )
    with pytest.raises(UnalikeError, match="regression"):
        everyone.label_counts()


def test_to_moves_samples_only():
    everyone = Population.of([client([0, 1])])
    assert (
        everyone.to("meta").x.device.type == "meta" and everyone.to("meta").train is everyone.train
    )


def test_population_with_inconsistent_fields_raises():
    everyone = Population.of([client([0, 1])])
    with pytest.raises(UnalikeError, match=r"indices lie in 5\.\.5"):
        Population(
            everyone.x,
            everyone.y,
            Ragged.of([[5]]),
            everyone.test,
            everyone.val,
            ["a"],
            ["0"],
            everyone.task,
        )
    with pytest.raises(UnalikeError, match="names: the length does not fit"):
        Population(
            everyone.x,
            everyone.y,
            everyone.train,
            everyone.test,
            everyone.val,
            ["a", "b"],
            ["0"],
            everyone.task,
        )


def test_ragged_rows_and_ranges_match_lists():
    rows = Ragged.of([[4, 2], [], [7]])
    assert [row.tolist() for row in rows] == [[4, 2], [], [7]] and rows[-1].tolist() == [7]
    assert rows.owners.tolist() == [0, 0, 2] and [r.tolist() for r in rows[1:]] == [[], [7]]
    assert [r.tolist() for r in Ragged.ranges(np.array([3, 0]), np.array([2, 1]))] == [[3, 4], [0]]
    assert [r.tolist() for r in Ragged.empty(2)] == [[], []]
    assert [r.tolist() for r in Ragged.zeros(np.array([2, 0, 1]))] == [[0, 0], [], [0]]
    with pytest.raises(IndexError):
        rows[3]
    with pytest.raises(UnalikeError, match="offsets"):
        Ragged(np.arange(3), np.array([0, 2]))


def test_numbered_names_index_parses_the_name():
    names = NumberedNames(10**9)
    assert (
        names[7] == "client-7"
        and names.index("client-999999999") == 999_999_999
        and "client-07" not in list(names[:10])
    )
    for wrong in ("client-1000000000", "client-07", "seven", None):
        with pytest.raises(ValueError):
            names.index(wrong)


def test_ragged_of_million_clients_stores_offsets_only():
    count = 10**6
    x, y = torch.zeros(8, 1), torch.zeros(8, dtype=torch.int64)
    tracemalloc.start()
    owners = Ragged.ranges(np.arange(count) % 8, np.ones(count, np.int64))
    none = Ragged.empty(count)
    everyone = Population(
        x, y, owners, none, none, NumberedNames(count), ["0"], find_task("classification")
    )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (
        held < 8 * 3 * count + 10**6
    )  # offsets and values of `owners`, offsets of `none`: eight bytes each
    assert (
        len(everyone) == count
        and everyone[-1].train[1].tolist() == [0]
        and everyone.index("client-999999") == count - 1
    )
