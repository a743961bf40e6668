"""FedMix and FedNova on quadratics: objective inconsistency, and normalization by the momentum series or by steps."""

from dataclasses import replace
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below, Same
from unalike_studies.claims import gain, identity, question
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers.fedmix import METHODS, PAPER
from unalike_studies.study import Scale, Study

QUADRATIC = {
    "data": "quadratic",
    "partition": "natural",
    "model": "linear",
    "rounds": 300,
    "evaluate_every": 20,
    "work": {"batch_size": 10, "lr": 0.001},
    "split": 1.0,
    "merge": False,
    "protocol": "server",
}
UNEQUAL = "600 and 9 x 60 samples"
QUADRATICS: dict[str, Options] = {
    UNEQUAL: {},
    "equal samples": {"data": "quadratic(sizes=(60, 60), optima=(10.0, 0.0))"},
}
QUADRATIC_LAYOUTS = (
    MethodTable("Root of the objective after the last round", "rmse", last=1, scale=1, digits=4),
    Curves("root of the objective", "rmse", scale=1),
)


INCONSISTENCY = "FedAvg settles away from the optimum where clients make unequal numbers of steps (objective inconsistency)"
RMSE: dict[str, Any] = {"unit": "rmse", "scale": 1}
QUADRATIC_CLAIMS = tuple(
    question(text, gain(method, other, UNEQUAL, "rmse", last=1), expects, **RMSE)
    for method, other, expects, text in (
        ("FedAvg", "pooled", Above(), INCONSISTENCY),
        (
            "FedNova",
            "FedAvg",
            Below(),
            "FedNova's objective is consistent: it settles nearer to the optimum than FedAvg",
        ),
        ("FedMix", "FedProx", Below(), "FedMix settles nearer to the optimum than FedProx"),
    )
)

BY_STEPS = {
    "FedAvg": "fedavg",
    "FedNova, series": "fednova",
    "FedNova, steps": "fednova(normalize_by='steps')",
    "FedMix, series": "fedmix(mu=0.001)",
    "FedMix, steps": "fedmix(mu=0.001, normalize_by='steps')",
}
MOMENTA: dict[str, Options] = {
    "no momentum": {},
    "momentum 0.9": {"work": {"momentum": 0.9, "lr": 0.0001}},
}
"""The learning rates are equal: with momentum 0.9 a gradient moves the model ten times as far in the end."""

BY_STEPS_CLAIMS = (
    *(
        identity(
            f"Without momentum {method} by steps is {method} by the series",
            gain(f"{method}, steps", f"{method}, series", "no momentum", "rmse", last=1),
            Same(1e-4),
            **RMSE,
        )
        for method in ("FedNova", "FedMix")
    ),
    *(
        question(
            f"With momentum {method} by steps settles farther from the optimum than by the series",
            gain(f"{method}, steps", f"{method}, series", "momentum 0.9", "rmse", last=1),
            Above(),
            **RMSE,
        )
        for method in ("FedNova", "FedMix")
    ),
    question(
        "With momentum FedNova by steps settles nearer to the optimum than FedAvg",
        gain("FedNova, steps", "FedAvg", "momentum 0.9", "rmse", last=1),
        Below(),
        **RMSE,
    ),
)

ABOUT_SEEDS = "The seed decides the initial weights alone."


def _scales(methods: dict[str, str], settings: dict[str, Options]) -> dict[str, Scale]:
    full = Scale(methods, settings, QUADRATIC)
    few = replace(full, common=QUADRATIC | {"rounds": 60}, reduced="60 rounds instead of 300")
    return {"smoke": few, "small": full, "paper": full}


STUDIES = (
    Study(
        "fedmix-quadratic",
        "Objective inconsistency on quadratics: where methods settle when one client makes ten times the steps of nine others",
        "Wang et al.: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020",
        _scales(METHODS | {"pooled": "centralised"}, QUADRATICS),
        QUADRATIC_CLAIMS,
        QUADRATIC_LAYOUTS,
        ABOUT_SEEDS,
    ),
    Study(
        "fedmix-normalization",
        "FedNova and FedMix normalized by the momentum series, and by steps as FedMix's figure 1 writes, on the quadratics of "
        "fedmix-quadratic",
        PAPER,
        _scales(BY_STEPS, MOMENTA),
        BY_STEPS_CLAIMS,
        QUADRATIC_LAYOUTS,
        f"The paper's clients train without momentum, where both are the same. {ABOUT_SEEDS}",
    ),
)
