"""The terms of a linear model: what its coefficients mean in the columns of the user's table."""

from typing import NamedTuple

import numpy as np

from unalike.data.columns import MISSING
from unalike.data.table_encoding import Encoding

INTERCEPT = "(intercept)"


class Term(NamedTuple):
    """A row of a table of coefficients: its name, and the combination [Q] of the columns of the model's head that it is.

    `is_reference` marks the category with which the others of its column are compared: its coefficient is 0.
    """

    name: str
    combination: np.ndarray
    is_reference: bool = False


def terms_of(encoding: Encoding | None, features: int, has_intercept: bool) -> list[Term]:
    """The terms of a head of so many features, and one column more for an intercept.

    A number has one term, per unit of its column, so the standardization is undone. Each category is the difference from the
    reference, the first that is not "(missing)". Where numbers were missing, a term is the difference of these rows from others
    with the median. The intercept is the prediction where all numbers are 0 and all categories the reference. Samples that are no
    table have features x0, x1, ..., as the model reads them.
    """
    unit = np.eye(features + has_intercept)
    intercept = unit[features:].sum(0)
    if encoding is None or encoding.words is not None or encoding.width != features:
        terms = [Term(f"x{place}", unit[place]) for place in range(features)]
        return [*_intercept(intercept, has_intercept), *terms]

    # the order is that of the encoded columns: numbers, gaps, categories
    columns = iter(unit)
    terms = []
    for number in encoding.numbers:
        per_unit = next(columns) / number.scale
        intercept = intercept - number.mean * per_unit
        terms.append(Term(number.name, per_unit))
    for number in encoding.numbers:
        if number.gaps:
            terms.append(Term(f"{number.name}={MISSING}", next(columns)))
    for category in encoding.categories:
        of_value = {value: next(columns) for value in category.values}
        present = [value for value in category.values if value != MISSING]
        first = (present or category.values)[0]
        reference = of_value.pop(first)
        intercept = intercept + reference
        name = f"{category.name}={first} (reference)"
        terms.append(Term(name, np.zeros_like(reference), is_reference=True))
        for value, column in of_value.items():
            terms.append(Term(f"{category.name}={value}", column - reference))
    return [*_intercept(intercept, has_intercept), *terms]


def _intercept(combination: np.ndarray, exists: bool) -> list[Term]:
    return [Term(INTERCEPT, combination)] if exists else []
