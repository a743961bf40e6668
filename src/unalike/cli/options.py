"""Flags that several commands share: the arguments of `ua.run` and `ua.compare` by name."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError, unknown

Command = Callable[..., Any]


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the flags' defaults from a TOML file; what stands on the command line wins."""
    if path is None:
        return None
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnalikeError(f"cannot read {path}: {error}; expected a TOML file of flags, such as rounds = 50") from None
    known = {p.name for p in context.command.params}
    values = {key.replace("-", "_"): value for key, value in _flags_of(path, found, known).items()}
    if strange := sorted(set(values) - known):
        raise UnalikeError(
            f"{path} sets what is no flag of this command: " + str(unknown("flag", strange[0], filter(None, known)))
        )
    repeated = {p.name for p in context.command.params if getattr(p, "multiple", False)}
    for key, value in values.items():
        if isinstance(value, dict) or (isinstance(value, list) and key not in repeated):
            raise UnalikeError(f"{path} sets {key} to {value!r}; expected one value, as its flag takes")
    # as text, which a flag reads as if it were typed: 2.5 and true are no whole numbers
    values = {
        k: list(map(str, v)) if isinstance(v, list) else [str(v)] if k in repeated else str(v)
        for k, v in values.items()
    }
    for flag in context.command.params:
        if flag.name in values and not flag.is_eager:  # the file's own flag is one
            try:
                flag.process_value(context, values[flag.name])
            except typer.BadParameter as error:
                raise UnalikeError(f"{path} sets {flag.name} to {values[flag.name]!r}: {error.message}") from None
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _flags_of(file: Path, found: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """A table of flags as it is; the record that a kept run leaves, as the flags that repeat the run."""
    if not all(isinstance(found.get(name), dict) for name in ("work", "model", "data")):
        return found
    kept = kept_flags(file.parent)
    flags = kept if "data" in kept else _recorded(file, found)
    if "seeds" in known:
        return flags
    return {k: v for k, v in flags.items() if k != "seeds"} | {"method": flags["method"][0], "seed": found["seed"]}


def kept_flags(folder: Path) -> dict[str, Any]:
    """The flags of the command that wrote a folder; empty where none did."""
    try:
        return tomllib.loads(json.loads((folder / "comparison.json").read_text())["config"])
    except (OSError, ValueError, KeyError):
        return {}


def _recorded(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The flags of a run without the command that made it: its plan vouches for the data.

    Raises `UnalikeError` where the data's name does not say all of it.
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
        help="TOML file with the same names as the flags, or a run's config.toml.",
    ),
]
Data = Annotated[str, typer.Option(help="A named data set (see `unalike list data`) or a file, such as my.npz.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of data files; also $UNALIKE_DATA.")]
Partition = Annotated[str, typer.Option(help="How the data is divided (see `unalike list partitions`).")]
Plan = Annotated[Path | None, typer.Option(help="A saved partition plan (plan.json) instead of --partition.")]
Clients = Annotated[
    int | None,
    typer.Option(help="Number of clients; 10 unless given, or as many as the data says.", show_default=False),
]
Model = Annotated[str, typer.Option(help="Model, such as 'mlp(hidden=(64, 32))' (see `unalike list models`).")]
Rounds = Annotated[int, typer.Option(help="Rounds of communication.")]
Seed = Annotated[int, typer.Option(help="Seed of partition, weights, cohorts and batches.")]
Val = Annotated[
    float, typer.Option(help="Share of each client's training samples to choose by (--stop, --select): 0.1.")
]
Test = Annotated[
    float | None,
    typer.Option(
        help="Share of the test samples that the server keeps, for --protocol server; the whole published test set unless given.",
        show_default=False,
    ),
]
Stop = Annotated[
    str | None, typer.Option(help="End a run early: 'min_accuracy >= 0.8', 'patience(rounds=10)', joined by and, or.")
]
Budget = Annotated[str | None, typer.Option(help="What a run may spend: '30 rounds', '10 min' of training, '500 MB'.")]
Select = Annotated[str, typer.Option(help="The round that counts: last, or best by the validation samples.")]
Participation = Annotated[float, typer.Option(help="Share of the clients that takes part in a round.")]
Executor = Annotated[
    str,
    typer.Option(
        help="auto, loop, batched, 'batched(chunk=20)', 'distributed(workers=2)', or between GPUs "
        "'distributed(workers=2, nccl=True)'."
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="Processes that share the clients, one core each; as 'distributed(workers=...)'.")
]
Precision = Annotated[str, typer.Option(help="float32, or bf16: faster on some processors, and a little less exact.")]
EvaluateEvery = Annotated[int, typer.Option(help="Evaluate after every so many rounds.")]
Protocol = Annotated[list[str], typer.Option(help="clients, server, personal or local; repeat for several.")]
Device = Annotated[str, typer.Option(help="cpu, cuda:1, or cuda: with --workers a GPU each.")]
Target = Annotated[str | None, typer.Option(help="Of a table: the column to predict.")]
Buffers = Annotated[str, typer.Option(help="Batch norm's running statistics: average, local or first.")]
Transform = Annotated[
    str | None,
    typer.Option(help="Of training batches, such as 'normalize(mean=0.5, std=0.25) + crop(padding=4) + flip'."),
]
Proxy = Annotated[
    float | None,
    typer.Option(help="Share of the test samples that goes to the server, for methods that learn there: 0.02."),
]
Epochs = Annotated[int, typer.Option(help="Local passes over a client's data per round.")]
Steps = Annotated[int | None, typer.Option(help="Local optimizer steps per round, instead of epochs.")]
BatchSize = Annotated[str, typer.Option(help="Samples per step, or 'full'.")]
Lr = Annotated[float, typer.Option(help="Local learning rate.")]
Momentum = Annotated[float, typer.Option(help="Momentum of the local solver.")]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov momentum.")]
WeightDecay = Annotated[float, typer.Option(help="Weight decay of the local solver.")]
Optimizer = Annotated[str, typer.Option(help="sgd, adam or adamw.")]
Schedule = Annotated[float, typer.Option(help="Factor of the learning rate per round.")]
Clip = Annotated[float | None, typer.Option(help="Largest norm of a step's gradient.")]
KeepOptimiserState = Annotated[bool, typer.Option("--keep-optimizer-state", help="Keep momentum between rounds.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what it will cost (seconds, bytes, memory), from three rounds; train nothing."),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Say where a few rounds spend their time, and write a trace (trace.json).")
]
Out = Annotated[Path | None, typer.Option(help="Folder that keeps the results; the same command resumes it.")]


