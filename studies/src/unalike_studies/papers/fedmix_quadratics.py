"""FedMix and FedNova on quadratics: objective inconsistency, and normalization by the momentum series or by steps."""

from __future__ import annotations

from unalike_studies.claim_verdicts import Above, Below, Expectation, Same
from unalike_studies.claims import Claim, gain, identity, question
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
QUADRATICS = {"600 and 9 x 60 samples": {}, "equal samples": {"data": "quadratic(sizes=(60, 60), optima=(10.0, 0.0))"}}
UNEQUAL = "600 and 9 x 60 samples"
QUADRATIC_LAYOUTS = (
    MethodTable("Root of the objective after the last round", "rmse", last=1, scale=1, digits=4),
    Curves("root of the objective", "rmse", scale=1),
)
QUADRATIC_METHODS = METHODS | {"pooled": "centralised"}


def _by_rmse(text: str, method: str, other: str, expects: Expectation) -> Claim:
    """A question of ours about the root of the objective of a method less that of another one."""
    quantity = gain(method, other, UNEQUAL, "rmse", last=1)
    return question(text, quantity, expects, "rmse", scale=1)


QUADRATIC_CLAIMS = (
    _by_rmse(
        "FedAvg settles away from the optimum where clients make unequal numbers of steps (objective inconsistency)",
        "FedAvg",
        "pooled",
        Above(),
    ),
    _by_rmse(
        "FedNova's objective is consistent: it settles nearer to the optimum than FedAvg", "FedNova", "FedAvg", Below()
    ),
    _by_rmse("FedMix settles nearer to the optimum than FedProx", "FedMix", "FedProx", Below()),
)

BY_STEPS = {
    "FedAvg": "fedavg",
    "FedNova, series": "fednova",
    "FedNova, steps": "fednova(normalize_by='steps')",
    "FedMix, series": "fedmix(mu=0.001)",
    "FedMix, steps": "fedmix(mu=0.001, normalize_by='steps')",
}
MOMENTA = {"no momentum": {}, "momentum 0.9": {"work": {"momentum": 0.9, "lr": 0.0001}}}
"""The learning rates are equal: with momentum 0.9 a gradient moves the model ten times as far in the end."""

BY_STEPS_CLAIMS = (
    *(
        identity(
            f"Without momentum {method} by steps is {method} by the series",
            gain(f"{method}, steps", f"{method}, series", "no momentum", "rmse", last=1),
            Same(1e-4),
            "rmse",
            scale=1,
        )
        for method in ("FedNova", "FedMix")
    ),
    *(
        question(
            f"With momentum {method} by steps settles farther from the optimum than by the series",
            gain(f"{method}, steps", f"{method}, series", "momentum 0.9", "rmse", last=1),
            Above(),
            "rmse",
            scale=1,
        )
        for method in ("FedNova", "FedMix")
    ),
    question(
        "With momentum FedNova by steps settles nearer to the optimum than FedAvg",
        gain("FedNova, steps", "FedAvg", "momentum 0.9", "rmse", last=1),
        Below(),
        "rmse",
        scale=1,
    ),
)

STUDIES = (
    Study(
        "fedmix-quadratic",
        "Objective inconsistency on quadratics: where methods settle when one client makes ten times the steps of nine others",
        "Wang et al.: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020",
        {
            "smoke": Scale(
                QUADRATIC_METHODS, QUADRATICS, QUADRATIC | {"rounds": 60}, reduced="60 rounds instead of 300"
            ),
            "small": Scale(QUADRATIC_METHODS, QUADRATICS, QUADRATIC),
            "paper": Scale(QUADRATIC_METHODS, QUADRATICS, QUADRATIC),
        },
        QUADRATIC_CLAIMS,
        QUADRATIC_LAYOUTS,
        "The seed decides the initial weights alone.",
    ),
    Study(
        "fedmix-normalization",
        "FedNova and FedMix normalized by the momentum series, and by steps as FedMix's figure 1 writes, on the quadratics of "
        "fedmix-quadratic",
        PAPER,
        {
            "smoke": Scale(BY_STEPS, MOMENTA, QUADRATIC | {"rounds": 60}, reduced="60 rounds instead of 300"),
            "small": Scale(BY_STEPS, MOMENTA, QUADRATIC),
            "paper": Scale(BY_STEPS, MOMENTA, QUADRATIC),
        },
        BY_STEPS_CLAIMS,
        QUADRATIC_LAYOUTS,
        "The paper's clients train without momentum, where both are the same. The seed decides the initial weights alone.",
    ),
)
