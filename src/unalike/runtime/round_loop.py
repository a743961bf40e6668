"""The round loop: `run` checks what was asked for, `execute` carries out a plan, `run_round` is one round of training."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError, refuse_empty_path, warn
from unalike._utils.keywords import check_keywords, fields_of
from unalike._utils.progress import ProgressCallback, UserProgress, progress_reporting
from unalike.core.losses import LossFunction
from unalike.core.option import options_of
from unalike.core.options import SimulationOptions
from unalike.core.work import Work
from unalike.data.partitioning.given_clients import Clients, ClientsRequest
from unalike.methods.notes import notes_about
from unalike.methods.plan import (
    Answers,
    PlanSteps,
    QueryStep,
    Stage,
    StageResults,
    next_step,
    steps_of,
)
from unalike.methods.return_checks import untouched
from unalike.metrics.columns import TIMES
from unalike.metrics.metrics import Custom, leading_columns
from unalike.runtime.processes.launch import backend_here, follow_leader, require_folder
from unalike.runtime.records.history import History, Row
from unalike.runtime.records.recording import Hook
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.run_recorder import Run, RunRecorder
from unalike.runtime.setup.client_networks import ModelOrNetworks
from unalike.runtime.setup.given_model import note_drawn_weights
from unalike.runtime.setup.run_config import Pair, RunConfig, prepare_run
from unalike.runtime.setup.run_options import check_inputs, named_plan, with_loss
from unalike.runtime.shortfalls import lost_buffers, shortfalls
from unalike.runtime.stages.backend import (
    NO_UPDATES,
    Backend,
    Replies,
    RoundUpdates,
    StageBackend,
)
from unalike.runtime.stages.stage_state import RoundResult, StageState
from unalike.tracking.tracker import Track
from unalike.tracking.tracking import NO_TRACKERS, Trackers

Stop = Callable[[dict[str, Any]], bool]
"""Called with each row of the history; True ends the run."""
Ending = Callable[[History], bool]
"""Called with the history after each round; True ends the run."""


def run(
    spec: object,
    clients: Clients | int | None = None,
    *,
    data: Any = None,
    data_dir: str | Path | None = None,
    partition: str | None = None,
    split: float | str | None = None,
    val: float = 0.0,
    folds: int | None = None,
    model: ModelOrNetworks = "mlp",
    rounds: int = 50,
    start: str | Path | None = None,
    start_partial: bool = False,
    work: Work | None = None,
    loss: str | LossFunction | None = None,
    seed: int = 0,
    participation: float = 1.0,
    sampling: str = "fixed",
    devices: str | None = None,
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
        split: share of each client's samples that train (0.75), or "later", if samples are in order of time and the last quarter
            tests; with `clients` their test samples are drawn anew.
        val: share of each client's training samples used for validation; only with `data`.
        folds: number of folds of repeated cross-validation: `seed` says which fold of every client tests.
        model: model to train: a name such as "mlp(hidden=(64, 32))", a module (its weights are the start; it is not changed),
            or a function that makes one; where the clients' networks differ several by name, {"small": "cnn", "large": "resnet20"},
            or with a rule which client has which as text (`docs/how_to/unlike_networks.md`).
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
        devices: simulated devices of the clients, such as "lognormal(sigma=1) + drop_out(rate=0.1)": their speeds, when they are
            there, whose updates arrive. The history gets `simulated_seconds`, the time since the run began.
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
        budget: budget of a run: "30 rounds", "10 min" of training, "2 h simulated" with `devices`, "500 MB" to and from all
            clients, or "3 epsilon" of a private method.
        select: model to keep: of the "last" round, or of the "best" one by validation score (of the personal models if
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
    arguments = locals()
    options = {name: arguments[name] for name in options_of(SimulationOptions)}
    options["stop"] = stop if isinstance(stop, str) else None
    if not (stop is None or isinstance(stop, str) or callable(stop)):
        raise UnalikeError(
            f"stop={stop!r}: expected a rule such as 'accuracy >= 0.9', or a function of a row of the history"
        )
    refuse_empty_path("out", out)
    trackers = Trackers.of(track)
    work = with_loss(work, loss)
    check_keywords(
        "ua.run", unknown, [n for n in signature(run).parameters if n != "unknown"], fields_of(Work)
    )

    # Everything that can be checked without data is checked first: reading data may take minutes.
    request = ClientsRequest(clients, data, data_dir, partition, split, val, test, folds=folds)
    method = named_plan(spec)
    checked = check_inputs(
        [method],
        model=model,
        start=start,
        start_partial=start_partial,
        work=work,
        has_test=request.has_test,
        record=record,
        **options,
    )
    given = request.read(needs_test="server" in checked.protocols)
    run_config = prepare_run(
        method,
        given.of(seed),
        checked,
        model=model,
        start=start,
        start_partial=start_partial,
        work=work,
        test=given.test,
        proxy=proxy,
        metrics=metrics,
        record=record,
    )

    # Warned before training, and not at its end, when it is too late to begin otherwise.
    for note in run_config.warnings:
        warn(note)
    note_drawn_weights(model, start, out)
    require_folder(run_config, out)

    # Under torchrun every process gets here. Only the leader goes on; the others train clients for it until it ends.
    follow_leader([run_config])
    with progress_reporting(progress, rounds, "training") as report:
        return execute(
            run_config,
            out=out,
            resume=resume,
            stop=_asked_about_newest_row(stop) if callable(stop) else None,
            progress=report,
            trackers=trackers,
        )


def _asked_about_newest_row(stop: Stop) -> Ending:
    """The rule of a user, who is shown the newest row alone, as a rule on the history."""

    def ends(history: History) -> bool:
        return stop(dict(history.last))

    return ends


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

    Under `torchrun` only the leading process gets here (`follow_leader`).
    """
    with _opened(run_config, backend, out, resume, trackers) as (backend, recorder):
        for index, clients in _stages(backend, recorder):
            stage = clients.state
            # A folder may hold a run that a stop rule ended. It is only read: another round would make another run of it.
            if recorder.resumed_in(index):
                recorder.ended = _why_ended(recorder, stage, stop)

            # Row 0 of the history is the model before any training, with which every round is compared.
            updates = None
            if not len(recorder.history):
                updates = _close_round(clients, index, recorder)

            while not recorder.ended and not stage.over:
                # Step 1: Train. A round that a checkpoint holds without its row has been trained, and is not trained again.
                if stage.pending is None:
                    with recorder.round_begins():
                        stage.pending = run_round(clients, updates)
                    recorder.round_trained(index, clients)

                # Step 2: Evaluate what the round made of the models, and write its row.
                updates = _close_round(clients, index, recorder)
                progress(recorder.history.progress_row)

                # Step 3: Ask the stop rules last, since they read the row that is complete now.
                recorder.end(_why_ended(recorder, stage, stop))
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
            # Where each client is drawn by itself, a cohort may be empty; the round counts all the same, and may hear of clients
            # that earlier rounds asked.
            cohort = stage.draw(stage.done)
            if cohort or stage.devices.under_way:
                updates = clients.exchange(train=cohort).updates
            else:
                stage.devices.wait()
                updates = NO_UPDATES
        assert updates is not None
        _aggregate(clients, updates, result)
        stage.observe(result)
    # Counted last: broadcast and server step see the number of rounds before this one.
    stage.count_round()
    return result


