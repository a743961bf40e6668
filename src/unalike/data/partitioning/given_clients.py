"""The clients of a run or a comparison, from what its caller gave: clients, or a data set and a partition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.array_checks import Pair
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.heterogeneity import label_counts
from unalike.data.partitioning.apply_plan import apply_plan
from unalike.data.partitioning.hold_out import draw_tests, later_tests, take_test_set
from unalike.data.partitioning.partition import (
    check_scheme,
    draw_validation,
    partition,
    refuse_new_partition,
    requested_share,
    usual_partition,
)
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.data.sources.load import load
from unalike.data.time_order import LATER

Clients = Population | Sequence[ClientData] | Mapping[str, Any]


@dataclass(frozen=True)
class GivenClients:
    """Clients for any seed, and the server's test samples.

    `of`: seed -> the clients, a partition of the data for each seed or always the same ones. `test` is None if the server has
    none, `scheme` (the partition) for clients that were given.
    """

    of: Callable[[int], Population]
    test: Pair | None
    scheme: str | None = None

    def title(self, population: Population) -> str:
        """The data and its partition, such as `digits, dirichlet(alpha=0.1)`; `your clients` for clients from a program."""
        plan = population.plan
        return "your clients" if plan is None else f"{plan.data}, {self.scheme or plan.spec}"


@dataclass(frozen=True)
class ClientsRequest:
    """The arguments of `ua.run` and `ua.compare` that name the clients; nothing is read before `read`.

    `tests_of` is a seed whose division says which samples of `data` test, under whatever seed they are divided; None: each
    division draws its own.
    """

    clients: Clients | int | None = None
    data: Any = None
    data_dir: str | Path | None = None
    partition: str | None = None
    split: float | str | None = None
    val: float = 0.0
    test: Pair | None = None
    tests_of: int | None = None
    folds: int | None = None

    @property
    def has_test(self) -> bool:
        """Whether the server has test samples, or data whose published test set it can take."""
        return self.test is not None or self.data is not None

    @property
    def flags(self) -> dict[str, Any]:
        """The command-line flags that name the same data; empty unless the data has a name."""
        if not isinstance(self.data, str):
            return {}
        flags = {
            "data": self.data,
            "data_dir": self.data_dir and str(self.data_dir),
            "split": self.split,
            "val": self.val or None,
        }
        if self.folds is not None:
            flags["folds"] = self.folds
        return flags

    def read(self, needs_test: bool, compared: bool = False) -> GivenClients:
        """Read the data, if it is to be read.

        `needs_test`: the server evaluates, on the published test set of `data` unless `test` is given. `compared`: methods are
        to be compared, so clients that are given without test samples draw theirs under each seed. Raises `UnalikeError` if
        there are neither clients nor data, or both, and for data that cannot be read.
        """
        if self.data is None:
            return self._given(compared and not needs_test)
        number = self.clients
        if not (number is None or isinstance(number, int)):
            raise UnalikeError(
                "found both data= and clients; give the number of clients with data=, or the "
                "clients without it"
            )
        if self.partition is not None:
            check_scheme(self.partition)  # before data is read
        dataset = load(self.data, self.data_dir)
        if self.split == LATER:
            dataset = dataset.in_order()
        test = self.test
        if needs_test and test is None:
            dataset, test = take_test_set(dataset)
        scheme = self.partition or usual_partition(dataset)

        # Methods are compared under the same seeds, so that each division is made once and kept.
        @cache
        def divided(seed: int) -> Population:
            return partition(
                dataset,
                self.partition,
                clients=number,
                seed=seed,
                split=self.split,
                val=self.val,
                folds=self.folds,
            )

        if self.tests_of is None:
            return GivenClients(divided, test, scheme)
        seed_of_tests = self.tests_of

        @cache
        def divided_with_same_tests(seed: int) -> Population:
            return with_tests_of(divided(seed), divided(seed_of_tests), dataset)

        return GivenClients(divided_with_same_tests, test, scheme)

    def _given(self, needs_tests: bool) -> GivenClients:
        """The clients that were given, with test samples of each seed if that was asked for or `needs_tests` and there are none."""
        if self.clients is None or isinstance(self.clients, int):
            raise UnalikeError(
                "found no data; give clients (from ua.partition, or a list of ua.ClientData) or "
                "data='digits'"
            )
        remedy = "make them with it: ua.partition(..., val=0.1)"
        refuse_new_partition("clients", remedy, self.partition, self.val)
        clients = self.clients
        if not isinstance(clients, Population):
            clients = Population.of(clients)
        option, split = requested_share(self.split, self.folds)
        lacks_tests = needs_tests and not len(clients.test.values)
        if not option and not lacks_tests:
            return GivenClients(lambda seed: clients, self.test)

        if self.split == LATER and clients.plan is not None:
            raise UnalikeError(
                "found split='later' beside clients of a partition, which may have shuffled their samples; divide the data so: "
                "ua.partition(data, ..., split='later')"
            )

        @cache
        def with_tests(seed: int) -> Population:
            if self.split == LATER:
                return with_later_tests(clients, split)
            return with_new_tests(clients, seed, split, self.folds)

        if self.tests_of is None:
            return GivenClients(with_tests, self.test)
        seed_of_tests = self.tests_of
        return GivenClients(lambda seed: with_tests(seed_of_tests), self.test)


def with_new_tests(
    clients: Population, seed: int, split: float, folds: int | None = None
) -> Population:
    """The clients with test samples drawn anew from their training and test samples, as `draw_tests` does; validation stays."""
    labels = clients.task.outcome(clients.y).cpu().numpy()
    draw = partial(draw_tests, labels=labels, seed=seed, split=split, folds=folds)
    return _with_tests(clients, draw)


def with_later_tests(clients: Population, split: float) -> Population:
    """The clients of whose training and test samples, in the order that they were given in, the last ones test.

    Validation samples stay.
    """
    order = np.arange(len(clients.y))
    return _with_tests(clients, partial(later_tests, moments=order, split=split))


def _with_tests(clients: Population, choose: Callable[..., list[np.ndarray]]) -> Population:
    """The clients with the test samples that `choose` takes from their training and test samples."""
    rows_of_clients = [
        np.concatenate(parts) for parts in zip(clients.train, clients.test, strict=True)
    ]
    is_test = choose(rows_of_clients, units=np.arange(len(clients.y)))
    pairs = list(zip(rows_of_clients, is_test))
    train = Ragged.of(rows[~tests] for rows, tests in pairs)
    test = Ragged.of(rows[tests] for rows, tests in pairs)
    return replace(clients, train=train, test=test, plan=None)


def with_tests_of(clients: Population, other: Population, dataset: Dataset) -> Population:
    """The clients of one division, tested on samples that test in another division of the same data set.

    Each client tests on those of its samples that are test samples there, and trains on its other samples. So no sample that
    `other` trains or validates on is tested on. A client may be left without test samples.
    """
    if clients is other or clients.plan is None or other.plan is None:
        return clients
    plan = clients.plan
    tested_there = other.plan.test.values
    units = None if dataset.unit is None else dataset.units
    training, validating, testing = [], [], []
    for k, parts in enumerate(zip(plan.train, plan.val, plan.test, strict=True)):
        samples = np.concatenate(parts)
        is_test = np.isin(samples, tested_there)
        validation, train = draw_validation(
            samples[~is_test], plan.val_share, plan.seed, k, units, dataset.time
        )
        training.append(train)
        validating.append(validation)
        # In one order, so that seeds can resample them alike.
        testing.append(np.sort(samples[is_test]))
    rows = Ragged.of(training)
    labels = (dataset.merged() if plan.merge else dataset.train)[1]
    new_plan = replace(
        plan,
        train=rows,
        val=Ragged.of(validating),
        test=Ragged.of(testing),
        counts=label_counts(labels, dataset.classes, rows),
    )
    return apply_plan(new_plan, dataset)
