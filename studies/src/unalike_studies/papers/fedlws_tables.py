"""FedLWS: tables 2 to 12 of the paper."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below
from unalike_studies.claims import Claim, difference, gain, recorded_mean
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.papers import fedlws_settings as fedlws
from unalike_studies.papers.fedlws_settings import (
    AWD,
    CIFAR,
    FIXED,
    LAST,
    LAW,
    LWS,
    ONLY_STEP,
    PAIR,
    better,
    gained,
    helps,
)
from unalike_studies.published import Printed, printed
from unalike_studies.study import NO_FIELDS, Study, Variant

Methods = fedlws.Methods


def _on_cifar(
    name: str,
    title: str,
    methods: Callable[[float], Methods],
    claims: Iterable[Claim],
    notes: str = "",
    *,
    alphas: tuple[float, ...] = (100, 0.1),
    beta: float = fedlws.RESNET_BETA,
    more: Options = NO_FIELDS,
    small: Mapping[str, Options] = fedlws.ON_CIFAR,
) -> Study:
    """A study with the narrow CNN, and at full scale on both CIFARs with ResNet-20, or for CNN_BETA the CNN.

    `methods` gives the methods for a beta, `small` the settings of the narrow CNN: CIFAR-10 at Dir(0.1) unless given.
    """
    ten_classes = fedlws.by_alpha("cifar10", "CIFAR-10", alphas)
    hundred_classes = fedlws.by_alpha("cifar100", "CIFAR-100", alphas)
    full = {
        "methods": methods(beta),
        "settings": ten_classes | hundred_classes,
        "more": fedlws.RESNET if beta == fedlws.RESNET_BETA else NO_FIELDS,
    }
    return fedlws.study(
        name,
        title,
        methods(fedlws.CNN_BETA),
        claims=claims,
        notes=notes,
        more=more,
        small={"settings": small},
        paper=full,
    )


AG, AMAZON = "AG News, alpha 0.1", "Amazon, by domain"
BAG: dict[str, Any] = {
    "data": "amazon_reviews(features=5000)",
    "partition": "domains",
    "model": "mlp(hidden=64)",
}
SMALL_TEXTS: dict[str, Options] = {
    AG: fedlws.SHORT_NEWS | {"split": 0.1},
    AMAZON: BAG | {"data": "amazon_reviews(features=1000)", "split": 0.5},
}
TEXTS: dict[str, Options] = {
    AG: fedlws.setting("ag_news", 0.1, model="textcnn"),
    AMAZON: BAG,
    "AG News, alpha 0.5": fedlws.setting("ag_news", 0.5, model="textcnn"),
    **fedlws.by_alpha("sogou_news", "Sogou News", (0.5, 0.1), model="textcnn"),
}


def _amazon(method: str) -> Printed:
    return printed("fedlws", "2", method, "Amazon Review")


TABLE2 = fedlws.study(
    "fedlws-table2",
    "Text: accuracy of methods with and without LWS on news and on reviews by domain",
    PAIR,
    SMALL_TEXTS,
    (
        helps("FedAvg", AG, gained("2", LWS, "FedAvg", AG)),
        helps("FedAvg", AMAZON, _amazon("FedAvg+LWS") - _amazon("FedAvg")),
    ),
    notes="fedlws-news has the paper's largest gain: FedProx on more news, trained for longer. The paper gives no number of "
    "clients for the reviews: here 20, five for each domain.",
    small={
        "common": fedlws.WITHOUT_IMAGES
        | {
            "rounds": 30,
            "evaluate_every": 3,
            "work": fedlws.SMALL["work"],
            "split": fedlws.SMALL["split"],
        },
        "reduced": "FedAvg alone; 2,440 news of 32 words with a small TextCNN, 4,000 reviews of 1,000 words; 30 rounds where the "
        "authors' code has 200; no Sogou News",
        "unlike": "AG News: FedAvg reaches 43 % where the paper's has 73 %",
    },
    paper={
        "methods": fedlws.with_lws(fedlws.BASES),
        "settings": TEXTS,
        "common": fedlws.WITHOUT_IMAGES,
    },
)

SERVERS: Methods = {"FedAvg": "fedavg", "FedLAW": "fedlaw(epochs=20)", LWS: PAIR[LWS]}
MODELS = {
    "CNN": "cnn",
    "ResNet-20": "resnet20",
    "ViT": "vit",
    "WRN56-4": "wrn56_4",
    "DenseNet-121": "densenet121",
}
TIMED: dict[str, Any] = fedlws.FEDERATION | {
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
    model = network.replace("ResNet-20", "ResNet20")
    return printed("fedlws", "3", method, quantity="aggregation time of a round", model=model)


TABLE3 = fedlws.study(
    "fedlws-table3",
    "Seconds of aggregation and server step in a round by architecture: FedAvg, FedLAW, FedLWS",
    SERVERS,
    _architectures("CNN", "ResNet-20", "ViT"),
    (
        Claim(
            text,
            difference(
                recorded_mean(LWS, where, "aggregation_seconds"),
                recorded_mean(other, where, "aggregation_seconds"),
            ),
            expects,
            unit="seconds",
            scale=1,
            needs_learning=False,
            remark=f"printed, of another machine: {_seconds('FedLWS', where) - _seconds(other, where)}",
        )
        for where in ("CNN", "ResNet-20", "ViT")
        for text, other, expects in (
            (f"LWS takes less time on the server than FedLAW, {where}", "FedLAW", Below()),
            (f"LWS takes more time on the server than FedAvg, {where}", "FedAvg", Above()),
        )
    ),
    (RecordedCurves("seconds of aggregation", "aggregation_seconds"),),
    "The images do not matter to the time of the server, but to FedLAW's, which trains on its proxy samples.",
    smoke={"common": TIMED, "settings": {"MLP": {"model": "mlp(hidden=32)"}}},
    small={
        "common": TIMED,
        "reduced": "3 rounds; no WRN56-4 and DenseNet-121; FedLAW makes 20 server epochs on 62 samples instead of 100 on 200",
        "unlike": "seconds of our implementation on our machine",
    },
    paper={
        "methods": {**SERVERS, "FedLAW": LAW},
        "settings": _architectures(*MODELS),
        "common": TIMED | {"proxy": 0.02, "data": "cifar10"},
    },
)

MODEL_WISE = f"{LWS}, model-wise"
BY_LAYER, BY_MODEL = "FedLWS layer-wise", "FedLWS model-wise"
"""The rows of the paper's tables 4 and 8."""
TABLE4 = _on_cifar(
    "fedlws-table4",
    "Layer-wise, tensor-wise and model-wise shrinking",
    lambda beta: (
        fedlws.pair(beta)
        | {
            MODEL_WISE: fedlws.lws("fedavg", beta, scope="model"),
            f"{LWS}, by tensor": fedlws.lws("fedavg", beta, scope="tensor"),
        }
    ),
    (
        better(
            "Shrinking is better by layer than model-wise",
            LWS,
            MODEL_WISE,
            gained("4", BY_LAYER, BY_MODEL),
        ),
        better(
            "Model-wise shrinking is better than none",
            MODEL_WISE,
            "FedAvg",
            gained("4", BY_MODEL, "FedAvg"),
        ),
    ),
)

