"""FedSA and FedPake: the paper, data, methods and training that the studies of both versions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Same
from unalike_studies.claims import Claim, Quantity, best, difference, gain, score
from unalike_studies.layouts.figures import Curves, LabelBubbles
from unalike_studies.layouts.tables import ClientSpread, Costs, MethodTable
from unalike_studies.study import Scale, Variant

FEDSA = "Wang, Liao, Yuan, Zhang: The Key of Parameter Skew in Federated Learning (FedSA), arXiv:2408.11278v1, 2024"
FEDPAKE = "Liao, Wang, Yuan, Zhang: The Key of Parameter Skew in Federated Learning (FedPake), arXiv:2408.11278v2, 2025"
NUMBERS = (
    "FedPake is a later version of FedSA: one method, written down with different slips. Of the papers' numbers only these were at "
    "hand: a gain of about 4.7 points over eight baselines (abstract), FedAvg 90.79, MOON 90.65 and FedNTD 90.22 in one "
    "setting, FedConcat 57.7 where FedAvg has 59.7, and 14 to 25 for random classes. Their tables judge shared models and the "
    "fine-tuned models of FedBABU side by side."
)
AT_HAND = "about 4.7 (abstract, over eight baselines)"

SA, PAKE, NORMALIZED = "FedSA as printed", "FedPake as printed", "FedSA = FedPake, normalized"
RULES = {SA: "fedsa(variant='literal')", PAKE: "fedpake(variant='literal')", NORMALIZED: "fedsa"}
"""The two rules as printed, and the one that keeps the scale of the model."""
MEAN = "FedAvg, uniform"
"""What the rules are at threshold 1: they do not weigh clients by their samples."""

WORK = {"batch_size": 10, "lr": 0.005}
PAPERS_OWN: dict[str, Any] = {"data": "cifar10", "clients": 20, "model": "resnet18", "rounds": 1000, "work": WORK}
SMALL: dict[str, Any] = PAPERS_OWN | {
    "model": "cnn(channels=(8, 16, 32), norm='batch')",
    "rounds": 30,
    "evaluate_every": 2,
    "work": {"batch_size": 40, "lr": 0.04},
}
TOY: dict[str, Any] = SMALL | {
    "data": "digits",
    "clients": 10,
    "model": "cnn(channels=4, hidden=8, norm='batch')",
    "rounds": 2,
    "evaluate_every": 1,
}
LAST = 5
"""Evaluated rounds that a score is the mean of: at the small scale the last ten rounds."""
SMOKE = "digits, 10 clients, 2 rounds and a small network: shows that the study runs, nothing else"
REDUCED = (
    "20,000 images of CIFAR-10 instead of 60,000, a small CNN with BatchNorm instead of ResNet-18, 30 rounds of batches of 40 at "
    "rate 0.04 instead of 1000 of batches of 10 at 0.005: accuracies are far below the papers'; a rule that loses the scale of "
    "the model does so within a few rounds, but an advantage that builds up slowly would be missed"
)

PATHOLOGICAL, PRACTICAL = "2 classes", "Dir(0.1)"
SETTINGS: dict[str, Options] = {
    PATHOLOGICAL: {"partition": "pathological(classes=2)"},
    PRACTICAL: {"partition": "dirichlet(alpha=0.1, min_size=40)"},
}
TOYS: dict[str, Options] = SETTINGS | {PRACTICAL: {"partition": "dirichlet(alpha=0.1)"}}
OTHERS = {"cifar100": ("CIFAR-100", 10, "resnet34"), "tiny_imagenet": ("Tiny-ImageNet", 20, "resnet34")}
FULL: dict[str, Options] = {
    **SETTINGS,
    **{
        f"{name}, {label}": {"data": data, "model": model, "partition": partition}
        for data, (name, classes, model) in OTHERS.items()
        for label, partition in (
            (f"{classes} classes", f"pathological(classes={classes})"),
            (PRACTICAL, SETTINGS[PRACTICAL]["partition"]),
        )
    },
}
"""The papers' settings on all three data sets; the depth of their ResNet by data set is our reading."""


