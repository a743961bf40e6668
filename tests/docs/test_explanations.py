"""Tables in the explanations hold the numbers of the stored results."""

from __future__ import annotations

from pathlib import Path

from unalike.studies.catalogue import study
from unalike.studies.results import Results

ROOT = Path(__file__).parents[2]


def test_the_page_on_parameter_skew_has_the_accuracies_of_the_study():
    skew = study("skew-estimators")
    results = Results.read(ROOT / "studies/results/skew-estimators/small", skew.scale("small").cells)
    _, *rows = skew.layouts[0].table(results)
    page = (ROOT / "docs/explanation/parameter_skew.md").read_text()
    assert len(rows) == 12 and len(results.cells) == 360
    for method, *scores in rows:
        cells = [score.replace(" (5)", "") for score in scores]
        assert f"| {' | '.join([method, *cells])} |" in page, method
