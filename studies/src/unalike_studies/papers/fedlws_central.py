"""FedLWS: does shrinking help, and what decides it? Table 1, more seeds for FedAvg, and the sweep over beta."""

from itertools import product

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below, Same
from unalike_studies.claims import Claim, difference, gain, peak, question, score
from unalike_studies.layouts.sweeps import MethodSweep
from unalike_studies.papers import fedlws_settings as fedlws
from unalike_studies.papers.fedlws_settings import (
    CIFAR,
    CIFARS,
    FASHION,
    LAST,
    LWS,
    ON_CIFAR,
    Methods,
    helps,
    is_better,
)
from unalike_studies.study import Variant


def _all(beta: float = fedlws.CNN_BETA) -> Methods:
    return fedlws.with_lws(fedlws.BASES, beta) | {"FedLAW": fedlws.LAW}


METHODS = _all()
IMAGENETS = fedlws.by_alpha("tiny_imagenet", "Tiny-ImageNet", model="resnet18")
PARTLY = {**CIFARS, **fedlws.SMALL_FASHION}

TABLE1 = fedlws.study(
    "fedlws-table1",
    "Accuracy of five methods with and without LWS, and of FedLAW, by data set and heterogeneity",
    METHODS,
    PARTLY,
    (
        *(helps(base, CIFAR) for base in fedlws.BASES),
        *(helps("FedAvg", where) for where in CIFARS if where != CIFAR),
        Claim(
            f"FedAvg with LWS, which needs no proxy samples, is worse than FedLAW, {CIFAR}",
            gain(LWS, "FedLAW", CIFAR, last=LAST),
            Below(),
            fedlws.gained("1", LWS, "FedLAW"),
        ),
    ),
    notes="fedlws-fashion has the columns of Fashion-MNIST, whose beta is 0.1 at full scale. FedLAW learns from 2 % of the test "
    "samples. The paper's averages for L-DAWA (49.30 without LWS, 51.19 with it) are not those of its twelve numbers, which are "
    "56.86 and 58.76. fedlws-resnet-bases and fedlws-fashion have the largest gains in the paper's settings. "
    f"{fedlws.LONGER_RUNS}",
    small={
        "left_out": frozenset(
            product(METHODS.keys() - fedlws.PAIR.keys(), PARTLY.keys() - {CIFAR})
        ),
        "reduced": f"{fedlws.REDUCED}; all methods at alpha 0.1 of CIFAR-10 only, elsewhere FedAvg alone",
    },
    paper={
        "methods": _all(fedlws.RESNET_BETA),
        "settings": {**CIFARS, **fedlws.HUNDREDS, **IMAGENETS},
        "more": fedlws.RESNET,
    },
)

