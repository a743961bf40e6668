"""Compare methods under equal conditions: a seed fixes the partition, the initial weights, the cohorts and the batch orders."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from unalike._utils.errors import UnalikeError, unknown, warn
from unalike._utils.functions import is_text_of_function
from unalike._utils.keywords import check_keywords, fields_of
from unalike._utils.progress import UserProgress, progress_bar, progress_reporting
from unalike.comparison.comparison import Comparison
from unalike.comparison.comparison_json import ComparisonFacts
from unalike.comparison.comparison_json_of_cells import facts_of, method_text, sampling_of
from unalike.comparison.cost_estimate import Estimate
from unalike.comparison.experiment import Cell, Experiment
from unalike.comparison.racing.race import RaceStart
from unalike.comparison.racing.race_budget import DEFAULT_BUDGET
from unalike.comparison.racing.short_list import SHORT_LIST, runnable_methods
from unalike.comparison.seed_plan import SeedPlan
from unalike.core.losses import LossFunction
from unalike.core.work import Work
from unalike.data.partitioning.given_clients import Clients, ClientsRequest, GivenClients
from unalike.metrics.metrics import Custom
from unalike.runtime.records.recording import Hook
from unalike.runtime.setup.client_networks import ModelOrNetworks, models_by_name
from unalike.runtime.setup.given_model import note_drawn_weights
from unalike.runtime.setup.run_config import Pair, RunConfig, prepare_run
from unalike.runtime.setup.run_options import RunOptions, check_inputs, named_plan, with_loss
from unalike.statistics.client_scores import ACROSS
from unalike.tracking.tracker import Track
from unalike.tracking.tracking import Trackers, group_of

__all__ = ["compare", "estimate", "prepare_experiment"]


def compare(
    methods: Iterable[object] | Mapping[str, object] | None = None,
    clients: Clients | int | None = None,
    *,
    within: str | None = None,
    data: Any = None,
    data_dir: str | Path | None = None,
    partition: str | None = None,
    split: float | str | None = None,
    val: float = 0.0,
    folds: int | None = None,
    model: ModelOrNetworks = "mlp",
    start: str | Path | None = None,
    start_partial: bool = False,
    rounds: int = 50,
    seeds: int | str | Sequence[int] = 3,
    min_seeds: int = 3,
    max_seeds: int = 10,
    smallest_effect: float | None = None,
    across: str = "pooled",
    work: Work | Mapping[str, Work] | None = None,
    loss: str | LossFunction | None = None,
    baseline: str | None = None,
    test: Pair | None = None,
    proxy: Pair | None = None,
    metrics: Custom | None = None,
    record: str | Hook | None = None,
    out: str | Path | None = None,
    track: Track | None = None,
    jobs: int = 1,
    progress: UserProgress = None,
    **options: Any,
) -> Comparison:
    """Train every method under every seed and compare the results; without methods, let a short list of them race.

    A race answers which method suits the data. All methods of the short list run seed by seed, and one that is shown to be
    worse than the best one so far is dropped. It ends when the decision stands or the budget is spent.

    Args:
        methods: spec texts, methods or plans, or a mapping from labels to them. Unless given, a short list races.
        clients: clients as for `ua.run`. Clients with test samples keep them under every seed, unless `split` or `folds` is
            given; of clients without any, every seed draws test samples (`draw_tests`). With `data`: the number of clients
            (10, or as many as the data set defines, unless given).
        within: budget of a race: time of all runs ('10 min', the default), rounds of each method ('200 rounds') or seeds
            ('5 seeds'); only without methods.
        data: data set by name, or a data set or object that `ua.load` reads. Every seed then draws a partition of its own, or for
            real owners (`natural`) its own test samples, unless these are published with the data.
        data_dir: folder of data files.
        partition: partition of the data; unless given, by its first group, or if it has no groups, "dirichlet(alpha=0.1)", for a
            regression "iid".
        split: share of each client's samples that train (0.75), or "later", as for `ua.run`.
        val: share of each client's training samples used for validation; only with `data`.
        folds: number of folds of repeated cross-validation: each seed tests one fold of every client.
        model: as for `ua.run`; of several networks, every method has the same clients with each.
        start: initial weights of every run, as for `ua.run`.
        start_partial: as for `ua.run`.
        rounds: number of rounds of each run.
        seeds: number of seeds (0, 1, ...), a list of them, or "auto": after `min_seeds`, seeds are added until the
            decision stands, to the methods that matter for it. With "auto" each look at the results uses a smaller level, so
            that the error over all looks is 5 %.
        min_seeds: fewest seeds with `seeds="auto"`.
        max_seeds: most seeds with `seeds="auto"`.
        smallest_effect: smallest difference that matters, in the unit of the metric. Unless given, half a point
            (0.005) of a bounded metric such as accuracy or a Brier score, and 1 % of the baseline's score of others such as RMSE.
        across: score that decides: "pooled" (the metric of all clients' test samples together), "clients" (its mean over the
            clients), or "worst" (over the worst tenth of them).
        work: the local training of the clients; a mapping from labels of methods gives each its own.
        loss: as for `ua.run`.
        baseline: label of the method that the others are compared with; the first method unless given.
        test: test samples of the server, for `protocol="server"`; with `data` its published test set unless given.
        proxy: samples of the server, for methods that train on the server.
        metrics: metrics of your own, as for `ua.run`. Of finished cells in `out` their names and source are compared.
        record: as for `ua.run`; needs `out`, where each cell keeps its records as `cells/*/records.parquet`. A cell that has
            finished already is not run again for them.
        out: folder that keeps one cell per method and seed. Finished cells are read and not run again; an interrupted cell, or
            one that had fewer rounds, continues where it stopped. A report with other settings is kept in `reports`. Several
            processes may compare in one folder at a time: each goes on to a cell that none trains, and waits for the others' cells
            at the end.
        track: trackers as for `ua.run`. Each cell is a run of its own, in a group with the name of `out`; one more run keeps
            the report.
        jobs: number of runs at a time, each in a process with one thread, a copy of this one; on Linux, on the CPU,
            and not for a race.
        progress: as for `ua.run`; in each row, `run` names the run, such as "fedavg (seed 0)".
        options: further arguments of `ua.run`: `participation`, `devices`, `executor`, `evaluate_every`, `protocol`, `device`,
            `buffers`, `transform`, `precision`, `stop` (as text), `budget`, `select`. With `budget`, methods are compared at
            equal cost; with `select="best"`, each run is judged by the round with the best validation score.

    Returns:
        The comparison. The columns without a prefix are always those of the shared model. A method that diverges is left
        out, with a note.

    Raises:
        UnalikeError: before any training, if something cannot be run.

    Example:
        >>> table = ua.compare(["fedavg", "fedmix"], data="digits", clients=5, rounds=20)  # doctest: +SKIP
        >>> print(table)  # doctest: +SKIP
        >>> ua.compare(data="heart_disease", within="5 min").decision  # doctest: +SKIP
    """
    if out is None and isinstance(record, str):
        raise UnalikeError(
            f"record={record!r} keeps numbers in the folder of a comparison; give out=FOLDER"
        )
    trackers = Trackers.of(track, group_of(out))
    experiment = prepare_experiment(
        methods,
        ClientsRequest(clients, data, data_dir, partition, split, val, test, folds=folds),
        chosen_plan(methods, within, rounds, seeds, min_seeds, max_seeds),
        model=model,
        start=start,
        start_partial=start_partial,
        rounds=rounds,
        smallest_effect=smallest_effect,
        across=across,
        work=work,
        loss=loss,
        baseline=baseline,
        proxy=proxy,
        metrics=metrics,
        record=record,
        **options,
    )
    note_drawn_weights(model, start, out)
    with progress_reporting(progress, experiment.rounds, "comparing") as callback:
        return experiment.run(out, callback, trackers, jobs=jobs)


def estimate(
    methods: Iterable[object] | Mapping[str, object] | None = None,
    clients: Clients | int | None = None,
    **options: Any,
) -> Estimate:
    """Estimate the cost of `compare` with the same arguments: seconds, bytes and memory.

    Three rounds of every stage of every method are trained, and the results are discarded.

    Args:
        methods: as for `ua.compare`.
        clients: as for `ua.compare`.
        options: the other arguments of `ua.compare`; `out`, `track`, `jobs` and `progress` have no effect.

    Returns:
        The estimate.

    Raises:
        UnalikeError: before any training, if something cannot be run.

    Example:
        >>> ua.estimate(["fedavg", "scaffold"], data="digits", rounds=500).seconds  # doctest: +SKIP
    """
    for name in ("out", "track", "jobs", "progress"):
        options.pop(name, None)
    request = ClientsRequest(clients, **taken(options, fields_of(ClientsRequest)))
    seeds = taken(options, ("seeds", "min_seeds", "max_seeds"))
    within = options.pop("within", None)
    rounds = options.get("rounds", signature(compare).parameters["rounds"].default)
    plan = chosen_plan(methods, within, rounds, **seeds)
    experiment = prepare_experiment(methods, request, plan, **options)
    with progress_bar(experiment.calibration_rounds, "calibrating", lines=False) as callback:
        return experiment.estimate(callback)


def prepare_experiment(
    methods: Iterable[object] | Mapping[str, object] | None,
    request: ClientsRequest,
    plan: SeedPlan,
    *,
    model: ModelOrNetworks = "mlp",
    baseline: str | None = None,
    smallest_effect: float | None = None,
    across: str = "pooled",
    work: Work | Mapping[str, Work] | None = None,
    loss: str | LossFunction | None = None,
    proxy: Pair | None = None,
    metrics: Custom | None = None,
    record: str | Hook | None = None,
    start: str | Path | None = None,
    start_partial: bool = False,
    source: Mapping[str, Any] | None = None,
    **training: Any,
) -> Experiment:
    """Check the arguments of `compare` and prepare one run per method and seed, without training.

    Without methods, those of the short list race that can run on these clients; `plan` is then that of a race. `request` are the
    arguments that name the clients, `plan` is that of the seeds, and `training` are all others. `source` are the
    command-line flags that make the same clients, for the command in the report; derived if the data is a name. Raises
    `UnalikeError` if something cannot be run.
    """
    # What needs no data is checked first, so that a mistake is told at once.
    by_label = labelled_methods([*SHORT_LIST] if methods is None else methods)
    baseline = baseline or next(iter(by_label), "")
    if baseline not in by_label:
        baseline = method_text(baseline)
    _check_selection(by_label, plan.seeds, baseline)
    if smallest_effect is not None and not smallest_effect >= 0:
        raise UnalikeError(
            f"found smallest_effect={smallest_effect}; expected 0 or more, such as 0.005 for half a point"
        )
    if across not in ACROSS:
        raise unknown("value of across", across, ACROSS)
    own = dict.fromkeys([*signature(compare).parameters, *fields_of(RunOptions)])
    check_keywords("ua.compare", training, own.keys() - {"options", "seed"}, fields_of(Work))
    training["protocol"] = _shared_model_first(training.get("protocol", "clients"))
    works = _work_of_each(work, loss, by_label)
    # The other methods of a race are tried on the clients below: one that cannot run here is left out.
    checked = [baseline] if methods is None else [*by_label]
    plans = {label: named_plan(by_label[label]) for label in checked}
    options = check_inputs(
        plans.values(),
        model=model,
        start=start,
        start_partial=start_partial,
        has_test=request.has_test,
        record=record,
        **training,
    )

    # The clients of every seed are drawn; their warnings are given once, and stand in the report.
    given = request.read(needs_test="server" in options.protocols, compared=True)
    warned = _warnings_of(given, plan.seeds)
    notes = [*warned.values()]
    given_models = [*models_by_name(model).values()]
    if any(isinstance(one, nn.Module) for one in given_models) and len(plan.seeds) > 1:
        notes.append(
            "all seeds start from the weights of the given module, so that the intervals leave out what other initial weights "
            "would change; a function that makes it (model=Net instead of model=Net()) gives each seed weights of its own"
        )

    def prepare(label: str, seed: int) -> RunConfig:
        if label not in plans:
            plans[label] = named_plan(by_label[label])
        return prepare_run(
            plans[label],
            given.of(seed),
            options.with_seed(seed),
            model=model,
            start=start,
            start_partial=start_partial,
            work=works[label],
            test=given.test,
            proxy=proxy,
            metrics=metrics,
            record=record,
        )

    cannot_run: dict[str, str] = {}
    if methods is None:
        first = plan.seeds[0]
        accepted, cannot_run = runnable_methods(by_label, lambda label: prepare(label, first))
        if baseline in cannot_run:
            raise UnalikeError(f"the baseline {baseline} cannot run: {cannot_run[baseline]}")
        by_label = {label: by_label[label] for label in accepted}
    cells = [Cell(label, seed, prepare(label, seed)) for seed in plan.seeds for label in by_label]
    first_run = cells[0].run_config
    _check_scored(first_run)

    # The report says how to repeat the comparison: by flags, or where something has none, from the program.
    flags = request.flags if source is None else source
    if request.data is not None and flags:
        flags = {**flags, "partition": given.scheme, "clients": len(first_run.population)}
    asked = plan.flags | {
        "smallest_effect": smallest_effect,
        "across": None if across == "pooled" else across,
        "tests_of": request.tests_of,
    }
    if isinstance(work, Mapping):
        asked["work"] = "; ".join(f"{label}: {one}" for label, one in works.items())
    notes += [note for note in first_run.data_notes if note not in warned]
    notes += _uneven_folds(request.folds, len(plan.seeds))
    facts = replace(
        facts_of(cells, by_label, baseline, plan.seeds, flags, asked),
        looks=plan.looks,
        sampling=sampling_of([given.of(seed) for seed in plan.seeds[:2]], request.folds),
        smallest_effect=smallest_effect,
        across=across,
        notes=notes,
    )
    recorded = first_run.work.record.values()
    without_flags = {
        "model": source is None and not all(isinstance(one, str) for one in given_models),
        "test": source is None and request.test is not None,
        "proxy": source is None and proxy is not None,
        "metrics": source is None and bool(metrics),
        "work by method": isinstance(work, Mapping),
        "a function of local training": any(is_text_of_function(value) for value in recorded),
    }
    race = None if plan.race is None else RaceStart(plan.race, cannot_run)
    return Experiment(cells, _with_command_of_program(facts, without_flags), race)


def chosen_plan(
    methods: object,
    within: str | None,
    rounds: int,
    seeds: int | str | Sequence[int] = 3,
    min_seeds: int = 3,
    max_seeds: int = 10,
) -> SeedPlan:
    """The plan of the seeds: that of a race without methods, otherwise the one that was asked for.

    Raises `UnalikeError` for options that contradict each other: a race chooses its methods and adds its seeds.
    """
    if methods is not None:
        if within is not None:
            raise UnalikeError(
                f"found within={within!r} and methods; within is the budget of a race, which has methods of its own. Leave "
                "one of the two out; for a budget of each run there is budget="
            )
        return SeedPlan.of(seeds, min_seeds, max_seeds)
    if SeedPlan.of(seeds, min_seeds, max_seeds) != SeedPlan.of():
        raise UnalikeError(
            f"found seeds={seeds!r} without methods; a race adds seeds by itself. Leave seeds out and give its budget, such as "
            "within='5 seeds', or name the methods to compare"
        )
    return SeedPlan.of_race(DEFAULT_BUDGET if within is None else within, rounds)


def taken(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The options of these names, taken out of `options`."""
    return {name: options.pop(name) for name in names if name in options}


