"""Tasks by name and by labels, and a task of a user's own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.tasks.classification import Classification
from unalike.core.tasks.registry import find_task, names_of_tasks_with, registry, task, task_for
from unalike.core.tasks.task import (
    CLASS_LOGITS,
    CLASSES,
    NUMBERS,
    SEPARATE_LOSSES,
    TWO_CLASSES,
    Task,
)


@pytest.fixture
def arrivals():
    """A task of a program: whole numbers with the Poisson loss."""
    assert "arrivals" not in registry  # it also reads our own tasks

    @task
    class Arrivals(Task):
        """Poisson loss; the output is the logarithm of the expected number."""

        name = "arrivals"
        label_type = torch.float32
        labels_in_words = "whole numbers of 0 or more"
        traits = frozenset({NUMBERS})
        metrics = ("loss", "mae", "median_absolute_error")

        def label_fault(self, y, classes):
            return "arrivals are 0 or more" if (y < 0).any() else ""

        def losses(self, logits, y):
            return F.poisson_nll_loss(logits.reshape(y.shape), y, reduction="none")

        def predict(self, logits):
            return logits.reshape(len(logits)).exp()

    yield Arrivals()
    del registry._builders["arrivals"]


def clients_with_arrivals(task_name):
    rng = np.random.default_rng(0)
    clients = []
    for rows in (30, 41, 52):
        x = rng.normal(size=(rows, 4)).astype("float32")
        y = rng.poisson(np.exp(x[:, 0] / 2))
        clients.append(ua.ClientData(train=(x[:-10], y[:-10]), test=(x[-10:], y[-10:])))
    return ua.Population.of(clients, task=task_name)


@pytest.mark.parametrize(
    "labels, name",
    [
        (torch.tensor([0, 2]), "classification"),
        (torch.tensor([0, 2], dtype=torch.uint8), "classification"),
        (torch.tensor([True, False]), "binary"),
        (torch.tensor([0.5, 2.0]), "regression"),
        (torch.tensor([[0.5], [2.0]]), "amounts"),
        (torch.tensor([[0.5, 2.0], [2.0, 1.0]]), "amounts"),
        (torch.tensor([[True, True], [False, False]]), "multilabel"),
    ],
)
def test_task_for_labels_goes_by_their_type(labels, name):
    assert task_for(labels) == find_task(name)


def test_labels_that_no_task_takes_raise(monkeypatch):
    monkeypatch.setattr(Classification, "takes", lambda self, y: False)
    with pytest.raises(UnalikeError, match=r"no task takes labels of torch\.int64"):
        task_for(torch.tensor([0, 1]))


def test_unknown_task_names_those_that_are_known():
    with pytest.raises(
        UnalikeError, match=r"unknown task 'ranking'.*known: amounts, binary, classif"
    ):
        find_task("ranking")


def test_traits_say_which_tasks_something_is_defined_for():
    assert names_of_tasks_with("") == [*registry]
    assert names_of_tasks_with(CLASSES) == ["classification", "binary"]
    assert names_of_tasks_with(CLASS_LOGITS) == ["classification"]
    assert names_of_tasks_with(NUMBERS) == ["regression"]
    assert "survival" not in names_of_tasks_with(SEPARATE_LOSSES)
    two = find_task("classification").of(["no", "yes"])
    assert two.offers(TWO_CLASSES) and not find_task("classification").offers(TWO_CLASSES)


def test_task_without_its_declarations_raises():
    class Unfinished(Task):
        name = "unfinished"

    with pytest.raises(UnalikeError, match="Unfinished does not declare label_type, labels_in_w"):
        task(Unfinished)
    assert "unfinished" not in registry


def test_own_task_trains_alike_in_loop_and_batched(arrivals):
    population = clients_with_arrivals("arrivals")
    assert population.task == arrivals and population.y.dtype == torch.float32
    work = ua.Work(batch_size=8, lr=0.02)
    runs = []
    for executor in ("loop", "batched"):
        runs.append(
            ua.run(
                "fedprox(mu=0.01)",
                population,
                model="linear",
                rounds=3,
                work=work,
                executor=executor,
            )
        )
    loop, batched = runs
    for name, value in loop.params.items():
        torch.testing.assert_close(batched.params[name], value)
    losses = loop.history.rounds["loss"]
    assert losses.iloc[-1] < losses.iloc[0]
    assert {"mae", "median_absolute_error"} <= set(loop.history.rounds)
    assert loop.config["data"]["task"] == "arrivals"


def test_own_task_refuses_what_is_not_defined_for_it(arrivals):
    population = clients_with_arrivals("arrivals")
    options = {"model": "linear", "rounds": 1}
    with pytest.raises(
        UnalikeError, match="'rmse' is not defined for arrivals; expected one of mae"
    ):
        ua.run("fedavg", population, metric="rmse", **options)
    with pytest.raises(UnalikeError, match="found a task of arrivals; expected classification or"):
        ua.run("fedavg", population, work=ua.Work(loss="focal"), **options)
    with pytest.raises(UnalikeError, match=r"taught_head needs classes .*found a task of arrivals"):
        ua.run("fedavg + taught_head", population, **options)
    negative = ua.ClientData(train=(np.zeros((2, 3)), np.array([1, -1])))
    with pytest.raises(UnalikeError, match="train: arrivals are 0 or more"):
        ua.Population.of([negative], task="arrivals")
