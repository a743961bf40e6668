"""Folders of comparisons that have not ended: the finished cells are reported, and nothing is decided."""

from __future__ import annotations

import pandas as pd
import pytest

import unalike as ua

METHODS = {"mean": "fedavg", "own": "ditto"}


@pytest.fixture
def interrupted(people, small, tmp_path):
    """Run a comparison until a run begins; its folder."""

    def until(run, **options):
        def interrupt(row):
            if row["run"] == run and row["round"] == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            small(METHODS, people, seeds=3, out=tmp_path, progress=interrupt, **options)
        return tmp_path

    return until


def test_unfinished_comparison_is_its_finished_cells_without_a_decision(interrupted, people, small):
    folder = interrupted("own (seed 1)")
    part = ua.open_comparison(folder)
    assert part.facts.unfinished == "3 of 6 cells"
    assert part.facts.notes[0].startswith(
        "This comparison is unfinished: 3 of 6 cells are finished"
    )
    assert (
        str(part.decision)
        == str(part.shared_decision)
        == "No decision yet: 3 of 6 cells are finished."
    )
    assert part.decision.choice == ""
    whole = small(METHODS, people, seeds=3, out=folder)
    for name in ("rounds", "clients", "client_rounds"):
        found, expected = getattr(part, name), getattr(whole, name)
        done = expected[
            (expected["seed"] == 0) | ((expected["seed"] == 1) & (expected["method"] == "mean"))
        ]
        key = ["method", "seed", *({"round", "client"} & {*done})]
        found, done = (table.sort_values(key, ignore_index=True) for table in (found, done))
        shared = [column for column in found if column in done]
        pd.testing.assert_frame_equal(found[shared], done[shared])
    key = lambda end: (end["method"], end["seed"])  # noqa: E731
    assert sorted(part.facts.ends, key=key) == sorted(whole.facts.ends[:3], key=key)
    assert not ua.open_comparison(folder).facts.unfinished
    assert str(ua.open_comparison(folder).decision) == str(whole.decision) != str(part.decision)


def test_report_of_an_unfinished_comparison_says_so(interrupted, tmp_path):
    folder = interrupted("own (seed 1)")
    text = ua.open_comparison(folder).report(tmp_path / "part.html").read_text("utf-8")
    assert (
        "No decision yet: 3 of 6 cells are finished." in text
        and "This comparison is unfinished" in text
    )


def test_unfinished_comparison_leaves_out_methods_without_a_finished_cell(interrupted):
    part = ua.open_comparison(interrupted("own (seed 0)"))
    assert [method["label"] for method in part.facts.methods] == ["mean"]
    assert "Without a finished cell, and so not shown: own." in part.facts.notes


def test_comparison_without_a_finished_cell_has_no_report(interrupted):
    with pytest.raises(
        ua.UnalikeError, match="0 of 6 cells finished: there is nothing to report yet"
    ):
        ua.open_comparison(interrupted("mean (seed 0)"))


def test_finished_comparison_says_that_a_later_one_has_begun(interrupted, people, small, tmp_path):
    first = small(METHODS, people, seeds=2, out=tmp_path)
    found = ua.open_comparison(interrupted("mean (seed 2)"))
    pd.testing.assert_frame_equal(found.rounds, first.rounds)
    assert (
        found.facts.notes[0].startswith("A later comparison has begun in")
        and "4 of 6 cells" in found.facts.notes[0]
    )
