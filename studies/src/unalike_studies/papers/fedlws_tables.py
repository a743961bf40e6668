"""FedLWS: tables 2 to 12 of the paper."""

from __future__ import annotations

from collections.abc import Callable
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
    CNN_BETA,
    CURVES,
    FEDERATION,
    FIXED,
    FIXED_GAMMA,
    FIXED_HELPS,
    LAW,
    LONGER_RUNS,
    LWS,
    ONLY_STEP,
    PAIR,
    PAPER,
    PAPERS_OWN,
    REDUCED,
    RESNET,
    RESNET_BETA,
    SMALL,
    SMOKE,
    TABLE,
    TOY,
    TOYS,
    UNLIKE,
    WITH_CNN,
    Methods,
    better,
    by_alpha,
    gained,
    helps,
    in_table,
    is_better,
    lws,
    pair,
    rivals,
    setting,
    with_lws,
)
from unalike_studies.published import Printed, printed
from unalike_studies.study import Scale, Study, Variant


def _on_cifar(
    name: str,
    title: str,
    methods: Callable[[float], Methods],
    claims: tuple[Claim, ...],
    *,
    alphas: tuple[float, ...] = (100, 0.1),
    beta: float = RESNET_BETA,
    options: Options | None = None,
    notes: str = "",
) -> Study:
    """A study on CIFAR-10 at Dir(0.1) with the narrow CNN; at full scale on both CIFARs with ResNet-20, or for CNN_BETA the CNN.

    `methods` gives the methods for a beta.
    """
    more = dict(options or {})
    full = by_alpha("cifar10", "CIFAR-10", alphas) | by_alpha("cifar100", "CIFAR-100", alphas)
    network = RESNET if beta == RESNET_BETA else {}
    return Study(
        name,
        title,
        PAPER,
        {
            "smoke": Scale(methods(CNN_BETA), TOYS, {**TOY, **more}, seeds=(0,), reduced=SMOKE),
            "small": Scale(
                methods(CNN_BETA), {CIFAR: CIFARS[CIFAR]}, {**SMALL, **more}, reduced=REDUCED, unlike=UNLIKE
            ),
            "paper": Scale(methods(beta), full, {**PAPERS_OWN, **network, **more}),
        },
        claims,
        (TABLE, CURVES),
        notes,
    )


AG, AMAZON = "AG News, alpha 0.1", "Amazon, by domain"
BAG: dict[str, Any] = {"data": "amazon_reviews(features=5000)", "partition": "domains", "model": "mlp(hidden=64)"}
TEXTS: dict[str, Options] = {
    AG: setting("ag_news", 0.1, model="textcnn"),
    AMAZON: BAG,
    "AG News, alpha 0.5": setting("ag_news", 0.5, model="textcnn"),
    **{f"Sogou News, alpha {alpha:g}": setting("sogou_news", alpha, model="textcnn") for alpha in (0.5, 0.1)},
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
            unlike="AG News: FedAvg reaches 43 % where the paper's has 73 %",
        ),
        "paper": Scale(
            with_lws(BASES), TEXTS, {n: v for n, v in PAPERS_OWN.items() if n not in ("model", "transform")}
        ),
    },
    (
        helps("FedAvg", AG, gained("2", LWS, "FedAvg", AG)),
        helps(
            "FedAvg",
            AMAZON,
            printed("fedlws", "2", "FedAvg+LWS", "Amazon Review") - printed("fedlws", "2", "FedAvg", "Amazon Review"),
        ),
    ),
    (TABLE, CURVES),
    "fedlws-news has the paper's largest gain: FedProx on more news, trained for longer. The paper gives no number of clients for "
    "the reviews: here 20, five for each domain.",
)

SERVERS: Methods = {"FedAvg": "fedavg", "FedLAW": "fedlaw(epochs=20)", LWS: PAIR[LWS]}
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


