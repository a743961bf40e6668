"""`unalike coefficients` prints and writes the table of a run."""

import json

import pandas as pd

import unalike as ua


def test_terminal_json_and_files_hold_the_same_coefficients(cli, tmp_path):
    clients = ua.partition(ua.load("heart_disease"), "natural(column='hospital')")
    ua.run("newton(l2=1)", clients, model="logistic", rounds=8, out=tmp_path / "run")
    code, printed, _ = cli("coefficients", tmp_path / "run", "--out", tmp_path / "c.csv")
    assert code == 0 and "cp=asymptomatic (reference)" in printed
    _, text, _ = cli("coefficients", tmp_path / "run", "--json", "--out", tmp_path / "c.html")
    table = pd.read_csv(tmp_path / "c.csv")
    assert [row["term"] for row in json.loads(text)] == table["term"].to_list()
    age = table.set_index("term").loc["age"]
    page = (tmp_path / "c.html").read_text()
    for number in (f"{age['coefficient']:.3g}", f"{age['odds_ratio']:.3g}"):
        assert number in printed and number in page


def test_all_rows_are_fitted_where_none_tests(cli, tmp_path):
    run = tmp_path / "run"
    flags = ["--data", "heart_disease", "--split", 1, "--method", "newton(l2=1)"]
    code, text, err = cli("run", *flags, "--model", "logistic", "--rounds", 8, "--out", run)
    assert code == 0 and "the run has no score" in " ".join(text.split()), err
    code, printed, _ = cli("coefficients", run)
    rows = len(ua.load("heart_disease").groups["hospital"])
    assert code == 0 and f"{rows} training samples of 4 hospitals" in printed
    words = " ".join(printed.split())
    assert "samples of one hospital to be alike" in words
    assert "coefficients by 4 hospitals are far too small" in words


def test_other_endings_are_refused_before_anything_is_read(cli):
    code, _, err = cli("coefficients", "nowhere", "--out", "c.xlsx")
    assert code == 2 and "found c.xlsx for --out; expected a name that ends in .csv or .html" in err
