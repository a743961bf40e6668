"""Error rates of a diagnosis: coverage of its intervals, and false alarms where there is no heterogeneity.

python benchmarks/diagnosis_rates.py [--draws 300] [--alarms 100]

Coverage: clients are drawn from a known distribution of clients; the mean of the measure over many draws of as many clients is the
truth that 95 % of the intervals should hold. False alarms: samples without any heterogeneity are dealt to clients of equal size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

import unalike as ua
from unalike.data.population import Population
from unalike.diagnosis import labels, sizes
from unalike.diagnosis.clusters import label_clusters
from unalike.diagnosis.concepts import concept_shift
from unalike.diagnosis.features import feature_skew
from unalike.diagnosis.labels import label_skew
from unalike.diagnosis.measure import RESAMPLES, bootstrap_interval, t_interval
from unalike.diagnosis.samples import ClientSamples

TRUTH = 2000
"""Number of draws that the truth is a mean over."""
CLASSES = 10

Draw = Callable[[np.random.Generator], np.ndarray]
Interval = Callable[[np.ndarray, np.random.Generator], tuple[float, float]]


def coverage(
    draw: Draw,
    statistic: Callable[[np.ndarray], float],
    interval: Interval,
    draws: int,
    rng: np.random.Generator,
) -> float:
    """The share of intervals that hold the truth."""
    truth = np.mean([statistic(draw(rng)) for _ in range(TRUTH)])
    ends = [interval(draw(rng), rng) for _ in range(draws)]
    return float(np.mean([low <= truth <= high for low, high in ends]))


def label_rows(draws: int, rng: np.random.Generator) -> None:
    """Coverage for the label skew, by clients, samples of each client, and the alpha of the clients' label distributions."""

    def statistic(counts: np.ndarray) -> float:
        return labels.distances(counts)["label_tv"]

    def interval(counts: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
        drawn = [statistic(labels.resampled_counts(counts, rng)) for _ in range(RESAMPLES)]
        return bootstrap_interval(statistic(counts), np.array(drawn), (0, 1))

    for clients in (3, 10, 30):
        for size in (20, 200):
            for alpha in (0.1, 1.0, 100.0):

                def draw(
                    rng: np.random.Generator, clients=clients, size=size, alpha=alpha
                ) -> np.ndarray:
                    return rng.multinomial(size, rng.dirichlet(np.full(CLASSES, alpha), clients))

                found = coverage(draw, statistic, interval, draws, rng)
                print(
                    f"label_tv, {clients} clients of {size} samples, Dir({alpha:g}): {found:.3f}",
                    flush=True,
                )


def size_rows(draws: int, rng: np.random.Generator) -> None:
    """Coverage for the quantity skew, by clients and the standard deviation of the logarithm of their sizes."""

    def interval(held: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
        clients = len(held)
        drawn = [
            sizes.inequality(held[rng.integers(clients, size=clients)])["size_gini"]
            for _ in range(RESAMPLES)
        ]
        return t_interval(sizes.inequality(held)["size_gini"], np.array(drawn), clients)

    for clients in (5, 10, 30):
        for spread in (0.3, 1.0):

            def draw(rng: np.random.Generator, clients=clients, spread=spread) -> np.ndarray:
                return np.exp(spread * rng.standard_normal(clients)) * 100

            found = coverage(
                draw, lambda held: sizes.inequality(held)["size_gini"], interval, draws, rng
            )
            print(f"size_gini, {clients} clients, log-normal({spread:g}): {found:.3f}", flush=True)


def alarms(count: int) -> None:
    """The share of data sets without heterogeneity in which each kind is found."""
    found = dict.fromkeys(("label skew", "feature skew", "concept shift", "clusters"), 0)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 4, 400)
        x = (
            np.random.default_rng(9).normal(size=(4, 6))[y] * 2 + rng.normal(size=(400, 6))
        ).astype(np.float32)
        clients = [
            ua.ClientData(train=(x[part], y[part]))
            for part in np.array_split(rng.permutation(400), 8)
        ]
        samples = ClientSamples.of(Population.of(clients), seed)
        concept, clusters = (
            concept_shift(samples, None, seed),
            label_clusters(samples.client_counts, seed),
        )
        found["label skew"] += label_skew(samples.client_counts, seed)[0].found
        found["feature skew"] += feature_skew(samples, None, seed)[1].found
        found["concept shift"] += concept is not None and concept.measure.found
        found["clusters"] += clusters is not None and clusters.found
    for kind, times in found.items():
        print(f"{kind} found without any: {times} of {count}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=300, help="intervals for each coverage")
    parser.add_argument("--alarms", type=int, default=100, help="data sets without heterogeneity")
    arguments = parser.parse_args()
    label_rows(arguments.draws, np.random.default_rng(0))
    size_rows(arguments.draws, np.random.default_rng(1))
    alarms(arguments.alarms)
