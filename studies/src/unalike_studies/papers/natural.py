"""Twelve methods on ten data sets whose clients are real owners: a table of our own, which no paper has."""

from typing import Any, NamedTuple

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


class Task(NamedTuple):
    """The column of the owners, the metric, and the learning rate that is best for FedAvg on validation samples, seed 100."""

    owner: str
    metric: str
    lr: float
    batch_size: int = 32


TASKS = {
    "heart_disease": Task("hospital", "roc_auc", 0.1),
    "pancreatitis": Task("site", "roc_auc", 0.3),
    "covid_testing": Task("clinic_name", "roc_auc", 0.3, 128),
    "flights": Task("carrier", "roc_auc", 0.3, 128),
    "loans": Task("addr_state", "roc_auc", 0.3),
    "smartwatch": Task("subject", "accuracy", 0.1),
    "math_achievement": Task("school", "rmse", 0.01),
    "chemistry_grades": Task("lea", "rmse", 0.03, 128),
    "lecture_ratings": Task("dept", "rmse", 0.03, 128),
    "house_prices": Task("Neighborhood", "rmse", 0.01),
}
COLUMNS = {data: task.metric for data, task in TASKS.items()}
SETTINGS: dict[str, dict[str, Any]] = {
    data: {
        "data": data,
        "partition": f"natural(column={task.owner!r})",
        "metric": task.metric,
        "work": {"batch_size": task.batch_size, "lr": task.lr},
    }
    for data, task in TASKS.items()
}
COMMON: dict[str, Any] = {"model": "mlp(hidden=(32,))", "rounds": 30, "evaluate_every": 5}

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
        (
            GainTable(
                "Gain over FedAvg, in points (of RMSE: per cent less), 95 % interval", COLUMNS
            ),
        ),
        "Each owner is a client. Every seed draws a quarter of each client's samples to test on, whole recordings of the "
        "smartwatch; 30 rounds of one local epoch, all clients in every round. Methods have their default strengths. The "
        "learning rate of a data set is the best one for FedAvg on validation samples of another seed, which favors FedAvg. In the "
        "smartwatch's data each person did each exercise once with either arm: a test recording is of the arm that the person's "
        "own training recording of this exercise is not, which only others' recordings can teach.",
    ),
)
