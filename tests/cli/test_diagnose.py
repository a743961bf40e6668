"""`unalike diagnose`."""

import json

import pytest


def test_diagnose_prints_findings_and_writes_the_page(cli, samples, tmp_path):
    flags = ["--data", samples, "--partition", "dirichlet(alpha=0.5, min_size=2)", "--clients", 4]
    code, text, err = cli(
        "diagnose", *flags, "--rounds", 1, "--model", "linear", "--lr", 0.2, "--out", tmp_path / "d"
    )
    assert code == 0, err
    for word in (
        "Label skew: ",
        "Quantity skew: ",
        "Feature skew: ",
        "Concept shift: ",
        "Clusters: ",
        "Training: ",
    ):
        assert word in text
    assert "Total variation to all clients" in text and "diagnosis.html" in text
    content = json.loads((tmp_path / "d" / "diagnosis.json").read_text())
    assert content["command"].startswith(
        f"unalike diagnose --data {samples} --partition 'dirichlet(alpha=0.5, min_size=2)'"
    )
    assert content["command"].endswith("--model linear --rounds 1 --lr 0.2")


def test_diagnose_table_is_divided_by_its_group(cli, tmp_path):
    rows = [
        f"{30 + i % 50},{20 + i % 7},{'ill' if i % 3 else 'well'},{'nsw'[i % 3]}" for i in range(90)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["age,bmi,outcome,hospital", *rows]) + "\n")
    flags = ["--data", tmp_path / "visits.csv", "--target", "outcome", "--group", "hospital"]
    code, text, err = cli("diagnose", *flags)
    assert code == 0, err
    assert "Label skew: strong" in text and "With 3 clients" in text


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--partition", "dirichlat"], "did you mean 'dirichlet'"),
        (["--val", 0.1], "No such option"),
        (["--data", "nothing.csv"], "nothing.csv"),
        (["--clients", 1], "two or more"),
        (["--partition", "iid", "--clients", 3, "--rounds", 1, "--model", "mlq"], "did you mean"),
    ],
)
def test_diagnose_wrong_flags_are_refused(cli, samples, flags, message):
    code, _, err = cli("diagnose", "--data", samples, *flags)
    assert code == 2 and message in err
