"""A look at samples before training: how the columns of a table differ from the encoding that was agreed on."""

import torch
from torch import Tensor

from unalike.data.table_encoding import Encoding

OTHER_UNITS_SCALES = 10.0
"""The distance of a column's mean from the agreed mean, in agreed scales, that is too far: the column has other units."""
MAX_UNUSABLE_SHARE = 0.5
"""The share of rows without a number, or of a category that was not agreed on, above which a column is refused."""


def compare_with_encoding(encoding: Encoding, x: Tensor) -> tuple[list[str], list[str]]:
    """Compare encoded rows x [N, width] with their encoding: missing numbers, units, constants, unknown categories.

    Returns warnings, and faults that must stop training. What `Encoding.surprises` says when rows are read is not repeated.
    """
    warnings: list[str] = []
    faults: list[str] = []
    if encoding.words is not None or not len(x):
        return warnings, faults

    # An encoded row has the numbers first, then the gap columns, then the categories: `place` walks over the last two.
    place = len(encoding.numbers)
    for i, number in enumerate(encoding.numbers):
        z = x[:, i].double()
        missing = 0.0
        if number.gaps:
            missing = float(x[:, place].mean())
            place += 1
        if missing:
            sentences = faults if missing > MAX_UNUSABLE_SHARE else warnings
            sentences.append(f"{number.name!r}: {missing:.0%} of the rows have no number")
        shift = abs(float(z.mean()))
        if shift > OTHER_UNITS_SCALES:
            faults.append(
                f"{number.name!r}: its mean is {shift:.3g} agreed standard deviations from the "
                "agreed mean; other units?"
            )
        if len(z) > 1 and missing < 1 and bool((z == z[0]).all()):
            warnings.append(f"{number.name!r}: the same number in all rows, or none in any")

    for category in encoding.categories:
        width = len(category.values)
        is_unknown = (x[:, place : place + width] == 0).all(1)
        place += width
        unknown = float(is_unknown.double().mean())
        if unknown > MAX_UNUSABLE_SHARE:
            faults.append(
                f"{category.name!r}: {unknown:.0%} of the rows have a value that was not agreed on"
            )
    return warnings, faults


def class_counts(y: Tensor, classes: list[str]) -> str:
    """The number of samples of each class, in words."""
    counts = torch.bincount(y.long(), minlength=len(classes)).tolist()
    return ", ".join(f"{name}: {n}" for name, n in zip(classes, counts, strict=True))
