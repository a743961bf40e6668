"""Notes about samples that occur several times, with their numbers, and about windows that overlap."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.data.leaks import server_leak_notes
from unalike.data.ragged import Ragged

RNG = np.random.default_rng(0)


def rows(count, width=5):
    return RNG.normal(size=(count, width)).astype("float32")


def client(train, test=None):
    def labelled(x):
        return x, np.arange(len(x)) % 2

    return ua.ClientData(train=labelled(train), test=None if test is None else labelled(test))


def test_samples_that_differ_are_not_noted():
    population = ua.Population.of([client(rows(40), rows(10)) for _ in range(3)])
    assert population.leak_notes == ()
    assert server_leak_notes(population.x, population.train, torch.from_numpy(rows(20))) == []


@pytest.mark.parametrize("width", [2, 5, 300])
def test_test_samples_that_train_are_counted(width):
    north, south = rows(40, width), rows(40, width)
    people = [
        client(north, np.concatenate([south[:3], rows(7, width)])),
        client(south, rows(10, width)),
    ]
    [note] = ua.Population.of(people).leak_notes
    assert note.startswith(
        "3 of 20 of the clients' test samples (15%) have the same inputs as a training"
    )


def test_test_samples_of_the_server_that_train_are_counted():
    x = rows(40)
    server = (np.concatenate([x[:6], rows(6)]), np.arange(12) % 2)
    run = ua.run(
        "fedavg",
        [client(x), client(rows(40))],
        rounds=1,
        model="linear",
        protocol="server",
        test=server,
    )
    assert any(
        note.startswith("6 of 12 of the server's test samples (50%)") for note in run.warnings
    )


def test_rows_that_occur_five_times_and_at_several_clients_are_counted():
    x = np.repeat(rows(30), 5, axis=0)
    population = ua.partition((x, np.arange(150) % 2), "iid", clients=3, seed=0)
    tested, repeated = population.leak_notes
    assert tested.split(" (")[0].endswith(
        f"of {len(population.test.values)} of the clients' test samples"
    )
    assert " of 30 different training inputs occur several times (up to 5), " in repeated
    assert "at several clients" in repeated


def test_same_samples_at_two_clients_are_counted():
    x = rows(40)
    [note] = ua.Population.of([client(x[:25]), client(x[20:])]).leak_notes
    assert note.startswith(
        "5 of 40 different training inputs occur several times (up to 2), 5 of them at several"
    )


def test_images_and_tokens_that_train_and_test_are_counted():
    images = RNG.random((30, 1, 9, 9)).astype("float32")
    images[:, :, :2] = 0  # blank margins
    tokens = RNG.integers(0, 5000, (30, 12))
    for x in (images, tokens):
        [note] = ua.Population.of([client(x[:20], x[18:])]).leak_notes
        assert note.startswith("2 of 12 of the clients' test samples")


def test_copies_of_few_categories_say_nothing():
    x = RNG.integers(0, 2, (400, 3)).astype("float32")
    ages = np.stack([RNG.integers(20, 90, 400), RNG.integers(0, 2, 400)], 1).astype("float32")
    for values in (x, ages, ages[:, :1]):
        assert ua.Population.of([client(values[:300], values[300:])]).leak_notes == ()


def test_a_sample_that_a_partition_gives_to_two_clients_is_no_copy():
    population = ua.Population.of([client(rows(20)), client(rows(20))])
    both = Ragged.of([np.arange(30), np.arange(10, 40)])
    assert replace(population, train=both).leak_notes == ()


@pytest.mark.parametrize("move", [1, 3])
@pytest.mark.parametrize("shape", [(12,), (1, 12, 2)])
def test_overlapping_windows_divided_at_random_are_noted(move, shape):
    series = rows(600, int(np.prod(shape[2:])))
    starts = range(0, 500, move)
    x = np.stack([series[start : start + 12] for start in starts]).reshape(len(starts), *shape)
    order = RNG.permutation(len(x))
    [note] = ua.Population.of([client(x[order[:100]], x[order[100:160]])]).leak_notes
    assert f"moved by {move} or more places, as windows" in note and "let later windows" in note
    later = client(x[:80], x[80 + 12 // move :])
    assert ua.Population.of([later]).leak_notes == ()


def test_tables_of_categories_are_no_windows():
    choices = np.eye(4, dtype="float32")[RNG.integers(0, 4, (300, 6))].reshape(300, 24)
    amounts = np.concatenate([rows(300), choices], 1)
    for x in (choices, amounts):
        assert ua.Population.of([client(x[:200], x[200:])]).leak_notes == ()


def test_copies_are_looked_for_once_in_the_clients_of_a_seed(monkeypatch):
    looked_at = []

    def noted(x, train, test):
        looked_at.append(train)
        return []

    monkeypatch.setattr("unalike.data.population.leak_notes", noted)
    data = (rows(40), np.arange(40) % 2)
    ua.compare(["fedavg", "fedprox"], 2, data=data, seeds=2, model="linear", rounds=1)
    assert len(looked_at) == 2