def labelled_methods(methods: Iterable[object] | Mapping[str, object]) -> dict[str, object]:
    """Label -> method. Without labels of the user, a method's label is its text."""
    if isinstance(methods, Mapping):
        return {str(label): method for label, method in methods.items()}
    listed = [methods] if isinstance(methods, str) else list(methods)
    by_label = {method_text(method): method for method in listed}
    if len(by_label) < len(listed):
        raise UnalikeError(
            f"a method is listed twice in {listed}; list it once, or give a mapping from labels to methods"
        )
    return by_label


def _work_of_each(
    work: object, loss: str | LossFunction | None, by_label: Mapping[str, object]
) -> dict[str, Work | None]:
    """Label -> its local training; None for the usual one. Raises `UnalikeError` for anything else."""
    works: Mapping[str, Any] = work if isinstance(work, Mapping) else dict.fromkeys(by_label, work)
    if strange := works.keys() - by_label.keys():
        raise unknown("method with local training of its own", min(strange), by_label)
    return {label: with_loss(works.get(label), loss) for label in by_label}


def _check_selection(by_label: Mapping[str, object], seeds: list[int], baseline: str) -> None:
    """Raise `UnalikeError` unless there is a method, a seed, no seed twice, and a baseline among the methods."""
    if not by_label or not seeds:
        raise UnalikeError(
            f"found {len(by_label)} methods and {len(seeds)} seeds; expected at least one of each"
        )
    if baseline not in by_label:
        raise UnalikeError(
            f"baseline {baseline!r} is none of the methods {list(by_label)}; name one of them"
        )


