"""FedLWS in the paper's networks, with its betas, where it prints its largest gains: ResNet-20, Fashion-MNIST and news."""

from __future__ import annotations

from typing import Any

from unalike_studies.cells import Options, merged
from unalike_studies.claim_verdicts import Near
from unalike_studies.claims import Claim, question
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.papers.fedlws_factors import BOUND, bound_claim, factor_claims, mean_factor, printed_factor
from unalike_studies.papers.fedlws_settings import (
    AS_CODE,
    BASES,
    CIFAR,
    CIFARS,
    CLAMP,
    CURVES,
    FACTORS,
    FASHION,
    FASHIONS,
    FEDERATION,
    HUNDREDS,
    IMAGES,
    LAW,
    LWS,
    PAPER,
    PAPERS_OWN,
    RECORDED,
    RESNET,
    RESNET_BETA,
    SMOKE,
    TABLE,
    TOY,
    TOYS,
    WITH,
    WORK,
    Methods,
    better,
    gained,
    helps,
    lws,
    setting,
    with_lws,
)
from unalike_studies.published import Printed
from unalike_studies.study import Scale, Study, Variant

PLAIN, CLAMPED, CODE = "LWS as printed", "LWS, clamped", "LWS as in the authors' code"
READINGS: Methods = {
    "FedAvg": "fedavg",
    CODE: lws("fedavg", RESNET_BETA, **AS_CODE),
    PLAIN: lws("fedavg", RESNET_BETA),
    CLAMPED: lws("fedavg", RESNET_BETA, **CLAMP),
}
SHRINKING: Methods = {name: spec for name, spec in READINGS.items() if name != "FedAvg"}
CONVOLUTIONS = ("conv", "stem.0", "shortcut.0", "running_mean")
"""Parts of the names of layers. With buffers a layer is named by those before it; the last of them belong to the classifier."""
MARGIN = "The margin of the factors is the deviation of table 12."
FIRST = {"rounds": 4, "evaluate_every": 1}
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
    "14,400 training images of CIFAR-10 for 50,000, and therefore batches of 64 where the authors' code has 128: 11 local steps a "
    "round; 60 rounds where it has 200; products in bfloat16"
)
IID = "CIFAR-10, alpha 100"
WHERE = {name: CIFARS[name] for name in (CIFAR, IID)}
WITHOUT = frozenset({(PLAIN, IID), (CLAMPED, IID)})


def _as_code(*bases: str) -> dict[str, str | Variant]:
    return with_lws({name: BASES[name] for name in bases}, RESNET_BETA, **AS_CODE)


ALL_BASES = _as_code(*BASES)
CIFAR100 = "CIFAR-100, alpha 0.5"
PAPERS_NET = PAPERS_OWN | RECORDED | RESNET

WITH_CLAMPED = f"{WITH}, clamped"
"""Ending of the label of a method with beta tau bounded, as in the authors' code."""

FASHION_BASES = {name: BASES[name] for name in ("L-DAWA", "FedAvg")}
FASHION_METHODS = with_lws(FASHION_BASES)
FASHION_METHODS |= {name + WITH_CLAMPED: lws(spec, **CLAMP) for name, spec in FASHION_BASES.items()} | {"FedLAW": LAW}


def _gain(base: str) -> Printed:
    return gained("1", base + WITH, base, FASHION)


FASHION_OWN: dict[str, Any] = merged(
    FEDERATION, RECORDED, IMAGES, {"rounds": 48, "split": 1.0, "evaluate_every": 3, "work": WORK}
)
FASHION_STUDY = Study(
    "fedlws-fashion",
    "Fashion-MNIST at Dir(0.1), all images, the paper's CNN: FedAvg and L-DAWA with and without LWS",
    PAPER,
    {
        "smoke": Scale(FASHION_METHODS, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            FASHION_METHODS,
            {FASHION: FASHIONS[FASHION]},
            FASHION_OWN,
            reduced="48 rounds where the authors' code has 200",
        ),
        "paper": Scale(FASHION_METHODS | with_lws(BASES), FASHIONS, PAPERS_OWN | RECORDED),
    },
    (
        *(helps(base, FASHION) for base in FASHION_BASES),
        *(
            better(f"Clamped LWS makes {base} better, {FASHION}", base + WITH_CLAMPED, base, _gain(base), FASHION)
            for base in FASHION_BASES
        ),
        better(
            f"FedAvg with LWS, which needs no proxy samples, is better than FedLAW, {FASHION}",
            LWS,
            "FedLAW",
            gained("1", LWS, "FedLAW", FASHION),
            FASHION,
        ),
    ),
    (TABLE, FACTORS, CURVES),
)