def _aggregate(clients: StageBackend, updates: RoundUpdates, result: RoundResult) -> None:
    """Aggregate the updates of each group and make its server step."""
    started = clients.clock()
    stage = clients.state
    result.bytes_down = updates.bytes_down
    result.bytes_up = updates.bytes_up
    result.faults = dict(updates.faults)
    result.lost = dict(updates.lost)
    result.local = dict(updates.local)
    result.client_seconds = dict(updates.client_seconds)
    result.turns = updates.turns
    gathered = {}
    for name, group in stage.groups.items():
        with _of_group(stage, name):
            # a group of which no client takes part counts the round, too, and may act in it
            gathered[name] = group.gather(updates.groups.get(name))

    # What groups share crosses between them before any of them moves.
    for name, of_group in stage.exchange(gathered).items():
        with _of_group(stage, name):
            stage.groups[name].move(of_group)
        if of_group.outcome is not None:
            result.add(name, of_group.outcome)
    # only now is the round sure to count: what held the updates may go
    updates.complete()
    if stage.method.hides_client_numbers:
        result.train_loss = float("nan")
    result.seconds = updates.seconds + clients.clock() - started


@contextmanager
def _of_group(stage: StageState, name: str) -> Iterator[None]:
    """Mark the notes of this block as those of a group, whose values nothing may write over."""
    state = stage.groups[name].state
    with notes_about(name), untouched(stage.method, state.params | state.buffers, state.round):
        yield


def _close_round(clients: StageBackend, index: int, recorder: RunRecorder) -> RoundUpdates | None:
    """Evaluate the models that a round ended with (or the run begins with), if that is due, and write the row of the round.

    Clients that train ahead train the next round in the same exchange; returns their updates.
    """
    stage = clients.state
    result = stage.pending
    recorder.round_ends(result)
    replies = Replies(evaluation_seconds=0.0)
    if result is None or _is_evaluated(stage, result, recorder):
        replies = clients.exchange(train=_cohort_ahead(clients), evaluate=True)
    stage.pending = None
    metrics, client_rows = replies.metrics or ({}, [])
    scores = stage.columns | metrics
    row = _row(recorder.next_round, result, scores, replies.evaluation_seconds)
    turns = () if result is None else result.turns
    recorder.add(index, clients, row, client_rows, turns)
    return replies.updates


