"""The clients of a run or a comparison, from what its caller gave: clients, or a data set and a partition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.array_checks import Pair
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.heterogeneity import label_counts
from unalike.data.partitioning.apply_plan import apply_plan
from unalike.data.partitioning.hold_out import draw_tests, test_apart
from unalike.data.partitioning.partition import (
    check_scheme,
    divided_already,
    partition,
    share_apart,
    share_asked,
    usual_partition,
)
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.data.sources.load import load

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
    split: float | None = None
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
        folder = self.data_dir and str(self.data_dir)
        return {
            "data": self.data,
            "data_dir": folder,
            "split": self.split,
            "val": self.val or None,
        } | ({} if self.folds is None else {"folds": self.folds})

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
                "found both data= and clients; give the number of clients with data=, or the clients without it"
            )
        if self.partition is not None:
            check_scheme(self.partition)  # before data is read
        dataset, test = load(self.data, self.data_dir), self.test
        if needs_test and test is None:
            dataset, test = test_apart(dataset)
        scheme, shares = (
            self.partition or usual_partition(dataset),
            (self.split, 0, True, self.val, self.folds),
        )
        of = cache(lambda seed: partition(dataset, self.partition, number, seed, *shares))
        if self.tests_of is not None:
            return GivenClients(
                cache(lambda seed: tested_as(of(seed), of(self.tests_of), dataset)), test, scheme
            )
        return GivenClients(of, test, scheme)

    def _given(self, needs_tests: bool) -> GivenClients:
        if self.clients is None or isinstance(self.clients, int):
            raise UnalikeError(
                "found no data; give clients (from ua.partition, or a list of ua.ClientData) or data='digits'"
            )
        divide = "make them with it: ua.partition(..., val=0.1)"
        divided_already("clients", divide, self.partition, self.val)
        fixed = (
            self.clients if isinstance(self.clients, Population) else Population.of(self.clients)
        )
        asked, split = share_asked(self.split, self.folds)
        if not (asked or (needs_tests and not len(fixed.test.values))):
            return GivenClients(lambda seed: fixed, self.test)
        draw = cache(lambda seed: redrawn(fixed, seed, split, self.folds))
        return GivenClients(
            draw if self.tests_of is None else lambda seed: draw(self.tests_of), self.test
        )


def redrawn(clients: Population, seed: int, split: float, folds: int | None = None) -> Population:
    """The clients with test samples drawn anew from their training and test samples, as `draw_tests` does; validation stays."""
    owned = [np.concatenate(parts) for parts in zip(clients.train, clients.test, strict=True)]
    tests = draw_tests(
        owned, clients.y.cpu().numpy(), np.arange(len(clients.y)), seed, split, folds
    )
    train, test = (
        Ragged.of(rows[t == one] for rows, t in zip(owned, tests)) for one in (False, True)
    )
    return replace(clients, train=train, test=test, plan=None)


def tested_as(drawn: Population, other: Population, dataset: Dataset) -> Population:
    """The clients of one division, tested on samples that test in another division of the same data set.

    Each client tests on those of its samples that are test samples there, and trains on its other samples. So no sample that
    `other` trains or validates on is tested on. A client may be left without test samples.
    """
    plan, tests = drawn.plan, other.plan
    if drawn is other or plan is None or tests is None:
        return drawn
    roles: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for k, parts in enumerate(zip(plan.train, plan.val, plan.test, strict=True)):
        samples = np.concatenate(parts)
        tested = np.isin(samples, tests.test.values)
        units = None if dataset.unit is None else dataset.units
        validated, trained = share_apart(samples[~tested], plan.val_share, plan.seed, k, units)
        roles.append(
            (trained, validated, np.sort(samples[tested]))
        )  # in one order, so that seeds can resample them alike
    train, val, test = (Ragged.of(rows) for rows in zip(*roles, strict=True))
    labels = (dataset.merged() if plan.merge else dataset.train)[1]
    counts = label_counts(labels, dataset.classes, train)
    return apply_plan(replace(plan, train=train, val=val, test=test, counts=counts), dataset)
