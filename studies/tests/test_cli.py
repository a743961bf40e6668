"""`unalike study`: several studies at once, and errors."""

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from unalike import UnalikeError
from unalike_studies.catalogue import study
from unalike_studies.cli import app
from unalike_studies.result_files import digests, read, save


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
    out = cli(
        "run",
        "fedmix-quadratic",
        "fedmix-identities",
        "--seeds",
        "1",
        "--out",
        tmp_path,
        "--dry-run",
    )
    assert "fedmix-quadratic, smoke: 0 of" in out and "fedmix-identities, smoke: 0 of" in out
    assert "estimated: " in out and not list(tmp_path.glob("*/*/*.parquet"))


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
        (
            ["fedmix-quadratic", "--seeds", "auto"],
            "seeds='auto': expected how many (3) or which (0,1,4",
        ),
    ],
)
def test_wrong_argument_is_named(cli, tmp_path, words, message):
    with pytest.raises(UnalikeError, match=re.escape(message)):
        cli("run", *words, "--out", tmp_path)


def test_run_again_replaces_the_results_of_the_chosen_cells(cli, tmp_path):
    command = ["run", "fedmix-quadratic", "--seeds", "1", "--out", tmp_path]
    cli(*command)
    folder = tmp_path / "fedmix-quadratic" / "smoke"
    before, method = digests(folder), study("fedmix-quadratic").scale("smoke").cells[0].method
    out = cli(*command, "--method", method, "--again")
    assert "0 results are missing" not in out and digests(folder) == before
    assert len(list(folder.glob("*.parquet"))) == 2


def test_gather_leaves_one_file_without_the_results_of_other_cells(cli, tmp_path):
    folder = tmp_path / "fedmix-quadratic" / "smoke"
    cli("run", "fedmix-quadratic", "--seeds", "0", "--out", tmp_path)
    cli("run", "fedmix-quadratic", "--seeds", "1", "--out", tmp_path)
    [result, *_] = read(folder, study("fedmix-quadratic").scale("smoke").cells).cells
    save(replace(result, digest="0" * 16), folder)
    count = len(digests(folder)) - 1
    out = cli("gather", "fedmix-quadratic", "--scale", "smoke", "--out", tmp_path)
    assert f"{count} results, 1 of other cells left out" in out
    assert len(digests(folder)) == count and len(list(folder.glob("*.parquet"))) == 1
