"""FedLWS: the data, training and methods that its studies share, at each scale."""

from collections.abc import Mapping
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above
from unalike_studies.claims import Claim, as_printed, gain, question
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.recorded import RecordedTable
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.published import Printed, printed
from unalike_studies.study import Scale, StudyTemplate, Variant

PAPER = "Shi, Guo, Zhao, Li, Chang: FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking, ICLR 2025"
LONGER_RUNS = (
    "fedlws-rounds and fedlws-rounds-rivals repeat some of these comparisons over 200 rounds: a difference over 51 rounds need "
    "not last."
)
LAST = 5
"""Evaluated rounds that a score is the mean of: in small studies the last fifteen rounds, in full ones the last ten."""
TABLE = MethodTable(f"Mean accuracy of the last {LAST} evaluated rounds, %", last=LAST)
CURVES = Curves("accuracy, %")
FACTORS = RecordedTable("Factors by layer", "gamma")
RECORDED = {"record": "server"}
PRETRAINED: dict[str, Any] = {"pretrain": {"share": 0.25, "epochs": 5}}
"""A start that is trained on a quarter of the training samples, which no client gets."""

Methods = Mapping[str, str | Variant]

BASES = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox(mu=0.001)",
    "FedDyn": "feddyn(alpha=0.01)",
    "FedDisco": "feddisco(a=0.1, b=0.1)",
    "L-DAWA": "ldawa",
}
"""mu, a, b and FedDyn's alpha are those of the FedLWS authors' code; the paper gives none. FedDyn diverges here with 0.1 to 1."""
WITH = " + LWS"
"""Ending of the label of a base method with layer-wise weight shrinking."""
LWS = "FedAvg" + WITH
LAW = "fedlaw(epochs=100)"
FIXED = "FedAvg, factors 1 - 0.01 l"
AWD, ONLY_STEP = "FedAvg + AWD", f"{LWS}, only the optimization term"
CNN_BETA = 0.1
"""beta for CNNs in the paper."""
RESNET_BETA = 0.01
"""beta for ResNets in the paper."""
CODE_BETA = 0.03
"""The default of the authors' code."""
RESNET: dict[str, Any] = {"model": "resnet20"}
"""The paper's network for both CIFARs."""
CLAMP: dict[str, Any] = {"clamp": (0.01, 0.2)}
"""The authors' code bounds beta tau."""
AS_CODE = CLAMP | {"buffers": True}
"""It counts the buffers of batch normalization as a part of the layer that follows them, too."""

WORK = {"batch_size": 128, "lr": 0.08, "momentum": 0.9, "weight_decay": 5e-4, "schedule": 0.99}
"""The paper's, but for the batch size, which is that of the authors' code."""
FEDERATION: dict[str, Any] = {"clients": 20, "proxy": 0.02, "merge": False, "protocol": "server"}
"""FedLAW learns from 2 % of the test samples; all methods are tested on the others."""
IMAGES: dict[str, Any] = {"model": "cnn", "transform": "normalize(mean=0.5, std=0.25)"}

PAPERS_OWN: dict[str, Any] = (
    FEDERATION | IMAGES | {"rounds": 200, "split": 0.7, "evaluate_every": 2, "work": WORK}
)
"""The paper states neither the rounds nor samples that are held out: both are those of the authors' code."""
WITHOUT_IMAGES = {name: value for name, value in PAPERS_OWN.items() if name not in IMAGES}
"""The same for texts."""
NARROW_CHANNELS = (16, 32, 64)
NARROW = f"cnn(channels={NARROW_CHANNELS})"
"""The small scale's network: a training step takes a quarter of the time of the paper's CNN, which has (32, 64, 64)."""
SMALL: dict[str, Any] = FEDERATION | {
    "model": NARROW,
    "transform": IMAGES["transform"],
    "rounds": 51,
    "split": 0.25,
    "evaluate_every": 3,
    "work": WORK | {"batch_size": 32},
}
TOY: dict[str, Any] = FEDERATION | {
    "data": "digits",
    "clients": 10,
    "model": "mlp(hidden=32)",
    "rounds": 3,
    "split": 0.7,
    "work": WORK | {"batch_size": 16},
}
SMOKE = "digits, 10 clients, 3 rounds and a small network: shows that the study runs, nothing else"
REDUCED = (
    "4,000 training images of CIFAR-10 (6,000 of Fashion-MNIST) where the authors' code has 35,000 (42,000), and therefore batches "
    "of 32 where it has 128: 7 local steps a round for 14; 51 rounds for 200; a CNN with 16, 32 and 64 channels for the paper's "
    "ResNet-20. A factor acts in every round: fewer rounds shrink less in all; a small training set is fitted sooner, so that "
    "a regularizer can help sooner"
)
UNLIKE = "the factors: 0.991 to 0.999 here, with a narrow CNN; about 0.95 in the paper, 0.92 for its ResNet-20 (table 12)"
"""What was shown to matter, in studies with the small scale's network."""
UNDERFITTED = (
    "51 rounds on 4,000 images: FedAvg reaches 33 % where the paper's CNN has 60 %, and what LWS costs there did not last over 200 "
    "rounds on 12,000 images (fedlws-rounds)"
)
"""The same, in studies of fixed factors."""


def setting(data: str, alpha: float, **more: Any) -> dict[str, Any]:
    """The options of a data set whose classes are divided by Dir(alpha), as the authors' code does it."""
    return {"data": data, "partition": f"dirichlet(alpha={alpha:g}, balance=False)", **more}


