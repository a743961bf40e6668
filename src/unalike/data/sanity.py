"""Checks of the samples: warnings where nothing can be learned from them, and the score of a constant prediction."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.core.inputs import Inputs, take_rows
from unalike.core.nests import tensors_of
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.data.value_sets import in_two_ways, side_by_side

FEW_TEST_SAMPLES = 10
"""With fewer test samples of either of two classes, a client's score says little."""
MANY_CLIENTS = 100_000
"""With more clients, counts of each one's classes would take too much memory."""
MAX_NAMES = 3
"""Most clients and classes that a sentence names."""


def warnings_of(population: Population) -> list[str]:
    """Sentences about samples from which nothing can be learned, or by which nothing can be told."""
    train = _labels(population, population.train)
    test = _labels(population, population.test)
    if not population.is_here or not len(train):
        return []
    classes = population.classes
    warnings: list[str] = []

    # One label for all: the sentence about the test samples would say nothing new beside that about the training samples.
    if _is_constant(train):
        why = "there is nothing to learn, and a good score shows nothing"
        warnings.append(f"every training sample {_of_label(train[0], classes)}: {why}")
    elif len(test) and _is_constant(test):
        why = "a constant prediction is perfect; test other samples, too"
        warnings.append(f"every test sample {_of_label(test[0], classes)}: {why}")

    # A table's labels were doubted where it was read.
    if population.encoding is None:
        doubt = population.task.label_doubt(train)
        warnings += [doubt] if doubt else []

    # Classes that are tested without being trained, and labels that seem to count from 1.
    if classes:
        unseen = sorted(set(test.unique().tolist()) - set(train.unique().tolist()))
        if unseen:
            names = listed([classes[int(c)] for c in unseen])
            plural = "es" if len(unseen) > 1 else ""
            warnings.append(
                f"no client trains on the class{plural} {names}, of which there are test samples"
            )
        if classes[0] == "0" and train.min() > 0 and not (test == 0).any():
            warnings.append(
                "no sample is of the class 0, which has an output of the model: labels count from "
                "0, write y - 1"
            )

    # Nearly all data differs within its first samples, so that the others need not be compared.
    rows = torch.tensor(population.train.values, device=population.y.device)
    x = population.x
    if len(rows) > 1 and _are_constant(x, rows[:100]) and _are_constant(x, rows):
        warnings.append(
            "all training samples have the same inputs: nothing in them tells one label from "
            "another"
        )
    return warnings + _of_clients(population)


def _of_label(label: Tensor, classes: list[str] | None) -> str:
    """A label in words, as the end of a sentence about samples that all have it."""
    if classes:
        return f"is of the class {classes[int(label)]!r}"
    numbers = ", ".join(f"{value:g}" for value in label.flatten().tolist())
    return f"has the target {numbers}"


def _of_clients(population: Population) -> list[str]:
    """Sentences about clients that cannot learn, or cannot be scored."""
    warnings = []
    is_noted = population.plan is not None and bool(population.plan.notes)
    if len(population.empty) and not is_noted:
        names = _named(population, population.sizes == 0)
        warnings.append(f"without training samples, and in no round: {names}")
    classes = population.classes
    if classes is None or len(classes) < 2 or len(population) > MANY_CLIENTS:
        return warnings

    # Clients with one class in training and test: any model of such a client is perfect if it always predicts it.
    train = population.label_counts()
    test = population.test_counts()
    warnings += _of_two_codings(population, (train > 0) | (test > 0))
    has_tests = test.sum(1) > 0
    trains_one_class = (train > 0).sum(1) == 1
    has_untrained_tests = ((test > 0) & (train == 0)).any(1)
    has_one_class = trains_one_class & has_tests & ~has_untrained_tests
    if 2 * has_one_class.sum() >= has_tests.sum() > 0:
        warnings.append(
            f"{has_one_class.sum()} of {len(population)} clients train and are tested "
            "on one class each: a personal model is perfect there if it always "
            "predicts that class, so that personal scores say little"
        )

    # Of two classes both have to be tested, for scores that compare positives with negatives.
    tests_one_class = (test > 0).sum(1) == 1
    if len(classes) == 2 and tests_one_class.any() and not has_one_class.all():
        names = _named(population, tests_one_class)
        warnings.append(
            f"test samples of one class, where areas under curves are undefined: {names}"
        )
    return warnings


def _of_two_codings(population: Population, has: np.ndarray) -> list[str]:
    """A sentence where owners with two classes each may have one pair in two writings; `has` [K, C], whether a client has a class.

    A scheme that gives out classes makes such clients on purpose, and knows no names of owners.
    """
    classes = population.classes or []
    has_owners = population.plan is None or population.plan.named is not None
    if not has_owners or not 2 < len(classes) <= 4 or has.sum(1).max() > 2:
        return []
    pairs = {}
    for k in np.flatnonzero(has.sum(1) == 2):
        pairs[population.names[int(k)]] = [classes[c] for c in np.flatnonzero(has[k])]
    reason = in_two_ways(pairs, whole=True)
    if not reason:
        return []
    return [
        f"the classes of the clients may be one pair that is written in several ways: {side_by_side(pairs)} ({reason}); "
        "if they are, write them alike, since they are learned and scored as different ones"
    ]


def constant_prediction(population: Population, test: Tensor | None = None) -> str:
    """A sentence with the score of a constant prediction on the labels `test`, and with the positives of the clients.

    `test` are by default those of the clients' test samples. Empty where the samples are elsewhere.
    """
    train = _labels(population, population.train)
    y = _labels(population, population.test) if test is None else test
    if not population.is_here or not len(train) or not len(y):
        return ""
    score = population.task.constant_prediction(train, y, population.classes)
    text = f"for comparison: {score}" if score else ""
    classes = population.classes
    positives = population.positives
    if test is not None or len(population) > MANY_CLIENTS:
        return text
    if classes is None or positives is None:
        return text

    # Of two classes: how many test samples of the second the clients have, since few say little.
    has_tests = population.test.sizes > 0
    smallest, largest = positives[has_tests].min(), positives[has_tests].max()
    span = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
    few = (positives < FEW_TEST_SAMPLES) & has_tests
    names = ""
    if few.any():
        names = f", fewer than {FEW_TEST_SAMPLES} in {_named(population, few)}"
    return f"{text}; test samples of a client that are {classes[1]!r}: {span}{names}"


def _labels(population: Population, rows: Ragged) -> Tensor:
    """The labels of these samples; numbers of samples that are read-only are copied."""
    return population.y[torch.tensor(rows.values)]


def _named(population: Population, mask: np.ndarray) -> str:
    """The names of the clients of a mask [K]."""
    return listed([population.names[int(k)] for k in np.flatnonzero(mask)])


def listed(names: Sequence[str]) -> str:
    """The first names, and how many there are besides."""
    rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + rest


def _are_constant(x: Inputs, rows: Tensor) -> bool:
    """Whether these samples are all the same."""
    return all(_is_constant(values) for values in tensors_of(take_rows(x, rows)))


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())
