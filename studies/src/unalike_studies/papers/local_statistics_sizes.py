"""Conditioning on local statistics: other numbers of points, features, clients and clusters than those of the tables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Same
from unalike_studies.claims import OURS, Claim, gain
from unalike_studies.layouts.sweeps import Sweep
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers.local_statistics import (
    ADAM,
    COMMON,
    CONDITIONED,
    ENSEMBLE,
    FULL_BATCH,
    IN_THE_TEXT,
    PAPER,
)
from unalike_studies.study import Scale, Study, Variant

MIDDLE: Mapping[str, int] = {"clusters": 3, "points": 100, "features": 10, "clients": 20}
"""The setting that all sweeps share; clients are those of one cluster."""
SWEPT: Mapping[str, tuple[int, ...]] = {
    "points": (25, 50, 400),
    "features": (5, 20),
    "clients": (5, 50),
    "clusters": (2, 5, 8, 16),
}
LOGISTIC_POINTS = (25, 400)


def _label(**changed: int) -> str:
    """The sizes, without the number of clusters where it is that of all other sweeps."""
    sizes = {**MIDDLE, **changed}
    if "clusters" not in changed:
        del sizes["clusters"]
    return ", ".join(f"{count} {name}" for name, count in sizes.items())


def _setting(task: str, **changed: int) -> Options:
    counts = {**MIDDLE, **changed}
    sizes = ", ".join(f"{name}={count}" for name, count in counts.items())
    return {"data": f"{task}_clusters({sizes}, seed={{seed}})"}


def _changes(parameter: str, values: tuple[int, ...]) -> list[dict[str, int]]:
    """The changes to `MIDDLE` of a sweep, which begins with none."""
    return [{}, *({parameter: value} for value in values)]


def _at(parameter: str, values: tuple[int, ...]) -> dict[str, float]:
    """Setting -> the value of the parameter, for the settings of its sweep."""
    value_at = {}
    for changed in _changes(parameter, values):
        value_at[_label(**changed)] = float(changed.get(parameter, MIDDLE[parameter]))
    return dict(sorted(value_at.items(), key=lambda item: item[1]))


SETTINGS: dict[str, Options] = {
    _label(**changed): _setting("linear", **changed)
    for name, values in SWEPT.items()
    for changed in _changes(name, values)
}
LOGISTIC_SETTINGS: dict[str, Options] = {
    _label(**changed): _setting("logistic", **changed)
    for changed in _changes("points", LOGISTIC_POINTS)
}
ENSEMBLES = "conditional ensemble"
ABOUT_FEDADAM = (_label(clusters=8), _label(clusters=16))
"""Settings with as many clusters as the ensemble has models, or more: FedAdam ends in a local optimum there, and the printed
training does not (table 3), so that the ensemble's rmse says nothing of the paper."""
POINTS = [_label(points=25), _label(), _label(points=400)]
METHODS: dict[str, str | Variant] = {
    "client": Variant("local_only", {"model": "linear", "protocol": "personal"}),
    "cluster": Variant(f"cluster_oracle(method='{ADAM}')", {"model": "linear"}),
    ENSEMBLES: Variant(f"{ADAM} + {CONDITIONED}", ENSEMBLE),
}


def _scales(settings: dict[str, Options]) -> dict[str, Scale]:
    full = Scale(METHODS, settings, COMMON | FULL_BATCH)
    return {
        "smoke": replace(
            full,
            common=COMMON | FULL_BATCH | {"rounds": 5},
            seeds=(0,),
            reduced="5 rounds instead of 1200: shows that the study runs, nothing else",
        ),
        "small": replace(
            full,
            reduced="20 clients a cluster instead of 100 where clients are not swept; the ensemble is trained by FedAdam on full "
            "batches instead of AdamW on pooled samples, whose number of steps would change with the sizes",
            unlike="FedAdam at 0.05, which ends in a local optimum with eight clusters, where the printed training does not",
        ),
        "paper": full,
    }


RMSE: dict[str, Any] = {"unit": "rmse", "scale": 1}
CLAIMS = tuple(
    Claim(
        f"{text}: {setting}",
        gain(method, other, setting, "rmse", last=1),
        expects,
        source=OURS if setting in ABOUT_FEDADAM else "",
        **RMSE,
    )
    for text, method, other, expects, settings in (
        (
            "The conditional ensemble is as good as the cluster oracle",
            ENSEMBLES,
            "cluster",
            Same(0.02),
            list(SETTINGS),
        ),
        (
            "Each client alone is worse than the conditional ensemble",
            "client",
            ENSEMBLES,
            Above(),
            POINTS,
        ),
    )
    for setting in settings
)
LOGISTIC_CLAIMS = tuple(
    Claim(f"{text}: {setting}", gain(method, other, setting, last=1), expects)
    for text, method, other, expects in (
        (
            "The conditional ensemble is as good as the cluster oracle",
            ENSEMBLES,
            "cluster",
            Same(1.0),
        ),
        ("The conditional ensemble is better than each client alone", ENSEMBLES, "client", Above()),
    )
    for setting in LOGISTIC_SETTINGS
)

STUDIES = (
    Study(
        "local-statistics-sizes",
        "Linear regression with other numbers of points, features, clients and clusters",
        PAPER,
        _scales(SETTINGS),
        CLAIMS,
        (
            MethodTable("Rmse after the last round", "rmse", last=1, scale=1, digits=4),
            *(
                Sweep(
                    "rmse",
                    name,
                    _at(name, values),
                    "rmse",
                    last=1,
                    scale=1,
                    log=True,
                    name=f"sweep-{name}",
                )
                for name, values in SWEPT.items()
            ),
        ),
        f"{IN_THE_TEXT}. The ensemble has eight linear models for any number of clusters.",
    ),
    Study(
        "local-statistics-sizes-logistic",
        "Logistic regression on three clusters with other numbers of points",
        PAPER,
        _scales(LOGISTIC_SETTINGS),
        LOGISTIC_CLAIMS,
        (
            MethodTable("Accuracy after the last round, %", last=1),
            Sweep(
                "accuracy, %",
                "points",
                _at("points", LOGISTIC_POINTS),
                last=1,
                log=True,
                name="sweep-points",
            ),
        ),
        IN_THE_TEXT,
    ),
)
