"""Utility against epsilon: FLamby's curve on heart disease (example level), and Fashion-MNIST at both levels."""

from dataclasses import replace
from statistics import fmean
from typing import Any

from unalike_studies.claim_verdicts import Below, Near
from unalike_studies.claims import ACCURACY, Claim, Quantity, by_cell, difference, gain, question
from unalike_studies.flamby_heart_rows import PUBLISHED_SPLIT
from unalike_studies.layouts.sweeps import MethodSweep
from unalike_studies.layouts.tables import ClientTable, MethodTable
from unalike_studies.papers.flamby_heart import HOSPITALS, PAPER
from unalike_studies.published import Printed
from unalike_studies.results import CellResult
from unalike_studies.study import Scale, Study, Variant

PLAIN, AS_PUBLISHED = "FedAvg", "FedAvg, 100 updates"
DELTAS = (0.0001, 0.001, 0.01, 0.1)
PUBLISHED = {
    0.1: ((60.56, 12.13), (62.92, 8.62), (66.73, 5.15), (71.08, 2.94)),
    1.0: ((68.53, 5.48), (70.15, 4.39), (70.59, 3.82), (70.31, 4.48)),
    5.0: ((70.36, 4.87), (69.97, 4.09), (70.04, 4.33), (70.49, 3.58)),
    10.0: ((70.04, 5.49), (69.81, 4.30), (69.99, 5.07), (69.78, 3.87)),
    50.0: ((70.16, 5.21), (69.95, 3.96), (70.26, 4.32), (70.36, 4.58)),
}
"""Epsilon -> for each delta the mean of the hospitals' accuracies, and its deviation over five seeds, in per cent."""
WITHOUT = (71.25, 2.38)
HEART, SEEDS = "four hospitals", 5
SAMPLES, CLIENTS = "each sample", "each client"
BUDGETS, FASHION = (1.0, 3.0, 10.0, 30.0), "500 clients"


def _name(level: str, epsilon: float) -> str:
    return f"{level}, epsilon {epsilon:g}"


def _families(levels: tuple[str, ...], epsilons: tuple[float, ...]) -> dict[str, dict[str, float]]:
    """Level -> name of a method -> its epsilon."""
    families = {}
    for level in levels:
        families[level] = {_name(level, epsilon): epsilon for epsilon in epsilons}
    return families


BY_DELTA = {f"delta {delta:g}": delta for delta in DELTAS}
CURVE: dict[str, str | Variant] = {
    PLAIN: "fedavg",
    AS_PUBLISHED: Variant("fedavg", {"work": {"steps": 100}}),
    **{
        _name(level, epsilon): f"fedavg + dp_sgd(epsilon={epsilon}, delta={delta}, clip=1.1)"
        for level, delta in BY_DELTA.items()
        for epsilon in PUBLISHED
    },
}
LEVELS = {
    SAMPLES: "dp_sgd(epsilon={}, delta=1e-05, clip=1.0)",
    CLIENTS: "client_dp(epsilon={}, delta=0.0001, clip=0.5)",
}
BASES = {SAMPLES: "fedavg + uniform", CLIENTS: "fedavg"}
BOTH = {
    PLAIN: "fedavg + uniform",
    **{
        _name(level, epsilon): f"{BASES[level]} + {spec.format(epsilon)}"
        for level, spec in LEVELS.items()
        for epsilon in BUDGETS
    },
}


def _hospitals(method: str) -> Quantity:
    """The mean of the hospitals' accuracies, in per cent."""

    def number(cell: CellResult) -> float:
        return fmean(value for value in cell.clients["accuracy"] if value is not None)

    return by_cell(method, HEART, number)


def _level(method: str, mean: float, deviation: float) -> Claim:
    """The published mean of five seeds, within half its 95 % t interval and one point at least."""
    return Claim(
        f"{method} reaches the published mean of the hospitals' accuracies",
        _hospitals(method),
        Near(margin=max(1.0, round(2.78 * deviation / 5**0.5, 1))),
        Printed(
            mean,
            f"{mean:g} ± {deviation:g}, mean of four hospitals",
            deviation=deviation / 5**0.5,
        ),
        **ACCURACY,
        needs_learning=False,
    )


