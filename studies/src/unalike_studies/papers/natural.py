"""Twelve methods on ten data sets whose clients are real owners: a table of our own, which no paper has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unalike_studies.layouts.gains import GainTable
from unalike_studies.study import Scale, Study

METHODS = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox(mu=0.1)",
    "SCAFFOLD": "scaffold",
    "FedNova": "fednova",
    "FedAvgM": "fedavgm",
    "FedDyn": "feddyn(alpha=0.1)",
    "FedMix": "fedmix(mu=0.1)",
    "FedAdagrad": "fedadagrad",
    "FedLWS": "fedlws",
    "Ditto": "ditto(lam=0.1)",
    "fine-tuning": "local_finetune",
    "local only": "local_only",
}
OWNERS = {
    "heart_disease": "hospital",
    "pancreatitis": "site",
    "covid_testing": "clinic_name",
    "flights": "carrier",
    "loans": "addr_state",
    "smartwatch": "subject",
    "math_achievement": "school",
    "chemistry_grades": "lea",
    "lecture_ratings": "dept",
    "house_prices": "Neighborhood",
}
"""Data set -> the column of its owners."""
RATES = {
    "heart_disease": 0.1,
    "pancreatitis": 0.3,
    "covid_testing": 0.3,
    "flights": 0.3,
    "loans": 0.3,
    "smartwatch": 0.1,
    "math_achievement": 0.01,
    "chemistry_grades": 0.03,
    "lecture_ratings": 0.03,
    "house_prices": 0.01,
}
"""Data set -> the learning rate that is best for FedAvg on validation samples, under seed 100."""
LARGE = ("covid_testing", "flights", "chemistry_grades", "lecture_ratings")
"""Data sets with batches of 128."""
COLUMNS = dict.fromkeys(OWNERS, "roc_auc") | {
    "smartwatch": "accuracy",
    **dict.fromkeys(("math_achievement", "chemistry_grades", "lecture_ratings", "house_prices"), "rmse"),
}
"""Data set -> its metric."""


def _setting(data: str) -> Mapping[str, Any]:
    """The options of a data set."""
    return {
        "data": data,
        "partition": f"natural(column={OWNERS[data]!r})",
        "metric": COLUMNS[data],
        "work": {"batch_size": 128 if data in LARGE else 32, "lr": RATES[data]},
    }


COMMON: dict[str, Any] = {"model": "mlp(hidden=(32,))", "rounds": 30, "evaluate_every": 5}
SETTINGS = {data: _setting(data) for data in OWNERS}

STUDIES = (
    Study(
        "natural",
        "Ten data sets that are divided by nature, 4 to 160 clients, 12 methods",
        "A table of our own",
        {
            "smoke": Scale(
                {name: METHODS[name] for name in ("FedAvg", "Ditto", "local only")},
                {"heart_disease": SETTINGS["heart_disease"]},
                COMMON | {"rounds": 5},
                reduced="three methods on the data set that comes with the package, 5 rounds",
            ),
            "small": Scale(METHODS, SETTINGS, COMMON, seeds=tuple(range(5))),
            "paper": Scale(METHODS, SETTINGS, COMMON, seeds=tuple(range(20))),
        },
        (),
        (GainTable("Gain over FedAvg, in points (of RMSE: per cent less), 95 % interval", COLUMNS),),
        "Each owner is a client. Every seed draws a quarter of each client's samples to test on, whole recordings of the "
        "smartwatch; 30 rounds of one local epoch, all clients in every round. Methods have their default strengths. The "
        "learning rate of a data set is the best one for FedAvg on validation samples of another seed, which favors FedAvg. In the "
        "smartwatch's data each person did each exercise once with either arm: a test recording is of the arm that the person's "
        "own training recording of this exercise is not, which only others' recordings can teach.",
    ),
)
