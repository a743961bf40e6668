"""`ua.tune`: choose the hyperparameters of methods under the same budget, and compare the methods before and after."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError, refuse_empty_path
from unalike._utils.keywords import check_keywords, fields_of
from unalike._utils.option_types import check_whole
from unalike._utils.progress import ProgressCallback, UserProgress, progress_reporting
from unalike.comparison.compare import labelled_methods
from unalike.core.losses import LossFunction
from unalike.core.options import RoundOptions, TuningOptions
from unalike.core.work import Work
from unalike.data.partitioning.given_clients import Clients, ClientsRequest
from unalike.data.population import Population
from unalike.methods.plan import plan as plan_of
from unalike.runtime.setup.given_model import ModelLike
from unalike.runtime.setup.run_options import RunOptions, with_loss
from unalike.tuning.fresh_comparison import FreshComparison
from unalike.tuning.sampler import require_optuna
from unalike.tuning.trial import Trial
from unalike.tuning.trial_runner import TrialRunner, on_validation
from unalike.tuning.trials import TrialBudget, run_trials
from unalike.tuning.tunable import Tunable
from unalike.tuning.tuning import Tuning, chosen_values
from unalike.tuning.tuning_score import TuningScore

VALIDATION_SHARE = 0.2
"""The share of the training samples that trials are scored on unless another one is given."""


def tune(
    methods: Iterable[object] | Mapping[str, object],
    clients: Clients | int | None = None,
    *,
    data: Any = None,
    data_dir: str | Path | None = None,
    partition: str | None = None,
    split: float | str | None = None,
    val: float | None = None,
    folds: int | None = None,
    trials: int = 20,
    rounds: int = 50,
    budget_seconds: float | None = None,
    objective: str | None = None,
    seed: int = 0,
    seeds: int = 3,
    prune: bool = True,
    jobs: int = 1,
    model: ModelLike = "mlp",
    work: Work | None = None,
    loss: str | LossFunction | None = None,
    baseline: str | None = None,
    smallest_effect: float | None = None,
    out: str | Path | None = None,
    progress: UserProgress = None,
    **options: Any,
) -> Tuning:
    """Tune every method under the same budget, then compare the methods with their chosen and with their given values.

    Trials train on the training samples of one seed and are scored on its validation samples. The comparison uses other seeds,
    and none of its test samples was a training or validation sample of a trial. Trial 0 of a method has the values that the
    method was given with. The local learning rate and the fields of parts that declare a search space are tuned.

    Args:
        methods: as for `ua.compare`. The values in a spec are those of trial 0.
        clients: as for `ua.compare`.
        data: as for `ua.compare`.
        data_dir: as for `ua.compare`.
        partition: as for `ua.compare`.
        split: as for `ua.compare`.
        val: share of each client's training samples used for validation, which trials are scored on (0.2); only with `data`.
            Clients that are given need validation samples.
        folds: number of folds of repeated cross-validation, instead of `split`; the fold of `seed` tests all seeds of the
            comparison, and trials see the other folds.
        trials: number of trials of each method.
        rounds: number of rounds of a trial, and of each run of the comparison.
        budget_seconds: time limit per method, in seconds: it gets no more trials once its trials took so long.
        objective: score that is tuned and decides: a metric such as "macro_f1", "worst_decile" (the mean over the worst
            tenth of the clients), "personal_accuracy", "worst_decile_macro_f1", ...; the usual metric of the task unless given.
        seed: seed of the trials.
        seeds: number of seeds to compare, from `seed` + 1 on.
        prune: stop trials early that are unlikely to win: after a fifth of the rounds, those whose best score so far is below
            the median of the finished trials.
        jobs: number of trials at a time, in processes of their own; with `out`, of runs of the comparisons, too. With 1 the same
            seed gives the same trials.
        model: as for `ua.run`.
        work: the local training; its learning rate is that of trial 0.
        loss: as for `ua.run`.
        baseline: as for `ua.compare`.
        smallest_effect: as for `ua.compare`.
        out: folder that keeps each trial and the two comparisons. What has finished is not run again.
        progress: as for `ua.compare`; it is also called with a row for each trial that ends.
        options: further arguments of `ua.compare`, such as `participation`, `executor`, `protocol`, `proxy`, `select`.

    Returns:
        The trials, the chosen values, and the comparisons before and after tuning.

    Raises:
        UnalikeError: before any training: Optuna is not installed, there are no validation samples, a method is private, or
            something cannot be run.

    Examples:
        >>> tuning = ua.tune(["fedavg", "scaffold"], data="digits", trials=10, out="tuned")  # doctest: +SKIP
        >>> print(tuning)  # doctest: +SKIP
        >>> tuning.chosen["scaffold"], tuning.after.summary  # doctest: +SKIP
    """
    parameters = [name for name in signature(tune).parameters if name != "options"]
    further = ["proxy", "metrics", "start", "start_partial", *fields_of(RunOptions)]
    known = list(dict.fromkeys([*parameters, *further]))
    check_keywords("ua.tune", options, known, fields_of(Work))
    if val is None and data is not None:
        val = VALIDATION_SHARE
    given_clients = ClientsRequest(
        clients=clients,
        data=data,
        data_dir=data_dir,
        partition=partition,
        split=split,
        val=val or 0.0,
        test=options.pop("test", None),
        folds=folds,
    )
    request = TuneRequest(
        methods=labelled_methods(methods),
        clients=given_clients,
        trials=trials,
        rounds=rounds,
        budget_seconds=budget_seconds,
        objective=objective,
        seed=seed,
        seeds=seeds,
        prune=prune,
        jobs=jobs,
    )
    work = with_loss(work, loss)
    settings = {
        "model": model,
        "work": work,
        "baseline": baseline,
        "smallest_effect": smallest_effect,
        **options,
    }
    with progress_reporting(progress, request.most_rounds, "tuning") as callback:
        return run_tuning(request, out, callback, **settings)


@dataclass(frozen=True)
class TuneRequest(TuningOptions, RoundOptions):
    """The arguments of `tune` that are not those of a comparison; checked when it is made."""

    _: KW_ONLY
    methods: Mapping[str, object]
    clients: ClientsRequest

    def __post_init__(self) -> None:
        require_optuna()
        _ = self.goal  # refuses an unknown objective
        for label, method in self.methods.items():
            reason = plan_of(method).why_no_trials
            if reason:
                raise UnalikeError(f"{label}: {reason}")
        check_whole(1, trials=self.trials, rounds=self.rounds, seeds=self.seeds, jobs=self.jobs)
        check_whole(0, seed=self.seed)
        if self.budget_seconds is not None and not self.budget_seconds > 0:
            raise UnalikeError(
                f"found budget_seconds={self.budget_seconds!r}, expected a number "
                "of seconds above 0"
            )

    @cached_property
    def goal(self) -> TuningScore:
        return TuningScore.parse(self.objective)

    @property
    def most_rounds(self) -> int:
        """The rounds of all trials and runs, if no trial is stopped early."""
        return len(self.methods) * self.rounds * (self.trials + 2 * self.seeds)


def run_tuning(
    request: TuneRequest,
    out: str | Path | None,
    progress: ProgressCallback,
    *,
    source: Mapping[str, Any] | None = None,
    command: str = "",
    work: Work | None = None,
    **settings: Any,
) -> Tuning:
    """Tune as `tune` does. `source`: the command-line flags of the data; `command`: the command that repeats the tuning."""
    refuse_empty_path("out", out)
    folder = None if out is None else Path(out)
    settings |= {
        "metric": request.goal.metrics(_listed(settings.get("metric", ()))),
        "source": source,
    }
    methods = {
        label: Tunable(plan_of(method), work or Work()) for label, method in request.methods.items()
    }
    before = _comparison(request, methods, command, settings)
    runner = TrialRunner(
        methods=methods,
        clients=_clients(request, settings),
        objective=request.goal,
        seed=request.seed,
        training=_training(request, settings),
        prune=request.prune,
    )

    # The comparison comes before the trials: an error of it then costs little.
    as_given = before.run(folder and folder / "before", _named(progress, "before"), request.jobs)

    def on_trial(label: str, trial: Trial) -> None:
        progress({"round": request.rounds}, f"{label}, trial {trial.number}")

    budget = TrialBudget(request.trials, request.budget_seconds)
    trials = run_trials(runner, budget, folder and folder / "trials", request.jobs, on_trial)

    # The same comparison with the values of each method's best trial.
    tuned = {}
    for label, method in methods.items():
        tuned[label] = method.with_values(chosen_values(method, trials[label], runner.sign))
    after = _comparison(request, tuned, command, settings)
    as_tuned = after.run(folder and folder / "after", _named(progress, "after"), request.jobs)
    tuning = Tuning(
        name=as_given.name,
        methods=methods,
        trials=trials,
        objective=request.goal,
        budget=budget,
        rounds=request.rounds,
        seed=request.seed,
        before=as_given,
        after=as_tuned,
        command=command,
    )
    if folder is not None:
        tuning.save(folder)
    return tuning


def _comparison(
    request: TuneRequest, methods: Mapping[str, Tunable], command: str, settings: Mapping[str, Any]
) -> FreshComparison:
    """The comparison of the methods with these values, under fresh seeds, tested on samples that no trial saw."""
    # A method whose values did not change is compared as it was typed.
    compared: dict[str, object] = {}
    for label, tunable in methods.items():
        typed = request.methods[label]
        compared[label] = typed if plan_of(typed) == tunable.plan else tunable.plan
    return FreshComparison(
        methods=compared,
        works={label: tunable.work for label, tunable in methods.items()},
        clients=replace(request.clients, tests_of=request.seed),
        seeds=[request.seed + 1 + i for i in range(request.seeds)],  # on which nothing was tuned
        settings={**settings, "rounds": request.rounds},
        command=command or "# part of a tuning: call ua.tune(...) again",
    )


def _clients(request: TuneRequest, settings: Mapping[str, Any]) -> Population:
    """The clients of the trials. Samples that are the server's test set in the comparison are at no client."""
    needs_test = "server" in _listed(settings.get("protocol", ()))
    clients = request.clients.read(needs_test, compared=True)
    return on_validation(clients.of(request.seed))


def _training(request: TuneRequest, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the runs of trials. No protocol is among them: trials are scored at the clients."""
    names = {"model", "start", "start_partial", "proxy", "metrics", *fields_of(RunOptions)}
    names -= {"seed", "protocol"}
    arguments = {name: value for name, value in settings.items() if name in names}
    return arguments | {"rounds": request.rounds}


def _listed(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _named(progress: ProgressCallback, stage: str) -> ProgressCallback:
    """The callback for the runs of the comparison `stage` ("before" or "after") tuning."""

    def named(row: dict[str, Any], what: str = "") -> None:
        progress(row, f"{what} {stage} tuning")

    return named