RESNET_LWS = f"{LWS}, beta {fedlws.RESNET_BETA:g}"
BUILT: Methods = PAIR | {RESNET_LWS: fedlws.lws("fedavg", fedlws.RESNET_BETA)}
NETS = {"CNN": {LWS, "FedAvg"}} | {name: {RESNET_LWS, "FedAvg"} for name in MODELS if name != "CNN"}


TEN: dict[str, Options] = {"": fedlws.CIFARS[CIFAR]}
HUNDRED = "CIFAR-100, "
BOTH = TEN | {HUNDRED: fedlws.HUNDREDS["CIFAR-100, alpha 0.1"]}
"""Beginning of a setting's name -> its data."""


def _nets(names: Iterable[str], data: Mapping[str, Options]) -> dict[str, Any]:
    """The settings of architectures, and the pairs without a cell: beta is 0.1 for the CNN and 0.01 for the others."""
    settings = {}
    for start, name in product(data, names):
        settings[start + name] = {**data[start], "model": MODELS[name]}
    left_out = set()
    for method, setting in product(BUILT, settings):
        network = setting.removeprefix(HUNDRED)
        if method not in NETS[network]:
            left_out.add((method, setting))
    return {"settings": settings, "left_out": frozenset(left_out)}


def _in_table5(method: str) -> Printed:
    return printed("fedlws", "5", method, "CIFAR-10", model="ResNet20")


