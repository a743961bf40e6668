"""Values that are probably not what they seem: codes for missing values among amounts, amounts written as texts, absent classes."""

from collections.abc import Mapping, Sequence

import numpy as np

from unalike.core.inputs import is_one_tensor
from unalike.data.columns import is_number
from unalike.data.population import Population
from unalike.data.value_sets import amounts_as_texts

LARGE_CODES = {float(digit * places) for digit in "789" for places in range(2, 6)}
"""77, 88, 99, 777, ..., 99999."""
CODES = {-1.0, -7.0, -8.0, -9.0} | LARGE_CODES | {-code for code in LARGE_CODES}
"""Numbers that tables have in the place of missing values."""
CODES_OF_GRADES = LARGE_CODES | {7.0, 8.0, 9.0}
"""Numbers that answers to a question have in the place of missing ones."""
WORDS_FOR_MISSING = {
    "unknown",
    "not known",
    "missing",
    "n/a",
    "na",
    "not available",
    "nan",
    "null",
    "-",
    "?",
    "unk",
}
"""Names of classes, in lower case, that tell of no label."""
FEWEST_OTHERS = 5
"""With fewer other numbers in a column, one that stands apart may be one of its values."""
LEAST_GAP_SPACINGS = 5.0
"""Least distance of a code from the other numbers, in their mean distance from each other."""
LARGE_CODE = 77.0
"""A code below this has to occur twice."""
LEAST_OF_NEAR_CODE = 3
"""A large code that is nearer to the others than their range has to occur so often."""
MOST_ROWS = 20_000
"""Training samples that are looked at."""
MOST_COLUMNS = 200
"""Columns that are looked at."""
LEAST_GAP_RANGES = 10.0
"""Least distance of numbers that stand apart from all others, in the range of these."""
MOST_SHARE_APART = 0.05
"""Most of a column's numbers that stand apart; more are a part of what it measures."""
LEAST_ABSENT_SHARE = 0.25
"""Least share of classes without a sample that is noted: a rare class may have none by chance."""
MOST_LISTED = 5
"""Most names that a sentence lists."""


def suspect_values(population: Population) -> list[str]:
    """Sentences about codes for missing values and amounts as texts in tables, and about classes that no sample has or
    that are missing labels."""
    if not population.is_here or not len(population.train.values):
        return []
    encoding = population.encoding
    categories = () if encoding is None else encoding.categories
    written = [amounts_as_texts(category.name, category.values) for category in categories]
    return [*_codes(population), *filter(None, written), *_of_classes(population)]


def _of_classes(population: Population) -> list[str]:
    return _absent_classes(population) or _missing_as_classes(population)


def _codes(population: Population) -> list[str]:
    """The sentences of `suspect_numbers` on the training samples; columns of a table by name, in its own units."""
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
        # as the table has it, up to rounding, and without a negative zero
        values[:, j] = np.round(values[:, j] * number.scale + number.mean, 2) + 0.0

    columns = dict(zip(names, values.T))
    if population.classes is None and population.y.dim() == 1:
        columns["the target"] = population.y.numpy(force=True)[rows].astype(float)
    return suspect_numbers(columns)


def suspect_numbers(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Sentences where columns, name -> its numbers, hold a code for missing values, or numbers far from all their others."""
    codes = []
    far = []
    for name, numbers in columns.items():
        column = numbers[~np.isnan(numbers)]
        code = _code_of(column)
        apart = _apart(column)
        if code is not None:
            codes.append(f"{name} ({code:g} in {_rows(int((column == code).sum()))})")
        elif apart is not None:
            others = column[~np.isin(column, apart)]
            far.append(
                f"{name} ({', '.join(f'{value:g}' for value in np.unique(apart)[:MOST_LISTED])} in {_rows(len(apart))}, the "
                f"others from {others.min():g} to {others.max():g})"
            )
    sentences = []
    if codes:
        sentences.append(
            f"numbers that look like codes for missing values are read as amounts: {_few(codes)}; if they are "
            "codes, make them empty cells (NaN in a data frame), or fill them"
        )
    if far:
        sentences.append(
            f"numbers far from all others of their column, which squeeze these together when it is scaled: {_few(far)}; correct "
            "them, or make them empty cells (NaN in a data frame)"
        )
    return sentences


def _few(found: Sequence[str]) -> str:
    """The first of some texts, and how many there are besides."""
    more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    return ", ".join(found[:MOST_LISTED]) + more


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _apart(column: np.ndarray) -> np.ndarray | None:
    """The few numbers [n] of a column beyond a gap that is many times the range of all others; None if there are none."""
    distinct = np.unique(column)
    if len(distinct) <= FEWEST_OTHERS:
        return None
    gaps = np.diff(distinct)
    place = int(gaps.argmax())
    sides = (column[column <= distinct[place]], column[column > distinct[place]])
    few, many = sorted(sides, key=len)
    if len(few) > MOST_SHARE_APART * len(column) or len(np.unique(many)) <= FEWEST_OTHERS:
        return None
    return few if gaps[place] >= LEAST_GAP_RANGES * np.ptp(many) else None


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
        # the one negative number, several times: a code, however large the others are
        if end < 0 <= others[0] and count > 1:
            is_grade = not (others % 1).any() and gap > spacing
            if is_grade or end <= -LARGE_CODE:
                return float(end)
        is_near = abs(end) >= LARGE_CODE and gap < spread and count < LEAST_OF_NEAR_CODE
        if gap >= LEAST_GAP_SPACINGS * spacing and not is_near:
            return float(end)
    return None


def _missing_as_classes(population: Population) -> list[str]:
    """A sentence where some of three or more classes look like missing labels: words such as "unknown", and codes."""
    classes = population.classes or []
    if len(classes) < 3:
        return []
    found = [name for name in classes if name.strip().casefold() in WORDS_FOR_MISSING]
    if all(map(is_number, classes)):
        *others, last = sorted(map(float, classes))
        spacing = (others[-1] - others[0]) / (len(others) - 1)
        if last in CODES_OF_GRADES and last - others[-1] >= LEAST_GAP_SPACINGS * spacing:
            found = [name for name in classes if float(name) == last]
    if not found:
        return []
    counts = population.label_counts().sum(0)
    listed = [f"{name!r} ({counts[classes.index(name)]} training samples)" for name in found]
    return [
        f"classes that look like missing labels are learned and scored: {', '.join(listed)}; if they are, make them empty cells "
        "and leave these rows out with --labelled-only, in Python labelled_only=True"
    ]


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
