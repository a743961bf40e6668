"""Config files, which have the names of flags as keys: read for `--config`, shown by `--dry-run`, described by `unalike schema`."""

import inspect
import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer

from unalike._utils.errors import UnalikeError, unknown
from unalike.core.options import WorkOptions, written_config

NAME = "schema"

Schema = dict[str, Any]

COMMANDS = ("run", "compare")
"""Commands with `--config`; where both have an option, the schema has it as the last one takes it."""
NOT_IN_FILES = ("config", "help", "dry_run", "profile", "as_json")
TYPES = {int: "integer", float: "number", bool: "boolean"}
"""Type of an option -> type of its value in a file; all others are text."""
SOURCES = {
    "COMMANDLINE": "",
    "DEFAULT_MAP": "  # from the config file",
    "ENVIRONMENT": "  # from the environment",
}
"""Source of an option -> remark; all others are defaults."""
WIDTH = 44
"""Column of the remarks."""


def command(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="File to write, instead of printing.")] = None,
) -> None:
    """Print the JSON schema of config files (`--config`).

    Editors complete and check a TOML file whose first line names the schema.

    \b
    unalike schema --out config.schema.json
    """
    commands = getattr(context.find_root().command, "commands")  # noqa: B009  (the class of groups depends on Typer's release)
    text = json.dumps(config_schema(commands[name].callback for name in COMMANDS), indent=1) + "\n"
    if out is None:
        print(text, end="")
    else:
        from unalike._utils.tensor_files import write_bytes

        write_bytes(out, text.encode())


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Read defaults of the flags from a TOML file. Flags on the command line override them."""
    if path is None:
        return None
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnalikeError(
            f"cannot read {path}: {error}; expected a TOML file of flags, such as rounds = 50"
        ) from None
    names = {p.name for p in context.command.params}
    values = {
        key.replace("-", "_"): value for key, value in _flags_of(path, settings, names).items()
    }
    if unexpected := sorted(set(values) - names):
        raise UnalikeError(
            f"{path} sets a name that is not a flag of this command: "
            + str(unknown("flag", unexpected[0], filter(None, names)))
        )
    repeated = {p.name for p in context.command.params if getattr(p, "multiple", False)}
    for key, value in values.items():
        if isinstance(value, dict) or (isinstance(value, list) and key not in repeated):
            raise UnalikeError(
                f"{path} sets {key} to {value!r}; expected a single value, as for its flag"
            )
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
                raise UnalikeError(
                    f"{path} sets {flag.name} to {values[flag.name]!r}: {error.message}"
                ) from None
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _flags_of(file: Path, settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The flags in a file: a table of flags as it is, or the config.toml of a run as the flags that repeat the run."""
    if not all(isinstance(settings.get(name), dict) for name in ("work", "model", "data")):
        return settings
    command_flags = kept_flags(file.parent)
    flags = command_flags if "data" in command_flags else _recorded(file, settings)
    if "seeds" in names:
        return flags
    return {k: v for k, v in flags.items() if k != "seeds"} | {
        "method": flags["method"][0],
        "seed": settings["seed"],
    }


def kept_flags(folder: Path) -> dict[str, Any]:
    """The flags of the command that wrote a folder; empty if a program wrote it."""
    try:
        return tomllib.loads(json.loads((folder / "comparison.json").read_text("utf-8"))["config"])
    except (OSError, ValueError, KeyError):
        return {}


def _recorded(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The flags of a run that a program made, from its config.toml and its partition plan.

    Raises `UnalikeError` if the name of the data does not identify it.
    """
    from unalike.data.sources.registry import registry

    data, plan = settings["data"], file.parent / "plan.json"
    name = data.get("name")
    named = name in registry and registry.usage(name) == f"{name}()"
    if not named or not plan.exists() or "test" in data or "proxy" in data:
        raise UnalikeError(
            f"{file} does not say where its data came from: no command finished the run; give a TOML file of flags, such as "
            "data = 'mine.npz', or the config.toml of a finished `unalike run --out`"
        )
    plain = {
        k: v
        for k, v in settings.items()
        if not isinstance(v, dict) and k not in ("unalike", "seed")
    }
    derived = {
        "data": name,
        "plan": str(plan),
        "model": settings["model"]["name"],
        "method": [settings["method"]],
    }
    work = {n: v for n, v in written_config(settings["work"], WorkOptions).items() if v is not None}
    return plain | derived | work | {"seeds": f"{settings['seed']},"}


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=read_config,
        is_eager=True,
        help="TOML file with the names of the flags as keys, or a run's config.toml.",
    ),
]


def resolved_config(context: typer.Context, **known: Any) -> str:
    """Lines of TOML, one per option that has a value; defaults are marked.

    `known` are values that the command found out, such as the number of clients of a data set.
    """
    lines = []
    for name in (option.name or "" for option in context.command.params):
        value_given = context.params.get(name)
        value = known.get(name) if value_given is None else value_given
        if name in NOT_IN_FILES or value is None or value in ([], ()):
            continue
        source = context.get_parameter_source(name)
        remark = SOURCES.get(source.name if source is not None else "", "  # default")
        lines.append(f"{f'{name} = {_toml(value)}':<{WIDTH}}{remark}".rstrip())
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value on one line; texts, numbers and lists of them are the same in TOML and JSON."""
    plain = [str(item) for item in value] if isinstance(value, list | tuple) else value
    return json.dumps(str(plain) if isinstance(plain, Path) else plain, ensure_ascii=False)


def config_schema(commands: Iterable[Callable[..., Any]]) -> Schema:
    """The schema (draft 7, which editors for TOML read). Every option is a property, and there are no others."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config file of unalike",
        "description": "Options of `unalike run` and `unalike compare`, for --config.",
        "type": "object",
        "properties": {
            parameter.name: _property(parameter)
            for command in commands
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if get_origin(parameter.annotation) is Annotated and parameter.name not in NOT_IN_FILES
        },
        "additionalProperties": False,
    }


def _property(parameter: inspect.Parameter) -> Schema:
    kind, option = get_args(parameter.annotation)
    default, repeated = parameter.default, get_origin(kind) is list
    # an optional value or a list of values: the type of one value
    (kind,) = [inner for inner in get_args(kind) or (kind,) if inner is not NoneType]
    # a text option such as `--batch-size full` may hold a number
    numeric = isinstance(default, str) and default.isdecimal()
    value: Schema = {"type": ["string", "integer"] if numeric else TYPES.get(kind, "string")}
    if repeated:
        value = {"anyOf": [value, {"type": "array", "items": value}]}
    schema = {"description": option.help, **value}
    if default is None or default == []:
        return schema
    return {
        **schema,
        "default": default if isinstance(default, bool | int | float | list) else str(default),
    }
