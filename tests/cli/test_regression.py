"""Regression on scikit-learn's diabetes data as a table: run, compare, report, evaluate, predict."""

import pandas as pd
import pytest
from evaluated_scores import scores
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error, r2_score

FLAGS = [
    "--data",
    "diabetes.csv",
    "--target",
    "target",
    "--regression",
    "--partition",
    "iid",
    "--clients",
    3,
]
QUICK = ["--model", "linear", "--rounds", 20, "--lr", 0.1]


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = load_diabetes(as_frame=True).frame
    frame.assign(target=(frame["target"] / 100).round(2)).to_csv("diabetes.csv", index=False)


def test_run_evaluate_and_predict_agree_with_scikit_learn(cli):
    code, out, err = cli("run", *FLAGS, *QUICK, "--out", "run")
    assert code == 0 and all(f" {name} " in out for name in ("loss", "RMSE", "MAE", "R²")), err
    code, text, err = cli("evaluate", "run", "--data", "diabetes.csv")
    assert code == 0, err
    found = scores(text)
    assert cli("predict", "run", "--data", "diabetes.csv")[0] == 0
    # `predict` keeps the order of the file, for tables whose every column is read
    y, guess = pd.read_csv("diabetes.csv")["target"], pd.read_csv("predictions.csv")["prediction"]
    assert found["R²"] == pytest.approx(r2_score(y, guess), abs=1e-3) and found["R²"] > 0.3
    assert found["MAE"] == pytest.approx(mean_absolute_error(y, guess), abs=1e-3)


def test_compare_decides_by_r2_and_reports_it(cli, tmp_path):
    flags = [
        "--method",
        "fedavg",
        "--method",
        "scaffold",
        "--seeds",
        2,
        "--metric",
        "r2",
        "--out",
        "results",
    ]
    code, out, err = cli("compare", *FLAGS, *QUICK, *flags)
    assert code == 0 and "R²" in out, err
    page = (tmp_path / "results" / "report.html").read_text()
    assert "R²" in page and "MAE" in page
    code, text, _ = cli("report", "results", "--format", "markdown")
    [titles] = [line for line in text.splitlines() if line.startswith("| Method |")]
    assert code == 0 and "| R² |" in titles and "%" not in titles.split("|")[4]
    assert text.startswith("Together, or alone?") and text.splitlines()[2].startswith(
        "Gain by pooling: "
    )
