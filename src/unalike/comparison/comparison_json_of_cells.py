"""What `comparison.json` says of an experiment, derived from the run configs of its cells."""

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
from unalike.core.options import SeedOptions, options_of, written
from unalike.data.heterogeneity import summary
from unalike.data.population import Population
from unalike.methods.part import registry
from unalike.methods.plan import Stage
from unalike.runtime.records.run_directory import plain
from unalike.runtime.run_recorder import Run
from unalike.runtime.setup.run_config import RunConfig
from unalike.statistics.sampling import (
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
    usual = first.work.record
    config = {
        **source,
        "method": [method_text(method) for method in methods.values()],
        "baseline": None if baseline == next(iter(methods)) else method_text(methods[baseline]),
        "model": first.model_name,
        **(
            {}
            if first.start is None
            else {"start": first.start.path, "start_partial": first.start.partial}
        ),
        "seeds": write_seeds(seeds),
        **asked,
        **{
            name: value
            for name, value in written(first.options).items()
            if name not in options_of(SeedOptions)
        },
        **written(first.work),
    }
    return ComparisonFacts(
        methods=[
            {
                "label": label,
                "spec": repr(run_config.plan),
                "protocols": _scored_protocols(run_config),
                "untuned": untuned(method_text(methods[label])),
                "work": ", ".join(
                    f"{n}={v!r}" for n, v in run_config.work.record.items() if v != usual[n]
                ),
            }
            for label, run_config in run_configs.items()
        ],
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


def save_run_facts(run: Run, label: str, source: dict[str, Any]) -> None:
    """Write `comparison.json` into the folder of a run, if it has one. `source`: flags that describe the run's data."""
    if run.out is None:
        return
    label, seed = registry.spelled(label), run.run_config.options.seed
    cell = Cell(label, seed, run.run_config)
    facts = facts_of([cell], {label: label}, label, [seed], source)
    replace(facts, ends=[cell.end(run)], notes=[*run.warnings]).save(run.out)


def sampling_of(populations: Sequence[Population], folds: int | None) -> SeedDraws:
    """The draws of seeds, told from the clients of two of them; unknown for one seed."""
    if len(populations) < 2:
        return UNSAID
    parts = [(population.train, population.test, population.val) for population in populations]
    if all((a.sizes == b.sizes).all() and (a.values == b.values).all() for a, b in zip(*parts)):
        return SeedDraws(TRAINING)
    owned = [[np.sort(np.concatenate(rows)) for rows in zip(*three)] for three in parts]
    same_samples = populations[0].x is populations[1].x or torch.equal(
        populations[0].x, populations[1].x
    )
    tests = [[np.sort(rows) for rows in population.test] for population in populations]
    if same_samples and len(tests[0]) == len(tests[1]) and all(map(np.array_equal, *tests)):
        return SeedDraws(
            TRAINING
        )  # as after tuning: training and validation samples are drawn anew, the tests are not
    if not same_samples or len(owned[0]) != len(owned[1]) or not all(map(np.array_equal, *owned)):
        first, second = (np.sort(population.test.values) for population in populations[:2])
        return SeedDraws(
            DIVISIONS if same_samples and np.array_equal(first, second) else PARTITIONS
        )
    train, test = len(populations[0].train.values), len(populations[0].test.values)
    left_out = not any(
        population.sizes[population.test.sizes > 0].any() for population in populations
    )
    return SeedDraws(OWNERS if left_out else SPLITS, test / train, folds)


def method_text(method: object) -> str:
    """A method as text: the spec as the user wrote it, in the spelling of the catalogue, or the parts of a method object."""
    return registry.spelled(method) if isinstance(method, str) else repr(method)


def _scored_protocols(run_config: RunConfig) -> list[str]:
    """The protocols that score a model of the last stage. The models of this stage are the result of the run."""
    last = [step for step in run_config.outline if isinstance(step, Stage)][-1]
    model = last.model or run_config.model
    shared, personal = last.method.has_shared_model(model), last.method.is_personal(model)
    is_scored = {
        "server": shared,
        "clients": shared,
        "personal": personal,
        "local": not last.pooled,
    }
    return [
        name
        for name in dict.fromkeys((*run_config.options.protocols, "personal"))
        if is_scored[name]
    ]


def _data_facts(population: Population) -> dict[str, Any]:
    """Numbers that describe how the clients' data differs."""
    counts = (
        population.label_counts()
        if population.classes
        else np.zeros((len(population), 0), np.int64)
    )
    facts: dict[str, Any] = {"clients": len(population), "hash": population.fingerprint}
    if population.plan is not None:
        facts = {
            "data": population.plan.data,
            "partition": population.plan.spec,
            **facts,
            "hash": population.plan.hash,
        }
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
