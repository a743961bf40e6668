"""Conditioning on local statistics: the conditional models trained by FedAvg, FedSGD and FedAdam."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below, Expectation, Near, Same
from unalike_studies.claims import OURS, Claim, gain, question, score
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers.local_statistics import (
    ADAM,
    AS_PRINTED,
    COMMON,
    CONDITIONED,
    ENSEMBLE,
    FULL_BATCH,
    KINDS,
    LINEAR,
    LOGISTIC,
    NUMBERS,
    PAPER,
    POOLED,
    SHORT,
    adam,
    references,
    rmse_claim,
    rmse_gain,
)
from unalike_studies.study import Layout, Scale, Study, Variant

PASSES: dict[str, Any] = SHORT | {"rounds": 150, "evaluate_every": 10}
"""With a fifth of the clients as many steps as 30 epochs with all clients."""
FEDERATED: dict[str, Variant] = {
    "pooled AdamW": Variant(f"centralised + {CONDITIONED}", PASSES),
    "FedAdam": Variant(f"{ADAM} + {CONDITIONED}", FULL_BATCH),
    "FedSGD": Variant(f"fedsgd + {CONDITIONED}", FULL_BATCH | {"work": {"lr": 0.01}}),
    "FedAvg": Variant(f"fedavg + {CONDITIONED}", FULL_BATCH | {"rounds": 300, "work": {"batch_size": 10, "lr": 0.03}}),
    "FedAvg, AdamW as printed": Variant(
        f"fedavg + {CONDITIONED}",
        {"rounds": 100, "evaluate_every": 10, "work": POOLED["work"] | {"keep_optimizer_state": False}},
    ),
    "client, AdamW as printed": Variant("local_only", AS_PRINTED | {"model": "linear", "protocol": "personal"}),
}
"""The last two read the printed training as that of a client: 100 epochs over its own points, with and without averages."""

SMOKE_FEW = "20 clients a cluster, 5 rounds: shows that the study runs, nothing else"
FEWER = "20 clients a cluster instead of 100; pooled training has 150 epochs, so that it makes as many steps as with all clients"
FEWER_MODELS = (
    f"{FEWER}; the MLP gets a quarter of the rounds (300 of FedAdam and FedSGD, 75 of FedAvg). With eight clusters only the "
    "ensemble of the linear regression is trained, and not on pooled samples"
)
RATES = (
    ". The learning rates are 0.01 for FedSGD and 0.03 for FedAvg. They were chosen among 0.001, 0.003, 0.01, 0.03 and 0.1 on a "
    "draw of the data that the study does not use; there all rates of FedSGD from 0.003 on ended in the same local optimum, with "
    "an rmse of 12.2"
)
FEW: dict[str, Options] = {"3 clusters": {"data": "linear_clusters(clusters=3, clients=20, seed={seed})"}}

FEDERATED_CLAIMS = (
    *(
        rmse_claim(
            f"The conditional ensemble trained by {method} is as good as trained on pooled samples",
            rmse_gain(method, "pooled AdamW", "3 clusters"),
            Same(0.05),
            "-",
            source=OURS,
        )
        for method in ("FedAdam", "FedSGD", "FedAvg")
    ),
    rmse_claim(
        "AdamW as printed reaches the error of pooled training if clients run it under FedAvg",
        rmse_gain("FedAvg, AdamW as printed", "pooled AdamW", "3 clusters"),
        Same(0.05),
        "-",
        source=OURS,
    ),
    rmse_claim(
        "AdamW as printed reaches the published rmse of the client models if each client runs it on its own points",
        score("client, AdamW as printed", "3 clusters", "rmse", last=1),
        Near(0.106, 0.002),
        "0.106",
        source=OURS,
        remark="100 points are one batch, so that 100 epochs are 100 steps, which move a coefficient by about 0.1 of up to 10",
    ),
)


def _with(methods: Mapping[str, Variant], options: Options) -> dict[str, Variant]:
    return {label: Variant(method.spec, {**method.options, **options}) for label, method in methods.items()}


CHOSEN: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "linear": {"linear": (0.05, 0.001, 0.0003), "ensemble": (0.05, 0.01, 0.03), "MLP": (0.05, 0.001, 0.0003)},
    "logistic": {"linear": (0.2, 30.0, 10.0), "ensemble": (0.2, 30.0, 10.0), "MLP": (0.05, 1.0, 1.0)},
}
"""Task -> conditional model -> the learning rates of FedAdam, FedSGD and FedAvg."""
ALGORITHMS = ("FedAdam", "FedSGD", "FedAvg")
MLP_SHARE = 0.25
"""Of the rounds: those of the MLP cost five times as much."""


def _models(task: str) -> dict[str, Variant]:
    """References, and each conditional model on pooled samples and under each algorithm."""
    methods = references()
    for kind, (server_lr, sgd, average) in CHOSEN[task].items():
        share = MLP_SHARE if kind == "MLP" else 1
        model = {"model": f"conditional_{kind.lower()}"}
        whole = FULL_BATCH | model | {"rounds": round(share * FULL_BATCH["rounds"])}
        label = f"conditional {kind}"
        methods |= {
            f"{label}, pooled": Variant(f"centralised + {CONDITIONED}", PASSES | model),
            f"{label}, FedAdam": Variant(f"{adam(server_lr)} + {CONDITIONED}", whole),
            f"{label}, FedSGD": Variant(f"fedsgd + {CONDITIONED}", whole | {"work": {"lr": sgd}}),
            f"{label}, FedAvg": Variant(
                f"fedavg + {CONDITIONED}",
                whole | {"rounds": round(share * 300), "work": {"batch_size": 10, "lr": average}},
            ),
        }
    return methods


MANY = "8 clusters"
NUMBERS_OF = {"linear": (3, 8), "logistic": (3,)}
"""Task -> numbers of clusters at the small scale."""
KEPT = (*references(), *(f"conditional ensemble, {algorithm}" for algorithm in ALGORITHMS))
LEFT_OUT = frozenset((method, MANY) for method in _models("linear") if method not in KEPT)


def _few(task: str) -> dict[str, Options]:
    return {
        f"{n} clusters": {"data": f"{task}_clusters(clusters={n}, clients=20, seed={{seed}})"} for n in NUMBERS_OF[task]
    }


def _questions(task: str, margin: float, column: str, unit: str, scale: float) -> tuple[Claim, ...]:
    """Questions of ours: does training by an algorithm cost anything, and is the result as good as the references?"""

    def claim(text: str, method: str, other: str, setting: str, expects: Expectation) -> Claim:
        quantity = gain(method, other, setting, column, last=1)
        return question(f"{text}, {setting}", quantity, expects, unit, scale)

    better = Below() if column == "rmse" else Above()
    return (
        *(
            claim(
                f"The conditional {kind} trained by {algorithm} is as good as on pooled samples",
                f"conditional {kind}, {algorithm}",
                f"conditional {kind}, pooled",
                "3 clusters",
                Same(margin),
            )
            for kind, algorithm in product(KINDS, ALGORITHMS)
            if (task, kind) != ("linear", "ensemble")  # claims of local-statistics-federated
        ),
        *(
            claim(
                f"The conditional ensemble trained by {algorithm} is as good as the cluster oracle",
                f"conditional ensemble, {algorithm}",
                "cluster",
                setting,
                Same(margin),
            )
            for setting, algorithm in product(_few(task), ALGORITHMS)
        ),
        *(
            claim(
                f"The conditional {kind} trained by FedAdam is better than each client alone",
                f"conditional {kind}, FedAdam",
                "client",
                "3 clusters",
                better,
            )
            for kind in KINDS
        ),
    )


def _models_study(
    task: str, title: str, claims: tuple[Claim, ...], rates: str, settings: dict[str, Options], *layouts: Layout
) -> Study:
    tiny = {"rounds": 5, "evaluate_every": 5}
    methods = _models(task)
    return Study(
        f"local-statistics-federated-{task}",
        title,
        PAPER,
        {
            "smoke": Scale(_with(methods, tiny), _few(task), COMMON, seeds=(0,), left_out=LEFT_OUT, reduced=SMOKE_FEW),
            "small": Scale(methods, _few(task), COMMON, left_out=LEFT_OUT, reduced=FEWER_MODELS),
            "paper": Scale(methods, settings, COMMON),
        },
        claims,
        layouts,
        NUMBERS + rates,
    )


CHOSEN_ON = (
    ". Learning rates were chosen on a draw of the data that the study does not use (three clusters, 300 rounds of FedAdam and "
    "FedSGD, 75 of FedAvg). "
)
LINEAR_RATES = CHOSEN_ON + (
    "FedAdam: 0.05 for all models (of 0.005, 0.05 and 0.2; of 0.005, 0.02 and 0.05 for the MLP). FedSGD: 0.001 for the linear "
    "model (of 0.0001 to 0.003), 0.01 for the ensemble (of 0.001 to 0.1) and 0.001 for the MLP (of 0.0003 to 0.003). FedAvg: "
    "0.0003 for the linear model (of 0.00003 to 0.001; it diverges at 0.03), 0.03 for the ensemble (of 0.001 to 0.1), 0.0003 for "
    "the MLP (of 0.0001 to 0.01; it diverges from 0.003 on). The rates of the ensemble are those of local-statistics-federated"
)
LOGISTIC_RATES = CHOSEN_ON + (
    "FedAdam: 0.2 for the linear model (of 0.005 to 0.2) and the ensemble (of 0.005 to 0.5), 0.05 for the MLP (of 0.005 and 0.05). "
    "FedSGD: 30 for the linear model (of 0.3 to 30) and the ensemble (of 1 to 30), 1 for the MLP (of 0.1 to 3). FedAvg: 10 for the "
    "linear model (of 0.1 to 10) and the ensemble (of 0.3 to 10), 1 for the MLP (of 0.03 to 1). Most of these are the largest rate "
    "that was tried"
)

STUDIES = (
    Study(
        "local-statistics-federated",
        "The conditional ensemble trained on pooled samples, and federated by FedAdam, FedSGD and FedAvg",
        PAPER,
        {
            "smoke": Scale(_with(FEDERATED, {"rounds": 5}), FEW, COMMON | ENSEMBLE, seeds=(0,), reduced=SMOKE_FEW),
            "small": Scale(FEDERATED, FEW, COMMON | ENSEMBLE, reduced=FEWER),
            "paper": Scale(FEDERATED, {"3 clusters": LINEAR["3 clusters"]}, COMMON | ENSEMBLE),
        },
        FEDERATED_CLAIMS,
        (
            MethodTable("Rmse after the last round", "rmse", last=1, scale=1, digits=4),
            Curves("rmse", "rmse", scale=1),
        ),
        NUMBERS + RATES,
    ),
    _models_study(
        "linear",
        "Linear regression: the three conditional models on pooled samples, and under FedAdam, FedSGD and FedAvg",
        _questions("linear", 0.05, "rmse", "rmse", 1),
        LINEAR_RATES,
        LINEAR,
        MethodTable("Rmse after the last round", "rmse", last=1, scale=1, digits=4),
        Curves("rmse", "rmse", scale=1),
    ),
    _models_study(
        "logistic",
        "Logistic regression: the three conditional models on pooled samples, and under FedAdam, FedSGD and FedAvg",
        _questions("logistic", 1.0, "accuracy", "points of accuracy", 100),
        LOGISTIC_RATES,
        LOGISTIC,
        MethodTable("Accuracy after the last round, %", last=1),
        Curves("accuracy, %"),
    ),
)
