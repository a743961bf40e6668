"""`unalike evaluate`: the metrics of the run or others, rows of groups and clients, positives, JSON."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit
from sklearn.metrics import accuracy_score, brier_score_loss, precision_score, roc_auc_score

import unalike as ua
from unalike.data.sources import table_files


@pytest.fixture
def visits(tmp_path, monkeypatch):
    """150 visits to three hospitals, of which "west" is the smallest; more ill ones in the north."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    hospital = np.repeat(["east", "north", "west"], [70, 60, 20])
    pressure = rng.normal(130, 10, 150) + 8 * (hospital == "north")
    ill = pressure + rng.normal(0, 10, 150) > 135
    frame = pd.DataFrame(
        {"pressure": pressure, "hospital": hospital, "outcome": np.where(ill, "ill", "fine")}
    )
    frame.sample(frac=1, random_state=0).to_csv("visits.csv", index=False)


FLAGS = [
    "--data",
    "visits.csv",
    "--target",
    "outcome",
    "--group",
    "hospital",
    "--method",
    "fedavg",
    "--rounds",
    3,
]


@pytest.fixture
def run(cli, visits):
    code, _, err = cli(
        "run",
        *FLAGS,
        "--model",
        "linear",
        "--metric",
        "roc_auc",
        "--metric",
        "brier_score",
        "--out",
        "run",
    )
    assert code == 0, err
    return "run"


def evaluated(cli, *words):
    code, text, err = cli("evaluate", *words, "--json")
    assert code == 0, err
    return pd.DataFrame(json.loads(text)).set_index("row"), err


def test_the_metrics_are_those_of_the_run(cli, run):
    found, _ = evaluated(cli, run)
    last = ua.open_run(run).history.last
    pooled = found.loc["all samples pooled"]
    assert (
        list(found)[:4] == ["samples", "positives", "roc_auc", "brier_score"]
        and list(found)[4] == "loss"
    )
    for name in ("roc_auc", "brier_score", "accuracy", "loss"):
        assert pooled[name] == pytest.approx(last[name], abs=1e-6)
    code, text, _ = cli("evaluate", run)
    scores, calibration, _ = text.split("\n\n")
    head, *rows = scores.splitlines()
    assert code == 0 and head.split()[:4] == ["samples", "positives", "(ill)", "ROC"]
    assert [row.split()[0] for row in rows] == ["east", "north", "west", "all", "mean"]
    assert [row.split()[0] for row in calibration.splitlines()[2:]] == ["all"]


def test_counts_are_whole_numbers(cli, run):
    *rows, mean = json.loads(cli("evaluate", run, "--json")[1])
    assert all(isinstance(row[count], int) for row in rows for count in ("samples", "positives"))
    assert mean["samples"] is None


def test_metric_replaces_them(cli, run):
    found, _ = evaluated(
        cli, run, "--metric", "average_precision", "--metric", "sensitivity_at(specificity=0.8)"
    )
    assert (
        list(found)[2:4] == ["average_precision", "sensitivity_at_80"]
        and "brier_score" not in found
    )
    assert list(found)[4] == "loss" and list(found)[-3:] == [
        "roc_auc",
        "intervals",
        "calibration",
    ]  # no longer in front: of every task of two classes
    for wrong, why in (("auc", "unknown metric"), ("rmse", "is not defined for classification")):
        code, _, err = cli("evaluate", run, "--metric", wrong)
        assert code == 2 and why in err


