"""The question behind FedSA and FedPake: is a parameter skewed over clients, and does a better estimator of its centre help?"""

from __future__ import annotations

from itertools import product
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Same
from unalike_studies.claims import Claim, gain, question
from unalike_studies.layouts.explained_gains import ExplainedGains, explained_by
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers.parameter_skew import FEDPAKE, LAST, NORMALIZED, PAKE, RULES, SA
from unalike_studies.study import Scale, Study, Variant

QUANTITIES = ("skewness", "cv", "squared_deviation")
"""Recorded along the way of the mean; they may explain the gains of other estimators."""
SHIFTS = {"mean towards the tail": -1, "mean towards the median": 1}
"""Our own aggregator, `shifted_mean`."""
MEAN, UNIFORM, MEDIAN = "weighted mean", "mean", "median"
TRIMMED, GEOMETRIC = "trimmed mean", "geometric median"
ESTIMATORS: dict[str, str | Variant] = {
    MEAN: "fedavg",
    UNIFORM: Variant("fedavg + uniform", {"record": "moments"}),
    MEDIAN: "fedavg + median",
    TRIMMED: "fedavg + trimmed_mean(beta=0.2)",
    GEOMETRIC: "fedavg + geometric_median",
    **RULES,
    **{label: f"fedavg + shifted_mean(shift={shift})" for label, shift in SHIFTS.items()},
}
STEPS: dict[str, str | Variant] = {
    f"mean, {step:g} x step": f"fedavg + uniform + server_momentum(lr={step}, momentum=0)" for step in (1.5, 2.0)
}
"""The control of `shifted_mean`: a larger step of the server for all parameters."""
PARTITIONS = {
    "iid": "iid",
    "Dir(0.1)": "dirichlet(alpha=0.1)",
    "2 classes": "pathological(classes=2)",
}
SKEWED = ("Dir(0.1)", "2 classes")

FASHION: dict[str, Any] = {
    "data": "fashion_mnist",
    "clients": 20,
    "merge": False,
    "split": 0.2,
    "protocol": "server",
    "evaluate_every": 2,
}
"""A fifth of the 60,000 training images, so that a run takes seconds; the published test set judges the shared model."""
MLP = FASHION | {"model": "mlp(hidden=64)", "work": {"batch_size": 32, "lr": 0.05}}
CNN = FASHION | {"split": 0.1, "rounds": 16, "work": {"batch_size": 20, "lr": 0.05}}
ROUNDS = {1: 50, 5: 20}
"""Local epochs -> rounds."""
TOY = {"data": "digits", "clients": 10, "split": 0.5, "rounds": 2, "evaluate_every": 1}


def with_epochs(partition: str, epochs: int) -> str:
    """The label of a setting."""
    return f"{partition}, {epochs} epoch{'s' if epochs > 1 else ''}"


MLPS: dict[str, Options] = {
    with_epochs(name, epochs): {"partition": partition, "rounds": rounds, "work": {"epochs": epochs}}
    for (name, partition), (epochs, rounds) in product(PARTITIONS.items(), ROUNDS.items())
}
NORMS = {"no norm": "None", "BatchNorm": "'batch'", "GroupNorm": "'group'"}
CNNS: dict[str, Options] = {
    f"{norm}, {name}": {"partition": PARTITIONS[name], "model": f"cnn(channels=(8, 16), hidden=32, norm={text})"}
    for (norm, text), name in product(NORMS.items(), SKEWED)
}


def _toys(settings: dict[str, Options], **more: object) -> dict[str, Options]:
    return {name: {**options, **TOY, **more} for name, options in settings.items()}


def _gains(settings: list[str]) -> tuple[Claim, ...]:
    """A robust centre against the mean, and the rules against the mean, in each setting."""
    return tuple(
        question(
            f"The {estimator} is a better centre than the mean, {setting}",
            gain(estimator, UNIFORM, setting, last=LAST),
            Above(),
        )
        for setting in settings
        for estimator in (MEDIAN, TRIMMED, GEOMETRIC, *SHIFTS)
    ) + tuple(
        question(
            f"{rule} is a better centre than the mean, {setting}", gain(rule, UNIFORM, setting, last=LAST), Above()
        )
        for setting in settings
        for rule in (SA, PAKE)
    )


def _not_the_step(settings: list[str]) -> tuple[Claim, ...]:
    """The mean towards the tail against larger steps of the server."""
    return tuple(
        question(
            f"The mean towards the tail is better than the {step}, {setting}",
            gain("mean towards the tail", step, setting, last=LAST),
            Above(),
        )
        for setting in settings
        for step in STEPS
    )


def _is_mean(settings: list[str]) -> tuple[Claim, ...]:
    return tuple(
        question(f"{NORMALIZED} is the mean, {setting}", gain(NORMALIZED, UNIFORM, setting, last=LAST), Same(0.5))
        for setting in settings
    )


def _explained(settings: list[str]) -> tuple[Claim, ...]:
    return tuple(
        question(
            f"The gain of the {estimator} over the mean grows with the {quantity} of parameters over clients",
            explained_by(quantity, estimator, UNIFORM, settings, UNIFORM, LAST),
            Above(),
            "rank correlation over settings",
            scale=1,
            bounds=(-1, 1),
        )
        for estimator in (MEDIAN, TRIMMED, GEOMETRIC, *SHIFTS, *STEPS)
        for quantity in ("skewness", "cv")
    )


def _study(name: str, title: str, settings: dict[str, Options], common: Options, toy: str, seeds: int) -> Study:
    toys = _toys(settings, model=toy)
    places = list(settings)
    return Study(
        name,
        title,
        FEDPAKE,
        {
            "smoke": Scale(
                {label: ESTIMATORS[label] for label in (UNIFORM, MEDIAN, NORMALIZED)},
                {place: toys[place] for place in places[-2:]},
                common,
                seeds=(0,),
                reduced="digits, 10 clients, 2 rounds: shows that the study runs, nothing else",
            ),
            "small": Scale(
                ESTIMATORS | STEPS,
                settings,
                common,
                seeds=tuple(range(seeds)),
                reduced=f"{100 * common['split']:g} % of the training images instead of all",
            ),
            "paper": Scale(ESTIMATORS | STEPS, settings, {**common, "split": 1.0}, seeds=tuple(range(seeds))),
        },
        _gains(places) + _not_the_step(places) + _is_mean(places) + _explained(places),
        (
            MethodTable("Mean accuracy of the last 5 evaluated rounds on the server's test samples, %", last=LAST),
            ExplainedGains("gain over the mean, points", UNIFORM, QUANTITIES, UNIFORM, last=LAST, least=-25),
            RecordedCurves("skewness over clients", "skewness"),
            RecordedCurves("coefficient of variation over clients", "cv"),
            Curves("accuracy, %"),
        ),
        "A study of our own, on Fashion-MNIST with 20 clients: the papers do not separate the estimator from its model, "
        "partition and amount of local training.",
    )


STUDIES = (
    _study(
        "skew-estimators",
        "Estimators of the centre of each parameter over clients, by partition and local epochs, with an MLP",
        MLPS,
        MLP,
        "mlp(hidden=8)",
        5,
    ),
    _study(
        "skew-estimators-cnn",
        "Estimators of the centre of each parameter over clients, by partition and normalization layer, with a CNN",
        CNNS,
        CNN,
        "cnn(channels=4, hidden=8, norm='batch')",
        3,
    ),
)
