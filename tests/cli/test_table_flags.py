"""A table on the command line: `--data visits.csv --target outcome --group hospital`."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest

import unalike as ua


@pytest.fixture
def visits(tmp_path, monkeypatch):
    """120 visits to three hospitals in `visits.csv`; patients with high pressure are ill, and `id` says nothing."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pressure = rng.normal(130, 10, 120)
    frame = pd.DataFrame(
        {
            "id": rng.permutation(120) * 7,
            "pressure": pressure,
            "hospital": ["east", "north", "west"] * 40,
        }
    )
    frame.assign(
        outcome=np.where(pressure > 130, "ill", "well"), stay=rng.integers(1, 9, 120)
    ).to_csv("visits.csv", index=False)
    return [
        "--data",
        "visits.csv",
        "--target",
        "outcome",
        "--group",
        "hospital",
        "--drop",
        "id",
        "--drop",
        "stay",
    ]


QUICK = ["--model", "linear", "--rounds", 2, "--lr", 0.5]


def test_later_rows_test_by_a_column_of_a_config_file_or_by_their_order(cli, visits, tmp_path):
    frame = pd.read_csv("visits.csv")
    frame.assign(day=np.arange(120)[::-1]).to_csv("visits.csv", index=False)
    config, run = tmp_path / "later.toml", tmp_path / "run"
    config.write_text('split_by = "day"\nsplit = 0.8\n')
    code, _, err = cli("run", "--config", config, *visits, *QUICK, "--out", run)
    assert code == 0, err
    plan = json.loads((run / "plan.json").read_text())
    # the last fifth of the days is in the first rows of the file, which stand last in the data set
    assert [sorted(rows) for rows in plan["test"]] == [[*range(96 + k, 120, 3)] for k in range(3)]
    code, _, err = cli("evaluate", run)  # which reads the rows in the same order
    assert code == 0, err

    np.savez("series.npz", x=np.arange(8.0)[:, None], y=np.arange(8) % 2)
    in_order = ["--data", "series.npz", "--partition", "iid", "--clients", 1, "--split", "later"]
    code, _, err = cli("partition", *in_order, "--save", "plan.json")
    assert code == 0 and json.loads((tmp_path / "plan.json").read_text())["test"] == [[6, 7]], err


def test_run_on_a_table_has_one_client_per_group_and_is_read_again(cli, visits, tmp_path):
    run = tmp_path / "run"
    code, _, err = cli("run", *visits, *QUICK, "--out", run)
    assert code == 0, err
    kept = tomllib.loads(json.loads((run / "comparison.json").read_text())["config"])
    assert kept["partition"] == "natural(column='hospital')" and kept["group"] == ["hospital"]
    assert json.loads((run / "plan.json").read_text())["named"] == ["east", "north", "west"]
    code, own, err = cli("evaluate", run)
    table, _, _ = own.partition("\n\n")
    assert code == 0 and [line.split()[0] for line in table.splitlines()[1:6]] == [
        "east",
        "north",
        "west",
        "all",
        "mean",
    ], err
    code, other, err = cli("evaluate", run, "--data", "visits.csv")  # with the target of the run
    assert code == 0 and "visits.csv" in other, err
    pd.read_csv("visits.csv").drop(columns="outcome").to_csv("new.csv", index=False)
    assert cli("predict", run, "--data", "new.csv")[0] == 0
    assert len(pd.read_csv("predictions.csv")) == 120


def test_compare_of_a_table_equals_compare_in_python(cli, visits, tmp_path):
    code, _, err = cli(
        "compare", *visits, *QUICK, "--seeds", "0,", "--method", "fedavg", "--out", tmp_path / "c"
    )
    assert code == 0, err
    data = ua.load("visits.csv", target="outcome", group="hospital", drop=["id", "stay"])
    table = ua.compare(
        ["fedavg"], data=data, seeds=[0], model="linear", rounds=2, work=ua.Work(lr=0.5)
    )
    found = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert found["partition"]["partition"] == table.facts.partition["partition"]
    assert found["partition"]["hash"] == table.facts.partition["hash"]
    assert "--data visits.csv --partition 'natural(column='" in found["command"].replace(
        '"\'"', ""
    ) and ("--target outcome --group hospital --drop id --drop stay" in found["command"])


def test_partition_flag_wins_over_the_groups(cli, visits):
    code, out, err = cli("partition", *visits, "--partition", "iid", "--clients", 4)
    assert code == 0 and "iid(), 4 clients" in out, err