BETAS, CLAMPED = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0), (fedlws.CODE_BETA, 0.3)
PLAIN_AT = {LWS if b == fedlws.CNN_BETA else f"LWS, beta {b:g}": b for b in BETAS}
CLAMPED_AT = {f"LWS, beta {b:g}, clamped": b for b in CLAMPED}
SWEEP: dict[str, str | Variant] = {
    "FedAvg": "fedavg",
    **{label: fedlws.lws("fedavg", b) for label, b in PLAIN_AT.items()},
    **{label: fedlws.lws("fedavg", b, **fedlws.CLAMP) for label, b in CLAMPED_AT.items()},
}
CODE_LWS = f"LWS, beta {fedlws.CODE_BETA:g}, clamped"
"""The authors' code: its default beta, and beta tau bounded."""
BUFFERS = {
    f"{LWS}, buffers too": fedlws.lws("fedavg", buffers=True),
    f"{CODE_LWS}, buffers too": fedlws.lws("fedavg", fedlws.CODE_BETA, **fedlws.AS_CODE),
}
"""The authors' code counts the buffers of batch normalization as a part of the layer that follows them."""
NO_DECAY = f"{CIFAR}, no weight decay"
NORM = f"{CIFAR}, BatchNorm"
MOMENTUM = f"{CIFAR}, momentum kept"
WIDE = f"{CIFAR}, the paper's CNN"
NO_WEIGHT_DECAY = {"work": {"weight_decay": 0.0}}
CAUSES: dict[str, Options] = {
    CIFAR: CIFARS[CIFAR],
    NO_DECAY: {**CIFARS[CIFAR], **NO_WEIGHT_DECAY},
    NORM: {**CIFARS[CIFAR], "model": "cnn(norm='batch')"},
    MOMENTUM: {**CIFARS[CIFAR], "work": {"keep_optimizer_state": True}},
}
"""The authors' code keeps each client's momentum from round to round."""
SMALL_CAUSES = CAUSES | {
    NORM: {**CIFARS[CIFAR], "model": f"cnn(channels={fedlws.NARROW_CHANNELS}, norm='batch')"}
}
SOME = {
    CIFAR: set(SWEEP),
    NO_DECAY: {"FedAvg", LWS, "LWS, beta 1"},
    NORM: {"FedAvg", "LWS, beta 0.01", LWS, CODE_LWS, *BUFFERS},
    MOMENTUM: {"FedAvg", LWS, CODE_LWS},
}
"""The cells of the small scale: methods by setting."""

CENTRAL_METHODS: dict[str, str | Variant] = {
    name: SWEEP[name] for name in ("FedAvg", LWS, CODE_LWS)
}
CENTRAL_SETTINGS: dict[str, Options] = {
    CIFAR: CAUSES[CIFAR],
    FASHION: fedlws.FASHIONS[FASHION],
    MOMENTUM: CAUSES[MOMENTUM],
    WIDE: {**CIFARS[CIFAR], "model": fedlws.IMAGES["model"]},
}
"""At full scale the paper's CNN is that of the first setting, too."""

CENTRAL = fedlws.study(
    "fedlws-central",
    "Does LWS help FedAvg at Dir(0.1)? More seeds, by the paper's equations and as the authors' code does it",
    CENTRAL_METHODS,
    CENTRAL_SETTINGS,
    (
        helps("FedAvg", CIFAR, fedlws.WITH_CNN),
        helps("FedAvg", FASHION),
        helps("FedAvg", WIDE, fedlws.WITH_CNN),
        is_better(
            "LWS as in the authors' code, with momentum that persists, makes FedAvg better",
            CODE_LWS,
            "FedAvg",
            MOMENTUM,
        ),
        Claim(
            f"LWS makes FedAvg better in each one's best round, which the authors' code reports, {CIFAR}",
            difference(peak(LWS, CIFAR), peak("FedAvg", CIFAR)),
            Above(),
            fedlws.WITH_CNN,
            for_own_method=True,
        ),
        question(
            "Momentum that persists over rounds makes FedAvg better",
            difference(score("FedAvg", MOMENTUM, last=LAST), score("FedAvg", CIFAR, last=LAST)),
            Above(),
        ),
    ),
    notes="The gains with the CNN are those of table 11.",
    small={"settings": {**CENTRAL_SETTINGS, **fedlws.SMALL_FASHION}, "seeds": tuple(range(6))},
    left_out=frozenset({(CODE_LWS, WIDE)}),
)

