"""Conditioning on local statistics: the conditional models trained by FedAvg, FedSGD and FedAdam."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Expectation, Near, Same
from unalike_studies.claims import Claim
from unalike_studies.papers import local_statistics as paper
from unalike_studies.papers.local_statistics import (
    COMMON,
    FULL_BATCH,
    KINDS,
    READINGS,
    TABLES,
    TASKS,
    Task,
    conditional,
)
from unalike_studies.study import Scale, Study, Variant

PASSES: dict[str, Any] = paper.SHORT | {"rounds": 150, "evaluate_every": 10}
"""With a fifth of the clients as many steps as 30 epochs with all clients."""
FEDERATED: dict[str, Variant] = {
    "pooled AdamW": Variant(f"centralised + {paper.CONDITIONED}", PASSES),
    "FedAdam": Variant(f"{paper.ADAM} + {paper.CONDITIONED}", FULL_BATCH),
    "FedSGD": Variant(f"fedsgd + {paper.CONDITIONED}", FULL_BATCH | {"work": {"lr": 0.01}}),
    "FedAvg": Variant(
        f"fedavg + {paper.CONDITIONED}",
        FULL_BATCH | {"rounds": 300, "work": {"batch_size": 10, "lr": 0.03}},
    ),
    "FedAvg, AdamW as printed": Variant(
        f"fedavg + {paper.CONDITIONED}",
        {
            "rounds": 100,
            "evaluate_every": 10,
            "work": paper.POOLED["work"] | {"keep_optimizer_state": False},
        },
    ),
    "client, AdamW as printed": Variant(
        "local_only", paper.AS_PRINTED | {"model": "linear", "protocol": "personal"}
    ),
}
"""The last two read the printed training as that of a client: 100 epochs over its own points, with and without averages."""

SMOKE_FEW = "20 clients a cluster, 5 rounds: shows that the study runs, nothing else"
FEWER = "20 clients a cluster instead of 100; pooled training has 150 epochs, so that it makes as many steps as with all clients"
FEWER_MODELS = (
    f"{FEWER}; the MLP gets a quarter of the rounds (300 of FedAdam and FedSGD, 75 of FedAvg). With eight clusters nothing is "
    "trained on pooled samples, and only the ensemble of the linear regression by FedSGD and FedAvg"
)
RATES = (
    ". The learning rates are 0.01 for FedSGD and 0.03 for FedAvg. They were chosen among 0.001, 0.003, 0.01, 0.03 and 0.1 on a "
    "draw of the data that the study does not use; there all rates of FedSGD from 0.003 on ended in the same local optimum, with "
    "an rmse of 12.2"
)
FEWER_CLIENTS = 20
LINEAR = TASKS["linear"]
FEW: dict[str, Options] = {"3 clusters": LINEAR.data(3, FEWER_CLIENTS)}

FEDERATED_CLAIMS = (
    *(
        LINEAR.question(
            f"The conditional ensemble trained by {method} is as good as trained on pooled samples",
            LINEAR.gain(method, "pooled AdamW", "3 clusters"),
            Same(0.05),
        )
        for method in ("FedAdam", "FedSGD", "FedAvg")
    ),
    LINEAR.question(
        "AdamW as printed reaches the error of pooled training if clients run it under FedAvg",
        LINEAR.gain("FedAvg, AdamW as printed", "pooled AdamW", "3 clusters"),
        Same(0.05),
    ),
    LINEAR.question(
        "AdamW as printed reaches the published rmse of the client models if each client runs it on its own points",
        LINEAR.score("client, AdamW as printed", "3 clusters"),
        Near(LINEAR.printed("client", 3).value, 0.002),
        remark="100 points are one batch, so that 100 epochs are 100 steps, which move a coefficient by about 0.1 of up to 10",
    ),
)


def _with(methods: Mapping[str, Variant], options: Options) -> dict[str, Variant]:
    changed = {}
    for label, method in methods.items():
        changed[label] = Variant(method.spec, {**method.options, **options})
    return changed


CHOSEN: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "linear": {
        "linear": (0.05, 0.001, 0.0003),
        "ensemble": (0.05, 0.01, 0.03),
        "MLP": (0.05, 0.001, 0.0003),
    },
    "logistic": {
        "linear": (0.2, 30.0, 10.0),
        "ensemble": (0.2, 30.0, 10.0),
        "MLP": (0.05, 1.0, 1.0),
    },
}
"""Task -> conditional model -> the learning rates of FedAdam, FedSGD and FedAvg."""
ALGORITHMS = ("FedAdam", "FedSGD", "FedAvg")
MLP_SHARE = 0.25
"""Of the rounds: those of the MLP cost five times as much."""
TRIED: Mapping[str, tuple[str, ...]] = {
    "ols": ("FedAdam", "FedAvg"),
    "covariance": ("pooled", *ALGORITHMS),
}
"""Statistic -> the ways in which the models are trained."""


def _models(task: Task) -> dict[str, Variant]:
    """References, and each conditional model with each statistic, on pooled samples and under the algorithms."""
    methods = paper.references()
    for reading, kind in product(READINGS, KINDS):
        adam_lr, sgd_lr, average_lr = CHOSEN[task.name][kind]
        share = MLP_SHARE if kind == "MLP" else 1
        model = {"model": f"conditional_{kind.lower()}"}
        full_batches = FULL_BATCH | model | {"rounds": round(share * FULL_BATCH["rounds"])}
        epochs = full_batches | {
            "rounds": round(share * 300),
            "work": {"batch_size": 10, "lr": average_lr},
        }
        part = f"conditional(statistic='{reading}')"
        ways = {
            "pooled": Variant(f"centralised + {part}", PASSES | model),
            "FedAdam": Variant(f"{paper.adam(adam_lr)} + {part}", full_batches),
            "FedSGD": Variant(f"fedsgd + {part}", full_batches | {"work": {"lr": sgd_lr}}),
            "FedAvg": Variant(f"fedavg + {part}", epochs),
        }
        for way in TRIED[reading]:
            methods[_label(kind, reading, way)] = ways[way]
    return methods


def _label(kind: str, reading: str, way: str) -> str:
    return f"{conditional(kind, reading)}, {way}"


def _left_out(task: Task) -> frozenset[tuple[str, str]]:
    """With eight clusters: what is neither a reference nor trained by FedAdam, but for the ensemble of the linear regression."""
    in_study = set(paper.REFERENCES)
    for kind, reading in product(KINDS, READINGS):
        in_study.add(_label(kind, reading, "FedAdam"))
    if task.name == "linear":
        for algorithm in ALGORITHMS:
            in_study.add(_label("ensemble", "covariance", algorithm))
    left_out = [method for method in _models(task) if method not in in_study]
    return frozenset((method, "8 clusters") for method in left_out)


def _questions(task: Task, margin: float) -> Iterator[Claim]:
    """Questions of ours: does training by an algorithm cost anything, and is the result as good as the references?"""

    def claim(text: str, method: str, other: str, setting: str, expects: Expectation) -> Claim:
        return task.question(f"{text}, {setting}", task.gain(method, other, setting), expects)

    # Against pooled samples. The study local-statistics-federated has this of the linear ensemble.
    for kind, way in product(KINDS, ALGORITHMS):
        if task.name == "linear" and kind == "ensemble":
            continue
        text = (
            f"With the covariance the conditional {kind} trained by {way} is as good as on pooled "
            "samples"
        )
        federated = _label(kind, "covariance", way)
        pooled = _label(kind, "covariance", "pooled")
        yield claim(text, federated, pooled, "3 clusters", Same(margin))

    # Against the best that can be known: the true clusters.
    for setting, (reading, ways) in product(_few(task), TRIED.items()):
        for way in ways:
            method = _label("ensemble", reading, way)
            if way != "pooled" and (method, setting) not in _left_out(task):
                text = (
                    f"With {reading} the conditional ensemble trained by {way} is as good as the "
                    "cluster oracle"
                )
                yield claim(text, method, "cluster", setting, Same(margin))

    # One statistic against the other, and against no exchange at all.
    for kind, setting in product(KINDS, _few(task)):
        ols = _label(kind, "ols", "FedAdam")
        covariance = _label(kind, "covariance", "FedAdam")
        text = (
            f"Trained by FedAdam the conditional {kind} is better with ols than with the covariance"
        )
        yield claim(text, ols, covariance, setting, task.better)
        text = (
            f"With ols the conditional {kind} trained by FedAdam is better than each client alone"
        )
        yield claim(text, ols, "client", setting, task.better)


def _few(task: Task) -> dict[str, Options]:
    return {f"{n} clusters": task.data(n, FEWER_CLIENTS) for n in TABLES}


def _models_study(task: Task, margin: float, rates: str) -> Study:
    methods = _models(task)
    left_out = _left_out(task)
    few = _few(task)
    published = task.published(3, ", FedAdam") | task.published(8, ", FedAdam")
    return Study(
        f"local-statistics-federated-{task.name}",
        f"{task.name.capitalize()} regression: conditional models on pooled samples, and under FedAdam, FedSGD and FedAvg",
        paper.PAPER,
        {
            "smoke": Scale(
                _with(methods, {"rounds": 5, "evaluate_every": 5}),
                few,
                COMMON,
                seeds=(0,),
                left_out=left_out,
                reduced=SMOKE_FEW,
            ),
            "small": Scale(methods, few, COMMON, left_out=left_out, reduced=FEWER_MODELS),
            "paper": Scale(methods, {f"{n} clusters": task.data(n) for n in TABLES}, COMMON),
        },
        tuple(_questions(task, margin)),
        (task.table(published), task.curves()),
        f"{paper.BOTH}{CHOSEN_ON}{rates}",
    )


CHOSEN_ON = (
    ". Learning rates were chosen on a draw of the data that the study does not use (three clusters, 300 rounds of FedAdam and "
    "FedSGD, 75 of FedAvg), with the covariance. "
)
LINEAR_RATES = (
    "FedAdam: 0.05 for all models (of 0.005, 0.05 and 0.2; of 0.005, 0.02 and 0.05 for the MLP). FedSGD: 0.001 for the linear "
    "model (of 0.0001 to 0.003), 0.01 for the ensemble (of 0.001 to 0.1) and 0.001 for the MLP (of 0.0003 to 0.003). FedAvg: "
    "0.0003 for the linear model (of 0.00003 to 0.001; it diverges at 0.03), 0.03 for the ensemble (of 0.001 to 0.1), 0.0003 for "
    "the MLP (of 0.0001 to 0.01; it diverges from 0.003 on). The rates of the ensemble are those of local-statistics-federated"
)
LOGISTIC_RATES = (
    "FedAdam: 0.2 for the linear model (of 0.005 to 0.2) and the ensemble (of 0.005 to 0.5), 0.05 for the MLP (of 0.005 and 0.05). "
    "FedSGD: 30 for the linear model (of 0.3 to 30) and the ensemble (of 1 to 30), 1 for the MLP (of 0.1 to 3). FedAvg: 10 for the "
    "linear model (of 0.1 to 10) and the ensemble (of 0.3 to 10), 1 for the MLP (of 0.03 to 1). Most of these are the largest rate "
    "that was tried"
)

STUDIES = (
    Study(
        "local-statistics-federated",
        "The conditional ensemble trained on pooled samples, and federated by FedAdam, FedSGD and FedAvg",
        paper.PAPER,
        {
            "smoke": Scale(
                _with(FEDERATED, {"rounds": 5}),
                FEW,
                COMMON | paper.ENSEMBLE,
                seeds=(0,),
                reduced=SMOKE_FEW,
            ),
            "small": Scale(FEDERATED, FEW, COMMON | paper.ENSEMBLE, reduced=FEWER),
            "paper": Scale(FEDERATED, {"3 clusters": LINEAR.data(3)}, COMMON | paper.ENSEMBLE),
        },
        FEDERATED_CLAIMS,
        (LINEAR.table(), LINEAR.curves()),
        paper.IN_THE_TEXT + RATES,
    ),
    _models_study(LINEAR, 0.05, LINEAR_RATES),
    _models_study(TASKS["logistic"], 1.0, LOGISTIC_RATES),
)