def _warnings_of(given: GivenClients, seeds: list[int]) -> dict[str, str]:
    """Draw the clients of every seed, and give each warning once: its text -> the text with the seeds, unless all seeds warn so."""
    seeds_of: dict[str, list[int]] = {}
    for seed in seeds:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            given.of(seed)
        for text in dict.fromkeys(str(warning.message) for warning in caught):
            seeds_of.setdefault(text, []).append(seed)

    told = {}
    for text, warned_seeds in seeds_of.items():
        told[text] = text
        if warned_seeds != seeds:
            noun = "seed" if len(warned_seeds) == 1 else "seeds"
            told[text] = f"{text} ({noun} {', '.join(map(str, warned_seeds))})"
        warn(told[text])
    return told


def _uneven_folds(folds: int | None, seeds: int) -> list[str]:
    """A sentence where the seeds test some samples more often than others, or never: they are no whole repetitions of the folds."""
    if folds is None or seeds % folds == 0:
        return []
    repetitions = -(-seeds // folds)
    more = f"{repetitions * folds} or {(repetitions + 1) * folds}"
    less = "never tested" if seeds < folds else "tested less often than others"
    return [
        f"{seeds} seeds of {folds} folds are no whole repetition, so that some samples are {less}: --seeds {more} tests each "
        "one equally often"
    ]


def _check_scored(run_config: RunConfig) -> None:
    """Raise `UnalikeError` if the runs would produce no score to compare."""
    if not run_config.options.rounds:
        raise UnalikeError(
            "found rounds=0, which leaves all methods at the initial weights; expected 1 or more"
        )
    population = run_config.population
    if population.is_scored(run_config.options.protocols):
        return
    if population.sizes.max(initial=0) <= 1:
        raise UnalikeError(
            f"found {len(population)} clients with one row each, which trains, so that none is left to test; divide the rows by "
            "a column that several rows share, with --group, in Python group="
        )
    raise UnalikeError(
        "no client has a test sample to compare methods by; let some test with --split 0.75, or test on a set of the server with "
        "--protocol server; in Python ClientData(test=...), ua.partition(..., split=0.75), or protocol='server' with test=(x, y)"
    )


def _shared_model_first(protocol: str | Sequence[str]) -> tuple[str, ...]:
    """The protocols with one that scores the shared model in front.

    The first protocol fills the columns without a prefix, so these never mix shared and personal models.
    """
    protocols = (protocol,) if isinstance(protocol, str) else tuple(protocol)
    if not protocols or protocols[0] in ("clients", "server"):
        return protocols
    return tuple(dict.fromkeys(("clients", *protocols)))


def _with_command_of_program(
    facts: ComparisonFacts, without_flags: Mapping[str, bool]
) -> ComparisonFacts:
    """The facts with a comment as command if any argument has no flag, so that no command line repeats the comparison."""
    names = ", ".join(name for name, is_given in without_flags.items() if is_given)
    if not names:
        return facts
    command = (
        f"# {names} came from a program: call ua.compare(...) there with the configuration below"
    )
    return replace(facts, command=command)