TABLE5 = fedlws.study(
    "fedlws-table5",
    "Architectures: FedAvg with and without LWS",
    BUILT,
    claims=(
        fedlws.is_better("LWS makes FedAvg better, CNN", LWS, "FedAvg", "CNN"),
        better(
            "LWS makes FedAvg better, ResNet-20",
            RESNET_LWS,
            "FedAvg",
            _in_table5("FedAvg+LWS") - _in_table5("FedAvg"),
            "ResNet-20",
        ),
    ),
    notes="The paper's table has no CNN, and states neither its alpha nor beta for nets other than ResNet-20.",
    small={
        **_nets(("CNN", "ResNet-20"), TEN),
        "more": {"rounds": 15, "split": 0.125},
        "reduced": "2,000 training images of CIFAR-10, 15 rounds where the authors' code has 200, CNN and ResNet-20 only: "
        "far from the end of training",
        "unlike": "15 rounds: ResNet-20 reaches 18 % where the paper's has 75 %",
    },
    paper=_nets(MODELS, BOTH),
)

ADADECAY = "FedAvg + AdaDecay"
TABLE6 = _on_cifar(
    "fedlws-table6",
    "Adaptive weight decay on the server: AWD and AdaDecay against LWS",
    lambda beta: (
        fedlws.pair(beta)
        | {AWD: fedlws.rivals(beta)[AWD], ADADECAY: "fedavg + adadecay(lam=0.0005)"}
    ),
    (
        fedlws.BEATS_AWD,
        better("LWS is better than AdaDecay", LWS, ADADECAY, gained("6", LWS, ADADECAY)),
    ),
    alphas=(100, 1, 0.1),
    notes=f"AWD and AdaDecay on the server are our adaptation: the paper gives no formulas. {fedlws.LONGER_RUNS}",
)

LONG_TAIL = "FedLAW, long-tailed proxy"
TABLE7 = _on_cifar(
    "fedlws-table7",
    "FedLAW with balanced and with long-tailed proxy samples, and LWS, which needs none",
    lambda beta: {
        "FedLAW": LAW,
        LONG_TAIL: Variant(LAW, {"proxy_imbalance": 10.0}),
        LWS: fedlws.lws("fedavg", beta),
    },
    (
        better(
            "A long tail of its proxy samples makes FedLAW worse",
            "FedLAW",
            LONG_TAIL,
            fedlws.in_table("1", "FedLAW") - fedlws.in_table("7", LONG_TAIL),
        ),
        better(
            "LWS is better than FedLAW with a long tail",
            LWS,
            LONG_TAIL,
            gained("7", LWS, LONG_TAIL),
        ),
    ),
    notes="The largest class has ten times as many proxy samples as the smallest; the paper does not state its ratio.",
)

DISCO = fedlws.BASES["FedDisco"]
DISCO_MODEL = "FedDisco + LWS, model-wise"
CIFAR100 = "CIFAR-100, alpha 0.1"
BOTH_CIFARS = fedlws.ON_CIFAR | {CIFAR100: fedlws.HUNDREDS[CIFAR100]}


def _of_table8(where: str) -> tuple[Claim, Claim]:
    """Model-wise shrinking against its base and against FedLAW, as the paper prints it in a setting."""
    return (
        fedlws.compared(
            "Model-wise LWS on FedDisco",
            DISCO_MODEL,
            "FedDisco",
            fedlws.in_table("8", BY_MODEL, where) - fedlws.in_table("1", "FedDisco", where),
            where,
        ),
        fedlws.compared(
            "Model-wise LWS on FedDisco",
            DISCO_MODEL,
            "FedLAW",
            gained("8", BY_MODEL, "FedLAW", where),
            where,
        ),
    )


TABLE8 = _on_cifar(
    "fedlws-table8",
    "Model-wise LWS against FedLAW, on FedDisco's weights",
    lambda beta: (
        {"FedAvg": "fedavg", "FedDisco": DISCO, "FedLAW": LAW}
        | {
            DISCO_MODEL: fedlws.lws(DISCO, beta, scope="model"),
            "FedDisco + LWS": fedlws.lws(DISCO, beta),
        }
    ),
    (claim for where in BOTH_CIFARS for claim in _of_table8(where)),
    alphas=(0.1,),
    small=BOTH_CIFARS,
    notes="The paper does not name the base of its table; the layer-wise numbers are those of FedDisco in table 1 (66.91). Its "
    "columns of Fashion-MNIST and Tiny-ImageNet are not in the grid.",
)

TABLE9 = _on_cifar(
    "fedlws-table9",
    "A pretrained start: FedAvg with and without LWS from a model trained on samples that no client has",
    fedlws.pair,
    (helps("FedAvg", CIFAR, gained("9", LWS, "FedAvg")),),
    alphas=(1, 0.1),
    more=fedlws.PRETRAINED,
    notes="The start is trained for five epochs on a quarter of the training samples. The paper does not say how its start was "
    "made; from it FedAvg reaches 86.74 %.",
)

