"""Every option that a user sets and that more than one place knows: name, type, default and help, each declared once.

An option is a field of one of the dataclasses below. Made from the fields are the flags of all commands (`cli/flags.py`), config
files and their schema, the classes that check values (`Work`, `RunOptions`, `Federation`), what a site of a federation agrees to,
and the commands that reports print. The signatures of `ua.run`, `ua.compare`, `ua.tune` and `ua.diagnose` repeat
names and defaults, and `tests/cli/test_options.py` holds them to this page.

A class says what its options are about; a command lists the classes whose options it takes. Options of one command alone are
parameters of that command.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from unalike.core.option import Help

AtLeastOne = Annotated[int, Ge(1)]
Whole = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]


def cohort_size(participation: float, eligible: int) -> int:
    """Number of clients in a round: this share of the eligible ones, halves rounded up, and at least one."""
    return max(1, int(participation * eligible + 0.5))


@dataclass(frozen=True)
class SourceOptions:
    """The data set."""

    data: Annotated[
        str,
        Help("Data set by name (see `unalike list data`), or a file such as visits.csv or my.npz."),
    ] = "digits"
    data_dir: Annotated[Path | None, Help("Folder of data files; also $UNALIKE_DATA.")] = None
    limit: Annotated[
        AtLeastOne | None,
        Help(
            "Take this many samples of the data set at random, with the shares of its classes, and no others."
        ),
    ] = None


@dataclass(frozen=True)
class DelimitedOptions:
    """The marks and the character encoding of a table of delimited text."""

    sep: Annotated[
        str | None, Help("Separator of a CSV file (, ; | or a tab), found unless given.")
    ] = None
    decimal: Annotated[
        str | None, Help("Decimal mark of a CSV file (. or ,), found unless given.")
    ] = None
    charset: Annotated[
        str | None,
        Help("Character encoding of a CSV file, such as cp1252; UTF-8 or UTF-16 unless given."),
    ] = None


@dataclass(frozen=True)
class TableOptions(DelimitedOptions):
    """The columns of a table."""

    target: Annotated[
        tuple[str, ...],
        Help(
            "Column of a table to predict, or its comparison with a value, such as 'num > 0'; repeat for several labels or amounts."
        ),
    ] = ()
    task: Annotated[
        str | None,
        Help(
            "Task, where the target does not imply it (see `unalike list tasks`), such as counts or survival."
        ),
    ] = None
    offset: Annotated[
        str | None,
        Help("Column of the log exposure of counts, or 'log(COLUMN)' of the exposure itself."),
    ] = None
    time: Annotated[
        str | None,
        Help(
            "Column of the time to an event, or to the end of observation, with --event in the place of --target."
        ),
    ] = None
    event: Annotated[
        str | None, Help("Column that says whether the event happened: true/false, or 1 and 0.")
    ] = None
    group: Annotated[
        tuple[str, ...],
        Help(
            "Column that names the owner of each row (e.g. hospital); not used as a feature; repeat for several. The first one "
            "divides the data among clients unless --partition is given."
        ),
    ] = ()
    unit: Annotated[
        str | None,
        Help(
            "Column whose values, such as patients or recordings, are never divided between training and test samples; not used as "
            "a feature. Unless given, a column such as patient_id whose values repeat, or else copies of rows; none: each row for "
            "itself."
        ),
    ] = None
    split_by: Annotated[
        str | None,
        Help(
            "Column of dates or numbers: each client's later rows test and its earlier ones train, instead of rows at random; not "
            "used as a feature unless --date names it, too."
        ),
    ] = None
    drop: Annotated[
        tuple[str, ...], Help("Column of a table to leave out; repeat for several.")
    ] = ()
    regression: Annotated[
        bool | None,
        Help(
            "Read whole numbers in the target column as amounts, or with --no-regression decimals such as 2.0 as classes."
        ),
    ] = None
    date: Annotated[
        tuple[str, ...],
        Help(
            "Column of dates, which is read as a number of days; 'admitted=%d/%m/%Y' says how they are written; repeat for several."
        ),
    ] = ()
    labelled_only: Annotated[
        bool, Help("Leave out the rows without a target or a group, which are refused otherwise.")
    ] = False
    accept: Annotated[
        bool,
        Help(
            "Accept doubtful columns of a table: classes, categories or owners that differ only in case, space or number format; "
            "in a federation also those that look like identifiers, are dates as texts, are far from the agreed ones, or that the "
            "sites may write in several ways."
        ),
    ] = False


@dataclass(frozen=True)
class PartitionOptions:
    """The division of the data among clients."""

    partition: Annotated[
        str | None,
        Help(
            "Partition of the data (see `unalike list partitions`). Unless given: by the groups of the data, or where it has none, "
            "'dirichlet(alpha=0.1)', for a regression 'iid'."
        ),
    ] = None
    plan: Annotated[
        Path | None, Help("Saved partition plan (plan.json), instead of --partition.")
    ] = None
    clients: Annotated[
        int | None, Help("Number of clients, 10 unless given, or as many as the data set defines.")
    ] = None
    split: Annotated[
        float | str | None,
        Help(
            "Share of each client's samples that train, 0.75 unless given, or 'later', if samples are in order of time and the "
            "last ones are to test; with 1 and --protocol server, clients train on the whole training set, and the published test "
            "set scores the model."
        ),
    ] = None


@dataclass(frozen=True)
class ValidationOptions:
    """The validation samples, and cross-validation."""

    val: Annotated[
        float,
        Ge(0),
        Lt(1),
        Help(
            "Share of each client's training samples used for validation, such as 0.1 (--stop, --select).",
            agreed=True,
        ),
    ] = 0.0
    folds: Annotated[
        int | None,
        Help(
            "Number of folds of repeated cross-validation, instead of --split: each seed tests one fold of every client, and "
            "with 5 folds 10 seeds are two repetitions."
        ),
    ] = None


@dataclass(frozen=True)
class ServerSampleOptions:
    """The samples of the server."""

    test: Annotated[
        float | None,
        Help(
            "Share of the test samples for the server (--protocol server); the whole published test set unless given."
        ),
    ] = None
    proxy: Annotated[
        float | None,
        Help("Share of the test samples for methods that train on the server, such as 0.02."),
    ] = None
    proxy_imbalance: Annotated[
        float,
        Help(
            "Class imbalance of the proxy samples: size of the first class, the largest, over that of the last one."
        ),
    ] = 1.0


@dataclass(frozen=True)
class ModelOptions:
    """The model."""

    model: Annotated[
        str, Help("Model to train, such as 'mlp(hidden=(64, 32))' (see `unalike list models`).")
    ] = "mlp"


@dataclass(frozen=True)
class StartOptions:
    """The initial weights."""

    start: Annotated[
        Path | None,
        Help(
            "Initial weights: a file (.safetensors, or a state dict saved by torch) or the folder of a finished run."
        ),
    ] = None
    start_partial: Annotated[
        bool,
        Help(
            "Take the tensors of the initial weights that fit by name and shape, and leave the others as initialized."
        ),
    ] = False


@dataclass(frozen=True)
class WorkOptions:
    """The local training of a client (`ua.Work`)."""

    epochs: Annotated[AtLeastOne, Help("Epochs of local training per round.")] = 1
    steps: Annotated[
        AtLeastOne | None, Help("Local optimizer steps per round, instead of epochs.")
    ] = None
    batch_size: Annotated[AtLeastOne | None, Help("Samples per step, or 'full'.", none="full")] = 32
    drop_last: Annotated[
        bool,
        Help(
            "Leave out the last batch of an epoch if it is smaller than the others; a client with fewer samples than a batch "
            "trains on all of them."
        ),
    ] = False
    lr: Annotated[Positive, Help("Local learning rate.")] = 0.1
    momentum: Annotated[float, Ge(0), Lt(1), Help("Momentum of the local optimizer.")] = 0.0
    nesterov: Annotated[bool, Help("Nesterov momentum.")] = False
    weight_decay: Annotated[NotNegative, Help("Weight decay of the local optimizer.")] = 0.0
    optimizer: Annotated[
        str | Callable[..., Any],
        Help("Local optimizer: sgd, adam or adamw, or with options 'adam(betas=(0.9, 0.99))'."),
    ] = "sgd"
    schedule: Annotated[
        str | float | Callable[..., Any],
        Help(
            "Schedule of the learning rate over the rounds: cosine, 'cosine(warmup=5)', 'step(every=20, factor=0.1)', "
            "'exponential(factor=0.99, warmup=5)', or a number, the factor by which it changes per round."
        ),
    ] = 1.0
    clip: Annotated[
        Positive | None, Help("Largest gradient norm of a step; larger gradients are scaled down.")
    ] = None
    keep_optimizer_state: Annotated[
        bool, Help("Keep the state of the local optimizer between rounds.")
    ] = False
    loss: Annotated[
        str | Callable[..., Any] | None,
        Help(
            "Loss that clients minimize, such as 'focal(gamma=2)', \"cross_entropy(class_weights='balanced')\" or 'huber' (see "
            "`unalike list losses`); that of the task unless given. Scores stay those of the task."
        ),
    ] = None


@dataclass(frozen=True)
class SharedRunOptions:
    """The options that a run on this machine and a federation have in common."""

    evaluate_every: Annotated[AtLeastOne, Help("Number of rounds between evaluations.")] = 1
    protocol: Annotated[
        str | tuple[str, ...],
        Help(
            "Evaluation protocol: clients, server, personal or local; repeat for several.",
            agreed=True,
        ),
    ] = ("clients",)
    metric: Annotated[
        str | tuple[str, ...],
        Help(
            "Metric to decide by, such as roc_auc or 'sensitivity_at(specificity=0.95)' (see `unalike list metrics`); repeat for "
            "further ones. Accuracy or RMSE unless given."
        ),
    ] = ()
    buffers: Annotated[
        Literal["average", "local", "first"],
        Help("Running statistics of batch norm: average, local or first.", agreed=True),
    ] = "average"
    transform: Annotated[
        str | None,
        Help(
            "Transform of training batches, such as 'normalize(mean=0.5, std=0.25) + crop(padding=4) + flip'.",
            agreed=True,
        ),
    ] = None
    stop: Annotated[
        str | None,
        Help(
            "Rule that ends a run early: 'min_accuracy >= 0.8', 'patience(rounds=10)'; combine with and, or."
        ),
    ] = None
    budget: Annotated[
        str | None,
        Help(
            "Budget of a run: '30 rounds', '10 min' of training, '2 h simulated' (--devices), '500 MB', '3 epsilon'."
        ),
    ] = None
    select: Annotated[
        Literal["last", "best"],
        Help("Model to keep: of the last round, or of the best round on the validation samples."),
    ] = "last"


@dataclass(frozen=True)
class RoundOptions:
    """The rounds."""

    rounds: Annotated[Whole, Help("Number of rounds.")] = 50


@dataclass(frozen=True)
class SeedOptions:
    """The seed of a run."""

    seed: Annotated[Whole, Lt(2**63), Help("Seed of all random numbers.", agreed=True)] = 0


@dataclass(frozen=True)
class TrainingOptions(SharedRunOptions, RoundOptions):
    """The training on this machine."""

    participation: Annotated[
        float, Gt(0), Le(1), Help("Share of the clients that take part in a round.")
    ] = 1.0
    sampling: Annotated[
        Literal["fixed", "poisson"],
        Help(
            "Draw of the clients of a round: fixed, so many of them without replacement, or poisson, each one by itself with the "
            "share as its probability."
        ),
    ] = "fixed"
    devices: Annotated[
        str | None,
        Help(
            "Simulated devices of the clients, such as 'lognormal(sigma=1) + drop_out(rate=0.1)' (see `unalike list devices`): the "
            "history gets simulated seconds. None unless given."
        ),
    ] = None
    executor: Annotated[
        str,
        Help(
            "Executor: auto, loop, batched, 'batched(chunk=20)', 'distributed(workers=2)', or for several GPUs "
            "'distributed(workers=2, nccl=True)'."
        ),
    ] = "auto"
    device: Annotated[
        str, Help("Device to train on: cpu, cuda:1, ...; cuda with --workers: one GPU per process.")
    ] = "cpu"
    precision: Annotated[
        Literal["float32", "bf16"],
        Help(
            "Precision of training: float32, or bf16, which is faster on some processors and less exact."
        ),
    ] = "float32"


@dataclass(frozen=True)
class SimulationOptions(TrainingOptions, SeedOptions):
    """A run on this machine."""


@dataclass(frozen=True)
class RecordOptions:
    """The records of a run beside its history."""

    record: Annotated[
        str | None,
        Help(
            "Numbers of each round to keep (records.parquet): server, updates, \"clients(layers='head')\", or several with +."
        ),
    ] = None


@dataclass(frozen=True)
class DecisionOptions:
    """The rules by which a comparison is decided."""

    smallest_effect: Annotated[
        float | None,
        Help(
            "Smallest difference that matters, such as 0.005: half a point (default), or 1 % of an RMSE."
        ),
    ] = None
    baseline: Annotated[
        str | None, Help("Method that the others are compared with; the first unless given.")
    ] = None


@dataclass(frozen=True)
class AcrossOptions:
    """The score of all clients."""

    across: Annotated[
        Literal["pooled", "clients", "worst"],
        Help(
            "Score that decides: pooled, the metric of all clients' test samples together; clients, its mean over the clients; or "
            "worst, over the worst tenth of them. A pooled ROC AUC also rewards knowing which client is which."
        ),
    ] = "pooled"


@dataclass(frozen=True)
class RaceOptions:
    """The budget of a race."""

    within: Annotated[
        str | None,
        Help(
            "Budget of a race, which a comparison without methods is: '10 min' for all its runs (default), '200 rounds' of each "
            "method, or '5 seeds'."
        ),
    ] = None


@dataclass(frozen=True)
class JobsOptions:
    """The processes of a comparison."""

    jobs: Annotated[
        AtLeastOne,
        Help("Number of runs at a time, each in a process with one thread; not for a race."),
    ] = 1


@dataclass(frozen=True)
class SeedsOptions:
    """The seeds of a comparison."""

    seeds: Annotated[
        str,
        Help(
            "Number of seeds, a list of them (0,1,4), or auto: add seeds until the decision stands."
        ),
    ] = "3"
    min_seeds: Annotated[int, Help("Fewest seeds, with --seeds auto.")] = 3
    max_seeds: Annotated[int, Help("Most seeds, with --seeds auto.")] = 10


@dataclass(frozen=True)
class TuningOptions:
    """A tuning."""

    trials: Annotated[
        int, Help("Number of trials of each method; the first one has the values as given.")
    ] = 20
    budget_seconds: Annotated[float | None, Help("Time limit per method, in seconds.")] = None
    objective: Annotated[
        str | None,
        Help(
            "Score that is tuned and decides: a metric such as macro_f1, worst_decile, personal_accuracy, worst_decile_macro_f1; "
            "the usual metric unless given."
        ),
    ] = None
    seed: Annotated[int, Help("Seed of the trials.")] = 0
    seeds: Annotated[int, Help("Number of seeds to compare, from --seed + 1 on.")] = 3
    prune: Annotated[bool, Help("Stop trials early that are unlikely to win.")] = True
    jobs: Annotated[int, Help("Number of trials at a time, in processes of their own.")] = 1


MAX_SAMPLES = 1_000_000
"""Largest number of training samples that a site of a federation may claim, where nobody has said how many it has."""


@dataclass(frozen=True)
class FederationOptions:
    """The rounds of a federation over a network."""

    also: Annotated[
        tuple[str, ...],
        Help("Further method that may be run later; repeat for several.", agreed=True),
    ] = ()
    seeds: Annotated[
        AtLeastOne, Help("Number of seeds of each method, from the first on.", agreed=True)
    ] = 1
    open: Annotated[
        bool, Help("Allow further sites later, without new bundles for the others.", agreed=True)
    ] = False
    across: Annotated[
        Literal["pooled", "clients"],
        Help(
            "Score that decides: pooled, the metric of all sites' test samples as far as sums give it; or clients, the mean of the "
            "sites' own, such as of their ROC AUCs."
        ),
    ] = "pooled"
    participation: Annotated[
        float | int, Help("Sites asked in a round: a share such as 0.5, or a number such as 3.")
    ] = 1.0
    quorum: Annotated[
        float | int,
        Help("Valid updates that complete a round, of the sites asked: a share or a number."),
    ] = 1.0
    first: Annotated[
        AtLeastOne | None,
        Help(
            "Updates with which a round ends; those of the other sites count in the round in which they come. All unless given."
        ),
    ] = None
    deadline: Annotated[
        Positive, Help("Seconds after which a round ends if the quorum is reached.")
    ] = 600.0
    grace: Annotated[
        Positive,
        Help("Seconds after which a round with a quorum does not wait for a site that is offline."),
    ] = 30.0
    latecomers: Annotated[
        NotNegative,
        Help("Seconds that the first round waits for missing sites once a quorum is connected."),
    ] = 60.0
    repeat: Annotated[Positive, Help("Seconds after which an unanswered request is repeated.")] = (
        30.0
    )
    patience: Annotated[
        AtLeastOne, Help("Attempts at a round without quorum before the run pauses.")
    ] = 3
    message_bytes: Annotated[
        AtLeastOne | None,
        Help("Largest size of a message in bytes; from the method and the model unless given."),
    ] = None
    guard: Annotated[
        NotNegative,
        Help(
            "Scale down updates with a norm of more than so many times the usual one; 0 scales none."
        ),
    ] = 3.0
    max_weight: Annotated[
        float,
        Gt(0),
        Le(1),
        Help("Largest share of all training samples that a site may have when the run begins."),
    ] = 1.0
    secure_aggregation: Annotated[
        bool,
        Help(
            "Show the coordinator sums of updates alone, for methods that need no more.",
            agreed=True,
        ),
    ] = False
    threshold: Annotated[
        AtLeastOne | None,
        Help(
            "Fewest sites in a sum of secure aggregation; more than two thirds unless given.",
            agreed=True,
        ),
    ] = None
    noise_shares: Annotated[
        AtLeastOne | None,
        Help(
            "Updates among which sites share out the noise of client_dp; as many as make a round unless given.",
            agreed=True,
        ),
    ] = None
    keep_every: Annotated[
        AtLeastOne,
        Help("Rounds between checkpoints that are kept for `unalike federation rollback`."),
    ] = 10
