"""The result of a run: what is stored of its history, its clients, its parameters and its recorded numbers."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch

from unalike.comparison.comparison import last_rounds
from unalike.comparison.comparison_json import versions
from unalike.data.population import Population
from unalike.runtime.records.history import DIVERGED, Row
from unalike.runtime.run_recorder import Run
from unalike.runtime.setup.run_config import RunConfig
from unalike_studies.cells import CLASS_ACCURACY, StudyCell
from unalike_studies.recorded_numbers import keep
from unalike_studies.results import CellResult

MAX_LABEL_COUNTS = 1000
"""Above this many numbers, label counts are not stored."""


def result_of(cell: StudyCell, run: Run, seconds: float) -> CellResult:
    """The result of a run that has ended."""
    # Only evaluated rounds have a loss; the others have nothing that a table or claim reads.
    evaluated = [row for row in run.history.rows if "loss" in row]
    names = dict.fromkeys(name for row in evaluated for name in row)
    rounds = {}
    for name in names:
        rounds[name] = [row.get(name) for row in evaluated]

    # Clients' accuracies on single classes would be most of the file, and nothing reads them.
    clients = {}
    finals = last_rounds(run.history, run.run_config.population.names)
    finals = finals.dropna(axis=1, how="all")
    for column in finals:
        if not str(column).startswith(CLASS_ACCURACY):
            clients[str(column)] = finals[column].tolist()

    recorded = {}
    if cell.options.get("record"):
        recorded = keep(run.records, [int(row["round"]) for row in evaluated])
    return _result(
        cell,
        run.run_config,
        seconds,
        run.ended,
        notes=list(run.warnings),
        rounds=rounds,
        clients=clients,
        curves=_curves(run, cell.options.get("client_curves")),
        label_counts=_label_counts(run.run_config),
        transport=_transport(run.run_config, cell.options.get("transport")),
        parameters=_parameters(run, cell.options.get("histogram")),
        recorded=recorded,
    )


def result_of_diverged(
    cell: StudyCell, run_config: RunConfig, seconds: float, why: str
) -> CellResult:
    """The result of a run that diverged: it has no history."""
    return _result(cell, run_config, seconds, DIVERGED, notes=[why])


def _result(
    cell: StudyCell, run_config: RunConfig, seconds: float, ended: str, **measured: object
) -> CellResult:
    return CellResult(
        method=cell.method,
        setting=cell.setting,
        seed=cell.seed,
        digest=cell.digest,
        spec=repr(run_config.plan),
        options=dict(cell.options),
        seconds=seconds,
        ended=ended,
        versions=versions(),
        machine={"threads": torch.get_num_threads(), "device": run_config.options.device},
        **measured,  # type: ignore[arg-type]
    )


def _parameters(run: Run, options: Mapping[str, Any] | None) -> list[int]:
    """The numbers of final parameters in `bins` bins from -limit to limit; those beyond count in the outermost ones."""
    if options is None:
        return []
    limit = float(options["limit"])
    values = torch.cat([value.detach().flatten() for value in run.params.values()])
    counts = values.clamp(-limit, limit).histc(int(options["bins"]), -limit, limit)
    return [int(count) for count in counts]


def _curves(run: Run, column: str | None) -> list[list[float | None]]:
    """For each evaluated round the column's value of every client."""
    if column is None:
        return []
    by_round: dict[int, list[float | None]] = {}
    row: Row
    for row in run.history.clients.to_dict("records"):  # type: ignore[assignment]
        by_round.setdefault(int(row["round"]), []).append(row.get(column))
    return list(by_round.values())


def _transport(run_config: RunConfig, options: Mapping[str, Any] | None) -> list[list[float]]:
    """The cost of optimal transport between every two clients."""
    if options is None:
        return []
    samples = int(options["samples"])
    return transport_costs(run_config.population, samples, run_config.options.seed)


def _label_counts(run_config: RunConfig) -> list[list[int]]:
    population = run_config.population
    if population.classes is None or len(population) * len(population.classes) > MAX_LABEL_COUNTS:
        return []
    counts: list[list[int]] = population.label_counts().tolist()
    return counts


def transport_costs(population: Population, samples: int, seed: int) -> list[list[float]]:
    """The mean cost of moving client i's training samples onto client j's, [K][K], by POT.

    A sample is an input with its label: moving (x, y) to (x', y') costs |x - x'|^2 / D, the inputs scaled to standard deviation 1
    over all clients, and 1 more where the labels differ. At most `samples` of a client count, drawn under the seed.
    """
    import ot

    samples_of = list(_draw_samples(population, samples, seed))
    all_inputs = torch.cat([x for x, _ in samples_of])
    variance = float(all_inputs.std(0).square().mean())

    costs = np.zeros((len(population), len(population)))
    for i, j in combinations(range(len(samples_of)), 2):
        x_i, y_i = samples_of[i]
        x_j, y_j = samples_of[j]
        input_costs = torch.cdist(x_i, x_j).square() / (x_i.shape[1] * variance)
        pair_costs = input_costs + (y_i[:, None] != y_j[None, :])
        # Empty weights mean that all samples of a client weigh the same.
        cost = ot.emd2([], [], pair_costs.numpy())
        costs[i, j] = costs[j, i] = cost
    return costs.tolist()


def _draw_samples(
    population: Population, samples: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """At most `samples` training samples of each client, as rows, and their labels."""
    rng = np.random.default_rng(seed)
    for client in range(len(population)):
        rows = population.train[client]
        sample = torch.as_tensor(rng.permutation(rows)[:samples])
        yield population.x[sample].double().flatten(1), population.y[sample]