def baselines(rounds: int, steps: int) -> dict[str, str | Variant]:
    """The eight baselines of table 1.

    Args:
        rounds: rounds of the study; FedBABU is fine-tuned and evaluated after the last one only.
        steps: steps of FedGen's generator in a round.
    """
    both = {"protocol": ("clients", "personal")}
    return {
        "FedAvg": "fedavg",
        "FedProx": "fedprox(mu=0.001)",
        "MOON": "moon(tau=1.0)",
        "FedGen": f"fedgen(preset='pfllib', steps={steps})",
        "FedNTD": "fedntd",
        "Ditto": Variant("ditto(lam=0.001)", both),
        "FedBABU": Variant("fedbabu(tune='head')", {"protocol": "personal", "evaluate_every": rounds}),
        "FedALA": Variant("fedala", both),
    }


def table_scales(methods: dict[str, str | Variant], extra: dict[str, str | Variant]) -> dict[str, Scale]:
    """The scales of a table: FedAvg and `methods` at all, the other baselines and `extra` at small and paper."""
    small = baselines(SMALL["rounds"], 100) | methods | extra
    few = {name: spec for name, spec in small.items() if name in ("FedAvg", "FedALA", *methods)}
    return {
        "smoke": Scale(few, TOYS, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            small,
            SETTINGS,
            SMALL,
            reduced=f"{REDUCED}; CIFAR-10 alone; 100 steps of FedGen's generator a round, not 1000",
        ),
        "paper": Scale(baselines(PAPERS_OWN["rounds"], 1000) | methods | extra, FULL, PAPERS_OWN),
    }


def of(method: str, setting: str, column: str = "accuracy") -> Quantity:
    """The mean over the last evaluated rounds of a method."""
    return score(method, setting, column, LAST)


def better(
    method: str,
    baseline: str,
    setting: str,
    published: float | None = None,
    at_hand: str = "",
    column: str = "accuracy",
) -> Claim:
    """The claim that a method is better than another one."""
    quantity = gain(method, baseline, setting, column, last=LAST)
    return Claim(f"{method} is better than {baseline}, {setting}", quantity, Above(published), at_hand or "not at hand")


def better_than_best(method: str, others: Iterable[str], setting: str, at_hand: str) -> Claim:
    """The claim that a method is better than the best shared model of others."""
    quantity = difference(of(method, setting), best(*(of(other, setting) for other in others)))
    return Claim(f"{method}: better than the best shared model of the baselines, {setting}", quantity, Above(), at_hand)


def same(method: str, baseline: str, setting: str, margin: float, at_hand: str, source: str = "") -> Claim:
    """The claim that two methods are equally good."""
    quantity = gain(method, baseline, setting, last=LAST)
    return Claim(f"{method} is as good as {baseline}, {setting}", quantity, Same(margin), at_hand, source=source)


def personal_gain(method: str, setting: str) -> Quantity:
    """The accuracy of a method's personal models less that of its shared model."""
    return difference(of(method, setting, "personal_accuracy"), of(method, setting))


TABLE = MethodTable("Mean accuracy of the last 5 evaluated rounds on the clients' test samples, %", last=LAST)
PERSONAL = MethodTable("The same for personal models, where a method has both, %", "personal_accuracy", last=LAST)
SPREAD = ClientSpread("Differences between clients: deviation of accuracy, and the worst client, %")
COSTS = Costs("Cost: time of a round, rounds within 0.5 points of the final mean, parameters sent", last=LAST)
CURVES = Curves("accuracy, %")
LOSS = Curves("loss", "loss", scale=1, name="loss")
BUBBLES = LabelBubbles("Samples by client and class")
LAYOUTS = (TABLE, SPREAD, COSTS, CURVES, LOSS)
"""The layouts of a table with shared models alone."""
