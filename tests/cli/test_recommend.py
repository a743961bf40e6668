"""`unalike recommend`."""

import json

import pytest


def test_recommend_prints_the_short_list_and_the_command_that_compares_it(cli, samples, tmp_path):
    flags = [
        "--data",
        samples,
        "--partition",
        "dirichlet(alpha=0.5, min_size=2)",
        "--clients",
        4,
        "--model",
        "linear",
    ]
    code, text, err = cli("recommend", *flags, "--participation", 0.5, "--out", tmp_path / "advice")
    assert code == 0, err
    assert text.startswith("Try ") and "How good is this?" in text and "FedAvg" in text
    assert (
        f"compare, with one learning rate: unalike compare --data {samples}" in text
        and "--method fedavg" in text
    )
    assert f"or choose a learning rate for each first: unalike tune --data {samples}" in text
    assert "--objective personal_accuracy" in text
    content = json.loads((tmp_path / "advice" / "recommendation.json").read_text())
    assert content["command"].startswith(f"unalike recommend --data {samples}")
    assert (
        content["command"].endswith("--candidates any --objective accuracy")
        or "--lr" in content["command"]
    )
    assert (tmp_path / "advice" / "recommendation.html").exists()
    assert content["advice"][0]["method"] in text.splitlines()[0]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--candidates", "all"], "known: any, shared"),
        (["--objective", "accurracy"], "did you mean 'accuracy'"),
        (["--val", 0.1], "No such option"),
        (["--participation", 2.0], "above 0 and at most 1"),
    ],
)
def test_recommend_wrong_flags_are_refused(cli, samples, flags, message):
    code, _, err = cli("recommend", "--data", samples, "--clients", 4, *flags)
    assert code == 2 and message in err