def test_groups_of_a_table_have_rows_with_samples_and_positives(cli, run):
    """Each number is scikit-learn's, of the probabilities that `predict` gives."""
    found, _ = evaluated(cli, run, "--data", "visits.csv", "--group", "hospital")
    frame = pd.read_csv("visits.csv")
    risk = ua.open_run(run).predict("visits.csv")["probability_ill"]
    for name, own in frame.groupby("hospital"):
        ill, row = own["outcome"] == "ill", found.loc[name]
        assert (row["samples"], row["positives"]) == (len(own), ill.sum())
        assert row["roc_auc"] == pytest.approx(roc_auc_score(ill, risk[own.index]))
        assert row["brier_score"] == pytest.approx(brier_score_loss(ill, risk[own.index]), abs=1e-6)
        assert row["accuracy"] == pytest.approx(accuracy_score(ill, risk[own.index] > 0.5))
    pooled, mean = found.loc["all samples pooled"], found.loc["mean of the rows"]
    assert (
        pooled["roc_auc"] == pytest.approx(roc_auc_score(frame["outcome"] == "ill", risk))
        and pooled["samples"] == 150
    )
    assert mean["roc_auc"] == pytest.approx(found["roc_auc"].iloc[:3].mean()) and np.isnan(
        mean["samples"]
    )
    one, _ = evaluated(cli, run, "--data", "visits.csv")
    assert list(one.index) == ["visits.csv"] and one["roc_auc"].item() == pytest.approx(
        pooled["roc_auc"]
    )


def test_a_group_of_one_class_has_no_roc_auc_and_does_not_count_in_the_mean(cli, run):
    frame = pd.read_csv("visits.csv")
    frame[(frame["hospital"] != "west") | (frame["outcome"] == "fine")].to_csv(
        "new.csv", index=False
    )
    found, _ = evaluated(cli, run, "--data", "new.csv", "--group", "hospital")
    assert found.loc["west", "positives"] == 0 and np.isnan(found.loc["west", "roc_auc"])
    assert found.loc["mean of the rows", "roc_auc"] == pytest.approx(
        found.loc[["east", "north"], "roc_auc"].mean()
    )


def test_a_group_needs_data(cli, run):
    code, _, err = cli("evaluate", run, "--group", "hospital")
    assert code == 2 and "found --group without --data" in err


def test_metrics_of_a_program_are_left_out_with_a_note(cli, visits, tmp_path):
    data = ua.load("visits.csv", target="outcome", group="hospital")
    clients = ua.partition(data)
    ua.run(
        "fedavg",
        clients,
        model="linear",
        rounds=1,
        metrics={"cost": lambda y, p, z: 0.0},
        out="own",
    )
    found, err = evaluated(cli, "own", "--data", "visits.csv", "--target", "outcome")
    assert "cost of the run came from a program" in err and "cost" not in found