ONLY_SHRINKING = f"{LWS}, only the regularization term"
TERMS = {
    ONLY_SHRINKING: ("Regularization alone", "FedLWS only-reg"),
    ONLY_STEP: ("The shorter step alone", "FedLWS only-opt"),
}
"""One term alone -> its name in claims, and its row in table 10."""
FOUR_CIFARS = fedlws.by_alpha("cifar10", "CIFAR-10", (0.1, 100)) | fedlws.by_alpha(
    "cifar100", "CIFAR-100", (0.1, 100)
)


def _against_none(where: str) -> Iterator[Claim]:
    """The printed gains over FedAvg of one term alone, and of both beyond the sum of these."""
    none = fedlws.in_table("1", "FedAvg", where)
    printed_gains = []
    for method, (name, row) in TERMS.items():
        printed_gain = fedlws.in_table("10", row, where) - none
        printed_gains.append(printed_gain)
        yield fedlws.compared(name, method, "FedAvg", printed_gain, where)

    # By equation 3 the steps of the two terms add exactly.
    both = fedlws.in_table("10", "FedLWS", where) - none
    of_shrinking, of_step = printed_gains
    yield Claim(
        f"Both terms gain more than each of them alone in sum, {where}",
        difference(
            gain(LWS, ONLY_SHRINKING, where, last=LAST), gain(ONLY_STEP, "FedAvg", where, last=LAST)
        ),
        Above(),
        both - of_shrinking - of_step,
        remark="by equation 3 the changes of one round add",
    )


TABLE10 = _on_cifar(
    "fedlws-table10",
    "One term of shrinking alone: regularization, or the shorter step",
    lambda beta: (
        fedlws.pair(beta)
        | {
            ONLY_SHRINKING: fedlws.lws("fedavg", beta, mode="only_reg"),
            ONLY_STEP: fedlws.lws("fedavg", beta, mode="only_opt"),
        }
    ),
    (
        better(
            "Both terms are better than only the regularization",
            LWS,
            ONLY_SHRINKING,
            gained("10", "FedLWS", "FedLWS only-reg"),
        ),
        fedlws.BEATS_ONE_TERM,
        *(claim for where in FOUR_CIFARS for claim in _against_none(where)),
    ),
    small=FOUR_CIFARS,
    notes=f"The paper gives no formulas for one term alone: w^ - (1 - gamma) w, and w + gamma (w^ - w). {fedlws.LONGER_RUNS}",
)

DISCO_FIXED = FIXED.replace("FedAvg", "FedDisco")
DISCO_GAMMA = fedlws.FIXED_GAMMA.replace("FedAvg", "FedDisco")
TABLE11 = _on_cifar(
    "fedlws-table11",
    "Fixed factors: 1 - 0.01 l for layer l, and one constant factor for the model",
    lambda beta: (
        fedlws.with_lws({"FedAvg": "fedavg", "FedDisco": DISCO}, beta)
        | {
            FIXED: "fedavg + fixed_shrink(step=0.01)",
            DISCO_FIXED: f"{DISCO} + fixed_shrink(step=0.01)",
        }
        | {"factor 0.98": "fedavg + fixed_shrink(step=0, first=0.98)"}
    ),
    (
        helps("FedAvg", CIFAR, fedlws.WITH_CNN),
        fedlws.FIXED_HELPS,
        better(
            "LWS is better than fixed factors by layer",
            LWS,
            FIXED,
            gained("11", "FedAvg+FedLWS", fedlws.FIXED_GAMMA),
        ),
        fedlws.is_better("LWS is better than one constant factor", LWS, "factor 0.98"),
        helps("FedDisco", CIFAR, gained("11", "FedDisco+FedLWS", "FedDisco")),
        better(
            "Fixed factors by layer make FedDisco better",
            DISCO_FIXED,
            "FedDisco",
            gained("11", DISCO_GAMMA, "FedDisco"),
        ),
    ),
    beta=fedlws.CNN_BETA,
    notes="At alpha 100 the paper's fixed factors are better than LWS, by 2.07 points on CIFAR-10 and 3.23 on CIFAR-100.",
)

STUDIES = (
    TABLE2,
    TABLE3,
    TABLE4,
    TABLE5,
    TABLE6,
    TABLE7,
    TABLE8,
    TABLE9,
    TABLE10,
    TABLE11,
)
