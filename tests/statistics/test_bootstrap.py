"""Intervals of drawn samples: as wide as theory says, and no narrower where the rows of a unit repeat each other."""

from dataclasses import replace

import numpy as np
import pytest

from unalike.core.tasks.registry import find_task
from unalike.metrics.scoring import Scores
from unalike.statistics.bootstrap import bootstrap, percentile_interval

TASK = find_task("regression")


def errors(n, rows):
    """Numbers whose absolute errors are uniform in 0..1, in rows in turn."""
    error = np.random.default_rng(0).random(n)
    return Scores(
        client=np.arange(n) % rows,
        loss=error**2,
        y=np.zeros(n),
        predicted=error,
        logits=error,
    )


def test_interval_of_a_mean_is_that_of_its_standard_error():
    scores = errors(400, rows=2)
    as_one = replace(scores, client=np.zeros(400, int))
    low, high = percentile_interval(bootstrap(TASK, as_one, 1, np.arange(400), {})["mae"])
    half = 1.96 * scores.predicted.std() / 20
    mean = scores.predicted.mean()
    assert (low, high) == (
        pytest.approx(mean - half, abs=0.005),
        pytest.approx(mean + half, abs=0.005),
    )
    # each row has half of the samples
    of_rows = bootstrap(TASK, scores, 2, np.arange(400), {})["mae"]
    low, high = percentile_interval(of_rows[:, 0])
    assert (high - low) / 2 == pytest.approx(half * np.sqrt(2), rel=0.1)


def test_rows_of_a_unit_are_drawn_together():
    """Every row twice tells nothing new: with the unit the interval is that of the rows once."""
    once = errors(60, rows=3)
    twice = once.of(np.repeat(np.arange(60), 2))
    of_rows = bootstrap(TASK, once, 3, np.arange(60), {})["mae"]
    of_units = bootstrap(TASK, twice, 3, np.repeat(np.arange(60), 2), {})["mae"]
    assert of_units == pytest.approx(of_rows)
