"""Run a plan on clients: train, evaluate, record, resume."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from unalike._utils.errors import UnalikeError
from unalike._utils.progress import ProgressCallback, progress_reporting
from unalike.core.work import Work
from unalike.engine.multiprocess.worker_pool import WorkerPool
from unalike.engine.threads import threads_for
from unalike.methods.plan import Answers, PlanSteps, QueryStep, Stage, StageResults, next_step, steps_of
from unalike.metrics.metrics import USUAL, Custom
from unalike.runtime.evaluation import Evaluator
from unalike.runtime.history import History, Row
from unalike.runtime.model_group import Diverged
from unalike.runtime.query_runner import ask_clients as ask_all
from unalike.runtime.run_config import Clients, ModelLike, Pair, RunConfig, prepare_run
from unalike.runtime.run_directory import RunDirectory
from unalike.runtime.run_recorder import Run, RunRecorder
from unalike.runtime.stage_runner import RoundResult, StageRunner
from unalike.runtime.stopping import ALL_DONE, DIVERGED
from unalike.runtime.worker_loop import (
    announce_executor,
    announce_outcome,
    announce_stage,
    follow_leader,
    inner_executor,
    make_evaluator,
    make_stage_runner,
    require_folder,
    worker_pool_for,
)
from unalike.training.wire import query_wire, stage_wire

Stop = Callable[[dict[str, Any]], bool]
"""Called with each row of the history; True ends the run."""


def run(
    spec: object,
    clients: Clients,
    *,
    model: ModelLike,
    rounds: int,
    work: Work | None = None,
    seed: int = 0,
    participation: float = 1.0,
    executor: str = "auto",
    evaluate_every: int = 1,
    protocol: str | Sequence[str] = "clients",
    test: Pair | None = None,
    proxy: Pair | None = None,
    device: str = "cpu",
    buffers: str = "average",
    transform: str | None = None,
    precision: str = "float32",
    stop: str | Stop | None = None,
    budget: str | None = None,
    select: str = "last",
    metrics: Custom | None = None,
    out: str | Path | None = None,
    resume: bool = True,
    progress: ProgressCallback | bool | None = None,
) -> Run:
    """Train `spec` on `clients` for `rounds` rounds and evaluate it as it goes.

    spec: text such as "fedprox(mu=0.1) + lws", a method, a part or a plan. clients: what `ua.partition` returns, or a list of
    `ua.ClientData`. model: a name such as "mlp(hidden=(64, 32))", a module (its weights are the start; it is not changed) or
    a function that makes one. participation: the share of clients in a round, drawn without replacement. protocol: "clients",
    "server" (needs test=(x, y)), "personal", "local", or several. executor: "auto", "loop", "batched" or
    "distributed(workers=2)". buffers: "average", "local" or "first". precision: "float32", or "bf16" for faster training on
    processors with bf16, which changes updates by a few per cent. transform: of training batches, such as
    "normalize(mean=0.5, std=0.25) + crop(padding=4) + flip", drawn per client and round; evaluation normalizes only. stop: a
    rule such as "min_accuracy >= 0.8" or "patience(rounds=10)", read from validation samples where the clients have any, or a
    function called with each row of the history: True ends the
    run. budget: what the run may spend, "30 rounds", "10 min" of training or "500 MB" to and from all clients. select: "last", or
    "best", the round with the best validation score (of the personal models where there are any), whose models the run gives.
    metrics: further columns, name -> function of labels [n], predictions [n] and logits ([n, C]; [n] for one output), as arrays,
    that returns a number; of all test samples, and of each client's. A folder knows them by their names alone: a function that was
    changed needs another name or folder.
    proxy: (x, y) on the server, for methods that learn from it. out: a folder that keeps the run; one that holds the
    beginning of the same run is resumed. progress: called with each row; by default a bar when standard error is a
    terminal; False for none.

    Raises `UnalikeError` for whatever cannot be run, with what was found, what was expected and what to do.
    """
    if not (stop is None or isinstance(stop, str) or callable(stop)):
        raise UnalikeError(
            f"stop={stop!r}: expected a rule such as 'accuracy >= 0.9', or a function of a row of the history"
        )
    run_config = prepare_run(
        spec,
        clients,
        model=model,
        work=work,
        test=test,
        proxy=proxy,
        metrics=metrics,
        rounds=rounds,
        seed=seed,
        participation=participation,
        executor=executor,
        evaluate_every=evaluate_every,
        protocol=protocol if isinstance(protocol, str) else tuple(protocol),
        device=device,
        buffers=buffers,
        transform=transform,
        precision=precision,
        stop=stop if isinstance(stop, str) else None,
        budget=budget,
        select=select,
    )
    require_folder(run_config, out)
    follow_leader([run_config])
    called = None if isinstance(stop, str) else stop
    with progress_reporting(progress, rounds, "training") as told:
        return execute(run_config, out=out, resume=resume, stop=called, progress=told)


class Backend(Protocol):
    """Where a plan runs: on this machine, or on many."""

    @property
    def evaluator(self) -> Evaluator:
        """What evaluates it."""

    def stage(self, stage: Stage, index: int, recorder: RunRecorder) -> StageRunner:
        """A stage of the plan, the `index`-th of its steps, about to begin."""

    def query_step(self, query_step: QueryStep, index: int, recorder: RunRecorder) -> Answers:
        """The answers of the clients."""


class LocalBackend:
    """Everything on this machine, or in the processes of a team."""

    def __init__(self, run_config: RunConfig, worker_pool: WorkerPool | None = None):
        self.run_config, self.worker_pool, self.evaluator = run_config, worker_pool, make_evaluator(run_config)

    def stage(self, stage: Stage, index: int, recorder: RunRecorder) -> StageRunner:
        folder = None if self.worker_pool is None else self.worker_pool.folder
        if recorder.directory is not None:
            folder = recorder.directory.memory
        runner = make_stage_runner(
            self.run_config, stage, index, inner_executor(self.run_config.options.executor), folder, self.worker_pool
        )
        announce_stage(self.worker_pool, folder)
        return runner

    def query_step(self, query_step: QueryStep, index: int, recorder: RunRecorder) -> Answers:
        return ask_all(query_step, self.run_config.settings, self.run_config.population, self.run_config.options.chain)


def execute(
    run_config: RunConfig,
    *,
    backend: Backend | None = None,
    out: str | Path | None = None,
    resume: bool = True,
    stop: Stop | None = None,
    progress: ProgressCallback = lambda row, what="": None,
) -> Run:
    """Carry out a job: the rounds it still lacks where `out` holds its beginning, all of them otherwise.

    Under `torchrun` only the process that leads gets here (`teamwork.follow`).
    """
    directory = None if out is None else RunDirectory(out)
    with (
        worker_pool_for(run_config) if backend is None else nullcontext() as worker_pool,
        nullcontext() if directory is None else directory.held(),
    ):
        run_config = run_config.here(0 if worker_pool is None else worker_pool.place)
        recorder = RunRecorder(directory, run_config, resume)
        try:
            with threads_for(run_config.model, alone=worker_pool is None):
                runner, ended = _steps(
                    run_config, recorder, backend or LocalBackend(run_config, worker_pool), stop, progress, worker_pool
                )
        except BaseException:  # an interruption, a divergence, a crash: what is complete is kept
            with suppress(UnalikeError):
                recorder.checkpoint()
            raise
        run = recorder.finish(runner, ended)
        runner.collect_client_states()
        return run


def _steps(
    run_config: RunConfig,
    recorder: RunRecorder,
    backend: Backend,
    stop: Stop | None,
    progress: ProgressCallback,
    worker_pool: WorkerPool | None,
) -> tuple[StageRunner, str]:
    """The surveys and stages of the plan, one after the other; the last stage's simulation, and why the run ended."""
    steps = steps_of(run_config.plan, run_config.plan_inputs)
    step, index, ended = next(steps, None), 0, ""
    if run_config.ending.warning:
        recorder.note(run_config.ending.warning)
    while step is not None:
        if isinstance(step, QueryStep):
            outcome: Answers | StageResults = _survey(run_config, step, index, recorder, backend)
        else:
            runner = _runner(run_config, step, index, recorder, backend)
            ended = _rounds(run_config, runner, index, recorder, backend.evaluator, stop, progress)
            outcome = StageResults(runner.states, runner.done)
            if ended:
                _remark(run_config, recorder, step, steps, outcome)
                break
        announce_outcome(worker_pool, outcome)
        step, index = next_step(steps, outcome), index + 1
    return runner, ended or ALL_DONE


