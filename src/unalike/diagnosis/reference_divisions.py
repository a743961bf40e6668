"""Reference divisions: the same samples divided in known ways among as many clients. They are the scale of every measure."""

from collections.abc import Callable, Iterator

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import generator
from unalike.data.partitioning.partition import partition_labels
from unalike.diagnosis.samples import ClientCounts, counts_of

DRAWN_DIVISIONS = 10
"""Number of drawn divisions that a value of the scale is the mean of."""


def reference_specs(samples: ClientCounts) -> dict[str, str]:
    """Name -> the partition that divides by labels, from weak to strong."""
    # The smallest client that Dirichlet partitions usually guarantee; with little data or many clients few draws reach it.
    is_reachable = len(samples.labels) >= 100 * samples.clients and samples.clients <= 30
    min_size = 10 if is_reachable else 0
    strongest = "1 class" if samples.clients >= len(samples.classes) else "sorted by label"
    return {
        "Dir(1)": f"dirichlet(alpha=1.0, min_size={min_size})",
        "Dir(0.1)": f"dirichlet(alpha=0.1, min_size={min_size})",
        strongest: "shards(per_client=1)",
    }


SIZE_SPECS = {
    "equal": "iid",
    "quantity(5)": "quantity(beta=5.0, min_size=1)",
    "quantity(0.5)": "quantity(beta=0.5, min_size=1)",
}
"""Name -> the partition in which only the sizes differ, from weak to strong."""


def divided(spec: str, labels: np.ndarray, clients: int, seed: int) -> np.ndarray | None:
    """The owners [N] of samples with these labels in a reference division; None where the data is too small for it."""
    try:
        rows_of_clients = partition_labels(spec, labels, clients, seed)
    except UnalikeError:
        return None
    owners = np.empty(len(labels), np.int64)
    for k, rows in enumerate(rows_of_clients):
        owners[rows] = k
    return owners


def reference_scale(
    statistics: Callable[[np.ndarray], dict[str, float]],
    specs: dict[str, str],
    samples: ClientCounts,
    seed: int,
) -> dict[str, dict[str, float]]:
    """The means of several statistics over drawn reference divisions.

    `statistics` are functions of counts [K, C], `specs` the partitions by reference. Returns name of the statistic -> reference
    -> mean over the draws.
    """
    table: dict[str, dict[str, float]] = {}
    for reference, spec in specs.items():
        values: dict[str, list[float]] = {}
        for counts in _divisions(spec, samples, seed):
            for name, value in statistics(counts).items():
                values.setdefault(name, []).append(value)
        for name, draws in values.items():
            table.setdefault(name, {})[reference] = float(np.mean(draws))
    return table


def _divisions(spec: str, samples: ClientCounts, seed: int) -> Iterator[np.ndarray]:
    """The counts of the drawn divisions, with the noise of the clients' counts; none where the data is too small."""
    for draw in range(DRAWN_DIVISIONS):
        owners = divided(spec, samples.labels, samples.clients, seed + draw)
        if owners is None:
            return
        counts = counts_of(owners, samples.labels, samples.clients, len(samples.classes))
        yield samples.with_noise(counts, generator(seed, "noise of references", draw))
