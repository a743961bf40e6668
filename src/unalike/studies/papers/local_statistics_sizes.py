"""Conditioning on local statistics: other numbers of points, features and clients than those of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unalike.studies.cells import Options
from unalike.studies.claims import Claim, gain
from unalike.studies.layouts.figures import Sweep
from unalike.studies.layouts.tables import MethodTable
from unalike.studies.papers.local_statistics import ADAM, COMMON, CONDITIONED, ENSEMBLE, FULL_BATCH, NUMBERS, PAPER
from unalike.studies.study import Scale, Study, Variant
from unalike.studies.verdicts import Above, Same

MIDDLE: Mapping[str, int] = {"points": 100, "features": 10, "clients": 20}
"""The setting that all sweeps share; clients are those of one cluster, of which there are three."""
SWEPT: Mapping[str, tuple[int, ...]] = {"points": (25, 50, 400), "features": (5, 20), "clients": (5, 50)}


def _label(**changed: int) -> str:
    return ", ".join(f"{count} {name}" for name, count in {**MIDDLE, **changed}.items())


def _setting(**changed: int) -> Options:
    sizes = ", ".join(f"{name}={count}" for name, count in {**MIDDLE, **changed}.items())
    return {"data": f"linear_clusters(clusters=3, {sizes}, seed={{seed}})"}


def _at(parameter: str) -> dict[str, float]:
    """Setting -> the value of the parameter, for the settings of its sweep."""
    return {_label(**{parameter: n}): float(n) for n in sorted({MIDDLE[parameter], *SWEPT[parameter]})}


SETTINGS: dict[str, Options] = {_label(): _setting()} | {
    _label(**{name: count}): _setting(**{name: count}) for name, counts in SWEPT.items() for count in counts
}
METHODS: dict[str, str | Variant] = {
    "client": Variant("local_only", {"model": "linear", "protocol": "personal"}),
    "cluster": Variant(f"cluster_oracle(method='{ADAM}')", {"model": "linear"}),
    "conditional ensemble": Variant(f"{ADAM} + {CONDITIONED}", ENSEMBLE),
}


def _scale(methods: dict[str, str | Variant], training: dict[str, Any], **more: Any) -> Scale:
    return Scale(methods, SETTINGS, COMMON | training, **more)


CLAIMS = (
    *(
        Claim(
            f"The conditional ensemble is as good as the cluster oracle: {setting}",
            gain("conditional ensemble", "cluster", setting, "rmse", last=1),
            Same(0.02),
            unit="rmse",
            scale=1,
        )
        for setting in SETTINGS
    ),
    *(
        Claim(
            f"Each client alone is worse than the conditional ensemble: {setting}",
            gain("client", "conditional ensemble", setting, "rmse", last=1),
            Above(),
            unit="rmse",
            scale=1,
        )
        for setting in (_label(points=25), _label(), _label(points=400))
    ),
)

STUDIES = (
    Study(
        "local-statistics-sizes",
        "Linear regression on three clusters with other numbers of points, features and clients",
        PAPER,
        {
            "smoke": _scale(METHODS, FULL_BATCH | {"rounds": 5}, seeds=(0,), reduced="5 rounds instead of 1200"),
            "small": _scale(
                METHODS,
                FULL_BATCH,
                reduced="20 clients a cluster instead of 100 where clients are not swept; the ensemble is trained by FedAdam on "
                "full batches instead of AdamW on pooled samples, whose number of steps would change with the sizes",
            ),
            "paper": _scale(METHODS, FULL_BATCH),
        },
        CLAIMS,
        (
            MethodTable("Rmse after the last round", "rmse", last=1, scale=1, digits=4),
            *(
                Sweep("rmse", name, _at(name), "rmse", last=1, scale=1, log=True, name=f"sweep-{name}")
                for name in SWEPT
            ),
        ),
        NUMBERS,
    ),
)
