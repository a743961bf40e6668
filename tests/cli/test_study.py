"""`unalike study`: several studies at once, and errors."""

import pytest


def test_studies_that_match_a_pattern_run_once(cli, tmp_path):
    command = ["study", "run", "fedmix-quad*", "--seeds", "1", "--out", tmp_path]
    status, out, _ = cli(*command)
    assert status == 0 and (tmp_path / "fedmix-quadratic" / "smoke").is_dir()
    status, again, _ = cli(*command)
    assert status == 0 and "0 results are missing; 0 cells to run" in again and "0 of" in out


def test_dry_run_lists_every_study_and_runs_none(cli, tmp_path):
    status, out, _ = cli(
        "study", "run", "fedmix-quadratic", "fedmix-identities", "--seeds", "1", "--out", tmp_path, "--dry-run"
    )
    assert status == 0 and "fedmix-quadratic, smoke: 0 of" in out and "fedmix-identities, smoke: 0 of" in out
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
    status, _, err = cli("study", "run", *words, "--out", tmp_path)
    assert status == 2 and message in err