def _cohort_ahead(clients: StageBackend) -> Sequence[int]:
    """The clients that train the next round in the exchange that evaluates this one; none where each is asked by itself.

    A stop rule may forbid the next round, whose updates are then thrown away. Where updates may be late, a round ends before all
    have trained, and so would its evaluation.
    """
    stage = clients.state
    has_next = stage.stage.trained and not stage.last_done
    trains_ahead = clients.trains_ahead and not stage.updates_may_be_late
    if trains_ahead and has_next and stage.budget.allows_training_ahead:
        return stage.draw(stage.done)
    return ()


def _is_evaluated(stage: StageState, result: RoundResult, recorder: RunRecorder) -> bool:
    """Whether a round is evaluated: every few rounds, and always at the end of a stage or run, as by its budget."""
    number = recorder.next_round
    if number % recorder.run_config.options.evaluate_every == 0 or stage.last_done:
        return True
    rows = [*recorder.history.rows, _row(number, result, stage.columns)]
    with_this = History(rows, columns=recorder.run_config.columns)
    return bool(recorder.run_config.ending.why(with_this) or stage.why_no_next_round)


def _why_ended(recorder: RunRecorder, stage: StageState, stop: Ending | None) -> str:
    """The reason why the run ends with the newest row; empty if it goes on."""
    history = recorder.history
    over = recorder.run_config.ending.why(history) or stage.why_no_next_round
    if over:
        return over
    return "stopped by the caller" if stop is not None and stop(history) else ""


def _row(
    number: int, result: RoundResult | None, scores: Row, evaluation_seconds: float = 0.0
) -> Row:
    """A row of the history: the chosen metrics and the usual columns, then the others."""
    if result is None:
        result = RoundResult()
    seconds = dict(zip(TIMES, (result.seconds, evaluation_seconds), strict=True))
    effort = {"round": number, **seconds, "participants": len(result.trained)}
    cost = {
        "train_loss": result.train_loss,
        "bytes_down": result.bytes_down,
        "bytes_up": result.bytes_up,
    }
    return effort | leading_columns(scores) | cost | scores


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
            recorder.fail(error)
            raise


def _stages(backend: Backend, recorder: RunRecorder) -> Iterator[tuple[int, StageBackend]]:
    """The stages of the plan with their step numbers. Client queries between them are asked on the way."""
    run_config = backend.run_config
    # A plan yields its first step before anything is noted: it may refuse its inputs.
    steps = steps_of(run_config.plan, run_config.plan_inputs)
    step = next(steps, None)
    index = 0
    earlier_rounds = 0
    recorder.begin(backend.notes)
    while step is not None:
        outcome: Answers | StageResults
        if isinstance(step, QueryStep):
            outcome = _answers(step, index, recorder, backend)
        else:
            clients = _begin_stage(step, index, recorder, backend)
            clients.state.earlier = earlier_rounds
            yield index, clients
            earlier_rounds += clients.state.done
            outcome = StageResults(clients.state.states, clients.state.done)
            recorder.end_stage(clients)
            if recorder.ended:
                _note_undone_steps(step, steps, outcome, recorder)
                break
        # What follows depends on the outcome. Worker processes follow the same plan and are told of it, too.
        backend.end_step(outcome)
        step = next_step(steps, outcome)
        index += 1


def _note_undone_steps(
    stage: Stage, steps: PlanSteps, outcome: StageResults, recorder: RunRecorder
) -> None:
    """Note that a stop rule ended the run before the last step of its plan, perhaps one such as the calibration of CCVR."""
    why = recorder.run_config.ending.why(recorder.history)
    if not why:
        return
    ahead = next_step(steps, outcome)
    if ahead is not None:
        recorder.log.note(
            f"{why}: it ended in stage {stage.name!r}, and what the plan does from {ahead.name!r} on was not done"
        )


def _answers(step: QueryStep, index: int, recorder: RunRecorder, backend: Backend) -> Answers:
    """The answers to a client query: those of the checkpoint, or asked for now."""
    answers = recorder.checkpoints.restore_answers(index, step.name)
    if answers is None:
        answers = backend.query(step, index)
        recorder.query_answered(step, index, answers)
    return answers


def _begin_stage(stage: Stage, index: int, recorder: RunRecorder, backend: Backend) -> StageBackend:
    """The clients of a stage, where the checkpoint has them."""
    # Parts that do not fit the local work say so before the states of perhaps many clients are made.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        stage.method.check(stage.method.local_work(backend.run_config.work))
    for warning in caught:
        recorder.log.note(str(warning.message))
        warn(str(warning.message))

    clients = backend.stage(stage, index, recorder.client_states)
    for text in (*lost_buffers(clients.state), *shortfalls(clients.state, backend.run_config)):
        recorder.log.note(text)

    # Restored before it starts: what was done already decides which executor is worth its preparation.
    recorder.restore(index, clients)
    clients.start()
    recorder.begin_stage(index, clients)
    return clients