def _remark(
    run_config: RunConfig, recorder: RunRecorder, stage: Stage, steps: PlanSteps, outcome: StageResults
) -> None:
    """Say of a run that a rule or a budget ended what of its plan was still to come: CCVR, for one, without its calibration."""
    if (why := run_config.ending.why(recorder.history)) and (ahead := next_step(steps, outcome)) is not None:
        recorder.note(
            f"{why}: it ended in stage {stage.name!r}, and what the plan does from {ahead.name!r} on was not done"
        )


def _rounds(
    run_config: RunConfig,
    runner: StageRunner,
    index: int,
    recorder: RunRecorder,
    evaluator: Evaluator,
    stop: Stop | None,
    progress: ProgressCallback,
) -> str:
    """The rounds of a stage that are still to do. Why the run ends before its last round; empty if it does not."""
    options, stage = run_config.options, runner.stage
    if runner.done == 0 and not recorder.restored(index):
        recorder.charge((i for i in stage_wire(stage, runner.settings.model) if i.once), len(runner.eligible))
    if not len(recorder.history):
        metrics, rows = evaluator(runner, None)
        recorder.add(index, runner, _row(0, None, metrics), [{"round": 0} | r for r in rows])
    elif len(recorder.history) > 1 and recorder.newest(index) and (why := _over(run_config, recorder.history, stop)):
        return why  # it was stopped before, and is only read back
    while not runner.over:
        number, known = recorder.history.last["round"] + 1, runner.remarks
        try:
            done = runner.round()
        except Diverged as error:
            recorder.event(DIVERGED, round=number, why=str(error))
            raise
        if runner.remarks != known:
            recorder.event("executor", round=number, executor=runner.why)
        for client, why in done.refused.items():
            recorder.event("refused", round=number, client=run_config.population.names[client], why=why)
        metrics, rows = {}, []
        due = number % options.evaluate_every == 0 or runner.over
        if due or _ends(run_config, recorder.history, _row(number, done, {})):
            metrics, rows = evaluator(runner, done)
        recorder.add(index, runner, _row(number, done, metrics), [{"round": number} | r for r in rows])
        progress(dict(recorder.history.last))
        if why := _over(run_config, recorder.history, stop):
            recorder.event("stopped", round=number, why=why)
            return why
    return ""