def by_alpha(
    data: str, name: str, alphas: tuple[float, ...] = (100, 0.5, 0.1), **more: Any
) -> dict[str, Options]:
    """A data set at several alphas, those of table 1 unless given."""
    return {f"{name}, alpha {alpha:g}": setting(data, alpha, **more) for alpha in alphas}


CIFAR, FASHION = "CIFAR-10, alpha 0.1", "Fashion-MNIST, alpha 0.1"
CIFARS, HUNDREDS = by_alpha("cifar10", "CIFAR-10"), by_alpha("cifar100", "CIFAR-100")
FASHIONS = by_alpha("fashion_mnist", "Fashion-MNIST")
SHORT_NEWS = setting(
    "ag_news(length=32, vocabulary=5000)",
    0.1,
    model="textcnn(vocabulary=5000, embedding=64, filters=50)",
)
ON_CIFAR = {CIFAR: CIFARS[CIFAR]}
SMALL_FASHION: dict[str, Options] = {FASHION: {**FASHIONS[FASHION], "split": 0.1}}
TOYS: dict[str, Options] = {"digits, alpha 0.1": {"partition": "dirichlet(alpha=0.1)"}}
SCALES = {
    "smoke": Scale({}, TOYS, TOY, seeds=(0,), reduced=SMOKE),
    "small": Scale({}, ON_CIFAR, SMALL, reduced=REDUCED, unlike=UNLIKE),
    "paper": Scale({}, ON_CIFAR, PAPERS_OWN),
}
study = StudyTemplate(PAPER, SCALES, (TABLE, CURVES)).study
"""A study of the paper: at the small scale Dir(0.1) of CIFAR-10 with the narrow CNN, in full with the paper's CNN."""


def lws(base: str, beta: float = CNN_BETA, **more: Any) -> str:
    """A method with layer-wise weight shrinking."""
    fields = {"beta": beta, **more}
    arguments = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"{base} + lws({arguments})"


def with_lws(
    bases: Mapping[str, str], beta: float = CNN_BETA, **more: Any
) -> dict[str, str | Variant]:
    """Each method, followed by the same with layer-wise weight shrinking."""
    both: dict[str, str | Variant] = {}
    for name, spec in bases.items():
        both[name] = spec
        both[name + WITH] = lws(spec, beta, **more)
    return both


def pair(beta: float = CNN_BETA) -> dict[str, str | Variant]:
    """FedAvg without and with layer-wise weight shrinking."""
    return with_lws({"FedAvg": "fedavg"}, beta)


def rivals(beta: float = CNN_BETA) -> dict[str, str | Variant]:
    """Simpler rules, which do not multiply the model by the factors of LWS."""
    return {AWD: "fedavg + awd(lam=0.02)", ONLY_STEP: lws("fedavg", beta, mode="only_opt")}


PAIR = pair()


def in_table(table: str, method: str, where: str = CIFAR) -> Printed:
    """The accuracy that a table of the paper prints for a method, in a setting such as "CIFAR-10, alpha 0.1"."""
    # The paper's tables have no blanks around "+" and no hyphen in "FashionMNIST".
    data, alpha = where.replace("Fashion-", "Fashion").split(", alpha ")
    row = method.replace(" + ", "+")
    return printed("fedlws", table, row, data, alpha=float(alpha))


def gained(table: str, method: str, other: str, where: str = CIFAR) -> Printed:
    """The difference of two accuracies that a table prints in a setting."""
    return in_table(table, method, where) - in_table(table, other, where)


def helps(base: str, where: str, published: Printed | None = None) -> Claim:
    """The claim that layer-wise weight shrinking makes a base method better; by what table 1 prints unless given."""
    published = published or gained("1", base + WITH, base, where)
    return better(f"LWS makes {base} better, {where}", base + WITH, base, published, where)


def better(
    text: str, method: str, other: str, published: Printed | None = None, where: str = CIFAR
) -> Claim:
    """A claim of the paper that a method is better than another one."""
    quantity = gain(method, other, where, last=LAST)
    return Claim(text, quantity, Above(), published, for_own_method=method.endswith(WITH))


def compared(name: str, method: str, other: str, published: Printed, where: str) -> Claim:
    """A claim of the paper that a method is better or worse than another one, as its numbers are."""
    word, expects = as_printed(published)
    text = f"{name} is {word} than {other}, {where}"
    return Claim(text, gain(method, other, where, last=LAST), expects, published)


def is_better(text: str, method: str, other: str, where: str = CIFAR) -> Claim:
    """A question of ours: is a method better than another one?"""
    return question(text, gain(method, other, where, last=LAST), Above())


WITH_CNN = gained("11", "FedAvg+FedLWS", "FedAvg")
"""What LWS gains at Dir(0.1) of CIFAR-10 with the CNN; table 1 has ResNet-20 there."""
FIXED_GAMMA = "FedAvg+fixed layer-wise gamma"
FIXED_HELPS = better(
    "Fixed factors by layer are better than none",
    FIXED,
    "FedAvg",
    gained("11", FIXED_GAMMA, "FedAvg"),
)
BEATS_AWD = better("LWS is better than AWD", LWS, AWD, gained("6", LWS, AWD))
BEATS_ONE_TERM = better(
    "Both terms are better than only the optimization",
    LWS,
    ONLY_STEP,
    gained("10", "FedLWS", "FedLWS only-opt"),
)
