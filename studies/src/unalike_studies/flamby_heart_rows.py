"""The data set `flamby_heart`: the rows, features, split and standardization of FLamby's benchmark on heart disease.

Source: J. Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022. The rows are those of `heart_disease`, in the order of the original files.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from unalike.data.dataset import Dataset
from unalike.data.sources.natural import HEART_DISEASE
from unalike.data.sources.registry import registry

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED_SPLIT = 43
"""The seed of the benchmark's only division into training and test rows."""
TRAINING_SHARE = 0.66
"""The training share of each hospital's rows."""
NUMBER_COLUMNS = ("age", "sex", "trestbps", "chol", "fbs", "thalch", "exang", "oldpeak")
CATEGORIES = {
    "cp": ("atypical angina", "non-anginal", "asymptomatic"),
    "restecg": ("st-t abnormality", "lv hypertrophy"),
}
"""The values that get a column of their own: all but the first one in the coding of the original files."""


@registry.register("flamby_heart")
def flamby_heart(
    *, split: int = PUBLISHED_SPLIT, pooled: bool = False, hospital: str | None = None
) -> Dataset:
    """Heart disease in four hospitals by FLamby's rules: 740 complete rows, 13 features; group "hospital".

    Args:
        split: the seed of the stratified division of each hospital's rows, 66 to 34.
        pooled: standardize with mean and deviation of the training rows of all hospitals, instead of a hospital's own.
        hospital: leave out the rows of the others.
    """
    x, y, hospitals = _rows()

    # Every hospital is divided by itself.
    is_test = np.zeros(len(y), bool)
    for name in np.unique(hospitals):
        rows_of_hospital = np.flatnonzero(hospitals == name)
        is_test[_test_rows(rows_of_hospital, y, split)] = True

    # Test rows are standardized as well, but never counted in a mean or a deviation.
    scaled = np.empty_like(x)
    for name in np.unique(hospitals):
        of_hospital = hospitals == name
        reference = x[~is_test] if pooled else x[of_hospital & ~is_test]
        deviation = reference.std(0, ddof=1) + 1e-9
        scaled[of_hospital] = (x[of_hospital] - reference.mean(0)) / deviation

    # Training rows come first, each part in the order of the file. One hospital alone has the
    # division that it has among all.
    rows = np.flatnonzero(hospitals == hospital) if hospital else np.arange(len(y))
    order = rows[np.argsort(is_test[rows], kind="stable")]
    training_rows = int((~is_test[rows]).sum())
    groups = {"hospital": hospitals[order]}
    return Dataset.divided("flamby_heart", scaled[order], y[order], training_rows, groups=groups)


@cache
def _rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The features [740, 13] before standardization, the labels [740], and the hospitals [740]."""
    import pandas as pd

    table = pd.read_csv(HEART_DISEASE)
    table = table.drop(columns=["id", "slope", "ca", "thal"]).dropna()
    numbers = [_number(table[name]) for name in NUMBER_COLUMNS]
    dummies = [table[name] == value for name, values in CATEGORIES.items() for value in values]
    x = np.concatenate([np.stack(numbers, 1), np.stack(dummies, 1)], 1).astype(np.float32)
    has_disease = table["num"].to_numpy() > 0
    hospitals = table["dataset"].to_numpy(str)
    return x, has_disease, hospitals


def _number(column: pd.Series) -> np.ndarray:
    """A column of numbers, of true and false, or of Male and Female."""
    if column.name == "sex":
        column = column == "Male"
    return column.to_numpy(np.float64)


def _test_rows(rows: np.ndarray, y: np.ndarray, split: int) -> np.ndarray:
    """The test rows of a hospital; stratified by label where each label has more than two rows."""
    from sklearn.model_selection import train_test_split

    counts = np.unique(y[rows], return_counts=True)[1]
    can_stratify = len(counts) > 1 and (counts > 2).all()
    _, test_rows = train_test_split(
        rows,
        train_size=TRAINING_SHARE,
        test_size=1 - TRAINING_SHARE,
        random_state=split,
        stratify=y[rows] if can_stratify else None,
    )
    return np.asarray(test_rows)
