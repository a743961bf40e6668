"""Stored tasks with real owners are those of the stored results."""

from pathlib import Path

import numpy as np
import pandas as pd

from unalike_studies.recommendation.natural_tasks import natural_runs
from unalike_studies.recommendation.stored_runs import StoredRuns
from unalike_studies.result_files import FOLDER

ROOT = Path(__file__).parents[2]


def test_shipped_runs_of_heart_disease_are_made_from_the_stored_results():
    found = next(natural_runs(ROOT / FOLDER))
    shipped = StoredRuns.read().natural.table.query("data == 'heart_disease'")
    assert len(found) == 11 * 5 and np.isfinite(found["roc_auc"]).all()
    pd.testing.assert_frame_equal(
        shipped[list(found)].reset_index(drop=True),
        found,
        check_exact=False,
        rtol=1e-6,
        check_dtype=False,
    )
