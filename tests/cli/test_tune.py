"""`unalike tune`."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")


def test_tune_prints_the_ranking_and_writes_the_page(cli, small, tmp_path):
    flags = [
        "--method",
        "fedavg",
        "--method",
        "fedprox",
        "--trials",
        2,
        "--seeds",
        1,
        "--out",
        tmp_path / "tuned",
    ]
    code, text, err = cli("tune", *small, *flags)
    assert code == 0, err
    assert (
        "Rank tuned" in text
        and "lr=" in text
        and f"page: {tmp_path / 'tuned' / 'tuning.html'}" in text
    )
    page = (tmp_path / "tuned" / "tuning.html").read_text()
    assert "unalike tune --data" in page and "--trials 2" in page
    code, again, err = cli("tune", *small, *flags)
    assert code == 0 and again == text, err


def test_tune_goes_by_the_objective(cli, small, tmp_path):
    flags = ["--method", "fedavg", "--trials", 1, "--seeds", 1, "--objective", "worst_decile"]
    code, text, err = cli("tune", *small, *flags, "--out", tmp_path / "tuned")
    assert code == 0, err
    assert (
        "accuracy of the worst tenth" in (tmp_path / "tuned" / "tuning.html").read_text()
        and "page:" in text
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective", "acuracy"], "objective='acuracy'"),
        (["--method", "fedprx"], "fedprox"),
        (["--trials", "0"], "trials"),
        (["--val", "0"], "tuning scores validation samples and the clients have none"),
    ],
)
def test_tune_wrong_flags_are_refused(cli, small, flags, message):
    code, _, err = cli("tune", *small, *flags)
    assert code == 2 and message in err
