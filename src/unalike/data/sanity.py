"""Checks of the samples: warnings where nothing can be learned from them, and the score of a constant prediction."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.data.population import Population
from unalike.data.ragged import Ragged

FEW = 10
"""With fewer test samples of either of two classes, a client's score says little."""
MANY = 100_000
"""With more clients, counts of each one's classes would take too much memory."""
NAMED = 3
"""Most clients and classes that a sentence names."""


def warnings_of(population: Population) -> list[str]:
    """Sentences about samples from which nothing can be learned, or by which nothing can be told."""
    train, test = _labels(population, population.train), _labels(population, population.test)
    if not population.is_here or not len(train):
        return []
    classes = population.classes
    found: list[str] = []
    for name, y, why in (
        ("training", train, "there is nothing to learn, and a good score shows nothing"),
        ("test", test, "a constant prediction is perfect; test other samples, too"),
    ):
        if not found and len(y) and _is_constant(y):
            what = (
                f"is of the class {classes[int(y[0])]!r}"
                if classes
                else f"has the target {y[0].item():g}"
            )
            found.append(f"every {name} sample {what}: {why}")
    if classes and (unseen := sorted({*test.unique().tolist()} - {*train.unique().tolist()})):
        names = listed([classes[int(c)] for c in unseen])
        found.append(
            f"no client trains on the class{'es' * (len(unseen) > 1)} {names}, of which there are test samples"
        )
    if classes and classes[0] == "0" and train.min() > 0 and not (test == 0).any():
        found.append(
            "no sample is of the class 0, which has an output of the model: labels count from 0, write y - 1"
        )
    rows = torch.tensor(population.train.values)
    if (
        len(rows) > 1
        and _is_constant(population.x[rows[:100]])
        and _is_constant(population.x[rows])
    ):
        found.append(
            "all training samples have the same inputs: nothing in them tells one label from another"
        )
    return found + _of_clients(population)


def _of_clients(population: Population) -> list[str]:
    """Sentences about clients that cannot learn, or cannot be scored."""
    found = []
    if len(population.empty) and not (population.plan and population.plan.notes):
        found.append(
            f"without training samples, and in no round: {_named(population, population.sizes == 0)}"
        )
    if population.classes is None or len(population.classes) < 2 or len(population) > MANY:
        return found
    train, test = population.label_counts(), population.test_counts()
    single = ((train > 0).sum(1) == 1) & (test.sum(1) > 0) & ~((test > 0) & (train == 0)).any(1)
    if 2 * single.sum() >= (test.sum(1) > 0).sum() > 0:
        found.append(
            f"{single.sum()} of {len(population)} clients train and are tested on one class each: a personal model is perfect "
            "there if it always predicts that class, so that personal scores say little"
        )
    if len(population.classes) == 2 and ((test > 0).sum(1) == 1).any() and not single.all():
        found.append(
            f"test samples of one class, where areas under curves are undefined: {_named(population, (test > 0).sum(1) == 1)}"
        )
    return found


def constant_prediction(population: Population, test: Tensor | None = None) -> str:
    """A sentence with the score of a constant prediction on the labels `test`, by default those of the clients' test samples, and
    with the positives of the clients; empty where the samples are elsewhere."""
    train = _labels(population, population.train)
    y = _labels(population, population.test) if test is None else test
    if not population.is_here or not len(train) or not len(y):
        return ""
    if population.classes is None:
        error = (y - train.mean()).square().mean().sqrt().item()
        return f"for comparison: always predicting the mean has an RMSE of {error:.4g}"
    most = int(torch.bincount(train.long()).argmax())
    share = (y == most).float().mean().item()
    text = f"for comparison: always predicting {population.classes[most]!r} has an accuracy of {share:.4f}"
    if test is not None or len(population) > MANY or (positives := population.positives) is None:
        return text
    counts = positives[population.test.sizes > 0]
    few = (positives < FEW) & (population.test.sizes > 0)
    fewer = f", fewer than {FEW} in {_named(population, few)}" if few.any() else ""
    span = " to ".join(dict.fromkeys((str(counts.min()), str(counts.max()))))
    return f"{text}; test samples of a client that are {population.classes[1]!r}: {span}{fewer}"


def _labels(population: Population, rows: Ragged) -> Tensor:
    """The labels of these samples; numbers of samples that are read-only are copied."""
    return population.y[torch.tensor(rows.values)]


def _named(population: Population, chosen: np.ndarray) -> str:
    return listed([population.names[int(k)] for k in np.flatnonzero(chosen)])


def listed(names: Sequence[str]) -> str:
    """The first names, and how many there are besides."""
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())
