"""The JSON schema of config files is made from the options, and `--dry-run` prints a config file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}


def accepts(schema, value):
    """Whether a property of the schema takes a value; the few keywords that our schema has."""
    if "anyOf" in schema:
        return any(accepts(other, value) for other in schema["anyOf"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fits = any(
        isinstance(value, TYPES[kind]) and (kind == "boolean") == isinstance(value, bool)
        for kind in kinds
    )
    return fits and all(
        accepts(schema["items"], item) for item in (value if isinstance(value, list) else ())
    )


@pytest.fixture
def schema(cli):
    status, out, _ = cli("schema")
    assert status == 0
    return json.loads(out)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "examples").glob("*.toml")), ids=lambda file: file.name
)
def test_example_names_the_schema_and_fits_it(file, schema):
    text = file.read_text()
    assert text.startswith("#:schema ../docs/config.schema.json\n")
    for name, value in tomllib.loads(text).items():
        assert accepts(schema["properties"][name], value), name


def test_schema_has_types_defaults_and_meanings(schema):
    found = schema["properties"]
    assert found["rounds"] == {"description": "Number of rounds.", "type": "integer", "default": 50}
    assert found["lr"]["type"] == "number" and found["nesterov"]["type"] == "boolean"
    assert found["batch_size"]["type"] == ["string", "integer"]  # 10 and "full"
    assert "seed" in found and "seeds" in found and "config" not in found
    assert accepts(found["method"], "fedavg") and accepts(found["method"], ["fedavg", "scaffold"])
    assert not accepts(found["rounds"], "many") and not accepts(found["method"], [1])


def test_unknown_key_is_refused_with_a_suggestion(cli, tmp_path):
    (tmp_path / "own.toml").write_text("round = 3\n")
    for command in ("run", "compare"):
        status, _, err = cli(command, "--config", tmp_path / "own.toml")
        assert status == 2 and "unknown flag 'round'; did you mean 'rounds'" in err


def test_dry_run_prints_a_config_file_that_gives_the_same_config(cli, small, tmp_path):
    (tmp_path / "own.toml").write_text("lr = 0.2\nmethod = ['fedavg', 'scaffold']\n")
    status, out, err = cli(
        "compare", *small, "--config", tmp_path / "own.toml", "--dry-run", "--out", tmp_path / "a"
    )
    assert status == 0, err
    first = out.partition("\n\nEstimated cost")[0]
    lines = dict(line.split(" = ", 1) for line in first.splitlines())
    assert lines["rounds"] == "3"
    assert lines["lr"].split() == ["0.2", "#", "from", "the", "config", "file"]
    assert lines["momentum"].split() == ["0.0", "#", "default"]
    assert lines["baseline"].split() == ['"fedavg"', "#", "default"]
    text = tomllib.loads(first)
    assert text["method"] == ["fedavg", "scaffold"] and text["clients"] == 3
    (tmp_path / "whole.toml").write_text(first)
    status, out, err = cli("compare", "--config", tmp_path / "whole.toml", "--dry-run")
    assert status == 0, err
    assert tomllib.loads(out.partition("\n\nEstimated cost")[0]) == text


def test_dry_run_of_a_run_shows_the_usual_number_of_clients(cli, samples):
    words = (
        "run",
        "--data",
        samples,
        "--model",
        "linear",
        "--rounds",
        3,
        "--partition",
        "iid",
        "--dry-run",
    )
    status, out, err = cli(*words)
    assert status == 0, err
    shown = tomllib.loads(out.partition("\n\nEstimated cost")[0])
    assert shown["clients"] == 10 and shown["method"] == "fedavg" and "out" not in shown