def _seconds(method: str, network: str) -> Printed:
    model, quantity = network.replace("ResNet-20", "ResNet20"), "aggregation time of a round"
    return printed("fedlws", "3", method, quantity=quantity, model=model)


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
            unlike="seconds of our implementation on our machine",
        ),
        "paper": Scale({**SERVERS, "FedLAW": LAW}, _architectures(*MODELS), TIMED | {"proxy": 0.02, "data": "cifar10"}),
    },
    tuple(
        Claim(
            text,
            difference(
                recorded_mean(LWS, where, "aggregation_seconds"), recorded_mean(other, where, "aggregation_seconds")
            ),
            expects,
            _seconds("FedLWS", where) - _seconds(other, where),
            unit="seconds",
            scale=1,
        )
        for where in ("CNN", "ResNet-20", "ViT")
        for text, other, expects in (
            (f"LWS takes less time on the server than FedLAW, {where}", "FedLAW", Below()),
            (f"LWS takes more time on the server than FedAvg, {where}", "FedAvg", Above()),
        )
    ),
    (RecordedCurves("seconds of aggregation", "aggregation_seconds"),),
    "The images do not matter to the time of the server, but to FedLAW's, which trains on its proxy samples.",
)

MODEL_WISE = f"{LWS}, model-wise"
BY_LAYER, BY_MODEL = "FedLWS layer-wise", "FedLWS model-wise"
"""The rows of the paper's tables 4 and 8."""
TABLE4 = _on_cifar(
    "fedlws-table4",
    "Layer-wise, tensor-wise and model-wise shrinking",
    lambda beta: (
        pair(beta)
        | {MODEL_WISE: lws("fedavg", beta, scope="model"), f"{LWS}, by tensor": lws("fedavg", beta, scope="tensor")}
    ),
    (
        better("Shrinking is better by layer than model-wise", LWS, MODEL_WISE, gained("4", BY_LAYER, BY_MODEL)),
        better("Model-wise shrinking is better than none", MODEL_WISE, "FedAvg", gained("4", BY_MODEL, "FedAvg")),
    ),
)

RESNET_LWS = f"{LWS}, beta {RESNET_BETA:g}"
BUILT: Methods = PAIR | {RESNET_LWS: lws("fedavg", RESNET_BETA)}
NETS = {"CNN": {LWS, "FedAvg"}} | {name: {RESNET_LWS, "FedAvg"} for name in MODELS if name != "CNN"}


def _nets(*names: str) -> dict[str, Any]:
    """The settings of architectures, and the pairs without a cell: beta is 0.1 for the CNN and 0.01 for the others."""
    return {
        "settings": {name: {**CIFARS[CIFAR], "model": MODELS[name]} for name in names},
        "left_out": frozenset((method, name) for method, name in product(BUILT, names) if method not in NETS[name]),
    }


def _in_table5(method: str) -> Printed:
    return printed("fedlws", "5", method, "CIFAR-10", model="ResNet20")


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
            unlike="15 rounds: ResNet-20 reaches 18 % where the paper's has 75 %",
            **_nets("CNN", "ResNet-20"),
        ),
        "paper": Scale(BUILT, common=PAPERS_OWN, **_nets(*MODELS)),
    },
    (
        is_better("LWS makes FedAvg better, CNN", LWS, "FedAvg", "CNN"),
        better(
            "LWS makes FedAvg better, ResNet-20",
            RESNET_LWS,
            "FedAvg",
            _in_table5("FedAvg+LWS") - _in_table5("FedAvg"),
            "ResNet-20",
        ),
    ),
    (TABLE, CURVES),
    "The paper's table has no CNN, and states neither its alpha nor beta for nets other than ResNet-20.",
)

ADADECAY = "FedAvg + AdaDecay"
TABLE6 = _on_cifar(
    "fedlws-table6",
    "Adaptive weight decay on the server: AWD and AdaDecay against LWS",
    lambda beta: pair(beta) | {AWD: rivals(beta)[AWD], ADADECAY: "fedavg + adadecay(lam=0.0005)"},
    (
        BEATS_AWD,
        better("LWS is better than AdaDecay", LWS, ADADECAY, gained("6", LWS, ADADECAY)),
    ),
    alphas=(100, 1, 0.1),
    notes=f"AWD and AdaDecay on the server are our adaptation: the paper gives no formulas. {LONGER_RUNS}",
)

