"""The content of `comparison.json`, derived from the run configs of the cells of an experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tomli_w
import torch

from unalike.comparison.command_line import command_line
from unalike.comparison.comparison_json import ComparisonFacts, versions
from unalike.comparison.experiment import Cell
from unalike.comparison.references import untuned
from unalike.comparison.seed_plan import write_seeds
from unalike.core.option import options_of, written
from unalike.core.options import SeedOptions
from unalike.data.heterogeneity import summary
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.methods.part import registry
from unalike.methods.plan import Stage
from unalike.runtime.records.run_directory import plain
from unalike.runtime.run_recorder import Run
from unalike.runtime.setup.run_config import RunConfig
from unalike.statistics.seed_draws import (
    DIVISIONS,
    OWNERS,
    PARTITIONS,
    SPLITS,
    TRAINING,
    UNSAID,
    SeedDraws,
)


def facts_of(
    cells: list[Cell],
    methods: Mapping[str, object],
    baseline: str,
    seeds: list[int],
    source: Mapping[str, Any],
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> ComparisonFacts:
    """The facts about cells, as far as they are known before the cells have run.

    `methods`: label -> method as the user gave it. `source` are command-line flags that make the same clients, empty if no
    flags do; `asked` those of the seeds and of the decision, in place of the list of seeds.
    """
    run_configs = {cell.label: cell.run_config for cell in cells if cell.seed == seeds[0]}
    first = run_configs[baseline]

    # The configuration has the names of flags as keys: it repeats the comparison, as a file or as a command.
    is_first = baseline == next(iter(methods))
    config: dict[str, Any] = {
        **source,
        "method": [method_text(method) for method in methods.values()],
        "baseline": None if is_first else method_text(methods[baseline]),
        "model": first.model_name,
    }
    if first.start is not None:
        config |= {"start": first.start.path, "start_partial": first.start.partial}
    config |= {"seeds": write_seeds(seeds), **asked}
    seed_options = options_of(SeedOptions)
    for name, value in written(first.options).items():
        if name not in seed_options:
            config[name] = value
    config |= written(first.work)

    described = []
    for label, run_config in run_configs.items():
        text = method_text(methods[label])
        described.append(_method_entry(label, text, run_config, usual=first.work.record))
    return ComparisonFacts(
        methods=described,
        baseline=baseline,
        config=tomli_w.dumps(plain(config)),
        command=command_line("compare", config),
        partition=_data_facts(first.population),
        label_counts=_label_counts(first.population),
        wire=[
            {"method": label, **item._asdict()}
            for label, run_config in run_configs.items()
            for item in run_config.wire
        ],
        versions=versions(),
        seed=seeds[0],
        clients=list(first.population.names),
    )


def _method_entry(
    label: str, text: str, run_config: RunConfig, usual: Mapping[str, Any]
) -> dict[str, Any]:
    """The entry of one method; `usual` is the local training of the baseline."""
    own_work = [
        f"{name}={value!r}"
        for name, value in run_config.work.record.items()
        if value != usual[name]
    ]
    return {
        "label": label,
        "spec": repr(run_config.plan),
        "protocols": _scored_protocols(run_config),
        "untuned": untuned(text),
        "work": ", ".join(own_work),
    }


def save_run_facts(run: Run, label: str, source: dict[str, Any]) -> None:
    """Write `comparison.json` into the folder of a run, if it has one. `source`: flags that describe the run's data."""
    if run.out is None:
        return
    label = registry.spelled(label)
    seed = run.run_config.options.seed
    cell = Cell(label, seed, run.run_config)
    facts = facts_of([cell], {label: label}, label, [seed], source)
    replace(facts, ends=[cell.end(run)], notes=[*run.warnings]).save(run.out)


def sampling_of(populations: Sequence[Population], folds: int | None) -> SeedDraws:
    """The draws of seeds, told from the clients of two of them; unknown for one seed."""
    if len(populations) < 2:
        return UNSAID
    first, second = populations[:2]
    first_parts = (first.train, first.test, first.val)
    second_parts = (second.train, second.test, second.val)
    if all(_same_rows(a, b) for a, b in zip(first_parts, second_parts)):
        return SeedDraws(TRAINING)

    # As after tuning: training and validation samples are drawn anew, the tests are not.
    same_samples = first.x is second.x or torch.equal(first.x, second.x)
    if same_samples and _same_sets(_sorted_rows(first.test), _sorted_rows(second.test)):
        return SeedDraws(TRAINING)

    # Clients whose samples differ as a whole are other clients.
    if not same_samples or not _same_sets(_owned_rows(first_parts), _owned_rows(second_parts)):
        first_tests, second_tests = np.sort(first.test.values), np.sort(second.test.values)
        same_tests = same_samples and np.array_equal(first_tests, second_tests)
        return SeedDraws(DIVISIONS if same_tests else PARTITIONS)

    # The same clients, whose own samples are divided anew; or whole clients that are left out of training.
    tested_clients_train = any(
        population.sizes[population.test.sizes > 0].any() for population in populations
    )
    overlap = len(first.test.values) / len(first.train.values)
    return SeedDraws(SPLITS if tested_clients_train else OWNERS, overlap, folds)


def _same_rows(first: Ragged, second: Ragged) -> bool:
    """Whether all clients have the same rows in the same order."""
    same_sizes = (first.sizes == second.sizes).all()
    return bool(same_sizes and (first.values == second.values).all())


def _sorted_rows(rows: Ragged) -> list[np.ndarray]:
    """The rows of each client in ascending order."""
    return [np.sort(of_client) for of_client in rows]


def _owned_rows(parts: Sequence[Ragged]) -> list[np.ndarray]:
    """All rows of each client, of training, test and validation together, in ascending order."""
    return [np.sort(np.concatenate(of_client)) for of_client in zip(*parts)]


def _same_sets(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    """Whether as many clients have the same rows each."""
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def method_text(method: object) -> str:
    """A method as text: the spec as the user wrote it, in the spelling of the catalogue, or the parts of a method object."""
    return registry.spelled(method) if isinstance(method, str) else repr(method)


def _scored_protocols(run_config: RunConfig) -> list[str]:
    """The protocols that score a model of the last stage. The models of this stage are the result of the run."""
    stages = [step for step in run_config.outline if isinstance(step, Stage)]
    last = stages[-1]
    model = last.model or run_config.model
    shared = last.method.has_shared_model(model)
    personal = last.method.is_personal(model)
    is_scored = {
        "server": shared,
        "clients": shared,
        "personal": personal,
        "local": not last.pooled,
    }
    protocols = dict.fromkeys((*run_config.options.protocols, "personal"))
    return [name for name in protocols if is_scored[name]]


def _data_facts(population: Population) -> dict[str, Any]:
    """Numbers that describe how the clients' data differs."""
    counts = np.zeros((len(population), 0), np.int64)
    if population.classes:
        counts = population.label_counts()
    facts: dict[str, Any] = {"clients": len(population), "hash": population.fingerprint}
    plan = population.plan
    if plan is not None:
        named = {"data": plan.data, "partition": plan.spec}
        facts = {**named, **facts, "hash": plan.hash}
    return facts | summary(population.sizes, counts)


def _label_counts(population: Population) -> dict[str, dict[str, int]] | None:
    """Client -> class -> training samples; None where labels are no classes."""
    if population.classes is None:
        return None
    counts = population.label_counts().tolist()
    return {
        name: dict(zip(population.classes, row, strict=True))
        for name, row in zip(population.names, counts, strict=True)
    }
