"""Config files: `unalike schema` prints their JSON schema, and `--dry-run` shows the config as it is resolved.

`schema.py` makes the schema and `resolved.py` the text, both from the options of the commands. Reading is in `cli/options.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from unalike.cli.config.schema import COMMANDS, config_schema

NAME = "schema"


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
