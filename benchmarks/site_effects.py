"""FedAvg on `heart_disease` with and without `harmonized`, and with an effect of the hospitals that was put in.

    python benchmarks/site_effects.py

Prints the numbers of `docs/data.md`: accuracy in per cent, and differences in points with 95 % intervals over the seeds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import stats

import unalike as ua
from unalike.data.harmonization import harmonized

AGE = 0
COLUMNS = (1, 2, 3, 4)
"""Positions of the pressure, cholesterol, heart rate and ST depression, in standard units."""
SHIFT = 3.0
SCALE = 1.0
"""Deviations of what a hospital's device adds to a column, and of the logarithm of what it multiplies it with."""
SEEDS = 10
ROUNDS = 20


def measured_otherwise(population: ua.Population, seed: int) -> ua.Population:
    """The clients, each with a device of its own."""
    rng = np.random.default_rng(seed)
    clients = []
    for client in population:
        shift = torch.zeros(population.input_shape)
        scale = torch.ones(population.input_shape)
        shift[[*COLUMNS]] = torch.from_numpy(rng.normal(0, SHIFT, len(COLUMNS))).float()
        scale[[*COLUMNS]] = torch.from_numpy(np.exp(rng.normal(0, SCALE, len(COLUMNS)))).float()
        splits = {name: (scale * x + shift, y) for name, (x, y) in client.splits().items()}
        clients.append(replace(client, **splits))
    return ua.Population.of(clients, classes=population.classes, task=population.task)


def accuracy(population: ua.Population, seed: int) -> float:
    """The accuracy of FedAvg in per cent, the mean over the last third of the rounds."""
    work = ua.Work(epochs=2, lr=0.05, batch_size=16)
    run = ua.run(
        "fedavg",
        population,
        model="mlp(hidden=(16,))",
        rounds=ROUNDS,
        seed=seed,
        work=work,
        progress=False,
    )
    return 100 * run.history.rounds["accuracy"].tail(ROUNDS // 3).mean()


def print_difference(title: str, values: np.ndarray, others: np.ndarray) -> None:
    """A line with the mean of both, and of their difference with its interval."""
    gains = values - others
    interval = stats.ttest_1samp(gains, 0).confidence_interval()
    print(
        f"{title}: {others.mean():.1f} -> {values.mean():.1f}, "
        f"{gains.mean():+.1f} ({interval.low:.1f} to {interval.high:.1f})"
    )


if __name__ == "__main__":
    scores = []
    for number in range(SEEDS):
        as_measured = ua.partition(
            ua.load("heart_disease"), "natural(column='hospital')", seed=number
        )
        otherwise = measured_otherwise(as_measured, number)
        variants = [as_measured, otherwise]
        variants += [harmonized(variant, COLUMNS, kept=[AGE]) for variant in variants]
        scores.append([accuracy(variant, number) for variant in variants])
    plain, worse, plain_after, worse_after = np.array(scores).T
    print_difference("the effect put in", worse, plain)
    print_difference("harmonized, with the effect", worse_after, worse)
    print_difference("harmonized, as measured", plain_after, plain)
