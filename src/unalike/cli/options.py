"""Flags that several commands share: the arguments of `ua.run` and `ua.compare` by name."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError, unknown

Command = Callable[..., Any]


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Read defaults of the flags from a TOML file. Flags on the command line override them."""
    if path is None:
        return None
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnalikeError(f"cannot read {path}: {error}; expected a TOML file of flags, such as rounds = 50") from None
    known = {p.name for p in context.command.params}
    values = {key.replace("-", "_"): value for key, value in _flags_of(path, found, known).items()}
    if unexpected := sorted(set(values) - known):
        raise UnalikeError(
            f"{path} sets a name that is not a flag of this command: "
            + str(unknown("flag", unexpected[0], filter(None, known)))
        )
    repeated = {p.name for p in context.command.params if getattr(p, "multiple", False)}
    for key, value in values.items():
        if isinstance(value, dict) or (isinstance(value, list) and key not in repeated):
            raise UnalikeError(f"{path} sets {key} to {value!r}; expected a single value, as for its flag")
    # as text, which a flag reads as if it were typed: 2.5 and true are not integers
    values = {
        k: list(map(str, v)) if isinstance(v, list) else [str(v)] if k in repeated else str(v)
        for k, v in values.items()
    }
    for flag in context.command.params:
        if flag.name in values and not flag.is_eager:  # such as --config itself
            try:
                flag.process_value(context, values[flag.name])
            except typer.BadParameter as error:
                raise UnalikeError(f"{path} sets {flag.name} to {values[flag.name]!r}: {error.message}") from None
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _flags_of(file: Path, found: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """The flags in a file: a table of flags as it is, or the config.toml of a run as the flags that repeat the run."""
    if not all(isinstance(found.get(name), dict) for name in ("work", "model", "data")):
        return found
    kept = kept_flags(file.parent)
    flags = kept if "data" in kept else _recorded(file, found)
    if "seeds" in known:
        return flags
    return {k: v for k, v in flags.items() if k != "seeds"} | {"method": flags["method"][0], "seed": found["seed"]}


def kept_flags(folder: Path) -> dict[str, Any]:
    """The flags of the command that wrote a folder; empty if a program wrote it."""
    try:
        return tomllib.loads(json.loads((folder / "comparison.json").read_text("utf-8"))["config"])
    except (OSError, ValueError, KeyError):
        return {}


def _recorded(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The flags of a run that a program made, from its config.toml and its partition plan.

    Raises `UnalikeError` if the name of the data does not identify it.
    """
    from unalike.data.sources.registry import registry

    data, work, plan = found["data"], found["work"], file.parent / "plan.json"
    name = data.get("name")
    named = name in registry and registry.usage(name) == f"{name}()"
    if not named or not plan.exists() or "test" in data or "proxy" in data:
        raise UnalikeError(
            f"{file} does not say where its data came from: no command finished the run; give a TOML file of flags, such as "
            "data = 'mine.npz', or the config.toml of a finished `unalike run --out`"
        )
    plain = {k: v for k, v in found.items() if not isinstance(v, dict) and k not in ("unalike", "seed")}
    own = {"data": name, "plan": str(plan), "model": found["model"]["name"], "method": [found["method"]]}
    return plain | own | work | {"seeds": f"{found['seed']},", "batch_size": str(work.get("batch_size", "full"))}


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=read_config,
        is_eager=True,
        help="TOML file with the names of the flags as keys, or a run's config.toml.",
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of data files; also $UNALIKE_DATA.")]
Client = Annotated[
    str | None,
    typer.Option(
        help="Client whose model is used, by name or number; the shared model unless given.", show_default=False
    ),
]
Model = Annotated[str, typer.Option(help="Model, such as 'mlp(hidden=(64, 32))' (see `unalike list models`).")]
Start = Annotated[
    Path | None,
    typer.Option(
        help="Initial weights: a file (.safetensors, or a state dict saved by torch) or the folder of a finished run."
    ),
]
StartPartial = Annotated[
    bool,
    typer.Option("--start-partial", help="Take what fits of --start, and leave the rest as initialized."),
]
Rounds = Annotated[int, typer.Option(help="Number of rounds.")]
Seed = Annotated[int, typer.Option(help="Seed of partition, weights, cohorts and batches.")]
Val = Annotated[
    float,
    typer.Option(help="Share of each client's training samples used for validation (--stop, --select), such as 0.1."),
]
Stop = Annotated[
    str | None,
    typer.Option(
        help="Rule that ends a run early: 'min_accuracy >= 0.8', 'patience(rounds=10)'; combine with and, or."
    ),
]
Budget = Annotated[str | None, typer.Option(help="Budget of a run: '30 rounds', '10 min' of training, '500 MB'.")]
Select = Annotated[str, typer.Option(help="Round whose models count: last, or best on the validation samples.")]
MetricName = Annotated[
    list[str],
    typer.Option(
        help="Metric to decide by, such as roc_auc or 'sensitivity_at(specificity=0.95)' (see `unalike list metrics`); repeat for "
        "further ones. Accuracy or RMSE unless given.",
        show_default=False,
    ),
]
Participation = Annotated[float, typer.Option(help="Share of the clients that take part in a round.")]
Executor = Annotated[
    str,
    typer.Option(
        help="auto, loop, batched, 'batched(chunk=20)', 'distributed(workers=2)', or for several GPUs "
        "'distributed(workers=2, nccl=True)'."
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="Number of worker processes, one core each; the same as 'distributed(workers=...)'.")
]
Precision = Annotated[str, typer.Option(help="float32, or bf16, which is faster on some processors and less exact.")]
EvaluateEvery = Annotated[int, typer.Option(help="Number of rounds between evaluations.")]
Protocol = Annotated[list[str], typer.Option(help="clients, server, personal or local; repeat for several.")]
Device = Annotated[str, typer.Option(help="cpu, cuda:1, ...; cuda with --workers: one GPU per process.")]
Buffers = Annotated[str, typer.Option(help="Running statistics of batch norm: average, local or first.")]
Transform = Annotated[
    str | None,
    typer.Option(
        help="Transform of training batches, such as 'normalize(mean=0.5, std=0.25) + crop(padding=4) + flip'."
    ),
]
Epochs = Annotated[int, typer.Option(help="Epochs of local training per round.")]
Steps = Annotated[int | None, typer.Option(help="Local optimizer steps per round, instead of epochs.")]
BatchSize = Annotated[str, typer.Option(help="Samples per step, or 'full'.")]
Lr = Annotated[float, typer.Option(help="Local learning rate.")]
Momentum = Annotated[float, typer.Option(help="Momentum of the local optimizer.")]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov momentum.")]
WeightDecay = Annotated[float, typer.Option(help="Weight decay of the local optimizer.")]
Optimizer = Annotated[str, typer.Option(help="sgd, adam or adamw.")]
Schedule = Annotated[float, typer.Option(help="Factor by which the learning rate changes per round.")]
Clip = Annotated[float | None, typer.Option(help="Largest gradient norm of a step; larger gradients are scaled down.")]
KeepOptimizerState = Annotated[
    bool, typer.Option("--keep-optimizer-state", help="Keep the state of the local optimizer between rounds.")
]
Record = Annotated[
    str | None,
    typer.Option(
        help="Numbers of each round to keep in records.parquet: server, updates, \"clients(layers='head')\", or several with +."
    ),
]
Track = Annotated[
    list[str],
    typer.Option(
        help="Tracker that follows the run: tensorboard, \"mlflow(uri='sqlite:///mlflow.db')\", \"wandb(mode='offline')\"; repeat "
        "for several.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show the config with all defaults, estimate the cost (seconds, bytes, memory) from three rounds, and train nothing "
        "else.",
    ),
]
Profile = Annotated[bool, typer.Option("--profile", help="Profile a few rounds, and write a trace (trace.json).")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; the same command resumes an interrupted run.")]


def uses_flags(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Decorator: replace arguments of a command by groups of flags that it shares with other commands.

    Each name stands for an argument of the command. The flags are the parameters of the given function, and the result of the
    function becomes the argument.
    """

    def decorated(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        shared = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}
        flags = [flag for name, p in own.items() for flag in (shared[name].values() if name in shared else [p])]

        @wraps(command)
        def run(**values: Any) -> Any:
            made = {name: groups[name](**{flag: values.pop(flag) for flag in names}) for name, names in shared.items()}
            return command(**values, **made)

        run.__signature__ = inspect.Signature([f.replace(kind=f.KEYWORD_ONLY) for f in flags])  # type: ignore[attr-defined]
        run.__annotations__ = {f.name: f.annotation for f in flags}
        return run

    return decorated


def work(
    epochs: Epochs = 1,
    steps: Steps = None,
    batch_size: BatchSize = "32",
    lr: Lr = 0.05,
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: WeightDecay = 0.0,
    optimizer: Optimizer = "sgd",
    schedule: Schedule = 1.0,
    clip: Clip = None,
    keep_optimizer_state: KeepOptimizerState = False,
) -> Any:
    """The `Work` that the flags describe."""
    fields = locals()
    from unalike.core.work import Work

    return Work(**fields | ({"batch_size": None} if batch_size == "full" else {}))


@uses_flags(work=work)
def training(
    model: Model = "mlp",
    start: Start = None,
    start_partial: StartPartial = False,
    rounds: Rounds = 50,
    protocol: Protocol = ["clients"],  # noqa: B006  (Typer copies it)
    metric: MetricName = [],  # noqa: B006
    participation: Participation = 1.0,
    executor: Executor = "auto",
    workers: Workers = None,
    evaluate_every: EvaluateEvery = 1,
    device: Device = "cpu",
    buffers: Buffers = "average",
    transform: Transform = None,
    precision: Precision = "float32",
    stop: Stop = None,
    budget: Budget = None,
    select: Select = "last",
    record: Record = None,
    *,
    work: Any,
) -> dict[str, Any]:
    """The arguments of `ua.run` and `ua.compare` besides methods and data, by name."""
    arguments = locals() | {"protocol": tuple(protocol), "metric": tuple(metric)}
    del arguments["workers"]
    if workers is not None and not executor.startswith("distributed"):
        arguments["executor"] = f"distributed(workers={workers}, inner={executor!r})"
    return arguments


def changed_work(work: Any) -> dict[str, Any]:
    """The flags of local training that differ from the defaults."""
    from dataclasses import asdict

    from unalike.core.work import Work

    usual = asdict(Work())
    changed = {name: value for name, value in asdict(work).items() if value != usual[name]}
    return changed | ({"batch_size": work.batch_size or "full"} if "batch_size" in changed else {})
