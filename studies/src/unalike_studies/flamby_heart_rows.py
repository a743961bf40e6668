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
TRAINING = 0.66
"""The training share of each hospital's rows."""
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalch", "exang", "oldpeak")
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
    x, y, names = _rows()
    test = np.zeros(len(y), bool)
    for name in np.unique(names):
        test[_tested(np.flatnonzero(names == name), y, split)] = True
    scaled = np.empty_like(x)
    for name in np.unique(names):
        mine = names == name
        reference = x[~test] if pooled else x[mine & ~test]
        scaled[mine] = (x[mine] - reference.mean(0)) / (reference.std(0, ddof=1) + 1e-9)
    kept = np.flatnonzero(np.isin(names, [hospital]) if hospital else np.ones(len(y), bool))
    order = kept[np.argsort(test[kept], kind="stable")]
    groups = {"hospital": names[order]}
    return Dataset.divided(
        "flamby_heart", scaled[order], y[order], int((~test[kept]).sum()), groups=groups
    )


@cache
def _rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The features [740, 13] before standardization, the labels [740], and the hospitals [740]."""
    import pandas as pd

    table = pd.read_csv(HEART_DISEASE).drop(columns=["id", "slope", "ca", "thal"]).dropna()
    x = np.stack([_number(table[name]) for name in NUMBERS], 1)
    dummies = [table[name] == value for name, values in CATEGORIES.items() for value in values]
    x = np.concatenate([x, np.stack(dummies, 1)], 1).astype(np.float32)
    return x, table["num"].to_numpy() > 0, table["dataset"].to_numpy(str)


def _number(column: pd.Series) -> np.ndarray:
    """A column of numbers, of true and false, or of Male and Female."""
    if column.name == "sex":
        column = column == "Male"
    return column.to_numpy(np.float64)


def _tested(rows: np.ndarray, y: np.ndarray, split: int) -> np.ndarray:
    """The test rows of a hospital; stratified by label where each label has more than two rows."""
    from sklearn.model_selection import train_test_split

    counts = np.unique(y[rows], return_counts=True)[1]
    labels = y[rows] if len(counts) > 1 and (counts > 2).all() else None
    sizes = {"train_size": TRAINING, "test_size": 1 - TRAINING}
    return np.asarray(train_test_split(rows, random_state=split, stratify=labels, **sizes)[1])
