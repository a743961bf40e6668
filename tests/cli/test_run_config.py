"""The config.toml of a kept run repeats the run."""

import tomllib

import pandas as pd
import pytest
from typer.testing import CliRunner

import unalike as ua
from unalike.cli import app
from unalike.metrics.columns import TIMES


def test_config_of_a_run_repeats_it(tmp_path):
    flags = [
        "run",
        "--method",
        "scaffold + lws",
        "--rounds",
        "2",
        "--clients",
        "4",
        "--model",
        "mlp(hidden=(8,))",
    ]
    flags += [
        "--batch-size",
        "full",
        "--lr",
        "0.2",
        "--partition",
        "quantity(beta=1)",
        "--seed",
        "3",
    ]
    first = CliRunner().invoke(app, [*flags, "--out", str(tmp_path / "a")])
    assert (first.exit_code == 0 and "loop" in first.output) or "batched" in first.output
    again = ["run", "--config", str(tmp_path / "a" / "config.toml"), "--out", str(tmp_path / "b")]
    assert CliRunner().invoke(app, again).exit_code == 0
    a, b = (
        pd.read_parquet(tmp_path / name / "rounds.parquet").drop(columns=[*TIMES]) for name in "ab"
    )
    pd.testing.assert_frame_equal(a, b)


def test_config_of_a_run_gives_the_same_data(cli, samples, tmp_path):
    drawn = ["--data", "synthetic(clients=4, features=8, classes=4)", "--partition", "natural"]
    held = [
        "--data",
        samples,
        "--clients",
        3,
        "--partition",
        "iid",
        "--protocol",
        "server",
        "--test",
        0.5,
    ]
    tail = ["--clients", 3, "--method", "fedlaw(epochs=2)", "--proxy", 0.3, "--proxy-imbalance", 5]
    for name, flags in (("drawn", drawn), ("held", held), ("tail", tail)):
        out = tmp_path / name
        assert (
            cli("run", *flags, "--model", "linear", "--rounds", 1, "--seed", 2, "--out", out)[0]
            == 0
        )
        for command in ("run", "compare"):
            again = tmp_path / f"{name}-{command}"
            code, _, err = cli(command, "--config", out / "config.toml", "--out", again)
            assert code == 0, err
            assert pd.read_parquet(again / "rounds.parquet")["loss"].equals(
                pd.read_parquet(out / "rounds.parquet")["loss"]
            )


def test_imbalance_without_proxy_samples_is_refused(cli):
    code, _, err = cli("run", "--proxy-imbalance", 5)
    assert code == 2 and "found --proxy-imbalance 5 without --proxy" in err


def test_config_of_a_program_run_needs_named_data(cli, samples, tmp_path):
    for data, names in ((samples, ()), ("digits", ("run", "compare"))):
        people = ua.partition(ua.load(data), "iid", clients=3, split=0.5, seed=1)
        out = tmp_path / str(len(names))
        rounds = ua.run("fedavg", people, model="linear", rounds=1, seed=1, out=out).history.rounds
        for command in names:
            code, _, err = cli(command, "--config", out / "config.toml", "--out", out / command)
            assert code == 0, err
            assert pd.read_parquet(out / command / "rounds.parquet")["loss"].equals(rounds["loss"])
        if not names:
            code, _, err = cli("run", "--config", out / "config.toml")
            assert code == 2 and "does not say where its data came from" in err


def test_config_with_an_unknown_table_is_refused(cli, tmp_path):
    (tmp_path / "own.toml").write_text("[work]\nlr = 0.1")
    code, _, err = cli("run", "--config", tmp_path / "own.toml")
    assert (
        code == 2
        and "own.toml sets a name that is not a flag of this command: unknown flag 'work'" in err
    )


@pytest.mark.parametrize(
    "line",
    [
        "rounds = 2.5",
        "rounds = true",
        "seed = true",
        "momentum = false",
        "clients = 3.9",
        "dry_run = 7",
    ],
)
def test_config_invalid_value_is_refused(cli, tmp_path, line):
    name, value = line.split(" = ")
    (tmp_path / "own.toml").write_text(line)
    code, _, err = cli("run", "--config", tmp_path / "own.toml")
    assert code == 2 and f"own.toml sets {name} to" in err and value.lower() in err.lower()


def test_config_valid_values_are_converted(cli, samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"data = '{samples}'\nclients = 3\nrounds = 1\nlr = 1\nnesterov = true\nmomentum = 0.5\nprotocol = ['clients']\nout = 3"
    (tmp_path / "own.toml").write_text(text)
    code, *_ = cli("run", "--config", "own.toml")
    work = tomllib.loads((tmp_path / "3" / "config.toml").read_text())["work"]
    assert code == 0 and (work["lr"], work["nesterov"], work["momentum"]) == (1.0, True, 0.5)
