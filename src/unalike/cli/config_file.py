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
from unalike.cli.flags import NUMBER_OR_TEXT
from unalike.core.option import written_config
from unalike.core.options import WorkOptions

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
REMARK_COLUMN = 44
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
    schema = config_schema(commands[name].callback for name in COMMANDS)
    text = json.dumps(schema, indent=1) + "\n"
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
    flags = {flag.name: flag for flag in context.command.params}
    values = {}
    for key, value in _flags_of(path, settings, set(flags)).items():
        values[key.replace("-", "_")] = value
    unexpected = sorted(set(values) - set(flags))
    if unexpected:
        raise UnalikeError(
            f"{path} sets a name that is not a flag of this command: "
            + str(unknown("flag", unexpected[0], filter(None, flags)))
        )
    repeated = {name for name, flag in flags.items() if getattr(flag, "multiple", False)}
    for key, value in values.items():
        if isinstance(value, dict) or (isinstance(value, list) and key not in repeated):
            raise UnalikeError(
                f"{path} sets {key} to {value!r}; expected a single value, as for its flag"
            )
    # as text, which a flag reads as if it were typed: 2.5 and true are not integers
    for key, value in values.items():
        if isinstance(value, list):
            values[key] = list(map(str, value))
        else:
            values[key] = [str(value)] if key in repeated else str(value)
    for name, flag in flags.items():
        # eager flags, such as --config itself, were read before
        if name in values and not flag.is_eager:
            try:
                flag.process_value(context, values[name])
            except typer.BadParameter as error:
                raise UnalikeError(
                    f"{path} sets {name} to {values[name]!r}: {error.message}"
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
    # a run has one method and one seed
    of_run = {name: value for name, value in flags.items() if name != "seeds"}
    return of_run | {"method": flags["method"][0], "seed": settings["seed"]}


def kept_flags(folder: Path) -> dict[str, Any]:
    """The flags of the command that wrote a folder; empty if a program wrote it."""
    try:
        return tomllib.loads(json.loads((folder / "comparison.json").read_text("utf-8"))["config"])
    except (OSError, ValueError, KeyError, RecursionError):
        return {}


def _recorded(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The flags of a run that a program made, from its config.toml and its partition plan.

    Raises `UnalikeError` if the name of the data does not identify it.
    """
    from unalike.data.sources.registry import registry

    data = settings["data"]
    plan = file.parent / "plan.json"
    name = data.get("name")
    is_known = name in registry and registry.usage(name) == f"{name}()"
    if not is_known or not plan.exists() or "test" in data or "proxy" in data:
        raise UnalikeError(
            f"{file} does not say where its data came from: no command finished the run; give a TOML file of flags, such as "
            "data = 'mine.npz', or the config.toml of a finished `unalike run --out`"
        )
    flags = {
        key: value
        for key, value in settings.items()
        if not isinstance(value, dict) and key not in ("unalike", "seed")
    }
    flags |= {
        "data": name,
        "plan": str(plan),
        "model": settings["model"]["name"],
        "method": [settings["method"]],
    }
    for key, value in written_config(settings["work"], WorkOptions).items():
        if value is not None:
            flags[key] = value
    # the comma makes it a list of one seed, not a number of seeds
    flags["seeds"] = f"{settings['seed']},"
    return flags


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
    for option in context.command.params:
        name = option.name or ""
        value = context.params.get(name)
        if value is None:
            value = known.get(name)
        if name in NOT_IN_FILES or value is None or value in ([], ()):
            continue
        source = context.get_parameter_source(name)
        remark = SOURCES.get(source.name if source is not None else "", "  # default")
        setting = f"{name} = {_toml(value)}"
        lines.append(f"{setting:<{REMARK_COLUMN}}{remark}".rstrip())
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value on one line; texts, numbers and lists of them are the same in TOML and JSON."""
    if isinstance(value, list | tuple):
        value = [str(item) for item in value]
    elif isinstance(value, Path):
        value = str(value)
    return json.dumps(value, ensure_ascii=False)


def config_schema(commands: Iterable[Callable[..., Any]]) -> Schema:
    """The schema (draft 7, which editors for TOML read). Every option is a property, and there are no others."""
    properties = {}
    for command in commands:
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            is_flag = get_origin(parameter.annotation) is Annotated
            if is_flag and parameter.name not in NOT_IN_FILES:
                properties[parameter.name] = _property(parameter)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config file of unalike",
        "description": "Options of `unalike run` and `unalike compare`, for --config.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _property(parameter: inspect.Parameter) -> Schema:
    """The schema of the values of one flag."""
    kind, option = get_args(parameter.annotation)
    default = parameter.default
    is_repeated = get_origin(kind) is list
    # an optional value or a list of values: the type of one value
    (kind,) = [inner for inner in get_args(kind) or (kind,) if inner is not NoneType]
    # a text option may hold a number, such as `--batch-size 32` and `--split 0.8`
    value: Schema = {"type": TYPES.get(kind, "string")}
    if isinstance(default, str) and default.isdecimal():
        value = {"type": ["string", "integer"]}
    elif option.metavar == NUMBER_OR_TEXT:
        value = {"type": ["string", "number"]}
    if is_repeated:
        value = {"anyOf": [value, {"type": "array", "items": value}]}
    schema = {"description": option.help, **value}
    if default is not None and default != []:
        is_json = isinstance(default, bool | int | float | list)
        schema["default"] = default if is_json else str(default)
    return schema