def shares(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Lets a command share flags with others: in place of each argument named here it has the parameters of that function, which
    makes the argument of them.
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
    keep_optimizer_state: KeepOptimiserState = False,
) -> Any:
    """The `Work` that the flags describe."""
    fields = locals()
    from unalike.core.work import Work

    return Work(**fields | ({"batch_size": None} if batch_size == "full" else {}))


@shares(work=work)
def training(
    model: Model = "mlp",
    rounds: Rounds = 50,
    protocol: Protocol = ["clients"],  # noqa: B006  (Typer copies it)
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
    *,
    work: Any,
) -> dict[str, Any]:
    """What `ua.run` and `ua.compare` are told beside methods and data: their arguments by name."""
    told = locals() | {"protocol": tuple(protocol)}
    del told["workers"]
    if workers is not None and not executor.startswith("distributed"):
        told["executor"] = f"distributed(workers={workers}, inner={executor!r})"
    return told


def table(data: str, target: str | None) -> str:
    """A file as `load` reads it: of a table it must know the column to predict."""
    return data if target is None else f"file(path={data!r}, target={target!r})"


def dataset(
    data: str,
    data_dir: Path | None,
    proxy: float | None = None,
    test: float | None = None,
    protocol: Sequence[str] = (),
) -> tuple[Any, Any, Any]:
    """What is left for the clients, and what the server keeps of a data set: to learn from and to test on (None: nothing)."""
    from unalike.data.partitioning.hold_out import hold_out, test_apart
    from unalike.data.sources.load import load

    found, learn, held = load(data, data_dir), None, None
    if proxy is not None:
        found, learn = hold_out(found, proxy)
    if test is not None:
        found, held = hold_out(found, test)
    elif "server" in protocol:
        found, held = test_apart(found)
    return found, learn, held


def divided(data: Any, partition: str, plan: Path | None, clients: int | None, seed: int, val: float = 0.0) -> Any:
    """The clients that the flags of a command make of a data set."""
    from unalike.data.partitioning.apply_plan import apply_plan
    from unalike.data.partitioning.partition import divided_already, usual_clients
    from unalike.data.partitioning.partition import partition as divide
    from unalike.data.partitioning.partition_plan import PartitionPlan

    if plan is not None:
        found = PartitionPlan.load(plan)
        divided_already("a plan", "make the plan with it: `unalike partition --save`", partition, val, clients)
        return apply_plan(found, data)
    return divide(data, partition, usual_clients(partition) if clients is None else clients, seed=seed, val=val)