def test_regression_flag_reads_whole_numbers_as_numbers(cli, visits):
    flags = [
        "--data",
        "visits.csv",
        "--target",
        "stay",
        "--drop",
        "id",
        "--drop",
        "outcome",
        "--group",
        "hospital",
    ]
    code, out, err = cli("run", *flags, *QUICK, "--regression")
    assert code == 0 and "RMSE" in out and "accuracy" not in out, err


def test_misspelt_columns_and_options_are_suggested(cli, visits):
    for flags, message in (
        (
            ["--target", "outcom"],
            "no column 'outcom'; did you mean 'outcome'? It has the columns id, pressure",
        ),
        (["--target", "outcome", "--group", "ospital"], "did you mean 'hospital'?"),
        (
            [],
            "the columns id, pressure, hospital, outcome, stay; name the one to predict, with --target COLUMN",
        ),
    ):
        code, out, err = cli("run", "--data", "visits.csv", *flags)
        assert (code, out) == (2, "") and message in err and ".csv(" not in err, err


def test_split_one_leaves_clients_no_tests_and_the_server_the_published_ones(cli, tmp_path):
    flags = ["--data", "digits", "--clients", 3, "--rounds", 1, "--model", "linear", "--split", 1]
    code, text, err = cli("run", *flags)
    said = "the run has no score. Give --split 0.75 or --protocol server"
    assert code == 0 and said in " ".join(text.split()), err
    code, _, err = cli("run", *flags, "--protocol", "server", "--out", tmp_path)
    assert code == 0, err
    plan = ua.PartitionPlan.load(tmp_path)
    assert (
        plan.train.sizes.sum() == 1442 and not plan.test.sizes.sum()
    )  # the whole published training set


def test_limit_takes_so_many_samples_and_is_kept(cli, visits, tmp_path):
    run = tmp_path / "run"
    code, _, err = cli("run", *visits, *QUICK, "--limit", 60, "--out", run)
    assert code == 0, err
    plan = ua.PartitionPlan.load(run)
    assert plan.train.sizes.sum() + plan.test.sizes.sum() == 60
    code, own, err = cli("evaluate", run, "--json")
    assert code == 0 and json.loads(own)[3]["samples"] == plan.test.sizes.sum(), err


def test_table_without_groups_says_that_its_clients_are_artificial(cli, visits, tmp_path):
    flags = [
        "--data",
        "visits.csv",
        "--target",
        "outcome",
        "--drop",
        "id",
        "--drop",
        "stay",
        "--clients",
        3,
    ]
    code, _, err = cli("run", *flags, *QUICK, "--out", tmp_path / "run")
    assert code == 0 and err.count("so the clients are artificial; name the column") == 1, err
    assert any("artificial" in note for note in ua.open_run(tmp_path / "run").notes)
    code, _, err = cli("run", *flags, *QUICK, "--partition", "iid")
    assert code == 0 and "artificial" not in err, err


def test_semicolons_decimal_commas_dates_and_expressions(cli, visits, tmp_path):
    frame = pd.read_csv("visits.csv").assign(
        seen=pd.date_range("2020-01-01", periods=120).strftime("%d.%m.%Y")
    )
    frame.to_csv("german.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    flags = [
        "--group",
        "hospital",
        "--drop",
        "id",
        "--drop",
        "outcome",
        "--date",
        "seen",
        "--target",
        "stay > 4",
        "--charset",
        "cp1252",
    ]
    run = tmp_path / "run"
    code, _, err = cli("run", "--data", "german.csv", *flags, *QUICK, "--out", run)
    assert code == 0 and "read with decimal commas" in err, err
    assert [n.name for n in ua.open_run(run).run_config.population.encoding.numbers] == [
        "pressure",
        "seen",
    ]
    code, text, err = cli("evaluate", run, "--data", "german.csv", "--json")
    assert code == 0 and json.loads(text)[0]["positives"] == (frame["stay"] > 4).sum(), err
    assert cli("predict", run, "--data", "german.csv", "--sep", ";", "--decimal", ",")[0] == 0
    predicted = pd.read_csv("predictions.csv")["prediction"]
    frame.to_csv("plain.csv", index=False)
    assert cli("predict", run, "--data", "plain.csv", "--out", "again.csv")[0] == 0
    assert predicted.equals(pd.read_csv("again.csv")["prediction"])
