"""The schema of config files in the documentation has the options that the commands have."""

import json
from pathlib import Path

from unalike.cli import compare, run
from unalike.cli.config_file import config_schema

FILE = Path(__file__).parents[2] / "docs" / "config.schema.json"


def test_schema_in_the_documentation_is_current():
    schema = config_schema([run.command, compare.command])
    assert json.loads(FILE.read_text()) == schema, (
        "write it anew: python -m unalike schema --out docs/config.schema.json"
    )
