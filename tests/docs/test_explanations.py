"""Tables in the explanations hold the numbers of the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from unalike.studies.catalogue import study
from unalike.studies.results import Results

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "cells", "seeds"), [("skew-estimators", 360, 5), ("skew-estimators-cnn", 216, 3)])
def test_the_page_on_parameter_skew_has_the_accuracies_of_the_studies(name, cells, seeds):
    skew = study(name)
    results = Results.read(ROOT / "studies/results" / name / "small", skew.scale("small").cells)
    _, *rows = skew.layouts[0].table(results)
    page = (ROOT / "docs/explanation/parameter_skew.md").read_text()
    assert len(rows) == 12 and len(results.cells) == cells
    for method, *scores in rows:
        shown = [score.replace(f" ({seeds})", "") for score in scores]
        assert f"| {' | '.join([method, *shown])} |" in page, method


def test_the_page_on_weight_shrinking_has_the_differences_of_the_ledger():
    ledger, study_name = {}, ""
    for line in (ROOT / "docs/reproduction.md").read_text().splitlines():
        study_name = line.removeprefix("## ") if line.startswith("## ") else study_name
        if line.startswith("| ") and line.count(" | ") > 6:
            claim, _, ours, interval, seeds, _, verdict, *_ = line.removeprefix("| ").split(" | ")
            ledger[study_name, claim] = (ours.partition(" ")[0], interval, seeds, verdict)
    page = (ROOT / "docs/explanation/weight_shrinking.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in page if line.startswith("| `fedlws")]
    assert len(rows) > 20
    for name, claim, *shown in rows:
        ours, interval, seeds, verdict = ledger[name.strip("`"), claim]
        between = " to ".join(f"{float(end):.1f}" for end in interval.split(" to "))
        assert shown == [f"{float(ours):.1f}", between, seeds, verdict], (name, claim)
