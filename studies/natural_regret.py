"""How good recommendations are on data sets with real owners, none of which the stored runs have.

    UNALIKE_DATA=data python studies/natural_regret.py

For each data set of the study `natural` with classes: the method recommended for its clients (seed 0), and by how many points
of the study's score it misses the best of the methods that both have; beside it what FedAvg and the method that is best on average
over the stored runs miss.
"""

from __future__ import annotations

import statistics
import warnings
from pathlib import Path

import numpy as np

from unalike.core.work import Work
from unalike.data.partitioning.partition import partition
from unalike.data.sources.load import load
from unalike.diagnosis.diagnose import diagnose_population
from unalike.recommendation.forecast import Forecaster
from unalike.recommendation.regret import best_on_average
from unalike.recommendation.stored_runs import StoredRuns
from unalike.recommendation.task_features import TITLES, Conditions, features
from unalike.recommendation.task_runs import BASELINE, METHODS
from unalike_studies.catalogue import study
from unalike_studies.layouts.gains import score_of
from unalike_studies.papers.natural import COLUMNS, COMMON, SETTINGS
from unalike_studies.result_files import FOLDER, read


def main() -> None:
    """Print one line for each data set, and the means."""
    natural, runs = study("natural"), StoredRuns.read()
    results = read(Path(FOLDER) / "natural" / "small", natural.scale("small").cells)
    known = tuple(name for name in METHODS if name in results.methods)
    average = best_on_average(runs, "accuracy", known, np.zeros((1, len(TITLES))))[0]
    forecaster, missed = Forecaster(runs, "accuracy", known), []
    for data, options in SETTINGS.items():
        column = COLUMNS[data]
        if column == "rmse":
            continue
        clients = partition(load(data), options["partition"], seed=0)
        conditions = Conditions(1.0, Work(**options["work"]), COMMON["model"])
        own = features(clients, diagnose_population(clients, data, seed=0), conditions)
        vector = np.array([own[name] for name in TITLES])
        scores = {m: statistics.fmean(score_of(c, column) for c in results.of(m, data).values()) for m in known}
        policy = {BASELINE: BASELINE, "average": average, "forecast": str(forecaster.forecast(vector).idxmax())}
        best = max(scores, key=lambda name: scores[name])
        missed.append({name: 100 * (scores[best] - scores[chosen]) for name, chosen in policy.items()})
        unlike = ", unlike all stored tasks" if forecaster.is_unlike(vector) else ""
        texts = (f"{name} ({policy[name]}) {value:.1f}" for name, value in missed[-1].items())
        print(f"{data}, best {best}: {', '.join(texts)}{unlike}", flush=True)
    print({name: round(statistics.fmean(row[name] for row in missed), 2) for name in missed[0]})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
