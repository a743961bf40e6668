"""Gains over a baseline in many settings, each in its own metric, with intervals for other samples of the same clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unalike.metrics.moderated_t import moderated_t
from unalike_studies.layouts.tables import MISSING
from unalike_studies.results import LOWER_IS_BETTER, CellResult, Results


@dataclass(frozen=True)
class GainTable:
    """One row per setting: the score of the baseline and the gain of each other method, with 95 % intervals.

    A run's score is the mean over the clients of each client's own metric, by test samples; clients in which it is not defined,
    such as an AUC of one outcome, do not count. Where a method makes models of the clients' own, these are scored. Gains are
    points, of errors per cent of the baseline's error, and positive where the method is better.

    Every seed tests other samples and trains on many of the same, so seeds vary less than other samples would make them. The
    variance of a mean over J seeds is therefore (1 / J + tests / trains) s^2 (Nadeau and Bengio 2003), as in `moderated_t`.
    """

    title: str
    columns: Mapping[str, str]
    """Setting -> the column of its metric."""
    baseline: str = "FedAvg"

    def table(self, results: Results) -> list[list[str]]:
        others = [method for method in results.methods if method != self.baseline]
        rows = [["data set", "metric", self.baseline, *others]]
        for setting in results.settings:
            column = self.columns[setting]
            base, share = self._scores(results, self.baseline, setting), _share(results, self.baseline, setting)
            row = [setting, column, _entry([(1 if _is_error(column) else 100) * v for v in base.values()], share, "")]
            for method in others:
                own = self._scores(results, method, setting)
                gains = [_gain(own[seed], base[seed], column) for seed in own if seed in base]
                row.append(_entry(gains, share, "+"))
            rows.append(row)
        return rows

    def _scores(self, results: Results, method: str, setting: str) -> dict[int, float]:
        """Seed -> score."""
        return {s: score_of(cell, self.columns[setting]) for s, cell in results.of(method, setting).items()}


def score_of(cell: CellResult, column: str) -> float:
    """The mean of the clients' own metric by test samples; a run that diverged is infinitely bad."""
    own = cell.clients.get(f"personal_{column}") or cell.clients.get(column)
    if own is None:
        return cell.score(column, 1)
    known = [(value, n) for value, n in zip(own, cell.clients["n_test"]) if value is not None and math.isfinite(value)]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else math.nan


def _gain(own: float, base: float, column: str) -> float:
    return 100 * ((base - own) / base if _is_error(column) else own - base)


def _is_error(column: str) -> bool:
    return column.endswith(LOWER_IS_BETTER)


def _share(results: Results, method: str, setting: str) -> float:
    """The ratio of test samples to training samples."""
    cells = [cell.clients for cell in results.of(method, setting).values() if cell.clients]
    return sum(sum(c["n_test"]) for c in cells) / max(1, sum(sum(c["n_train"]) for c in cells))


def _entry(values: Sequence[float], share: float, sign: str) -> str:
    """`mean (low to high)`; `diverges` if a value is infinite."""
    if not values:
        return MISSING
    if not all(map(math.isfinite, values)):
        return "diverges"
    tested = moderated_t(np.asarray(values)[:, None], overlap=share)
    mean, low, high = (end.item() for end in (tested.mean, tested.low, tested.high))
    return f"{mean:{sign}.2f}" + (f" ({low:{sign}.2f} to {high:{sign}.2f})" if math.isfinite(low) else "")