def test_run_of_separate_clients_has_no_samples_without_data(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.eye(4, dtype="float32"), np.array([0, 1, 0, 1])
    clients = [ua.ClientData(train=(x, y), test=(x, y))]
    ua.run("fedavg", clients, model="linear", rounds=1, out="own")
    code, _, err = cli("evaluate", "own")
    assert code == 2 and "own has no partition plan" in err and "give --data" in err


def test_regression_has_no_positives(cli, visits):
    frame = pd.read_csv("visits.csv")
    noise = np.random.default_rng(0).normal(size=len(frame))
    frame.assign(outcome=frame["pressure"] / 10 + noise).to_csv("visits.csv", index=False)
    assert cli("run", *FLAGS, "--model", "linear", "--metric", "mae", "--out", "run")[0] == 0
    found, _ = evaluated(cli, "run")
    assert list(found)[:2] == ["samples", "mae"] and len(found) == 5


def test_a_column_that_is_a_feature_groups_the_rows(cli, visits, tmp_path):
    """The hospital is a feature of this run; the model gets it, and its values have a row each."""
    flags = [
        "--data",
        "visits.csv",
        "--target",
        "outcome",
        "--partition",
        "iid",
        "--clients",
        2,
        "--model",
        "linear",
    ]
    code, _, err = cli(
        "run", *flags, "--method", "fedavg", "--rounds", 2, "--out", tmp_path / "iid"
    )
    assert code == 0, err
    found, _ = evaluated(cli, tmp_path / "iid", "--data", "visits.csv", "--group", "hospital")
    risk, frame = (
        ua.open_run(tmp_path / "iid").predict("visits.csv")["probability_ill"],
        pd.read_csv("visits.csv"),
    )
    assert found.index[:3].tolist() == ["east", "north", "west"]
    for name, own in frame.groupby("hospital"):
        assert found.loc[name, "roc_auc"] == pytest.approx(
            roc_auc_score(own["outcome"] == "ill", risk[own.index])
        )


def test_a_run_knows_whether_few_whole_numbers_are_amounts(cli, visits, tmp_path):
    """A new table whose decimals happen to be whole is not asked about: the run is of amounts."""
    frame = pd.read_csv("visits.csv").assign(outcome=np.arange(150) / 4)
    frame.to_csv("visits.csv", index=False)
    assert cli("run", *FLAGS, "--model", "linear", "--lr", 0.01, "--out", "run")[0] == 0
    frame[:30].assign(outcome=[1.0, 2.0, 3.0] * 10).to_csv("new.csv", index=False)
    found, err = evaluated(cli, "run", "--data", "new.csv")
    assert "rmse" in found and not err


def test_scores_on_the_data_of_the_run_are_said_to_be_too_good(cli, run, tmp_path):
    _, err = evaluated(cli, run, "--data", "visits.csv")
    assert "visits.csv is the data of the run, and trained the model for the most part" in err
    pd.read_csv("visits.csv")[:40].to_csv("new.csv", index=False)
    assert (
        "data of the run"
        not in evaluated(cli, run, "--data", "new.csv")[1] + evaluated(cli, run)[1]
    )


def test_subgroups_have_rows_with_intervals_and_thresholds(cli, run):
    """The pressure is a feature, the ward no column of the model; both divide the rows of any table."""
    frame = pd.read_csv("visits.csv").assign(ward=["01", "02", None] * 50)
    frame.to_csv("new.csv", index=False)
    flags = ["--by", "pressure=130", "--by", "ward", "--threshold", 0.3]
    with mock.patch.object(table_files, "opened", wraps=table_files.opened) as opened:
        found, _ = evaluated(cli, run, "--data", "new.csv", *flags)
    opened.assert_called_once()
    risk = ua.open_run(run).predict("new.csv")["probability_ill"].to_numpy()
    ill = (frame["outcome"] == "ill").to_numpy()
    high = (frame["pressure"] >= 130).to_numpy()
    assert list(found.index) == [
        "new.csv",
        "pressure: under 130",
        "pressure: 130 and over",
        "ward: 01",
        "ward: 02",
        "ward: missing",
    ]
    row = found.loc["pressure: 130 and over"]
    assert row["samples"] == high.sum()
    assert row["roc_auc"] == pytest.approx(roc_auc_score(ill[high], risk[high]))
    low, upper = row["intervals"]["roc_auc"]
    assert 0.5 < low < row["roc_auc"] < upper <= 1
    [at_threshold] = found.loc["new.csv", "thresholds"]
    assert at_threshold["ppv"][0] == pytest.approx(precision_score(ill, risk >= 0.3))
    assert found.loc["new.csv", "calibration"]["brier"] == pytest.approx(
        brier_score_loss(ill, risk), abs=1e-6
    )


def test_subgroups_of_the_clients_are_those_of_their_own_rows(cli, run):
    """The samples of a run stand in another order than the rows of its file."""
    found, _ = evaluated(cli, run, "--by", "hospital")
    for name in ("east", "north", "west"):
        of_client = found.loc[name]
        of_subgroup = found.loc[f"hospital: {name}"]
        assert of_subgroup["samples"] == of_client["samples"]
        assert of_subgroup["loss"] == of_client["loss"]
    code, _, err = cli("evaluate", run, "--by", "pressure")
    assert code == 2 and "divide numbers by limits: --by pressure=" in err


def test_recalibration_corrects_the_risks_of_a_new_place(cli, run):
    """At the new place fewer are ill; afterwards its calibration is right and the order of the risks is the same."""
    frame = pd.read_csv("visits.csv")
    ill = frame["pressure"] + np.random.default_rng(1).normal(0, 10, 150) > 145
    frame.assign(outcome=np.where(ill, "ill", "fine")).to_csv("new.csv", index=False)
    before, _ = evaluated(cli, run, "--data", "new.csv", "--recalibrate", "place.json")
    after, err = evaluated(cli, run, "--data", "new.csv", "--recalibration", "place.json")
    assert "was fitted on new.csv" in err
    assert before["calibration"].item()["in_the_large"] < -0.5
    assert after["calibration"].item()["in_the_large"] == pytest.approx(0, abs=1e-3)
    assert after["calibration"].item()["slope"] == pytest.approx(1, abs=1e-3)
    assert after["roc_auc"].item() == before["roc_auc"].item()

    flags = ["--data", "new.csv", "--recalibration", "place.json", "--threshold", 0.2]
    assert cli("predict", run, *flags, "--out", "risks.csv")[0] == 0
    numbers = json.loads(Path("place.json").read_text())
    risk = ua.open_run(run).predict("new.csv")["probability_ill"].to_numpy()
    wanted = expit(numbers["intercept"] + numbers["slope"] * logit(risk))
    predicted = pd.read_csv("risks.csv")
    assert predicted["probability_ill"].to_numpy() == pytest.approx(wanted, abs=1e-5)
    assert ((predicted["prediction"] == "ill") == (predicted["probability_ill"] >= 0.2)).all()

    # of another model, and without both classes
    assert cli("run", *FLAGS, "--model", "linear", "--seed", 1, "--out", "other")[0] == 0
    code, _, err = cli("predict", "other", *flags, "--out", "other.csv")
    assert code == 2 and "was fitted with another model" in err
    frame[frame["outcome"] == "fine"].to_csv("healthy.csv", index=False)
    code, _, err = cli("evaluate", run, "--data", "healthy.csv", "--recalibrate", "no.json")
    assert code == 2 and "expected at least 10 of each class" in err


def test_small_clients_and_a_test_set_of_the_server_are_scored(cli, visits):
    """A client of one row trains and has no test sample; with `--split 1` none has, and the server's samples are scored."""
    frame = pd.read_csv("visits.csv")
    lonely = frame.iloc[[0]].assign(hospital="lonely")
    pd.concat([frame, lonely]).to_csv("visits.csv", index=False)
    for folder, words in (
        ("tested", []),
        ("of_server", ["--split", 1, "--protocol", "server"]),
    ):
        code, _, err = cli("run", *FLAGS, "--model", "linear", *words, "--out", folder)
        assert code == 0, err

    found, _ = evaluated(cli, "tested")
    assert list(found.index[:3]) == ["east", "north", "west"] and "lonely" not in found.index
    code, _, err = cli("evaluate", "tested", "--client", "lonely")
    assert code == 2 and "lonely has no test samples" in err
    found, _ = evaluated(cli, "of_server")
    last = pd.read_parquet("of_server/rounds.parquet").iloc[-1]
    assert found["samples"].tolist() == [29]
    assert found["accuracy"].tolist() == [pytest.approx(last["accuracy"])]


def test_notes_on_dividing_rows_do_not_concern_a_table_that_is_scored(cli, visits, run):
    """Its patients with several rows are drawn together, and the sentence on intervals says so."""
    frame = pd.read_csv("visits.csv").assign(admitted="2024-05-01")
    patients = frame.assign(patient_id=np.arange(150) // 2)
    patients.to_csv("others.csv", index=False)
    code, text, err = cli("evaluate", run, "--data", "others.csv")
    assert code == 0 and "divided" not in err and "train" not in err
    assert "rows that belong together (patient_id) are drawn so" in " ".join(text.split())
