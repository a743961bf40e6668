"""Config files: `unalike schema` prints their JSON schema, and `--dry-run` shows the config as it is resolved.

`schema.py` makes the schema and `resolved.py` the text, both from the options of the commands. Reading is in `cli/options.py`.
"""

from __future__ import annotations

import json

import typer

from unalike.cli.config.schema import config_schema

NAME = "schema"


def command(context: typer.Context) -> None:
    """Print the JSON schema of config files (`--config`).

    Editors complete and check a TOML file whose first line names the schema.

    \b
    unalike schema > config.schema.json
    """
    print(json.dumps(config_schema(context.find_root().command), indent=1))
