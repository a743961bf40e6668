"""`unalike study`: several studies at once, and errors."""

import re

import pytest
from typer.testing import CliRunner

from unalike import UnalikeError
from unalike_studies.cli import app


@pytest.fixture
def cli():
    """Run a command of `unalike study`: its standard output."""

    def run(*words):
        return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout

    return run


def test_studies_that_match_a_pattern_run_once(cli, tmp_path):
    command = ["run", "fedmix-quad*", "--seeds", "1", "--out", tmp_path]
    out = cli(*command)
    assert "0 of" in out and (tmp_path / "fedmix-quadratic" / "smoke").is_dir()
    assert "0 results are missing; 0 cells to run" in cli(*command)


def test_dry_run_lists_every_study_and_runs_none(cli, tmp_path):
    out = cli("run", "fedmix-quadratic", "fedmix-identities", "--seeds", "1", "--out", tmp_path, "--dry-run")
    assert "fedmix-quadratic, smoke: 0 of" in out and "fedmix-identities, smoke: 0 of" in out
    assert "estimated: " in out and not list(tmp_path.glob("*/*/*seed0.json"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedmix-figure99"], "unknown study 'fedmix-figure99'; did you mean 'fedmix-figure"),
        (["nothing-*"], "unknown study 'nothing-*'"),
        (
            ["fedmix-quadratic", "--method", "FedAvgg"],
            "unknown method of fedmix-quadratic 'FedAvgg'; did you mean 'FedAvg'",
        ),
        (["fedmix-quadratic", "--jobs", "0"], "found jobs=0"),
        (["fedmix-quadratic", "--seeds", "auto"], "seeds='auto': expected how many (3) or which (0,1,4"),
    ],
)
def test_wrong_argument_is_named(cli, tmp_path, words, message):
    with pytest.raises(UnalikeError, match=re.escape(message)):
        cli("run", *words, "--out", tmp_path)
