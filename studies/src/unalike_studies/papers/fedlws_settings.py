"""FedLWS: the data, training and methods that its studies share, at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above
from unalike_studies.claims import OURS, Claim, gain
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.recorded import RecordedTable
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.study import Variant

PAPER = "Shi, Guo, Zhao, Li, Chang: FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking, ICLR 2025"
NUMBERS = (
    "No copy of the paper's tables was at hand when this was written; the settings follow our notes of the paper and of the "
    "authors' code. The score is the mean over the last evaluated rounds on the server's test samples."
)
LONGER_RUNS = (
    " fedlws-rounds and fedlws-rounds-rivals repeat some of these comparisons over the paper's 200 rounds: a difference over 51 "
    "rounds need not last."
)
LAST = 5
"""Evaluated rounds that a score is the mean of: in small studies the last fifteen rounds, in full ones the last ten."""
TABLE = MethodTable(f"Mean accuracy of the last {LAST} evaluated rounds, %", last=LAST)
CURVES = Curves("accuracy, %")
STATED = "a statement of the paper; its numbers were not at hand"
"""The remark on a claim of the paper whose number could not be read."""
FACTORS = RecordedTable("Factors by layer", "gamma")
RECORDED = {"record": "server"}

Methods = Mapping[str, str | Variant]

BASES = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox(mu=0.001)",
    "FedDyn": "feddyn(alpha=0.01)",
    "FedDisco": "feddisco(a=0.1, b=0.1)",
    "L-DAWA": "ldawa",
}
"""FedDyn has the alpha of its authors' code for CIFAR-10; the FedLWS paper gives none. With 0.1, 0.3 or 1 it diverges here."""
WITH = " + LWS"
"""Ending of the label of a base method with layer-wise weight shrinking, beta = 0.1."""
LWS = "FedAvg" + WITH
LAW = "fedlaw(epochs=100)"
PAIR = {"FedAvg": "fedavg", LWS: "fedavg + lws(beta=0.1)"}
AWD, ONLY_STEP = "FedAvg + AWD", f"{LWS}, only the optimization term"
RIVALS = {AWD: "fedavg + awd(lam=0.02)", ONLY_STEP: "fedavg + lws(beta=0.1, mode='only_opt')"}
"""Simpler rules that do not multiply the model by the factors of LWS."""
CNN_BETA, RESNET_BETA, CODE_BETA = 0.1, 0.01, 0.03
"""beta for the CNN and for ResNets in the paper, and the default of the authors' code."""
CLAMP = "clamp=(0.01, 0.2)"
"""The bounds of beta tau in the authors' code."""

WORK = {"batch_size": 128, "lr": 0.08, "momentum": 0.9, "weight_decay": 5e-4, "schedule": 0.99}
FEDERATION: dict[str, Any] = {"clients": 20, "proxy": 0.02, "merge": False, "protocol": "server"}
"""FedLAW learns from 2 % of the test samples; all methods are tested on the others."""
IMAGES: dict[str, Any] = {"model": "cnn", "transform": "normalize(mean=0.5, std=0.25)"}

PAPERS_OWN: dict[str, Any] = FEDERATION | IMAGES | {"rounds": 200, "split": 0.7, "evaluate_every": 2, "work": WORK}
"""Of each client's samples 30 % are held out, as in the authors' code."""
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
    "4,000 training images of CIFAR-10 (6,000 of Fashion-MNIST) instead of 35,000 (42,000), and therefore batches of 32 instead of "
    "128: 7 local steps a round instead of 14; 51 rounds instead of 200; a CNN with 16 and 32 instead of 32 and 64 channels before "
    "the last 64. A shrinking factor acts in every round, so that fewer "
    "rounds shrink less in all; a small training set is fitted sooner, so that a regularizer can help sooner"
)


def setting(data: str, alpha: float, **more: Any) -> dict[str, Any]:
    """The options of a data set whose classes are divided by Dir(alpha), as the authors' code does it."""
    return {"data": data, "partition": f"dirichlet(alpha={alpha:g}, balance=False)", **more}


CIFAR, FASHION = "CIFAR-10, alpha 0.1", "Fashion-MNIST, alpha 0.1"
ALPHAS = (100, 0.5, 0.1)
CIFARS: dict[str, Options] = {f"CIFAR-10, alpha {alpha:g}": setting("cifar10", alpha) for alpha in ALPHAS}
FASHIONS: dict[str, Options] = {f"Fashion-MNIST, alpha {alpha:g}": setting("fashion_mnist", alpha) for alpha in ALPHAS}
SMALL_FASHION: dict[str, Options] = {FASHION: {**FASHIONS[FASHION], "split": 0.1}}
TOYS: dict[str, Options] = {"digits, alpha 0.1": {"partition": "dirichlet(alpha=0.1)"}}


def with_lws(bases: dict[str, str], shrinking: str = f"lws(beta={CNN_BETA})") -> dict[str, str | Variant]:
    """Each method, followed by the same with layer-wise weight shrinking."""
    both: dict[str, str | Variant] = {}
    for name, spec in bases.items():
        both |= {name: spec, name + WITH: f"{spec} + {shrinking}"}
    return both


def helps(base: str, where: str, published: float | None = None, printed: str = "not at hand") -> Claim:
    """The claim that layer-wise weight shrinking makes a base method better."""
    return Claim(
        f"LWS makes {base} better, {where}", gain(base + WITH, base, where, last=LAST), Above(published), printed
    )


def better(text: str, method: str, other: str, where: str, remark: str = "") -> Claim:
    """A claim that a method is better than another one; a question of ours unless a remark says what the paper says."""
    published, source = ("not at hand", "") if remark else ("-", OURS)
    return Claim(text, gain(method, other, where, last=LAST), Above(), published, remark=remark, source=source)


BEATS_AWD = better("LWS is better than AWD", LWS, AWD, CIFAR, STATED)
BEATS_ONE_TERM = better("Both terms are better than only the optimization term", LWS, ONLY_STEP, CIFAR, STATED)
