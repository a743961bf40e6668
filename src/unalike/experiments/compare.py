"""Compare methods fairly: every seed fixes the partition, the initial weights, the cohorts and the batch orders for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from unalike._utils.errors import UnalikeError
from unalike._utils.progress import ProgressCallback, progress_bar, progress_reporting
from unalike.core.work import Work
from unalike.data.dataset import Dataset
from unalike.data.partitioning.heterogeneity import summary
from unalike.data.partitioning.partition import USUAL, divided_already, usual_clients
from unalike.data.partitioning.partition import partition as divide
from unalike.data.population import Population
from unalike.data.sources.load import load
from unalike.experiments.command_line import command_line
from unalike.experiments.comparison import Comparison, ComparisonFacts, versions
from unalike.experiments.cost_estimate import Estimate
from unalike.experiments.experiment import Cell, Experiment
from unalike.methods.plan import Stage
from unalike.metrics.metrics import Custom
from unalike.runtime.run_config import Clients, ModelLike, Pair, RunConfig, prepare_run
from unalike.runtime.run_directory import plain


def compare(
    methods: Iterable[object] | Mapping[str, object],
    clients: Clients | int | None = None,
    *,
    data: Dataset | str | None = None,
    data_dir: str | Path | None = None,
    partition: str = USUAL,
    val: float = 0.0,
    model: ModelLike = "mlp",
    rounds: int = 50,
    seeds: int | Sequence[int] = 3,
    work: Work | None = None,
    baseline: str | None = None,
    test: Pair | None = None,
    proxy: Pair | None = None,
    metrics: Custom | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback | bool | None = None,
    **options: Any,
) -> Comparison:
    """Train every method under every seed and compare them.

    methods: spec texts, methods or plans, or a mapping from labels to them; the first is the baseline unless `baseline` names
    another. clients: clients as for `ua.run`, the same for every seed; or with `data` their number (10, or what the data
    says, unless given), and then every seed draws its own `partition`, of which a share `val` of the training samples
    validates. seeds: how many (0, 1, ...) or which. out: a folder that keeps one cell per method and seed; finished cells are read
    and never run again, an interrupted one goes on where it stopped. metrics: as for `ua.run`; a folder knows them by their names
    alone, so a function that was changed needs another name or folder. `options` are further keywords of `ua.run` (participation,
    executor, evaluate_every, protocol, device, buffers, transform, precision, stop as text, budget, select). With `budget` methods
    are compared at equal cost, with `select="best"` each run by the round that its validation samples choose. The plain columns are
    always those of the shared model.

    >>> table = compare(["fedavg", "fedmix"], data="digits", clients=5, rounds=20)   # doctest: +SKIP

    Raises `UnalikeError` before anything is trained for whatever cannot be run. A method that diverges is noted and left out.
    """
    study = lay_out(
        methods,
        clients,
        data=data,
        data_dir=data_dir,
        partition=partition,
        val=val,
        model=model,
        rounds=rounds,
        seeds=seeds,
        work=work,
        baseline=baseline,
        test=test,
        proxy=proxy,
        metrics=metrics,
        **options,
    )
    with progress_reporting(progress, study.rounds, "comparing") as told:
        return study.run(out, told)


def estimate(methods: Iterable[object] | Mapping[str, object], *where: Any, **options: Any) -> Estimate:
    """What `compare` of the same arguments would cost: seconds, bytes and memory, from three rounds of every method."""
    study = lay_out(methods, *where, **{k: v for k, v in options.items() if k not in ("out", "progress")})
    with progress_bar(study.calibration, "calibrating", lines=False) as bar:
        return study.estimate(bar)


def lay_out(
    methods: Iterable[object] | Mapping[str, object],
    clients: Clients | int | None = None,
    *,
    data: Dataset | str | None = None,
    data_dir: str | Path | None = None,
    partition: str = USUAL,
    val: float = 0.0,
    model: ModelLike = "mlp",
    rounds: int = 50,
    seeds: int | Sequence[int] = 3,
    work: Work | None = None,
    baseline: str | None = None,
    test: Pair | None = None,
    proxy: Pair | None = None,
    metrics: Custom | None = None,
    source: Mapping[str, Any] | None = None,
    **options: Any,
) -> Experiment:
    """What `compare` of the same arguments would run: `.run(out)` runs it, `.estimate()` says what it will cost.

    source: the command-line flags that make the same clients, for the report's command; known by itself for `data` given by name.
    """
    methods = methods if isinstance(methods, Mapping) else [methods] if isinstance(methods, str) else list(methods)
    named = {str(k): m for k, m in methods.items()} if isinstance(methods, Mapping) else {_label(m): m for m in methods}
    numbers = _numbers(seeds)
    baseline = baseline or next(iter(named), "")
    _check(methods, named, numbers, baseline)
    population = _populations(clients, load(data, data_dir) if isinstance(data, str) else data, partition, val)
    options |= {"rounds": rounds, "protocol": _shared_first(options.get("protocol", "clients"))}
    cells = [
        Cell(
            label,
            seed,
            prepare_run(
                spec,
                population(seed),
                model=model,
                work=work,
                test=test,
                proxy=proxy,
                metrics=metrics,
                seed=seed,
                **options,
            ),
        )
        for seed in numbers
        for label, spec in named.items()
    ]
    _check_scored(cells[0].run_config)
    own = {
        "model": not isinstance(model, str),
        "test": test is not None,
        "proxy": proxy is not None,
        "metrics": bool(metrics),
    }
    program = [name for name, given in own.items() if given] if source is None else []
    if source is None and isinstance(data, str):
        source = {
            "data": data,
            "data_dir": data_dir and str(data_dir),
            "partition": partition,
            "val": val or None,
        }
    if source and "partition" in source:
        source = {**source, "clients": len(cells[0].run_config.population)}
    facts = facts_of(cells, named, baseline, numbers, source or {})
    if program:
        told = f"# {', '.join(program)} came from a program: call ua.compare(...) there with the configuration below"
        facts = replace(facts, command=told)
    return Experiment(cells, facts)


def _numbers(seeds: int | Sequence[int]) -> list[int]:
    """So many seeds (0, 1, ...), or those listed. Raises `UnalikeError` for anything else."""
    try:
        return [index(s) for s in seeds] if isinstance(seeds, Iterable) else list(range(index(seeds)))
    except TypeError:
        raise UnalikeError(f"seeds={seeds!r}: expected how many (3) or which ([0, 1, 4])") from None


def read_seeds(text: str) -> list[int]:
    """`3` stands for the seeds 0, 1, 2; `0,1,4` for these, `4,` for 4 alone. Raises `UnalikeError` for anything else."""
    try:
        numbers = [int(part) for part in text.rstrip(", ").split(",")]
    except ValueError:
        raise UnalikeError(f"seeds={text!r}: expected how many (3) or which (0,1,4; one alone as 4,)") from None
    return numbers if "," in text else list(range(numbers[0]))


def write_seeds(numbers: Sequence[int]) -> str:
    """The text that `read_seeds` reads as these."""
    count = len(numbers)
    return str(count) if list(numbers) == list(range(count)) else ",".join(map(str, numbers)) + "," * (count == 1)


def _label(method: object) -> str:
    return method if isinstance(method, str) else repr(method)


def _check(methods: object, named: dict[str, object], numbers: list[int], baseline: str) -> None:
    if not named or not numbers:
        raise UnalikeError(f"found {len(named)} methods and {len(numbers)} seeds; expected at least one of each")
    if len(set(numbers)) < len(numbers):
        raise UnalikeError(f"a seed is listed twice in {numbers}; list it once")
    if isinstance(methods, Sequence) and len(methods) != len(named):
        raise UnalikeError(
            f"a method is listed twice in {list(methods)}; list it once, or give a mapping from labels to methods"
        )
    if baseline not in named:
        raise UnalikeError(f"baseline {baseline!r} is none of the methods {list(named)}; name one of them")


def _check_scored(run_config: RunConfig) -> None:
    """Raises `UnalikeError` where no round or no test sample would give a score to compare."""
    if not run_config.options.rounds:
        raise UnalikeError("found rounds=0, after which all methods are where they began; expected 1 or more")
    if not len(run_config.population.test.values) and "server" not in run_config.options.protocols:
        raise UnalikeError(
            "no client has a test sample to compare methods by; give ClientData(test=...), ua.partition(..., split=0.75), or "
            "protocol='server' with test=(x, y)"
        )


def _shared_first(found: str | Sequence[str]) -> tuple[str, ...]:
    """The protocols with one of the shared model in front: its columns are the plain ones, so that no column mixes two."""
    asked = (found,) if isinstance(found, str) else tuple(found)
    return asked if not asked or asked[0] in ("clients", "server") else tuple(dict.fromkeys(("clients", *asked)))


def _populations(
    clients: Clients | int | None, data: Dataset | None, partition: str, val: float
) -> Callable[[int], Population]:
    if data is not None:
        if clients is not None and not isinstance(clients, int):
            raise UnalikeError(
                "found both data= and clients; give the number of clients with data=, or the clients without it"
            )
        count = usual_clients(partition) if clients is None else clients
        return cache(lambda seed: divide(data, partition, count, seed=seed, val=val))
    if clients is None or isinstance(clients, int):
        raise UnalikeError(
            "found no data; give clients (from ua.partition, or a list of ua.ClientData) or data='digits'"
        )
    divided_already("clients", "make them with it: ua.partition(..., val=0.1)", partition, val)
    fixed = clients if isinstance(clients, Population) else Population.of(clients)
    return lambda seed: fixed


def facts_of(
    cells: list[Cell], named: Mapping[str, object], baseline: str, seeds: list[int], source: Mapping[str, Any]
) -> ComparisonFacts:
    """What the report says of these cells beside their tables; `source` are the flags that make their clients."""
    first = {cell.label: cell.run_config for cell in cells if cell.seed == seeds[0]}
    run_config = first[baseline]
    config = _config(run_config, named, baseline, seeds, source)
    return ComparisonFacts(
        methods=[{"label": label, "spec": repr(j.plan), "protocols": _protocols(j)} for label, j in first.items()],
        baseline=baseline,
        config=tomli_w.dumps(plain(config)),
        command=command_line("compare", config),
        partition=_difference(run_config.population),
        label_counts=_label_counts(run_config.population),
        wire=[{"method": label, **item._asdict()} for label, j in first.items() for item in j.wire],
        versions=versions(),
        seed=seeds[0],
        clients=list(run_config.population.names),
        plain=run_config.options.protocols[0],
    )


def _config(
    run_config: RunConfig, named: Mapping[str, object], baseline: str, seeds: list[int], source: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration as the command line writes it: `unalike compare --config` reads it back."""
    options, work = asdict(run_config.options), asdict(run_config.work)
    return {
        **source,
        "method": [_label(method) for method in named.values()],
        "baseline": None if baseline == next(iter(named)) else _label(named[baseline]),
        "model": run_config.model_name,
        "rounds": options["rounds"],
        "seeds": write_seeds(seeds),
        **{
            key: options[key]
            for key in (
                "participation",
                "executor",
                "evaluate_every",
                "device",
                "buffers",
                "transform",
                "precision",
                "stop",
                "budget",
            )
        },
        "protocol": None if run_config.options.protocols == ("clients",) else list(run_config.options.protocols),
        "select": None if options["select"] == "last" else options["select"],
        **work,
        "batch_size": "full" if run_config.work.batch_size is None else str(run_config.work.batch_size),
    }


def _protocols(run_config: RunConfig) -> list[str]:
    """Those that score a model of the last stage, whose models are what the run comes to."""
    last = [step for step in run_config.outline if isinstance(step, Stage)][-1]
    model = last.model or run_config.model
    shared, personal = last.method.has_shared_model(model), last.method.is_personal(model)
    there = {"server": shared, "clients": shared, "personal": personal, "local": not last.pooled}
    return [name for name in dict.fromkeys((*run_config.options.protocols, "personal")) if there[name]]


def _difference(population: Population) -> dict[str, Any]:
    """How the clients differ, as numbers with names."""
    counts = population.label_counts() if population.classes else np.zeros((len(population), 0), np.int64)
    facts: dict[str, Any] = {"clients": len(population), "hash": population.fingerprint}
    if population.plan is not None:
        facts = {"data": population.plan.data, "partition": population.plan.spec, **facts, "hash": population.plan.hash}
    return facts | summary(population.sizes, counts)


def _label_counts(population: Population) -> dict[str, dict[str, int]] | None:
    if population.classes is None:
        return None
    rows = population.label_counts().tolist()
    return {
        name: dict(zip(population.classes, row, strict=True)) for name, row in zip(population.names, rows, strict=True)
    }
