"""FedLWS: tables 2 to 12 of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below
from unalike_studies.claims import Claim, difference, recorded_mean
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.papers.fedlws_settings import (
    AWD,
    BASES,
    BEATS_AWD,
    BEATS_ONE_TERM,
    CIFAR,
    CIFARS,
    CURVES,
    FASHIONS,
    FEDERATION,
    LAW,
    LONGER_RUNS,
    LWS,
    NARROW,
    NUMBERS,
    ONLY_STEP,
    PAIR,
    PAPER,
    PAPERS_OWN,
    RECORDED,
    REDUCED,
    RESNET_BETA,
    RIVALS,
    SMALL,
    SMOKE,
    STATED,
    TABLE,
    TOY,
    TOYS,
    Methods,
    better,
    helps,
    setting,
    with_lws,
)
from unalike_studies.study import Layout, Scale, Study, Variant


def _on_cifar(
    name: str,
    title: str,
    methods: Methods,
    claims: tuple[Claim, ...],
    *,
    options: Options | None = None,
    layouts: tuple[Layout, ...] = (TABLE, CURVES),
    notes: str = "",
    settings: Mapping[str, Options] = {CIFAR: CIFARS[CIFAR]},
) -> Study:
    """A study of methods on CIFAR-10 at Dir(0.1); at full scale on Fashion-MNIST and at other alphas, too."""
    more = dict(options or {})
    full = {**CIFARS, **FASHIONS} if settings == {CIFAR: CIFARS[CIFAR]} else settings
    return Study(
        name,
        title,
        PAPER,
        {
            "smoke": Scale(methods, TOYS, {**TOY, **more}, seeds=(0,), reduced=SMOKE),
            "small": Scale(methods, settings, {**SMALL, **more}, reduced=REDUCED),
            "paper": Scale(methods, full, {**PAPERS_OWN, **more}),
        },
        claims,
        layouts,
        " ".join(text for text in (NUMBERS, notes) if text),
    )


AG, AMAZON = "AG News, alpha 0.1", "Amazon, by domain"
BAG: dict[str, Any] = {"data": "amazon_reviews(features=5000)", "partition": "domains", "model": "mlp(hidden=64)"}
TEXTS: dict[str, Options] = {
    AG: setting("ag_news", 0.1, model="textcnn"),
    AMAZON: BAG,
    "Sogou News, alpha 0.1": setting("sogou_news", 0.1, model="textcnn"),
}
SMALL_TEXTS: dict[str, Options] = {
    AG: setting(
        "ag_news(length=32, vocabulary=5000)",
        0.1,
        model="textcnn(vocabulary=5000, embedding=64, filters=50)",
        split=0.1,
    ),
    AMAZON: BAG | {"data": "amazon_reviews(features=1000)", "split": 0.5},
}
WITHOUT_IMAGES = {name: value for name, value in SMALL.items() if name not in ("model", "transform")}

TABLE2 = Study(
    "fedlws-table2",
    "Text: accuracy of methods with and without LWS on news and on reviews by domain",
    PAPER,
    {
        "smoke": Scale(PAIR, TOYS, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            PAIR,
            SMALL_TEXTS,
            WITHOUT_IMAGES | {"rounds": 30},
            reduced="FedAvg alone; 2,440 news of 32 words with a small TextCNN, 4,000 reviews of 1,000 words; 30 rounds instead of "
            "200; no Sogou News",
        ),
        "paper": Scale(
            with_lws(BASES), TEXTS, {n: v for n, v in PAPERS_OWN.items() if n not in ("model", "transform")}
        ),
    },
    tuple(helps("FedAvg", where) for where in (AG, AMAZON)),
    (TABLE, CURVES),
    NUMBERS + " The paper gives no number of clients for the reviews: here 20, five for each domain.",
)

SERVERS: dict[str, str | Variant] = {"FedAvg": "fedavg", "FedLAW": "fedlaw(epochs=20)", LWS: "fedavg + lws(beta=0.1)"}
MODELS = {"CNN": "cnn", "ResNet-20": "resnet20", "ViT": "vit", "WRN56-4": "wrn56_4", "DenseNet-121": "densenet121"}
TIMED: dict[str, Any] = FEDERATION | {
    "data": "glyphs(train=400, test=992)",
    "partition": "iid",
    "proxy": 0.0625,
    "rounds": 3,
    "evaluate_every": 3,
    "record": "time",
    "work": {"batch_size": 20, "lr": 0.01},
}


def _architectures(*names: str) -> dict[str, Options]:
    return {name: {"model": MODELS[name]} for name in names}


TABLE3 = Study(
    "fedlws-table3",
    "Seconds of aggregation and server step in a round by architecture: FedAvg, FedLAW, FedLWS",
    PAPER,
    {
        "smoke": Scale(SERVERS, {"MLP": {"model": "mlp(hidden=32)"}}, TIMED, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            SERVERS,
            _architectures("CNN", "ResNet-20", "ViT"),
            TIMED,
            reduced="3 rounds; no WRN56-4 and DenseNet-121; FedLAW makes 20 server epochs on 62 samples instead of 100 on 200",
        ),
        "paper": Scale(SERVERS | {"FedLAW": LAW}, _architectures(*MODELS), TIMED | {"proxy": 0.02, "data": "cifar10"}),
    },
    tuple(
        Claim(
            text,
            difference(
                recorded_mean(LWS, where, "aggregation_seconds"), recorded_mean(other, where, "aggregation_seconds")
            ),
            expects,
            unit="seconds",
            scale=1,
            remark=STATED,
        )
        for where in ("CNN", "ResNet-20", "ViT")
        for text, other, expects in (
            (f"LWS takes less time on the server than FedLAW, {where}", "FedLAW", Below()),
            (f"LWS takes more time on the server than FedAvg, {where}", "FedAvg", Above()),
        )
    ),
    (RecordedCurves("seconds of aggregation", "aggregation_seconds"),),
    NUMBERS
    + " The images do not matter to the time of the server, but to FedLAW's, which trains on its proxy samples.",
)

SCOPES: Methods = PAIR | {
    f"{LWS}, model-wise": "fedavg + lws(beta=0.1, scope='model')",
    f"{LWS}, by tensor": "fedavg + lws(beta=0.1, scope='tensor')",
}
TABLE4 = _on_cifar(
    "fedlws-table4",
    "Layer-wise, tensor-wise and model-wise shrinking",
    SCOPES,
    (
        better("Layer-wise shrinking is better than model-wise shrinking", LWS, f"{LWS}, model-wise", CIFAR, STATED),
        better("Model-wise shrinking is better than none", f"{LWS}, model-wise", "FedAvg", CIFAR, STATED),
    ),
)

RESNET_LWS = f"{LWS}, beta {RESNET_BETA:g}"
BUILT: Methods = PAIR | {RESNET_LWS: f"fedavg + lws(beta={RESNET_BETA})"}
NETS = {"CNN": {LWS, "FedAvg"}} | {name: {RESNET_LWS, "FedAvg"} for name in MODELS if name != "CNN"}


def _nets(*names: str) -> dict[str, Any]:
    """The settings of architectures, and the pairs without a cell: beta is 0.1 for the CNN and 0.01 for the others."""
    return {
        "settings": {name: {**CIFARS[CIFAR], "model": MODELS[name]} for name in names},
        "left_out": frozenset((method, name) for method, name in product(BUILT, names) if method not in NETS[name]),
    }


TABLE5 = Study(
    "fedlws-table5",
    "Architectures: FedAvg with and without LWS",
    PAPER,
    {
        "smoke": Scale(BUILT, TOYS, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            BUILT,
            common=SMALL | {"rounds": 15, "split": 0.125},
            reduced="2,000 training images of CIFAR-10, 15 rounds instead of 200, CNN and ResNet-20 only: far from the end of "
            "training",
            **_nets("CNN", "ResNet-20"),
        ),
        "paper": Scale(BUILT, common=PAPERS_OWN, **_nets(*MODELS)),
    },
    (
        better("LWS makes FedAvg better, CNN", LWS, "FedAvg", "CNN", STATED),
        better("LWS makes FedAvg better, ResNet-20", RESNET_LWS, "FedAvg", "ResNet-20", STATED),
    ),
    (TABLE, CURVES),
    NUMBERS,
)

TABLE6 = _on_cifar(
    "fedlws-table6",
    "Adaptive weight decay on the server: AWD and AdaDecay against LWS",
    PAIR | {AWD: RIVALS[AWD], "FedAvg + AdaDecay": "fedavg + adadecay(lam=0.0005)"},
    (
        BEATS_AWD,
        better("LWS is better than AdaDecay", LWS, "FedAvg + AdaDecay", CIFAR, STATED),
    ),
    notes="AWD and AdaDecay on the server are our adaptation; no code of the paper's was public." + LONGER_RUNS,
)

LONG_TAIL = "FedLAW, long-tailed proxy"
TABLE7 = _on_cifar(
    "fedlws-table7",
    "FedLAW with balanced and with long-tailed proxy samples, and LWS, which needs none",
    {"FedLAW": LAW, LONG_TAIL: Variant(LAW, {"proxy_imbalance": 10.0}), LWS: PAIR[LWS]},
    (
        better("A long tail of its proxy samples makes FedLAW worse", "FedLAW", LONG_TAIL, CIFAR, STATED),
        better("LWS is better than FedLAW with long-tailed proxy samples", LWS, LONG_TAIL, CIFAR, STATED),
    ),
    notes="The largest class has ten times as many proxy samples as the smallest; the paper's ratio was not at hand.",
)

DISCO = BASES["FedDisco"]
DISCO_MODEL = "FedDisco + LWS, model-wise"
TABLE8 = _on_cifar(
    "fedlws-table8",
    "Model-wise LWS against FedLAW, on FedDisco's weights",
    {
        "FedAvg": "fedavg",
        "FedDisco": DISCO,
        "FedLAW": LAW,
        DISCO_MODEL: f"{DISCO} + lws(beta=0.1, scope='model')",
        "FedDisco + LWS": f"{DISCO} + lws(beta=0.1)",
    },
    (
        better("Model-wise LWS makes FedDisco better", DISCO_MODEL, "FedDisco", CIFAR, STATED),
        better("Model-wise LWS on FedDisco is better than FedLAW", DISCO_MODEL, "FedLAW", CIFAR, STATED),
    ),
    notes="The paper's table shows FedDisco as its base (66.91), not FedAvg (64.08).",
)

TABLE9 = _on_cifar(
    "fedlws-table9",
    "A pretrained start: FedAvg with and without LWS from a model trained on samples that no client has",
    PAIR,
    (helps("FedAvg", CIFAR),),
    options={"pretrain": {"share": 0.25, "epochs": 5}},
    notes="The start is trained for five epochs on a quarter of the training samples; the paper's start was not at hand.",
)

ONLY_SHRINKING = f"{LWS}, only the regularization term"
TABLE10 = _on_cifar(
    "fedlws-table10",
    "One term of shrinking alone: regularization, or the shorter step",
    PAIR | {ONLY_SHRINKING: "fedavg + lws(beta=0.1, mode='only_reg')", ONLY_STEP: RIVALS[ONLY_STEP]},
    (
        better("Both terms are better than only the regularization term", LWS, ONLY_SHRINKING, CIFAR, STATED),
        BEATS_ONE_TERM,
    ),
    notes="The paper gives no formulas for one term alone: w^ - (1 - gamma) w, and w + gamma (w^ - w)." + LONGER_RUNS,
)

FIXED = "FedAvg, factors 1 - 0.01 l"
TABLE11 = _on_cifar(
    "fedlws-table11",
    "Fixed factors: 1 - 0.01 l for layer l, and one constant factor for the model",
    PAIR | {FIXED: "fedavg + fixed_shrink(step=0.01)", "factor 0.98": "fedavg + fixed_shrink(step=0, first=0.98)"},
    (
        better("LWS is better than fixed factors by layer", LWS, FIXED, CIFAR, STATED),
        better("LWS is better than one constant factor", LWS, "factor 0.98", CIFAR, STATED),
    ),
)

TYPES: dict[str, Options] = {
    "MLP": {**CIFARS[CIFAR], "model": "mlp(hidden=(64, 64))"},
    "convolutions": {**CIFARS[CIFAR], "model": "cnn"},
    "attention": {**CIFARS[CIFAR], "model": "vit"},
}
SMALL_TYPES: dict[str, Options] = TYPES | {
    "convolutions": {**CIFARS[CIFAR], "model": NARROW},
    "attention": {**CIFARS[CIFAR], "model": "vit(patch=8, width=48, depth=2, heads=2)"},
}
TABLE12 = Study(
    "fedlws-table12",
    "The factors of LWS by type of layer: linear layers, convolutions, attention",
    PAPER,
    {
        "smoke": Scale({LWS: PAIR[LWS]}, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            {LWS: PAIR[LWS]},
            SMALL_TYPES,
            SMALL | RECORDED,
            reduced=f"{REDUCED}; a transformer of two blocks for patches of 8 x 8",
        ),
        "paper": Scale({LWS: PAIR[LWS]}, TYPES, PAPERS_OWN | RECORDED),
    },
    (),
    (RecordedCurves("gamma", "gamma"), RecordedCurves("tau", "tau")),
    NUMBERS,
)

STUDIES = (
    *(TABLE2, TABLE3, TABLE4, TABLE5, TABLE6, TABLE7),
    *(TABLE8, TABLE9, TABLE10, TABLE11, TABLE12),
)
