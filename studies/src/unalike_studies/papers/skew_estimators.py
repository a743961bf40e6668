"""The question behind FedSA and FedPake: is a parameter skewed over clients, and does a better estimator of its centre help?"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Same
from unalike_studies.claims import Claim, gain, question
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.gains import ExplainedGains, explained_by
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers.parameter_skew import FEDPAKE, LAST, NORMALIZED, PAKE, RULES, SA
from unalike_studies.study import Scale, Study, Variant

QUANTITIES = ("skewness", "cv", "squared_deviation")
"""Recorded along the way of the mean; they may explain the gains of other estimators."""
SHIFTS = {"mean towards the tail": -1, "mean towards the median": 1}
"""Our own aggregator, `shifted_mean`."""
MEAN = "weighted mean"
UNIFORM = "mean"
MEDIAN = "median"
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
ROBUST = (MEDIAN, TRIMMED, GEOMETRIC, *SHIFTS)
STEPS: dict[str, str | Variant] = {
    f"mean, {step:g} x step": f"fedavg + uniform + server_momentum(lr={step}, momentum=0)"
    for step in (1.5, 2.0)
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
TOY = {"data": "digits", "clients": 10, "split": 0.5, "rounds": 2, "evaluate_every": 1}
TOY_CNN = "cnn(channels=4, hidden=8, norm='batch')"
SKEWNESS = RecordedCurves("skewness over clients", "skewness")
MOMENTS = (SKEWNESS, RecordedCurves("coefficient of variation over clients", "cv"))


def over_epochs(rounds: Mapping[int, int]) -> dict[str, Options]:
    """Every partition with several numbers of local epochs: `rounds` has the rounds of each."""
    settings: dict[str, Options] = {}
    for name, partition in PARTITIONS.items():
        for epochs, count in rounds.items():
            word = "epoch" if epochs == 1 else "epochs"
            settings[f"{name}, {epochs} {word}"] = {
                "partition": partition,
                "rounds": count,
                "work": {"epochs": epochs},
            }
    return settings


MLPS = over_epochs({1: 50, 5: 20})
NORMS = {"no norm": "None", "BatchNorm": "'batch'", "GroupNorm": "'group'"}
CNNS: dict[str, Options] = {
    f"{norm}, {name}": {
        "partition": PARTITIONS[name],
        "model": f"cnn(channels=(8, 16), hidden=32, norm={text})",
    }
    for (norm, text), name in product(NORMS.items(), SKEWED)
}


def _better(text: str, method: str, other: str, setting: str) -> Claim:
    return question(f"{text}, {setting}", gain(method, other, setting, last=LAST), Above())


def _claims(settings: list[str]) -> Iterator[Claim]:
    """Robust centres, the rules and larger steps of the server against the mean, in each setting, and what explains the gains."""
    for setting, estimator in product(settings, ROBUST):
        yield _better(
            f"The {estimator} is a better centre than the mean", estimator, UNIFORM, setting
        )
    for setting, rule in product(settings, (SA, PAKE)):
        yield _better(f"{rule} is a better centre than the mean", rule, UNIFORM, setting)
    for setting, step in product(settings, STEPS):
        yield _better(
            f"The mean towards the tail is better than the {step}",
            "mean towards the tail",
            step,
            setting,
        )
    for setting in settings:
        yield question(
            f"{NORMALIZED} is the mean, {setting}",
            gain(NORMALIZED, UNIFORM, setting, last=LAST),
            Same(0.5),
        )
    for estimator, quantity in product((*ROBUST, *STEPS), ("skewness", "cv")):
        yield question(
            f"The gain of the {estimator} over the mean grows with the {quantity} of parameters over clients",
            explained_by(quantity, estimator, UNIFORM, settings, UNIFORM, LAST),
            Above(),
            "rank correlation over settings",
            scale=1,
            bounds=(-1, 1),
        )


def _study(
    name: str, title: str, settings: dict[str, Options], common: Options, toy: str, seeds: int
) -> Study:
    toys = {name: {**settings[name], **TOY, "model": toy} for name in list(settings)[-2:]}
    few = {label: ESTIMATORS[label] for label in (UNIFORM, MEDIAN, NORMALIZED)}
    small = Scale(
        ESTIMATORS | STEPS,
        settings,
        common,
        seeds=tuple(range(seeds)),
        reduced=f"{100 * common['split']:g} % of the training images instead of all",
    )
    smoke = "digits, 10 clients, 2 rounds: shows that the study runs, nothing else"
    return Study(
        name,
        title,
        FEDPAKE,
        {
            "smoke": Scale(few, toys, common, seeds=(0,), reduced=smoke),
            "small": small,
            "paper": replace(small, common={**common, "split": 1.0}, reduced=""),
        },
        tuple(_claims(list(settings))),
        (
            MethodTable(
                "Mean accuracy of the last 5 evaluated rounds on the server's test samples, %",
                last=LAST,
            ),
            ExplainedGains(
                "gain over the mean, points", UNIFORM, QUANTITIES, UNIFORM, last=LAST, least=-25
            ),
            *MOMENTS,
            Curves("accuracy, %"),
        ),
        "A study of our own, on Fashion-MNIST with 20 clients: the papers do not separate the estimator from its model, "
        "partition and amount of local training.",
    )


ABOUT = "Estimators of the centre of each parameter over clients, by partition and"
STUDIES = (
    _study("skew-estimators", f"{ABOUT} local epochs, with an MLP", MLPS, MLP, "mlp(hidden=8)", 5),
    _study(
        "skew-estimators-cnn", f"{ABOUT} normalization layer, with a CNN", CNNS, CNN, TOY_CNN, 3
    ),
)
