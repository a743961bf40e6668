"""FedLWS with the ResNet-20 and the beta of the paper's table 1: which reading of the rule has the factors of table 12?"""

from __future__ import annotations

from typing import Any

from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.papers.fedlws_settings import (
    ALPHAS,
    BASES,
    CIFAR,
    CIFARS,
    CLAMP,
    CURVES,
    FACTORS,
    FEDERATION,
    PAPER,
    PAPERS_OWN,
    RECORDED,
    RESNET_BETA,
    SMOKE,
    TABLE,
    TOY,
    TOYS,
    WORK,
    Methods,
    helps,
    setting,
    with_lws,
)
from unalike_studies.study import Scale, Study, Variant

PLAIN, CLAMPED, AS_CODE = "LWS as printed", "LWS, clamped", "LWS as in the authors' code"
SHRINKING = f"lws(beta={RESNET_BETA}, {CLAMP}, buffers=True)"
"""As in the authors' code, which counts the buffers of batch normalization as a part of the layer that follows them."""
READINGS: Methods = {
    "FedAvg": "fedavg",
    AS_CODE: f"fedavg + {SHRINKING}",
    PLAIN: f"fedavg + lws(beta={RESNET_BETA})",
    CLAMPED: f"fedavg + lws(beta={RESNET_BETA}, {CLAMP})",
}
SMALL: dict[str, Any] = (
    FEDERATION
    | RECORDED
    | {
        "model": "resnet20",
        "transform": PAPERS_OWN["transform"],
        "rounds": 60,
        "split": 0.9,
        "evaluate_every": 3,
        "precision": "bf16",
        "work": WORK | {"batch_size": 64},
    }
)
REDUCED = (
    "14,400 training images of CIFAR-10 instead of 50,000, and therefore batches of 64 instead of 128: 11 local steps a round; 60 "
    "rounds instead of 200; products in bfloat16"
)
IID = "CIFAR-10, alpha 100"
WHERE = {name: CIFARS[name] for name in (CIFAR, IID)}


def _as_code(*bases: str) -> dict[str, str | Variant]:
    return with_lws({name: BASES[name] for name in bases}, SHRINKING)


ALL_BASES = _as_code(*BASES)
CIFAR100 = "CIFAR-100, alpha 0.5"
HUNDREDS = {f"CIFAR-100, alpha {alpha:g}": setting("cifar100", alpha) for alpha in ALPHAS}
PAPERS_NET = PAPERS_OWN | RECORDED | {"model": "resnet20"}

STUDIES = (
    Study(
        "fedlws-resnet",
        "ResNet-20, beta 0.01: accuracy and factors of three readings of the rule",
        PAPER,
        {
            "smoke": Scale(READINGS, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
            "small": Scale(READINGS, WHERE, SMALL, left_out=frozenset({(PLAIN, IID), (CLAMPED, IID)}), reduced=REDUCED),
            "paper": Scale(READINGS, CIFARS, PAPERS_NET),
        },
        (),
        (TABLE, FACTORS, RecordedCurves("gamma", "gamma"), CURVES),
    ),
    Study(
        "fedlws-resnet-bases",
        "ResNet-20, beta 0.01: FedDyn and FedDisco with and without LWS as in the authors' code, CIFAR-10",
        PAPER,
        {
            "smoke": Scale(_as_code("FedDisco"), TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
            "small": Scale(_as_code("FedDyn", "FedDisco"), {CIFAR: CIFARS[CIFAR]}, SMALL, reduced=REDUCED),
            "paper": Scale(ALL_BASES, CIFARS, PAPERS_NET),
        },
        tuple(helps(base, CIFAR) for base in ("FedDyn", "FedDisco")),
        (TABLE, FACTORS, CURVES),
    ),
    Study(
        "fedlws-resnet-cifar100",
        "ResNet-20, beta 0.01: FedAvg with and without LWS as in the authors' code, CIFAR-100",
        PAPER,
        {
            "smoke": Scale(_as_code("FedAvg"), TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
            "small": Scale(
                _as_code("FedAvg"),
                {CIFAR100: HUNDREDS[CIFAR100]},
                SMALL,
                reduced="9,000 training images of CIFAR-100 instead of 50,000, and therefore batches of 64 instead of 128: 7 local "
                "steps a round; 60 rounds instead of 200; products in bfloat16",
            ),
            "paper": Scale(ALL_BASES, HUNDREDS, PAPERS_NET),
        },
        (helps("FedAvg", CIFAR100),),
        (TABLE, FACTORS, CURVES),
    ),
)
