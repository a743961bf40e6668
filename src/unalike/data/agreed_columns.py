"""A look at samples before training: how the columns of a table differ from the encoding that was agreed on."""

import torch
from torch import Tensor

from unalike.data.table_encoding import Encoding

OTHER_UNITS = 50.0
"""The distance of a column's mean from the agreed mean, in agreed scales, that is too far: the column has other units."""
MOST = 0.5
"""The share of rows without a number, or of a category that was not agreed on, above which a column is refused."""


def look_at(encoding: Encoding, x: Tensor) -> tuple[list[str], list[str]]:
    """Compare encoded rows x [N, width] with their encoding: missing numbers, units, constants, unknown categories.

    Returns sentences about columns that can be, without what `Encoding.surprises` tells when rows are read, and about those with
    which nobody should train.
    """
    odd: list[str] = []
    wrong: list[str] = []
    if encoding.words is not None or not len(x):
        return odd, wrong
    gap = len(encoding.numbers)
    for i, number in enumerate(encoding.numbers):
        z, missing = x[:, i].double(), 0.0
        if number.gaps:
            missing, gap = float(x[:, gap].mean()), gap + 1
        shift = abs(float(z.mean()))
        if missing:
            (wrong if missing > MOST else odd).append(
                f"{number.name!r}: {missing:.0%} of the rows have no number"
            )
        if shift > OTHER_UNITS:
            wrong.append(
                f"{number.name!r}: its mean is {shift:.3g} agreed standard deviations from the agreed mean; other units?"
            )
        if len(z) > 1 and missing < 1 and bool((z == z[0]).all()):
            odd.append(f"{number.name!r}: the same number in all rows, or none in any")
    for category in encoding.categories:
        width = len(category.values)
        unknown = float((x[:, gap : gap + width] == 0).all(1).double().mean())
        gap += width
        if unknown > MOST:
            wrong.append(
                f"{category.name!r}: {unknown:.0%} of the rows have a value that was not agreed on"
            )
    return odd, wrong


def class_counts(y: Tensor, classes: list[str]) -> str:
    """The number of samples of each class, in words."""
    counts = torch.bincount(y.long(), minlength=len(classes)).tolist()
    return ", ".join(f"{name}: {n}" for name, n in zip(classes, counts, strict=True))