LONG_TAIL = "FedLAW, long-tailed proxy"
TABLE7 = _on_cifar(
    "fedlws-table7",
    "FedLAW with balanced and with long-tailed proxy samples, and LWS, which needs none",
    lambda beta: {"FedLAW": LAW, LONG_TAIL: Variant(LAW, {"proxy_imbalance": 10.0}), LWS: lws("fedavg", beta)},
    (
        better(
            "A long tail of its proxy samples makes FedLAW worse",
            "FedLAW",
            LONG_TAIL,
            in_table("1", "FedLAW") - in_table("7", LONG_TAIL),
        ),
        better("LWS is better than FedLAW with a long tail", LWS, LONG_TAIL, gained("7", LWS, LONG_TAIL)),
    ),
    notes="The largest class has ten times as many proxy samples as the smallest; the paper does not state its ratio.",
)

DISCO = BASES["FedDisco"]
DISCO_MODEL = "FedDisco + LWS, model-wise"
TABLE8 = _on_cifar(
    "fedlws-table8",
    "Model-wise LWS against FedLAW, on FedDisco's weights",
    lambda beta: (
        {"FedAvg": "fedavg", "FedDisco": DISCO, "FedLAW": LAW}
        | {DISCO_MODEL: lws(DISCO, beta, scope="model"), "FedDisco + LWS": lws(DISCO, beta)}
    ),
    (
        better(
            "Model-wise LWS makes FedDisco better",
            DISCO_MODEL,
            "FedDisco",
            in_table("8", BY_MODEL) - in_table("1", "FedDisco"),
        ),
        better(
            "Model-wise LWS on FedDisco is better than FedLAW", DISCO_MODEL, "FedLAW", gained("8", BY_MODEL, "FedLAW")
        ),
    ),
    alphas=(0.1,),
    notes="The paper does not name the base of its table; the layer-wise numbers are those of FedDisco in table 1 (66.91). Its "
    "columns of Fashion-MNIST and Tiny-ImageNet are not in the grid.",
)

TABLE9 = _on_cifar(
    "fedlws-table9",
    "A pretrained start: FedAvg with and without LWS from a model trained on samples that no client has",
    pair,
    (helps("FedAvg", CIFAR, gained("9", LWS, "FedAvg")),),
    alphas=(1, 0.1),
    options={"pretrain": {"share": 0.25, "epochs": 5}},
    notes="The start is trained for five epochs on a quarter of the training samples. The paper does not say how its start was "
    "made; from it FedAvg reaches 86.74 %.",
)

ONLY_SHRINKING = f"{LWS}, only the regularization term"
TABLE10 = _on_cifar(
    "fedlws-table10",
    "One term of shrinking alone: regularization, or the shorter step",
    lambda beta: (
        pair(beta)
        | {ONLY_SHRINKING: lws("fedavg", beta, mode="only_reg"), ONLY_STEP: lws("fedavg", beta, mode="only_opt")}
    ),
    (
        better(
            "Both terms are better than only the regularization",
            LWS,
            ONLY_SHRINKING,
            gained("10", "FedLWS", "FedLWS only-reg"),
        ),
        BEATS_ONE_TERM,
    ),
    notes=f"The paper gives no formulas for one term alone: w^ - (1 - gamma) w, and w + gamma (w^ - w). {LONGER_RUNS}",
)

TABLE11 = _on_cifar(
    "fedlws-table11",
    "Fixed factors: 1 - 0.01 l for layer l, and one constant factor for the model",
    lambda beta: (
        pair(beta)
        | {FIXED: "fedavg + fixed_shrink(step=0.01)", "factor 0.98": "fedavg + fixed_shrink(step=0, first=0.98)"}
    ),
    (
        helps("FedAvg", CIFAR, WITH_CNN),
        FIXED_HELPS,
        better("LWS is better than fixed factors by layer", LWS, FIXED, gained("11", "FedAvg+FedLWS", FIXED_GAMMA)),
        is_better("LWS is better than one constant factor", LWS, "factor 0.98"),
    ),
    beta=CNN_BETA,
    notes="At alpha 100 the paper's fixed factors are better than LWS, by 2.07 points on CIFAR-10 and 3.23 on CIFAR-100.",
)

STUDIES = (
    *(TABLE2, TABLE3, TABLE4, TABLE5, TABLE6),
    *(TABLE7, TABLE8, TABLE9, TABLE10, TABLE11),
)
