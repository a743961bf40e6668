"""The repetitions of a comparison: the draws of its seeds, and the variance that they cannot see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from unalike.metrics.columns import Column
from unalike.statistics.race_account import RaceAccount

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = "unknown"
"""Nobody knows what each seed draws."""
PARTITIONS = "partitions"
"""Each seed draws other clients of the same data, with other test samples."""
DIVISIONS = "divisions"
"""Each seed draws other clients of the same data, with the same test samples in all."""
SPLITS = "splits"
"""Each seed draws other test samples of the same clients."""
OWNERS = "owners"
"""Each seed draws another client that alone is tested."""
TRAINING = "training"
"""Each seed draws initial weights, cohorts and batches alone."""


@dataclass(frozen=True)
class SeedDraws:
    """The samples and clients that the seeds of a comparison draw anew, besides initial weights, cohorts and batches.

    `redrawn` is `partitions` (each seed divides the data among other clients), `divisions` (so it does, with the same test samples
    in all), `splits` (each seed tests other samples of the same clients), `owners` (each seed tests clients that it leaves out of
    training), `training` (all seeds have the same test samples), or `unknown`. `overlap` is test samples divided by training
    samples where splits are redrawn, else 0 (see `moderated_t`); `folds` the number of folds of cross-validation, None where test
    samples are drawn at random.
    """

    redrawn: str = UNKNOWN
    overlap: float = 0.0
    folds: int | None = None


POOLED_SCORE = "pooled"
"""The score of all clients that is in the histories: the metric of all test samples together."""
UNSAID = SeedDraws()
"""Of one seed, and of single runs that were joined: a run does not know what another seed draws."""


@dataclass(frozen=True, kw_only=True)
class SharedDetails:
    """Details that the folder of a comparison keeps beside its tables, and that its report shows.

    Attributes:
        baseline: label of the method that the others are compared with.
        config: the configuration as TOML; `unalike compare --config` reads it.
        command: the command line that repeats the comparison, or a comment that says how to repeat it.
        partition: numbers that describe how the clients' data differs.
        versions: versions of the software that produced the numbers.
        seed: the first seed; the partition and the counts of labels are those of its clients.
        ends: one entry per run: its rounds, why it ended, and the selected round (None if the last rounds count).
        estimate: the cost estimate beside the actual cost: rows of `what unit estimated actual`.
        smallest_effect: the smallest difference of interest; None for the default of the metric.
        across: the score of all clients that decides, one of `statistics.client_scores.ACROSS`.
        looks: (fewest, most) seeds, if seeds were added until the decision stood; None for a fixed number.
        race: the account of a race, once it has ended; None for any other comparison.
        confusions: one entry per method with a model and classes: `method`, `classes`, and `counts`, test samples of all seeds by
            class and predicted class, of the models in use after the last round or in the selected one.
        sampling: what each seed draws anew, and so what intervals are about.
        unfinished: progress of a run or comparison that has not ended (`2 of 3 rounds`, `7 of 12 cells`), otherwise empty. It is
            shown, but never joined with others and never decided.
    """

    baseline: str
    config: str
    command: str
    partition: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    ends: list[dict[str, Any]] = field(default_factory=list)
    estimate: list[dict[str, Any]] = field(default_factory=list)
    smallest_effect: float | None = None
    across: str = POOLED_SCORE
    looks: tuple[int, int] | None = None
    race: RaceAccount | None = None
    confusions: list[dict[str, Any]] = field(default_factory=list)
    sampling: SeedDraws = UNSAID
    unfinished: str = ""


Draws: TypeAlias = "Mapping[str, pd.DataFrame]"
"""Method -> its scores on resampled test samples, [draw, seed], the same samples for all methods and seeds."""


def draws_of(resampled: pd.DataFrame | None, column: Column) -> Draws:
    """The draws of a column, from a table with the rows `method seed draw` and scores; none where the column has no scores."""
    if resampled is None or column.name not in resampled:
        return {}
    known = resampled[resampled[column.name].notna()]
    return {
        str(method): rows.pivot(index="draw", columns="seed", values=column.name)
        for method, rows in known.groupby("method", sort=False)
    }


def sampling_variances(draws: Draws, baseline: str, methods: Sequence[str]) -> np.ndarray:
    """The variance of each method's mean difference to the baseline that comes from the test samples, [methods].

    It is the variance over the draws of the difference, averaged over the seeds that both have; 0 for methods without draws.
    """
    variances = np.zeros(len(methods))
    for j, method in enumerate(methods):
        if method in draws and baseline in draws:
            differences = draws[method] - draws[baseline]
            variances[j] = differences.mean(axis=1).var(ddof=1)
    return np.nan_to_num(variances)
