"""Values that are probably not what they seem: codes for missing values among amounts, amounts written as texts, absent classes."""

import re

import numpy as np

from unalike.core.inputs import is_one_tensor
from unalike.data.columns import MISSING
from unalike.data.population import Population
from unalike.data.table_encoding import Category

CODES = (-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that tables have in the place of missing values."""
FEWEST_OTHERS = 5
"""With fewer other numbers in a column, one that stands apart may be one of its values."""
LEAST_GAP_SPACINGS = 5.0
"""Least distance of a code from the other numbers, in their mean distance from each other."""
LARGE_CODE = 99.0
"""A code below this has to occur twice."""
MOST_ROWS = 20_000
"""Training samples that are looked at."""
MOST_COLUMNS = 200
"""Columns that are looked at."""
AMOUNT = re.compile(r"[<>~]?\s*[-+]?[\d.,\s]*\d\s*(%|[^\W\d_]{1,4}(/[^\W\d_]{1,4})?)?")
"""An amount as a text, perhaps with a unit, such as `31%` or `7,5 mg/l`."""
SHARE_OF_AMOUNTS = 0.8
"""Least share of the values of a category that are amounts, from which on it is noted."""
LEAST_ABSENT_SHARE = 0.25
"""Least share of classes without a sample that is noted: a rare class may have none by chance."""
MOST_LISTED = 5
"""Most names that a sentence lists."""


def suspect_values(population: Population) -> list[str]:
    """Sentences about codes for missing values and amounts as texts in tables, and about classes that no sample has."""
    if not population.is_here or not len(population.train.values):
        return []
    encoding = population.encoding
    categories = () if encoding is None else encoding.categories
    written = [note for category in categories if (note := _as_texts(category))]
    return [*_codes(population), *written, *_absent_classes(population)]


def _codes(population: Population) -> list[str]:
    """A sentence where columns hold a code for missing values; columns of a table by name, in its own units."""
    x, encoding = population.x, population.encoding
    if not is_one_tensor(x) or x.dim() != 2 or not x.is_floating_point():
        return []
    numbers = () if encoding is None else encoding.numbers
    if encoding is None:
        names = [f"column {j}" for j in range(min(x.shape[1], MOST_COLUMNS))]
    else:
        names = [repr(number.name) for number in numbers]
    rows = np.unique(population.train.values)[:MOST_ROWS]
    values = x[:, : len(names)].numpy(force=True)[rows].astype(float)
    for j, number in enumerate(numbers):
        # as the table has it, up to rounding
        values[:, j] = np.round(values[:, j] * number.scale + number.mean, 2)

    found = []
    for name, column in zip(names, values.T):
        code = _code_of(column)
        if code is not None:
            found.append(f"{name} ({code:g} in {int((column == code).sum())} rows)")
    if not found:
        return []
    more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    return [
        f"numbers that look like codes for missing values are read as amounts: {', '.join(found[:MOST_LISTED])}{more}; if they are "
        "codes, make them empty cells (NaN in a data frame), or fill them"
    ]


def _code_of(column: np.ndarray) -> float | None:
    """The number of a column that stands apart from all others and is a usual code; None if there is none."""
    distinct, times = np.unique(column, return_counts=True)
    if len(distinct) <= FEWEST_OTHERS:
        return None
    ends = [(distinct[0], distinct[1:], times[0]), (distinct[-1], distinct[:-1], times[-1])]
    for end, others, count in ends:
        if end not in CODES or (abs(end) < LARGE_CODE and (count < 2 or others[0] < 0)):
            continue
        spread = others[-1] - others[0]
        gap = np.abs(others - end).min()
        spacing = spread / (len(others) - 1)
        if gap >= LEAST_GAP_SPACINGS * spacing and (abs(end) < LARGE_CODE or gap >= spread):
            return float(end)
    return None


def _as_texts(category: Category) -> str:
    """A sentence where most categories of a column are amounts with a sign or a unit."""
    values = [value for value in category.values if value != MISSING]
    amounts = [value for value in values if AMOUNT.fullmatch(value.strip())]
    if len(values) < FEWEST_OTHERS or len(amounts) < SHARE_OF_AMOUNTS * len(values):
        return ""
    return (
        f"the column {category.name!r} holds amounts as texts, such as {amounts[0]!r}, which are read as {len(values)} categories "
        "without an order; write them as plain numbers"
    )


def _absent_classes(population: Population) -> list[str]:
    """A sentence where numbered classes have no sample at all: gaps in the labels are outputs that nothing trains."""
    classes = population.classes
    if classes is None or classes != [str(number) for number in range(len(classes))]:
        return []
    rows = np.concatenate(
        [part.values for part in (population.train, population.test, population.val)]
    )
    present = np.unique(population.y.numpy(force=True)[rows]).astype(int)
    absent = [name for name in classes if int(name) not in set(present.tolist())]
    # that labels begin with 1 is said elsewhere
    if len(absent) < LEAST_ABSENT_SHARE * len(classes) or absent in ([], ["0"]):
        return []
    more = f" and {len(absent) - MOST_LISTED} more" if len(absent) > MOST_LISTED else ""
    return [
        f"no sample is of the class {', '.join(absent[:MOST_LISTED])}{more}, so that {len(absent)} of {len(classes)} outputs are "
        "never trained: integer labels are numbers of classes from 0; number the classes that occur, as "
        "np.unique(y, return_inverse=True)[1] does, or name all of them"
    ]
