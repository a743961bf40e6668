"""FedLWS with the ResNet-20 and the beta of the paper's table 1: which reading of the rule has the factors of table 12?"""

from __future__ import annotations

from typing import Any

from unalike_studies.layouts.recorded import RecordedCurves, RecordedTable
from unalike_studies.papers.fedlws_settings import (
    CIFARS,
    CURVES,
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
)
from unalike_studies.study import Scale, Study

CLAMP = "clamp=(0.01, 0.2)"
PLAIN, CLAMPED, AS_CODE = "LWS as printed", "LWS, clamped", "LWS as in the authors' code"
READINGS: Methods = {
    "FedAvg": "fedavg",
    AS_CODE: f"fedavg + lws(beta={RESNET_BETA}, {CLAMP}, buffers=True)",
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
WHERE = {name: CIFARS[name] for name in ("CIFAR-10, alpha 0.1", IID)}

STUDIES = (
    Study(
        "fedlws-resnet",
        "ResNet-20, beta 0.01: accuracy and factors of three readings of the rule",
        PAPER,
        {
            "smoke": Scale(READINGS, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
            "small": Scale(READINGS, WHERE, SMALL, left_out=frozenset({(PLAIN, IID), (CLAMPED, IID)}), reduced=REDUCED),
            "paper": Scale(READINGS, CIFARS, PAPERS_OWN | RECORDED | {"model": "resnet20"}),
        },
        (),
        (TABLE, RecordedTable("Factors by layer", "gamma"), RecordedCurves("gamma", "gamma"), CURVES),
    ),
)
