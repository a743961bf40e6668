"""FLamby's heart benchmark: its rows, and its published numbers from a plain loop of PyTorch under its seed."""

import copy
from itertools import chain, repeat

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from unalike.data.sources.load import load
from unalike_studies.catalogue import study
from unalike_studies.layouts.tables import ClientTable
from unalike_studies.papers.flamby_heart import HOSPITALS, TEST_ROWS
from unalike_studies.results import CellResult, Results

SEED, BATCH, UPDATES, ROUNDS = 42, 4, 100, 15


@pytest.fixture(scope="module")
def hospitals():
    """The training and the test rows of each hospital."""
    data = load("flamby_heart")
    x, y = data.merged()
    tested = np.arange(len(y)) >= len(data.train[1])
    rows = [torch.from_numpy(data.groups["hospital"] == name) for name in HOSPITALS]
    test = torch.from_numpy(tested)
    return [tuple((x[mine & part], y[mine & part]) for part in (~test, test)) for mine in rows]


def batches(train):
    """The batches of epoch after epoch; the first order of the rows is drawn when the first batch is."""
    loader = DataLoader(TensorDataset(*train), batch_size=BATCH, shuffle=True)
    return chain.from_iterable(repeat(loader))


def train(model, stream, rate):
    solver = torch.optim.SGD(model.parameters(), rate)
    for _ in range(UPDATES):
        x, y = next(stream)
        solver.zero_grad()
        F.binary_cross_entropy_with_logits(model(x).flatten(), y.float()).backward()
        solver.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def accuracy(model, test):
    x, y = test
    with torch.no_grad():
        return float(((model(x).flatten() > 0) == y).float().mean())


def test_rows_and_split_are_the_benchmarks(hospitals):
    assert [len(test[1]) for _, test in hospitals] == list(TEST_ROWS)
    assert [len(train[1]) + len(test[1]) for train, test in hospitals] == [303, 261, 46, 130]
    for (x, _), _ in hospitals:
        assert x.shape[1] == 13 and torch.allclose(x.mean(0), torch.zeros(13), atol=1e-5)


def test_rows_of_all_hospitals_are_standardized_together():
    x, _ = load("flamby_heart(pooled=True)").train
    assert torch.allclose(x.mean(0), torch.zeros(13), atol=1e-5) and torch.allclose(
        x.std(0), torch.ones(13), atol=1e-5
    )


def test_rows_of_one_hospital_do_not_depend_on_the_others(hospitals):
    alone = load("flamby_heart(hospital='Hungary')")
    assert torch.equal(alone.train[0], hospitals[1][0][0]) and torch.equal(
        alone.test[1], hospitals[1][1][1]
    )


def test_another_split_has_other_test_rows_and_as_many():
    first, second = load("flamby_heart"), load("flamby_heart(split=1)")
    assert len(first.test[1]) == len(second.test[1]) == sum(TEST_ROWS)
    assert not torch.equal(first.test[0], second.test[0])


def test_plain_fedavg_gives_the_published_accuracies_of_the_first_seed(hospitals):
    torch.manual_seed(SEED)
    model = torch.nn.Linear(13, 1)
    torch.manual_seed(SEED)
    streams = [batches(train_rows) for train_rows, _ in hospitals]
    sizes = torch.tensor([float(len(train_rows[1])) for train_rows, _ in hospitals])
    for _ in range(ROUNDS):
        models = torch.stack([train(copy.deepcopy(model), stream, 0.001) for stream in streams])
        torch.nn.utils.vector_to_parameters(sizes / sizes.sum() @ models, model.parameters())
    pooled = load("flamby_heart(pooled=True)").test
    assert accuracy(model, pooled) == pytest.approx(0.751969, abs=1e-6)
    by_hospital = [accuracy(model, test) for _, test in hospitals]
    assert by_hospital == pytest.approx([0.759615, 0.696629, 0.6875, 0.622222], abs=1e-6)


def test_server_tests_on_the_rows_of_its_own_data_set():
    of_server = next(iter(study("flamby-heart-splits").scale("small").cells))
    assert (
        of_server.seed == 0
        and of_server.options["server_data"] == "flamby_heart(split={seed}, pooled=True)"
    )
    expected = load("flamby_heart(split=0, pooled=True)").test[0]
    assert torch.equal(of_server.prepare().test[0], expected)
    assert of_server.prepare().population.names == list(HOSPITALS)


def test_table_of_clients_has_a_column_for_each_and_published_rows():
    def cell(method, seed, **scores):
        clients = {"client": list(scores), "accuracy": list(scores.values())}
        return CellResult(method, "s", seed, "", "", {}, 1.0, "", {}, {}, clients=clients)

    results = Results(
        (
            cell("a", 0, north=0.5, south=0.7),
            cell("a", 1, north=0.7, south=0.7),
            cell("b", 0, south=0.25),
        )
    )
    table = ClientTable("Accuracy", ("north", "south"), published={"b": (40, 20)}).table(results)
    assert table == [
        ["method", "north", "south"],
        ["a", "60.00 ± 14.14 (2)", "70.00 ± 0.00 (2)"],
        ["b", "-", "25.00"],
        ["b, published", "40.00", "20.00"],
    ]
