"""Sets of names of classes or categories, and whether several of them may be one set that is written in several ways."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from unalike._utils.errors import UnalikeError
from unalike._utils.printable import without_controls
from unalike.data.columns import MISSING, is_number

NUMBER = re.compile(r"([+-]?)0*(\d+?)(?:[.,](\d*?)0*)?")
"""A number without an exponent: its sign, and its digits before and after the decimal mark without needless zeros."""
DASHES = dict.fromkeys(map(ord, "‐‑‒–—−"), "-")
"""Hyphens, dashes and the minus sign -> the hyphen of a keyboard."""
AMOUNT = re.compile(r"[<>~≤≥$€£]?=?\s*[-+]?[\d.,\s]*\d\s*(%|[€£]|[^\W\d_]{1,6}(/[^\W\d_]{1,6})?)?")
"""An amount as a text, perhaps with a unit, such as `31%` or `7,5 mg/l`."""
SHARE_OF_AMOUNTS = 0.8
"""Least share of the texts of a column that are amounts, from which on it is one of amounts."""
FEWEST_AMOUNTS = 5
"""Fewer different texts are names of grades rather than amounts."""
ROUNDING = 1e-6
"""The relative difference up to which two variances are equal."""


def spelling(name: str) -> str:
    """A name without what a second hand may write in another way: case, space, the format of a number ("01", "1.0", "1,0"), and
    characters of Unicode that look alike (composed and decomposed letters, full width, dashes) or are not seen."""
    seen = [character for character in name if unicodedata.category(character) != "Cf"]
    text = "".join(
        unicodedata.normalize("NFKC", "".join(seen)).translate(DASHES).split()
    ).casefold()
    number = NUMBER.fullmatch(text)
    if number is None:
        return text
    sign, whole, fraction = number.groups(default="")
    minus = "-" if sign == "-" else ""
    return f"{minus}{whole}.{fraction}"


def spelt_alike(names: Iterable[str]) -> list[list[str]]:
    """The names that differ only in their spelling, each group sorted."""
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(spelling(name), set()).add(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def refuse_spellings(texts: Sequence[str], what: str, where: str) -> None:
    """Raise `UnalikeError` if two of the texts, the values of a column, differ only in their spelling; it counts their rows.

    `what` names the column: "the target 'outcome'".
    """
    rows = Counter(texts)
    groups = spelt_alike(rows)
    if not groups:
        return
    differing = []
    for group in groups:
        # letters that look the same are told apart by their numbers
        look_alike = len({unicodedata.normalize("NFC", name) for name in group}) < len(group)
        show = ascii if look_alike else repr
        counts = [f"{show(name)} ({rows[name]})" for name in group]
        differing.append(" and ".join(counts))
    raise UnalikeError(
        f"{where}: {what} holds {'; '.join(differing)}: names that differ only in case, space or "
        "number format (with their rows); write each name in one way, or, if they are different "
        "ones, --accept, in Python accept=True"
    )


def amounts_as_texts(name: str, texts: Sequence[str]) -> str:
    """A sentence where most of a column's different texts are amounts with a sign, a unit or mixed decimal marks; else empty."""
    known = [text for text in texts if text != MISSING]
    amounts = [text for text in known if AMOUNT.fullmatch(text.strip())]
    if len(known) < FEWEST_AMOUNTS or len(amounts) < SHARE_OF_AMOUNTS * len(known):
        return ""
    # one of each way in which they are written
    ways: dict[str, str] = {}
    for text in amounts:
        ways.setdefault(re.sub(r"\d+", "0", text), text)
    examples = [*ways.values()]
    return (
        f"the column {name!r} holds amounts as texts, such as {' and '.join(map(repr, examples[:2]))}, which are read as "
        f"{len(known)} categories without an order; write them as plain numbers"
    )


def in_two_ways(sets: Mapping[str, Sequence[str]], whole: bool) -> str:
    """The reason why the owners' sets of names may be one set in several writings; empty if nothing speaks for it.

    `whole`: the names say everything that a value can be, as classes do, so that of two sets one usually holds the other. Sets
    of categories differ more often: a ward of one hospital is none of the other's. A set of one name says nothing.
    """
    known = [frozenset(names) - {MISSING} for names in sets.values()]
    union: frozenset[str] = frozenset().union(*known)
    if spelt_alike(union):
        return "names differ only in case, space or number format"
    large = {names for names in known if len(names) > 1}
    for one, other in combinations(sorted(large, key=sorted), 2):
        if one.isdisjoint(other):
            return "two sets have no name in common"
        if _is_shifted(one, other):
            return "one set of numbers is the other one, shifted"
        if whole and len(one) == len(other) == 2:
            return f"two sets have two names each, and together {len(one | other)}"
        contained = one <= other or other <= one
        if whole and not contained and all(map(is_number, one | other)):
            return "two sets of numbers each have one that the other lacks"
    return ""


def side_by_side(sets: Mapping[str, Sequence[str]]) -> str:
    """The owners' sets in words, equal ones together: "north, west: 0, 1; south: 1, 2"; without control characters."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for owner, names in sets.items():
        owners.setdefault(tuple(names), []).append(owner)
    return without_controls(
        "; ".join(
            f"{', '.join(together)}: {', '.join(names) or 'none'}"
            for names, together in owners.items()
        )
    )


def two_numbers(
    count: float, mean: float, variance: float, quantiles: Sequence[float] = ()
) -> tuple[str, ...]:
    """The two numbers that a column takes, from its sums; empty if it does not take two that can be told.

    Of all columns with values from a to b, those with the values a and b alone have the variance (mean - a) (b - mean). The two
    numbers are the outer quantiles, or else the whole numbers around the mean.
    """
    below = math.floor(mean)
    pairs: list[tuple[float, float]] = [(below, below + 1)]
    if quantiles:
        pairs.append((min(quantiles), max(quantiles)))
    for low, high in pairs:
        product = (mean - low) * (high - mean)
        if count and product > 0 and math.isclose(product, variance, rel_tol=ROUNDING):
            return f"{low:g}", f"{high:g}"
    return ()


def _is_shifted(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether the numbers in one set are those in the other plus a constant; all other names must be equal."""
    numbers = {name for name in one if is_number(name)}
    other_numbers = {name for name in other if is_number(name)}
    if one - numbers != other - other_numbers or len(numbers) != len(other_numbers):
        return False
    pairs = zip(sorted(map(float, numbers)), sorted(map(float, other_numbers)), strict=True)
    shifts = {a - b for a, b in pairs}
    return len(shifts) == 1
