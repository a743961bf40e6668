"""Numbers and names as text. A missing number is a dash, never `nan`."""

import math
from collections.abc import Iterable

from unalike._utils.nouns import several
from unalike.metrics.named_metrics import PERCENT, Metric, as_text, significant
from unalike.statistics.client_scores import MEAN
from unalike.statistics.risks import MIN_SAMPLES_OF_CLASS


def size_of_effect(value: float, metric: Metric) -> str:
    """The smallest effect of interest: `0.5 points`."""
    return f"{100 * value:.3g} points" if metric.percent else significant(value)


def confidence(level: float) -> str:
    """The confidence of intervals at a level: `95 %`, `98.5 %`."""
    return f"{100 * (1 - level):.3g}{PERCENT}"


def interval(low: float, high: float, level: float, metric: Metric) -> str:
    """An interval of a difference in a sentence: `95 % interval −1.2 to +3.4`; `no interval` where it is unknown."""
    if math.isnan(low):
        return "no interval"
    return f"{confidence(level)} interval {metric.interval(low, high)}"


def decimal(value: float, digits: int = 3) -> str:
    """A number with so many decimals."""
    return as_text(value, f"{value:,.{digits}f}")


def whole(value: float) -> str:
    return decimal(value, 0)


def mean_count(value: float) -> str:
    """A mean number of samples: whole, or with one decimal where seeds have different numbers."""
    return decimal(value, 0 if float(value).is_integer() else 1)


def probability(p: float) -> str:
    """A p value with three digits, never 0."""
    return as_text(p, "< 0.001" if p < 0.001 else f"{p:.3f}")


def p_value(p: float) -> str:
    """`p = 0.023` or `p < 0.001`, with no-break spaces around `p`."""
    text = probability(p)
    return f"p\u00a0{text}" if text.startswith("<") else f"p\u00a0=\u00a0{text}"


def share(value: float) -> str:
    return as_text(value, f"{100 * value:.0f}{PERCENT}")


def chance(value: float) -> str:
    """A probability that was estimated: never 0 % or 100 %."""
    if value > 0.99:
        return f">\u00a099{PERCENT}"
    if value < 0.01:
        return f"<\u00a01{PERCENT}"
    return share(value)


def megabytes(value: float) -> str:
    text = f"{value:,.1f}" if 1 <= value < 100 else significant(value)
    return as_text(value, text)


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours, whichever is easy to read."""
    if math.isnan(seconds) or seconds < 120:
        return as_text(seconds, f"{seconds:.1f} s")
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes in GB, MB, kB or B, whichever gives a number of at least 1."""
    for power, name in ((3, "GB"), (2, "MB"), (1, "kB")):
        if abs(count) >= 1000**power:
            return f"{count / 1000**power:.3g} {name}"
    return as_text(count, f"{count:.0f} B")


def value(value: object) -> str:
    """A value of any kind; a number with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def listing(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def few(names: list[str], noun: str = "method") -> str:
    """The names, or their number if there are more than four."""
    return listing(names) if len(names) <= 4 else plural(len(names), noun)


def client(name: str, noun: str) -> str:
    """A client in a table: its name, and for the mean of them what the user calls them."""
    return f"mean of the {several(noun)}" if name == MEAN else name


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else several(noun)}"


def not_judged(count: int, noun: str) -> str:
    """The words for clients that are too small for a score of their own: `2 clients with fewer than ten ...`."""
    return f"{plural(count, noun)} with fewer than {MIN_SAMPLES_OF_CLASS} test rows of an outcome counted, not judged"


def gain_over(baseline: str, metric: Metric) -> str:
    """The title of a difference to a method: a gain, where more is better."""
    return f"Gain over {baseline}" if metric.sign > 0 else f"Difference from {baseline}"


def short(text: str, limit: int = 38) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