BETA = fedlws.study(
    "fedlws-beta",
    "Accuracy of FedAvg with LWS over two decades of beta: clamp, weight decay, batch normalization, momentum",
    SWEEP | BUFFERS,
    CAUSES,
    (
        *(
            (fedlws.better if b < fedlws.CNN_BETA else is_better)(
                f"LWS with beta {b:g} makes FedAvg better, {CIFAR}", name, "FedAvg"
            )
            for name, b in PLAIN_AT.items()
            if name != LWS
        ),
        is_better(
            f"Clamped LWS with beta {fedlws.CODE_BETA} makes FedAvg better, {CIFAR}",
            CODE_LWS,
            "FedAvg",
        ),
        question(
            "The clamp changes nothing at beta 0.03",
            gain(CODE_LWS, "LWS, beta 0.03", CIFAR, last=LAST),
            Same(0.5),
        ),
        *(
            is_better(f"LWS makes FedAvg better, {where}", LWS, "FedAvg", where)
            for where in (NO_DECAY, NORM, MOMENTUM)
        ),
        *(
            is_better(f"{name} makes FedAvg better, {NORM}", name, "FedAvg", NORM)
            for name in (CODE_LWS, *BUFFERS)
        ),
        question(
            "LWS gains more where clients have no weight decay of their own",
            difference(
                gain(LWS, "FedAvg", CIFAR, last=LAST), gain(LWS, "FedAvg", NO_DECAY, last=LAST)
            ),
            Below(),
        ),
    ),
    (
        fedlws.TABLE,
        MethodSweep(
            "accuracy, %",
            "beta",
            {"LWS": PLAIN_AT, "LWS, clamped": CLAMPED_AT},
            "FedAvg",
            last=LAST,
        ),
        fedlws.CURVES,
    ),
    "The paper recommends betas of 0.001 to 0.1. The authors' code counts the buffers of batch normalization as a part of the next "
    "layer and shrinks them: the rows with their buffers, too. Otherwise buffers are averaged.",
    smoke={
        "methods": SWEEP,
        "settings": fedlws.TOYS
        | {"digits, no weight decay": {**fedlws.TOYS["digits, alpha 0.1"], **NO_WEIGHT_DECAY}},
    },
    small={
        "settings": SMALL_CAUSES,
        "left_out": frozenset(
            (m, where) for m, where in product(SWEEP | BUFFERS, CAUSES) if m not in SOME[where]
        ),
        "reduced": f"{fedlws.REDUCED}; two betas in the settings without weight decay, with batch normalization, and with kept "
        "momentum",
    },
    paper={"left_out": frozenset(product(BUFFERS, CAUSES.keys() - {NORM}))},
)

LONG = {
    "more": {
        "rounds": 200,
        "split": 0.75,
        "evaluate_every": 4,
        "work": fedlws.WORK | {"batch_size": 43},
    },
    "reduced": "12,000 training images where the authors' code has 35,000, and therefore batches of 43 where it has 128, so that a "
    "round has as many local steps; a narrower CNN",
}
"""The rounds of the authors' code, of as many local steps as it has."""
SIX_ROUNDS = {"more": {"rounds": 6}}
LONGER = fedlws.study(
    "fedlws-rounds",
    "FedAvg and FedProx with and without LWS over the 200 rounds and local steps of the authors' code, at Dir(0.1)",
    fedlws.with_lws({name: fedlws.BASES[name] for name in ("FedAvg", "FedProx")}),
    ON_CIFAR,
    (helps("FedAvg", CIFAR, fedlws.WITH_CNN), helps("FedProx", CIFAR)),
    notes="The gain of FedAvg with a CNN is that of table 11; FedProx is printed with ResNet-20 alone.",
    smoke={"methods": fedlws.PAIR, **SIX_ROUNDS},
    small={**LONG, "seeds": tuple(range(6))},
)
LONGER_RIVALS = fedlws.study(
    "fedlws-rounds-rivals",
    "LWS against AWD and against its own shorter step alone, over the 200 rounds and local steps of the authors' code, at Dir(0.1)",
    fedlws.PAIR | fedlws.rivals(),
    ON_CIFAR,
    (fedlws.BEATS_AWD, fedlws.BEATS_ONE_TERM),
    notes="The printed differences are those of ResNet-20.",
    smoke=SIX_ROUNDS,
    small=LONG,
)

STUDIES = (TABLE1, CENTRAL, BETA, LONGER, LONGER_RIVALS)