def _scales(
    methods: dict[str, Any],
    setting: dict[str, dict[str, Any]],
    common: dict[str, Any],
    seeds: int,
    **smaller: Any,
) -> dict[str, Scale]:
    """The scales; `smaller` are the options of the setting at scale smoke that differ."""
    small = Scale(methods, setting, common, tuple(range(seeds)))
    [(where, options)] = setting.items()
    differences = [f"{name} {value}" for name, value in smaller.items()]
    smoke = replace(
        small,
        methods={name: methods[name] for name in list(methods)[:2]},
        settings={where: options | smaller},
        seeds=(0,),
        reduced=", ".join(["two methods, one seed", *differences]),
    )
    return {"smoke": smoke, "small": small, "paper": small}


STUDIES = (
    Study(
        "privacy-heart",
        "Heart disease in four hospitals: accuracy against epsilon of each sample",
        PAPER,
        _scales(
            CURVE,
            {
                HEART: {
                    "data": f"flamby_heart(split={PUBLISHED_SPLIT})",
                    "partition": "natural(column='hospital')",
                }
            },
            {
                "model": "logistic",
                "rounds": 15,
                "evaluate_every": 15,
                "work": {"epochs": 3, "batch_size": 4, "lr": 0.001},
            },
            SEEDS,
        ),
        (
            _level(AS_PUBLISHED, *WITHOUT),
            *(
                _level(_name(level, epsilon), *found)
                for epsilon, row in PUBLISHED.items()
                for level, found in zip(BY_DELTA, row, strict=True)
            ),
            question(
                "Epsilon 0.1 at delta 0.0001 costs accuracy",
                difference(_hospitals(_name("delta 0.0001", 0.1)), _hospitals(PLAIN)),
                Below(),
                needs_learning=False,
            ),
            question(
                "Epsilon 1 at delta 0.0001 costs accuracy",
                difference(_hospitals(_name("delta 0.0001", 1.0)), _hospitals(PLAIN)),
                Below(),
                needs_learning=False,
            ),
        ),
        (
            ClientTable("Accuracy in each hospital, %", HOSPITALS),
            MethodSweep(
                "accuracy, %",
                "epsilon",
                _families(tuple(BY_DELTA), tuple(PUBLISHED)),
                PLAIN,
                last=1,
            ),
        ),
        "Rows, split, model, batches of 4, rate and clipping at 1.1 are the benchmark's. Its rounds are 100 updates on Poisson "
        "batches of Opacus; here they are three passes over shuffled batches, 92 updates on the average of the hospitals "
        "(Cleveland 150, Switzerland 24), which are accounted without amplification by sampling: at equal epsilon the noise is "
        "larger here.",
    ),
    Study(
        "privacy-fashion",
        "Fashion-MNIST among 500 clients: accuracy against epsilon, of each sample and of each client",
        "A table of our own",
        _scales(
            BOTH,
            {
                FASHION: {
                    "data": "fashion_mnist",
                    "partition": "dirichlet(alpha=0.5)",
                    "clients": 500,
                }
            },
            {
                "model": "linear",
                "rounds": 40,
                "evaluate_every": 10,
                "participation": 0.1,
                "sampling": "poisson",
                "work": {"epochs": 1, "batch_size": 32, "lr": 0.1},
            },
            3,
            data="digits",
            clients=20,
        ),
        tuple(
            question(
                f"{_name(level, epsilon)} costs accuracy",
                gain(_name(level, epsilon), PLAIN, FASHION, last=1),
                Below(),
                needs_learning=False,
            )
            for level in LEVELS
            for epsilon in BUDGETS
        ),
        (
            MethodTable("Accuracy (%)", last=1, digits=1),
            MethodSweep("accuracy, %", "epsilon", _families((*LEVELS,), BUDGETS), PLAIN, last=1),
        ),
        "Linear model, 40 rounds, each client takes part with probability 0.1. Clients count equally. Each sample: delta 1e-5, "
        "gradients clipped at 1, no amplification claimed. Each client: delta 1e-4, updates clipped at 0.5, amplified by the "
        "Poisson sampling.",
    ),
)
