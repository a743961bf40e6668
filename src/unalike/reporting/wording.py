"""Numbers and names as text. A missing number is a dash, never `nan`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from unalike.metrics.statistics import Metric

MISSING = "–"
PERCENT = "\u00a0%"
"""The sign with a no-break space, so that no line ends between a number and its sign."""


def score(value: float, metric: Metric) -> str:
    """Accuracy in percent, RMSE with three digits."""
    return _number(value, f"{100 * value:.1f}{PERCENT}" if metric.percent else significant(value))


def change(value: float, metric: Metric) -> str:
    """A signed difference: percentage points of accuracy, or RMSE."""
    return _number(value, f"{_scaled(value, metric)}{unit(metric)}")


def spread(value: float, metric: Metric) -> str:
    """A positive number, such as a standard deviation, in the unit of `change`."""
    return _number(value, f"{100 * value:.1f}" if metric.percent else significant(value))


def gain(value: float, metric: Metric) -> str:
    """An amount of change without a sign: `2.1 points`."""
    return f"{spread(value, metric)}{unit(metric)}"


def size_of_effect(value: float, metric: Metric) -> str:
    """The smallest effect of interest: `0.5 points`."""
    return f"{100 * value:.3g} points" if metric.percent else significant(value)


def confidence(level: float) -> str:
    """The confidence of intervals at a level: `95 %`, `98.5 %`."""
    return f"{100 * (1 - level):.3g}{PERCENT}"


def interval(low: float, high: float, metric: Metric) -> str:
    return _number(low + high, f"{_scaled(low, metric)} to {_scaled(high, metric)}")


def unit(metric: Metric) -> str:
    """The unit of a difference, with a leading space; empty for RMSE, which has the unit of the labels."""
    return " points" if metric.percent else ""


def significant(value: float, sign: str = "", digits: int = 3) -> str:
    """A number with `digits` significant digits, trailing zeros included; only tiny numbers have an exponent."""
    if not value or not math.isfinite(value):
        return f"{value:{sign}.0f}"
    power = int(f"{value:.{digits - 1}e}".split("e")[1])  # after rounding: 99.96 becomes 100
    if power < -4:
        return f"{value:{sign}.{digits - 1}e}"
    return f"{value:{sign},.{max(0, digits - 1 - power)}f}"


def decimal(value: float, digits: int = 3) -> str:
    return _number(value, f"{value:,.{digits}f}")


def probability(p: float) -> str:
    """A p value with three digits, never 0."""
    return _number(p, "< 0.001" if p < 0.001 else f"{p:.3f}")


def share(value: float) -> str:
    return _number(value, f"{100 * value:.0f}{PERCENT}")


def chance(value: float) -> str:
    """A probability that was estimated: never 0 % or 100 %."""
    if value > 0.99:
        return f">\u00a099{PERCENT}"
    return f"<\u00a01{PERCENT}" if value < 0.01 else share(value)


def megabytes(value: float) -> str:
    return _number(value, f"{value:,.1f}" if 1 <= value < 100 else significant(value))


def duration(seconds: float) -> str:
    if math.isnan(seconds) or seconds < 120:
        return _number(seconds, f"{seconds:.1f} s")
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes in GB, MB, kB or B, whichever gives a number of at least 1."""
    for power, name in ((3, "GB"), (2, "MB"), (1, "kB")):
        if abs(count) >= 1000**power:
            return f"{count / 1000**power:.3g} {name}"
    return _number(count, f"{count:.0f} B")


def plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def listing(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def few(names: list[str]) -> str:
    """The names, or their number if there are more than four."""
    return listing(names) if len(names) <= 4 else plural(len(names), "method")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def short(text: str, limit: int = 38) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _scaled(value: float, metric: Metric) -> str:
    text = f"{100 * value:+.1f}" if metric.percent else significant(value, "+")
    return text.replace("-", "−")


def _number(value: float, text: str) -> str:
    return MISSING if math.isnan(value) else text.replace("-", "−")
