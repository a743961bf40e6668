"""The simulated seconds until methods reach a score where a few devices are very slow, and the score of the worst tenth then.

    python benchmarks/times_to_score.py

Prints the tables of `docs/evidence/slow_devices.md`. `UNALIKE_DATA` names the folder with `wisdm.csv.gz`. Each seed draws data,
devices and training anew, the same for all methods. All runs go on for the same simulated time, whenever they reach the score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

import unalike as ua
from unalike.metrics.named_metrics import metric_named
from unalike.statistics.scores import worst_decile

LEVEL = 0.95
DEVICES = "pareto(shape=1.5)"
MAX_ROUNDS = 100_000
"""More than any run makes: its simulated time ends it."""


@dataclass(frozen=True)
class Setting:
    """Clients, their model, the score to reach, the simulated seconds of a run, and the number of seeds."""

    title: str
    data: str
    partition: str | None
    clients: int | None
    model: str
    score: float
    seconds: int
    seeds: int


@dataclass(frozen=True)
class Entry:
    """A row of the table: a method, what is added to the devices, and the rounds between evaluations."""

    name: str
    method: str
    devices: str = ""
    evaluate_every: int = 1


SETTINGS = (
    Setting(
        title="Handwriting (`emnist_sample`, 50 clients by `dirichlet(alpha=0.3)`, linear model)",
        data="emnist_sample",
        partition="dirichlet(alpha=0.3)",
        clients=50,
        model="linear",
        score=0.45,
        seconds=500,
        seeds=4,
    ),
    Setting(
        title="Activities (`wisdm`, 36 people, perceptron with 32 hidden units)",
        data="wisdm",
        partition=None,
        clients=None,
        model="mlp(hidden=(32,))",
        score=0.7,
        seconds=300,
        seeds=3,
    ),
)
WHOLE = " + deadline(seconds=4)"
PARTIAL = " + deadline(seconds=4, partial=True)"
ENTRIES = (
    Entry("FedAvg", "fedavg"),
    Entry("FedAvg, late ones dropped", "fedavg", WHOLE),
    Entry("FedAvg, partial work", "fedavg", PARTIAL),
    Entry("FedProx, partial work", "fedprox(mu=0.01)", PARTIAL),
    Entry("FedNova, partial work", "fednova", PARTIAL),
    Entry("FedMix, partial work", "fedmix(mu=0.01)", PARTIAL),
    Entry("power-of-choice", "fedavg + power_of_choice(d=20)"),
    Entry("Oort", "fedavg + oort"),
    Entry("PyramidFL", "fedavg + pyramidfl"),
    Entry("FAVOR", "fedavg + favor"),
    Entry("FedBuff", "fedbuff(buffer=3)", evaluate_every=5),
    Entry("FedAsync", "fedasync(mixing=0.3)", evaluate_every=10),
)


@dataclass(frozen=True)
class Outcome:
    """The seconds until a run reached the score (infinite if never), and at its end its score and that of the worst tenth."""

    seconds: float
    score: float
    worst: float


def outcome_of(setting: Setting, entry: Entry, seed: int) -> Outcome:
    """The outcome of a method under a seed."""
    run = ua.run(
        entry.method,
        data=setting.data,
        partition=setting.partition,
        clients=setting.clients,
        model=setting.model,
        rounds=MAX_ROUNDS,
        work=ua.Work(lr=0.1),
        participation=0.2,
        devices=DEVICES + entry.devices,
        evaluate_every=entry.evaluate_every,
        budget=f"{setting.seconds} s simulated",
        seed=seed,
        progress=False,
    )
    rounds = run.history.rounds
    reached = rounds.loc[rounds["accuracy"] >= setting.score, "simulated_seconds"]
    clients = run.history.clients
    at_the_end = clients[clients["round"] == clients["round"].max()]
    return Outcome(
        seconds=reached.min() if len(reached) else np.inf,
        score=run.history.last["accuracy"],
        worst=worst_decile(at_the_end["accuracy"], metric_named("accuracy")),
    )


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean and its t interval."""
    mean = float(values.mean())
    half = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return mean, mean - half, mean + half


def time_cell(seconds: np.ndarray) -> str:
    """The geometric mean of the times to the score."""
    missing = int(np.isinf(seconds).sum())
    if missing:
        return f"not reached by {missing} of {len(seconds)}"
    mean, low, high = np.exp(interval(np.log(seconds)))
    return f"{mean:.0f} s ({low:.0f} to {high:.0f})"


def points_cell(values: np.ndarray, of_fedavg: np.ndarray) -> str:
    """The mean in per cent, and its difference from FedAvg's under the same seeds in points."""
    mean = f"{100 * values.mean():.1f}"
    if (values == of_fedavg).all():
        return mean
    difference, low, high = interval(100 * (values - of_fedavg))
    return f"{mean}, {difference:+.1f} ({low:+.1f} to {high:+.1f})"


def print_table(setting: Setting) -> None:
    """Run all methods in a setting, and print their rows as they come."""
    print(f"\n{setting.title}: {100 * setting.score:.0f} %, {setting.seconds:,} s\n")
    print("| | time to the score | score at the end, % | worst tenth, % |")
    print("| :-- | --: | --: | --: |")
    of_fedavg: dict[str, np.ndarray] = {}
    for entry in ENTRIES:
        outcomes = [outcome_of(setting, entry, seed) for seed in range(setting.seeds)]
        seconds = np.array([outcome.seconds for outcome in outcomes])
        scores = np.array([outcome.score for outcome in outcomes])
        worst = np.array([outcome.worst for outcome in outcomes])
        if not of_fedavg:
            of_fedavg = {"scores": scores, "worst": worst}
        cells = [
            entry.name,
            time_cell(seconds),
            points_cell(scores, of_fedavg["scores"]),
            points_cell(worst, of_fedavg["worst"]),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    for of_setting in SETTINGS:
        print_table(of_setting)
