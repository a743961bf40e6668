"""The clients of a run or a comparison, from what its caller gave: clients, or a data set and a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike.data.array_checks import Pair
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.partitioning.hold_out import test_apart
from unalike.data.partitioning.partition import SPLIT, check_scheme, divided_already, partition, usual_partition
from unalike.data.population import Population
from unalike.data.sources.load import load

Clients = Population | Sequence[ClientData]


@dataclass(frozen=True)
class GivenClients:
    """Clients for any seed, and the server's test samples.

    Args:
        of: seed -> the clients: a partition of the data for each seed, or always the same clients.
        test: (x, y); None if the server has none.
        scheme: the partition; None for clients that were given.
    """

    of: Callable[[int], Population]
    test: Pair | None
    scheme: str | None = None


def given_clients(
    clients: Clients | int | None,
    data: Dataset | str | None,
    data_dir: str | Path | None,
    scheme: str | None,
    val: float,
    test: Pair | None,
    *,
    split: float | None = None,
    needs_test: bool,
) -> GivenClients:
    """Read the arguments of `ua.run` and `ua.compare` that name the clients.

    Args:
        clients: The clients, or with `data` their number.
        data: A data set or its name.
        data_dir: The folder of data files.
        scheme: The partition of `data`; None: by its groups, or the usual one.
        val: The share of each client's training samples for validation.
        test: The server's test samples.
        split: The training share of each client's samples; None: the usual one.
        needs_test: Whether the server evaluates: without `test` it then gets the published test set of `data`.

    Returns:
        The clients and the server's test samples.

    Raises:
        UnalikeError: There are neither clients nor data, or both, or the data cannot be read.
    """
    if data is None:
        if clients is None or isinstance(clients, int):
            raise UnalikeError(
                "found no data; give clients (from ua.partition, or a list of ua.ClientData) or data='digits'"
            )
        divided_already("clients", "make them with it: ua.partition(..., val=0.1)", scheme, val, split=split)
        fixed = clients if isinstance(clients, Population) else Population.of(clients)
        return GivenClients(lambda seed: fixed, test)
    if not (clients is None or isinstance(clients, int)):
        raise UnalikeError(
            "found both data= and clients; give the number of clients with data=, or the clients without it"
        )
    if scheme is not None:
        check_scheme(scheme)  # before data is read
    dataset = load(data, data_dir) if isinstance(data, str) else data
    if needs_test and test is None:
        dataset, test = test_apart(dataset)
    named, share = scheme or usual_partition(dataset), SPLIT if split is None else split
    of = cache(lambda seed: partition(dataset, named, clients, seed=seed, split=share, val=val))
    return GivenClients(of, test, named)
