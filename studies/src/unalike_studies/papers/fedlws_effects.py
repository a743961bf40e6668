"""FedLWS where the paper prints its largest gains: Fashion-MNIST with its CNN and all images, and news with FedProx."""

from __future__ import annotations

from typing import Any

from unalike_studies.cells import Options, merged
from unalike_studies.papers.fedlws_settings import (
    BASES,
    CLAMP,
    CURVES,
    FACTORS,
    FASHION,
    FASHIONS,
    FEDERATION,
    IMAGES,
    LAW,
    LWS,
    PAPER,
    PAPERS_OWN,
    RECORDED,
    SMOKE,
    TABLE,
    TOY,
    TOYS,
    WITH,
    WORK,
    better,
    gained,
    helps,
    lws,
    setting,
    with_lws,
)
from unalike_studies.published import Printed
from unalike_studies.study import Scale, Study

CLAMPED = f"{WITH}, clamped"
"""Ending of a method with beta tau bounded, as in the authors' code."""

FASHION_BASES = {name: BASES[name] for name in ("L-DAWA", "FedAvg")}
FASHION_METHODS = with_lws(FASHION_BASES)
FASHION_METHODS |= {name + CLAMPED: lws(spec, **CLAMP) for name, spec in FASHION_BASES.items()} | {"FedLAW": LAW}


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
            better(f"Clamped LWS makes {base} better, {FASHION}", base + CLAMPED, base, _gain(base), FASHION)
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

STUDIES = (FASHION_STUDY, NEWS_STUDY)
