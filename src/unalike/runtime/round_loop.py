"""The round loop: `run` checks what was asked for, `execute` carries out a plan, `run_round` is one round of training."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from inspect import signature
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.keywords import check_keywords, fields_of
from unalike._utils.progress import ProgressCallback, UserProgress, progress_reporting
from unalike.core.losses import LossFunction
from unalike.core.options import SimulationOptions, options_of
from unalike.core.work import Work
from unalike.data.partitioning.given_clients import Clients, ClientsRequest
from unalike.methods.notes import notes_about
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults, next_step, steps_of
from unalike.methods.return_checks import untouched
from unalike.metrics.columns import TIMES
from unalike.metrics.metrics import Custom, leading_columns
from unalike.runtime.processes.launch import backend_here, follow_leader, require_folder
from unalike.runtime.records.history import DIVERGED, History, Row
from unalike.runtime.records.recording import Hook
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.run_recorder import Run, RunRecorder
from unalike.runtime.setup.given_model import ModelLike, note_drawn_weights
from unalike.runtime.setup.run_config import Pair, RunConfig, prepare_run
from unalike.runtime.setup.run_options import check_inputs, with_loss
from unalike.runtime.shortfalls import shortfalls
from unalike.runtime.stages.backend import Backend, Replies, RoundUpdates, StageBackend
from unalike.runtime.stages.model_group import Diverged
from unalike.runtime.stages.stage_state import RoundResult, StageState
from unalike.tracking.tracker import Track
from unalike.tracking.tracking import NO_TRACKERS, Trackers
from unalike.training.wire import query_wire, stage_wire

Stop = Callable[[dict[str, Any]], bool]
"""Called with each row of the history; True ends the run."""
Ending = Callable[[History], bool]
"""Called with the history after each round; True ends the run."""
NOTABLE = 20.0
"""Seconds of evaluation in a run from which on they are compared with those of training."""


def run(
    spec: object,
    clients: Clients | int | None = None,
    *,
    data: Any = None,
    data_dir: str | Path | None = None,
    partition: str | None = None,
    split: float | None = None,
    val: float = 0.0,
    folds: int | None = None,
    model: ModelLike = "mlp",
    rounds: int = 50,
    start: str | Path | None = None,
    start_partial: bool = False,
    work: Work | None = None,
    loss: str | LossFunction | None = None,
    seed: int = 0,
    participation: float = 1.0,
    sampling: str = "fixed",
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
    metric: str | Sequence[str] = (),
    metrics: Custom | None = None,
    record: str | Hook | None = None,
    out: str | Path | None = None,
    resume: bool = True,
    track: Track | None = None,
    progress: UserProgress = None,
    **unknown: Any,
) -> Run:
    """Train `spec` on `clients` for `rounds` rounds and evaluate it as it goes.

    Args:
        spec: text such as "fedprox(mu=0.1) + lws", a method, a part or a plan.
        clients: the result of `ua.partition`, or a list of `ua.ClientData`. With `data`: the number of clients (10, or as many
            as the data set defines, unless given).
        data: data set by name, or a data set or object that `ua.load` reads, instead of clients.
        data_dir: folder of data files.
        partition: partition of the data, drawn with `seed`; unless given, by the groups of the data, or where it has none,
            "dirichlet(alpha=0.1)", for a regression "iid".
        split: share of each client's samples that train (0.75); with `clients` their test samples are drawn anew.
        val: share of each client's training samples used for validation; only with `data`.
        folds: number of folds of repeated cross-validation: `seed` says which fold of every client tests.
        model: model to train: a name such as "mlp(hidden=(64, 32))", a module (its weights are the start; it is not changed),
            or a function that makes one.
        rounds: number of rounds, over all stages of a plan.
        start: initial weights: a file (safetensors, or a state dict saved by torch) or the folder of a finished run.
        start_partial: take the tensors of the initial weights that fit by name and shape, and leave the others as initialized;
            a note of the run lists these.
        work: local training of a client; the default is `ua.Work()`.
        loss: loss that clients minimize in the place of the task's, as in `ua.Work(loss=...)`: "focal(gamma=2)",
            "cross_entropy(class_weights='balanced')", or a function of outputs and labels.
        seed: seed of all random numbers.
        participation: share of the clients that take part in a round.
        sampling: draw of the clients of a round: "fixed", so many of them without replacement, or "poisson", each one by itself
            with the share as its probability.
        executor: executor: "auto", "loop", "batched" or "distributed(workers=2)".
        evaluate_every: number of rounds between evaluations; the end of a stage is always evaluated.
        protocol: evaluation protocol: "clients", "server", "personal", "local", or several. The first fills the plain columns.
        test: (x, y), the server's test set. With `data` and protocol="server": the published test set of the data unless given.
        proxy: (x, y) on the server, for methods that learn from it.
        device: device to train on, such as "cpu" or "cuda".
        buffers: running statistics of batch norm: "average", "local" or "first".
        transform: transform of training batches, such as "normalize(mean=0.5, std=0.25) + crop(padding=4) + flip", drawn per
            client and round. Evaluation only normalizes.
        precision: precision of training: "float32", or "bf16" for faster training on processors with bf16, which changes
            updates by a few per cent.
        stop: rule that ends a run early, such as "min_accuracy >= 0.8" or "patience(rounds=10)", read from validation samples
            if the clients have any; or a function that is called with each row of the history and returns True to end the run.
        budget: budget of a run: "30 rounds", "10 min" of training, "500 MB" to and from all clients, or "3 epsilon" of a private
            method.
        select: round whose models count: "last", or "best" by validation score (of the personal models if
            there are any).
        metric: metric to decide by, such as "roc_auc" or "sensitivity_at(specificity=0.95)", one or several; they come first
            among the columns, and patience and `select="best"` go by the first one instead of accuracy or RMSE.
        metrics: further columns, name -> function of labels [n], predictions [n] and logits ([n, C]; [n] for one output), as
            arrays, that returns a number. Each is computed over all test samples and for each client. A folder identifies a
            metric by its name alone: give a changed function another name or another folder.
        record: numbers of each round to keep: "server" (what the server's half of the method saw and chose), "updates" (norms
            and cosines of the clients' updates), "time" (seconds of aggregation), "clients(layers='head', every=10)"
            (parameters after local training), or several with +; or a function of one's own. The table is `run.records`.
            Recording changes no result.
        out: a folder that keeps the run. A folder that holds the beginning of the same run is resumed.
        resume: False refuses a folder that already holds this run.
        track: trackers that follow the run: "tensorboard", "mlflow(uri='sqlite:///mlflow.db')", "wandb(mode='offline')", an object
            with the methods of `unalike.tracking.tracker.Tracker`, or a list of them. A resumed run continues its tracker's run.
        progress: function of each new row of the history; by default a bar on a terminal and in a notebook; False for none.
        unknown: no other keyword is taken; a misspelt one gets a suggestion.

    Returns:
        The finished run: its history, models and warnings.

    Raises:
        UnalikeError: the run is impossible as requested; the message says what was found, what was expected and what to do.

    Examples:
        >>> run = ua.run("fedprox(mu=0.1)", clients, model="cnn", rounds=30)  # doctest: +SKIP
        >>> run = ua.run("fedprox(mu=0.1)", data="digits")  # doctest: +SKIP
        >>> run.history.rounds  # doctest: +SKIP
    """
    options = {
        name: value for name, value in locals().items() if name in options_of(SimulationOptions)
    }
    options["stop"] = stop if isinstance(stop, str) else None
    if not (stop is None or isinstance(stop, str) or callable(stop)):
        raise UnalikeError(
            f"stop={stop!r}: expected a rule such as 'accuracy >= 0.9', or a function of a row of the history"
        )
    trackers, work = Trackers.of(track), with_loss(work, loss)
    check_keywords(
        "ua.run", unknown, [n for n in signature(run).parameters if n != "unknown"], fields_of(Work)
    )
    network: dict[str, Any] = {"model": model, "start": start, "start_partial": start_partial}
    request = ClientsRequest(clients, data, data_dir, partition, split, val, test, folds=folds)
    asked = check_inputs(
        [spec], work=work, has_test=request.has_test, record=record, **network, **options
    )
    given = request.read(needs_test="server" in asked.protocols)
    run_config = prepare_run(
        spec,
        given.of(seed),
        work=work,
        test=given.test,
        proxy=proxy,
        metrics=metrics,
        record=record,
        **network,
        **options,
    )
    for note in run_config.warnings:
        warn(note)
    note_drawn_weights(model, start, out)
    require_folder(run_config, out)
    follow_leader([run_config])
    called = (lambda history: stop(dict(history.last))) if callable(stop) else None
    with progress_reporting(progress, rounds, "training") as report:
        return execute(
            run_config, out=out, resume=resume, stop=called, progress=report, trackers=trackers
        )


def execute(
    run_config: RunConfig,
    *,
    backend: Backend | None = None,
    out: str | Path | None = None,
    resume: bool = True,
    stop: Ending | None = None,
    progress: ProgressCallback = lambda row, what="": None,
    trackers: Trackers = NO_TRACKERS,
) -> Run:
    """Carry out a run: each stage of its plan, round after round. If `out` holds the beginning of the run, it is resumed.

    A round is trained (`run_round`), evaluated and recorded (`_close_round`); then the stop rules are asked. Under `torchrun` only
    the leading process gets here (`follow_leader`).
    """
    with _opened(run_config, backend, out, resume, trackers) as (backend, recorder):
        run_config = backend.run_config
        for index, clients in _stages(run_config, backend, recorder):
            stage = clients.state
            _resume_history(run_config, clients, index, recorder, stop)
            updates = (
                None
                if len(recorder.history)
                else _close_round(run_config, clients, index, recorder)
            )
            while not recorder.ended and not stage.over:
                if stage.pending is None:
                    with recorder.listening():
                        stage.pending = run_round(clients, updates)
                    recorder.record(stage.method, stage.pending, stage.states)
                    if clients.trains_ahead and stage.stage.trained:
                        recorder.hold(index, clients)
                updates = _close_round(run_config, clients, index, recorder)
                progress(recorder.history.progress_row)
                if why := _why_ended(run_config, stage, recorder.history, stop):
                    recorder.log.event("stopped", round=recorder.history.last["round"], why=why)
                    recorder.ended = why
        return recorder.finish(clients)


def run_round(clients: StageBackend, updates: RoundUpdates | None = None) -> RoundResult:
    """One round: sample a cohort, broadcast, train, validate, aggregate, make the server step.

    `updates` are those of the round's cohort if it trained in an earlier exchange (`StageBackend.trains_ahead`). Raises `Diverged`
    where no update of a group can be used.
    """
    stage = clients.state
    result = RoundResult(before=stage.states)
    if stage.stage.trained:
        if updates is None:
            cohort = stage.draw(stage.done)  # empty perhaps, where each client is drawn by itself
            updates = (
                clients.exchange(train=cohort).updates if cohort else RoundUpdates({}, 0.0, 0, 0)
            )
        assert updates is not None
        _aggregate(stage, updates, result)
    stage.count_round()
    return result


def _aggregate(stage: StageState, updates: RoundUpdates, result: RoundResult) -> None:
    """Aggregate the updates of each group and make its server step."""
    started = time.perf_counter()
    result.bytes_down, result.bytes_up = updates.bytes_down, updates.bytes_up
    result.faults, result.local = dict(updates.faults), dict(updates.local)
    for name, group in stage.groups.items():
        with notes_about(name), untouched(stage.method, group.state.params | group.state.buffers):
            if name in updates.groups:
                cohort, refused = group.advance(updates.groups[name])
                result.faults |= updates.groups[name].oversized
                result.add(name, cohort, refused)
            else:
                group.wait()
    updates.complete()
    if stage.method.privacy is not None:
        result.train_loss = float("nan")  # clients of a private method send none
    result.seconds = updates.seconds + time.perf_counter() - started


def _close_round(
    run_config: RunConfig, clients: StageBackend, index: int, recorder: RunRecorder
) -> RoundUpdates | None:
    """Evaluate the models that a round ended with (or the run begins with), if that is due, and record the row of the round.

    Clients that train ahead train the next round in the same exchange; returns their updates.
    """
    stage, result = clients.state, clients.state.pending
    number, epsilon = recorder.next_round, stage.epsilon_after(stage.done)
    for client, why in result.refused.items() if result else ():
        recorder.log.event(
            "refused", round=number, client=run_config.population.names[client], why=why
        )
    recorder.log.note_clients(number, run_config.population.names, result.faults if result else {})
    replies = Replies(evaluation_seconds=0.0)
    if result is None or _is_evaluated(run_config, stage, result, number, recorder):
        # updates of a round that a stop rule forbids would cost privacy that no row accounts for
        may_follow = stage.stage.trained and not stage.last_done and epsilon is None
        ahead = clients.trains_ahead and may_follow
        replies = clients.exchange(train=stage.draw(stage.done) if ahead else (), evaluate=True)
    stage.pending = None
    row, rows = replies.metrics or ({}, [])
    if epsilon is not None:
        row = {"epsilon": epsilon} | row
    complete = _row(number, result, row, replies.evaluation_seconds)
    recorder.add(index, clients, complete, [{"round": number} | r for r in rows])
    _note_evaluation(run_config, recorder)
    return replies.updates


@contextmanager
def _opened(
    run_config: RunConfig,
    backend: Backend | None,
    out: str | Path | None,
    resume: bool,
    trackers: Trackers,
) -> Iterator[tuple[Backend, RunRecorder]]:
    """The backend and the recorder of a run, while it goes.

    However the run ends (an interruption, a divergence, a crash), its complete rounds are written to the folder; with several
    processes, an interruption while they communicate loses the rounds since the last checkpoint.
    """
    directory = None if out is None else RunDirectory(out)
    with (
        backend_here(run_config) if backend is None else nullcontext(backend) as chosen,
        nullcontext() if directory is None else directory.held(),
    ):
        recorder = RunRecorder(directory, chosen.run_config, resume, trackers)
        try:
            yield chosen, recorder
        except BaseException as error:
            if isinstance(error, Diverged):
                recorder.log.event(DIVERGED, round=recorder.next_round, why=str(error))
            with suppress(UnalikeError):
                recorder.checkpoint()
            recorder.tracking.fail()
            raise


def _stages(
    run_config: RunConfig, backend: Backend, recorder: RunRecorder
) -> Iterator[tuple[int, StageBackend]]:
    """The stages of the plan with their step numbers. Client queries between them are asked on the way."""
    steps = steps_of(run_config.plan, run_config.plan_inputs)
    step, index, earlier, groups = next(steps, None), 0, 0, 0
    for note in (*run_config.warnings, *run_config.data_notes, *backend.notes, run_config.sanity):
        recorder.log.note(note)
    while step is not None:
        outcome: Answers | StageResults
        if isinstance(step, QueryStep):
            outcome = _answers(run_config, step, index, recorder, backend)
        else:
            clients = _begin_stage(run_config, step, index, recorder, backend)
            clients.state.earlier = earlier
            yield index, clients
            earlier += clients.state.done
            groups = max(groups, sum(len(ids) > 0 for ids in clients.state.members.values()))
            outcome = StageResults(clients.state.states, clients.state.done)
            if recorder.ended:  # perhaps before a step such as the calibration of CCVR
                why = run_config.ending.why(recorder.history)
                if why and (ahead := next_step(steps, outcome)) is not None:
                    recorder.log.note(
                        f"{why}: it ended in stage {step.name!r}, and what the plan does from {ahead.name!r} on was not done"
                    )
                break
        backend.end_step(outcome)
        step, index = next_step(steps, outcome), index + 1
    if groups == 1 and getattr(run_config.plan, "divides", False):
        recorder.log.note(
            "all clients are in one group: one model was trained, as by the method without groups"
        )


def _answers(
    run_config: RunConfig, step: QueryStep, index: int, recorder: RunRecorder, backend: Backend
) -> Answers:
    """The answers to a client query: those of the checkpoint, or asked for now."""
    answers = recorder.checkpoints.restore_answers(index, step.name)
    if answers is None:
        answers = backend.query(step, index)
        recorder.checkpoints.take_answers(index, step.name, answers)
        recorder.charge(query_wire(step, run_config.model), len(answers.clients))
        recorder.log.event(
            "query", name=step.name, query=repr(step.query), clients=len(answers.clients)
        )
    return answers


def _begin_stage(
    run_config: RunConfig, stage: Stage, index: int, recorder: RunRecorder, backend: Backend
) -> StageBackend:
    """The clients of a stage, where the checkpoint has them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        stage.method.check(stage.method.local_work(run_config.work))
    for warning in caught:
        recorder.log.note(str(warning.message))
        warn(str(warning.message))
    clients = backend.stage(
        stage, index, None if recorder.directory is None else recorder.directory.client_states
    )
    settings = clients.state.settings
    if stage.start is not None and settings.buffers == "local" and settings.model.buffers:
        recorder.log.note(
            f"stage {stage.name!r} starts from models of the server, whose buffers are those that the run began "
            "with (buffers='local'): what clients made of their own before is lost there, and questions about these models do not "
            "see it; buffers='average' carries it on"
        )
    for text in shortfalls(clients.state, run_config):
        recorder.log.note(text)
    recorder.restore(index, clients)
    clients.start()
    recorder.log.event("stage", name=stage.name, executor=clients.executor)
    return clients


def _resume_history(
    run_config: RunConfig,
    clients: StageBackend,
    index: int,
    recorder: RunRecorder,
    stop: Ending | None,
) -> None:
    """Prepare the history of a stage: charge the bytes that are sent once at its beginning.

    The history of a run that a stop rule ended before is only read.
    """
    stage = clients.state
    if stage.done == 0 and not recorder.checkpoints.holds(index):
        recorder.charge(
            (i for i in stage_wire(stage.stage, stage.settings.model) if i.once),
            len(stage.eligible),
        )
    if len(recorder.history) > 1 and recorder.checkpoints.ends_in(index):
        recorder.ended = _why_ended(run_config, stage, recorder.history, stop)


def _is_evaluated(
    run_config: RunConfig,
    stage: StageState,
    result: RoundResult,
    number: int,
    recorder: RunRecorder,
) -> bool:
    """Whether a round is evaluated: every few rounds, and always at the end of a stage or run, as by its budget."""
    if number % run_config.options.evaluate_every == 0 or stage.last_done:
        return True
    with_this = History(
        [*recorder.history.rows, _row(number, result, {})], columns=run_config.columns
    )
    return bool(_why_ended(run_config, stage, with_this, None))


def _why_ended(
    run_config: RunConfig, stage: StageState, history: History, stop: Ending | None
) -> str:
    """The reason why the run ends with the newest row; empty if it goes on."""
    over = run_config.ending.why(history) or stage.budget_spent(run_config.options.epsilon_limit)
    return over or ("stopped by the caller" if stop is not None and stop(history) else "")


def _note_evaluation(run_config: RunConfig, recorder: RunRecorder) -> None:
    """Suggest fewer evaluations, once, where they take longer than training."""
    training, evaluation = (
        sum(row.get(name, math.nan) for row in recorder.history.rows) for name in TIMES
    )
    if run_config.options.evaluate_every == 1 and evaluation > max(training, NOTABLE):
        recorder.log.note(
            "evaluation takes longer than training: evaluate_every=5 (--evaluate-every 5) evaluates every fifth round alone"
        )


def _row(
    number: int, result: RoundResult | None, metrics: Row, evaluation_seconds: float = 0.0
) -> Row:
    """A row of the history: the chosen metrics and the usual columns, then the others."""
    found = RoundResult() if result is None else result
    cost: Row = {
        "train_loss": found.train_loss,
        "bytes_down": found.bytes_down,
        "bytes_up": found.bytes_up,
    }
    times = dict(zip(TIMES, (found.seconds, evaluation_seconds), strict=True))
    effort = {"round": number, **times, "participants": len(found.trained)}
    return effort | leading_columns(metrics) | cost | metrics
