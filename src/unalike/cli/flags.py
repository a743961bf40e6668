"""Flags: the options of `core/options.py` as parameters of commands."""

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError, refuse_empty_path
from unalike.cli.names import completion
from unalike.core.option import Option, options_of, read_values
from unalike.core.options import (
    ModelOptions,
    RecordOptions,
    RoundOptions,
    SeedOptions,
    SourceOptions,
    StartOptions,
    TrainingOptions,
    WorkOptions,
)

Command = Callable[..., Any]

NUMBER_OR_TEXT = "FLOAT|TEXT"
"""The kind of value, in help, of a flag that takes a number or a text."""
METHOD = "Method, or a sum of methods and parts (see `unalike list methods`)"
Method = Annotated[str, typer.Option(help=f"{METHOD}.", **completion("method"))]

Client = Annotated[
    str | None,
    typer.Option(
        help="Client whose model is used, by name or number; the shared model unless given.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of worker processes, one core each; the same as 'distributed(workers=...)'."
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
Recalibrated = Annotated[
    Path | None,
    typer.Option(
        help="File of `unalike evaluate --recalibrate`, by which the model's risks are recalibrated.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with the numbers in full.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show the config with all defaults, estimate the cost (seconds, bytes, memory) from three rounds, and train nothing "
        "else.",
    ),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Profile a few rounds, and write a trace (trace.json).")
]


def path(text: str | Path) -> Path:
    """A path that is written. Raises `UnalikeError` for an empty text, which would stand for the current folder."""
    refuse_empty_path("an option with a path", text)
    return Path(text)


def table_path(text: str | Path) -> Path:
    """A file for a table. Raises `UnalikeError` for another ending than those of CSV and of a page."""
    file = path(text)
    if file.suffix not in (".csv", ".html"):
        raise UnalikeError(
            f"found {file.name} for --out; expected a name that ends in .csv or .html"
        )
    return file


TableOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="File to write: .csv with all digits, or .html, a page for printing.",
        parser=table_path,
        metavar="PATH",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the results; the same command resumes an interrupted run.",
        parser=path,
        metavar="PATH",
    ),
]


def uses_flags(
    *declared: type, only: Collection[str] = (), **groups: Callable[..., Any]
) -> Callable[[Command], Command]:
    """Decorator: give a command the flags of options, and of groups of flags that it shares with other commands.

    The values of the options that the classes `declared` declare (`only` these names, if any) become keywords of the command;
    `groups`: argument of the command -> a function with such flags, whose result becomes the argument.
    """
    options = [
        option for option in options_of(*declared).values() if not only or option.name in only
    ]

    def decorate(command: Command) -> Command:
        parameters = inspect.signature(command, eval_str=True).parameters
        parameters_of_group = {
            name: inspect.signature(group, eval_str=True).parameters
            for name, group in groups.items()
        }
        # the command's own flags and those of groups stay in the order of its parameters, as its help page lists them
        flags = [parameter(option) for option in options]
        for name, declaration in parameters.items():
            if name in parameters_of_group:
                flags += parameters_of_group[name].values()
            elif declaration.kind is not inspect.Parameter.VAR_KEYWORD:
                flags.append(declaration)

        @wraps(command)
        def run(**values: Any) -> Any:
            arguments = {}
            for name, group in groups.items():
                flags_of_group = {flag: values.pop(flag) for flag in parameters_of_group[name]}
                arguments[name] = group(**flags_of_group)
            return command(**read_values(values, *declared), **arguments)

        # Typer reads the flags from the signature and the annotations
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [flag.replace(kind=flag.KEYWORD_ONLY) for flag in flags]
        )
        run.__annotations__ = {flag.name: flag.annotation for flag in flags}
        return run

    return decorate


def needs_federation(command: Command) -> Command:
    """Decorator: a command that says how to install the extra for federations if it is missing."""

    @wraps(command)
    def run(*values: Any, **named: Any) -> Any:
        from unalike.federation import require_federation

        require_federation()
        return command(*values, **named)

    return run


def parameter(option: Option) -> inspect.Parameter:
    """An option as a parameter that Typer reads."""
    kind: Any = option.flag_type
    if option.repeated:
        kind = list[kind]
    elif option.optional and not option.help.none:
        kind = kind | None
    default = option.written(option.default)
    # without a name Typer makes it; for a flag that is on unless it is switched off it makes --name and --no-name
    names = ["--" + option.name.replace("_", "-")] if default is False else []
    flag = typer.Option(
        *names,
        help=option.help.text,
        show_default=default is not None,
        metavar=NUMBER_OR_TEXT if option.takes_number_or_text else None,
        **completion(option.name),
    )
    if option.repeated and default is None:
        default = []
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, flag],
    )


def values_of(*declared: type, only: Collection[str] = ()) -> Callable[..., dict[str, Any]]:
    """The group of the flags of options, whose result are the options by name."""
    return uses_flags(*declared, only=only)(lambda **values: values)


def value_of(declared: type, name: str) -> Callable[..., Any]:
    """The flag of one option, whose result is its value."""
    return uses_flags(declared, only=(name,))(lambda **values: values[name])


data_dir = value_of(SourceOptions, "data_dir")
seed = value_of(SeedOptions, "seed")
model = value_of(ModelOptions, "model")
rounds = value_of(RoundOptions, "rounds")
device = value_of(TrainingOptions, "device")


@uses_flags(WorkOptions)
def work(**values: Any) -> Any:
    """The `Work` that the flags describe."""
    from unalike.core.work import Work

    return Work(**values)


@uses_flags(ModelOptions, StartOptions, TrainingOptions, RecordOptions, work=work)
def training(*, workers: Workers = None, work: Any, **options: Any) -> dict[str, Any]:
    """The arguments of `ua.run` and `ua.compare` besides methods, data and seeds, by name."""
    if workers is not None and not options["executor"].startswith("distributed"):
        options["executor"] = f"distributed(workers={workers}, inner={options['executor']!r})"
    return options | {"work": work}