def _row(number: int, done: RoundResult | None, metrics: Row) -> Row:
    """A row of the history: its usual columns, then the further metrics."""
    usual = {name: metrics[name] for name in USUAL if name in metrics}
    if done is None:
        cost: Row = {"train_loss": float("nan"), "bytes_down": 0, "bytes_up": 0}
        return {"round": number, "seconds": 0.0, "participants": 0} | usual | cost | metrics
    cost = {"train_loss": done.train_loss, "bytes_down": done.bytes_down, "bytes_up": done.bytes_up}
    return {"round": number, "seconds": done.seconds, "participants": done.participants} | usual | cost | metrics


def _ends(run_config: RunConfig, history: History, row: Row) -> bool:
    """Whether the run ends with a round that is not scored yet, as by its budget: what it comes to is always scored."""
    return run_config.ending.why(History([*history.rows, row])) is not None


def _over(run_config: RunConfig, history: History, stop: Stop | None) -> str:
    """Why the run ends with the newest row; empty if it goes on."""
    return run_config.ending.why(history) or (
        "stopped by the caller" if stop is not None and stop(dict(history.last)) else ""
    )


def _survey(run_config: RunConfig, step: QueryStep, index: int, recorder: RunRecorder, backend: Backend) -> Answers:
    found = recorder.answers(index)
    if found is None:
        found = backend.query_step(step, index, recorder)
        recorder.keep(index, found)
        recorder.charge(query_wire(step, run_config.model), len(found.clients))
        recorder.event("query", name=step.name, query=repr(step.query), clients=len(found.clients))
    return found


def _runner(run_config: RunConfig, stage: Stage, index: int, recorder: RunRecorder, backend: Backend) -> StageRunner:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        stage.method.check(stage.method.local_work(run_config.work))
    for warning in caught:
        recorder.note(str(warning.message))
        warnings.warn(str(warning.message), stacklevel=4)
    runner = backend.stage(stage, index, recorder)
    if stage.start is not None and runner.settings.buffers == "local" and runner.settings.model.buffers:
        recorder.note(
            f"stage {stage.name!r} starts from models of the server, whose buffers are those that the run began "
            "with (buffers='local'): what clients made of their own before is lost there, and questions about these models do not "
            "see it; buffers='average' carries it on"
        )
    recorder.restore(index, runner)
    announce_executor(runner)
    recorder.event("stage", name=stage.name, executor=runner.why)
    return runner