NEWS = "AG News, alpha 0.1"
NEWS_METHODS = with_lws({name: BASES[name] for name in ("FedProx", "FedAvg")})
SHORT_NEWS: dict[str, Options] = {
    NEWS: setting(
        "ag_news(length=32, vocabulary=5000)", 0.1, model="textcnn(vocabulary=5000, embedding=64, filters=50)"
    )
}
NEWS_OWN: dict[str, Any] = merged(
    FEDERATION, RECORDED, {"rounds": 16, "split": 1.0, "evaluate_every": 2, "work": WORK | {"batch_size": 32}}
)
NEWS_STUDY = Study(
    "fedlws-news",
    "AG News at Dir(0.1), 24,400 news: FedAvg and FedProx with and without LWS",
    PAPER,
    {
        "smoke": Scale(NEWS_METHODS, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            NEWS_METHODS,
            SHORT_NEWS,
            NEWS_OWN,
            reduced="24,400 news instead of 120,000, and therefore batches of 32; 32 words of each, out of 5,000; a TextCNN "
            "with 64 numbers a word and 50 filters a width; 16 rounds, after which FedProx with LWS has 78 %",
        ),
        "paper": Scale(
            NEWS_METHODS,
            {f"AG News, alpha {alpha:g}": setting("ag_news", alpha, model="textcnn") for alpha in (0.5, 0.1)},
            {name: value for name, value in (PAPERS_OWN | RECORDED).items() if name not in IMAGES},
        ),
    },
    tuple(helps(base, NEWS, gained("2", base + WITH, base, NEWS)) for base in ("FedAvg", "FedProx")),
    (TABLE, FACTORS, CURVES),
)

STUDIES = (
    Study(
        "fedlws-resnet",
        "ResNet-20, beta 0.01: accuracy and factors of three readings of the rule",
        PAPER,
        {
            "smoke": Scale(READINGS, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
            "small": Scale(READINGS, WHERE, SMALL, left_out=WITHOUT, reduced=REDUCED),
            "paper": Scale(READINGS, CIFARS, PAPERS_NET),
        },
        (
            *(
                Claim(
                    f"The mean factor of the convolutions is the printed one, {reading}, {CIFAR}",
                    mean_factor(reading, CIFAR, *CONVOLUTIONS),
                    Near(margin=0.026),
                    printed_factor("ResNet20, convolutions"),
                    "factor",
                    1,
                )
                for reading in SHRINKING
            ),
            *(
                better(
                    f"{reading} makes FedAvg better, {where}",
                    reading,
                    "FedAvg",
                    gained("1", LWS, "FedAvg", where),
                    where,
                )
                for where in WHERE
                for reading in SHRINKING
                if (reading, where) not in WITHOUT
            ),
            *factor_claims(CODE, CIFAR),
            bound_claim(PLAIN, CIFAR),
        ),
        (TABLE, FACTORS, RecordedCurves("gamma", "gamma"), BOUND, CURVES),
        f"{MARGIN} The paper's text has neither the bounds of beta tau nor buffers inside the norms; its code has both. "
        "Of the buffers the counters of batches weigh most: they grow by as much in every round, so that the factors tend to 1 as "
        "the rounds go on.",
    ),
    Study(
        "fedlws-resnet-start",
        "ResNet-20, beta 0.01: the factors of the first four rounds by three readings of the rule",
        PAPER,
        {
            "smoke": Scale(SHRINKING, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
            "small": Scale(
                SHRINKING, {CIFAR: CIFARS[CIFAR]}, SMALL | FIRST, reduced=REDUCED.replace("60 rounds", "4 rounds")
            ),
            "paper": Scale(SHRINKING, {CIFAR: CIFARS[CIFAR]}, PAPERS_NET | FIRST),
        },
        tuple(
            question(
                f"The mean factor of the convolutions over four rounds is the 0.92 of table 12, {reading}",
                mean_factor(reading, CIFAR, *CONVOLUTIONS),
                Near(0.92, 0.026),
                "factor",
                1,
            )
            for reading in SHRINKING
        ),
        (FACTORS, RecordedCurves("gamma", "gamma")),
        f"{MARGIN} The paper does not say over which rounds its means are taken.",
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
                reduced="9,000 training images of CIFAR-100 for 50,000, and therefore batches of 64 where the authors' code has "
                "128: 7 local steps a round; 60 rounds where it has 200; products in bfloat16",
            ),
            "paper": Scale(ALL_BASES, HUNDREDS, PAPERS_NET),
        },
        (helps("FedAvg", CIFAR100),),
        (TABLE, FACTORS, CURVES),
    ),
    FASHION_STUDY,
    NEWS_STUDY,
)
