"""FedSA and FedPake: the paper, data, methods and training that the studies of both versions share."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import pstdev
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Same
from unalike_studies.claims import (
    OURS,
    Claim,
    Quantity,
    as_printed,
    best,
    by_cell,
    difference,
    gain,
    mean,
    question,
    score,
)
from unalike_studies.layouts.figures import Curves, LabelBubbles
from unalike_studies.layouts.tables import ClientSpread, Costs, MethodTable
from unalike_studies.published import Printed, printed
from unalike_studies.results import CellResult
from unalike_studies.study import Layout, Scale, Study, StudyTemplate, Variant

FEDSA = "Wang, Liao, Yuan, Zhang: The Key of Parameter Skew in Federated Learning (FedSA), arXiv:2408.11278v1, 2024"
FEDPAKE = "Liao, Wang, Yuan, Zhang: The Key of Parameter Skew in Federated Learning (FedPake), arXiv:2408.11278v2, 2025"
NOTES = (
    "FedPake is a later version of FedSA: one method, written down with different slips; every number that both print is the same. "
    "Learning rate, batch size, BatchNorm at the clients, the stem of ResNet and the mu of MOON are not in the papers: those here "
    "are PFLlib's, whose names and other defaults the papers' list of hyperparameters repeats."
)

SA = "FedSA as printed"
PAKE = "FedPake as printed"
NORMALIZED = "FedSA = FedPake, normalized"
RULES = {SA: "fedsa(variant='literal')", PAKE: "fedpake(variant='literal')", NORMALIZED: "fedsa"}
"""The two rules as printed, and the one that keeps the scale of the model."""
RULE, RULE_SPEC = "FedSA = FedPake, consistent", "fedpake(variant='consistent')"
"""The reading that is consistent with both versions: |cv| of the first, eq. 11 of the second."""
RANKED, RANKED_SPEC = "FedSA = FedPake, normalized, by rank", "fedpake(normalize_by='rank')"
"""A reading that acts on most parameters (80 %) and keeps the scale of the model: a threshold of ranks, scaled squared deviations,
and weights that sum to 1."""
READINGS = {RULE: RULE_SPEC, RANKED: RANKED_SPEC}
"""The reading by which the papers' claims are judged, and the one of our questions."""
MISPRINTS = (
    "The papers' claims are judged by the one reading that is consistent with both versions and acts on 0.3 % of the parameters. "
    "One that acts on 80 % of them, which neither version prints, is a question of ours. FedSA as printed divides alpha by S C, "
    "FedPake by S H; FedPake as printed has no absolute value in the coefficient of variation, FedSA has one. As both print the "
    "same numbers, neither slip made the tables: what these two do to accuracy are questions of ours."
)
MEAN = "FedAvg, uniform"
"""What the rules are at threshold 1: they do not weigh clients by their samples."""

FEDERATION: dict[str, Any] = {"data": "cifar10", "clients": 20}
PAPERS_OWN: dict[str, Any] = FEDERATION | {
    "model": "resnet18(stem='imagenet')",
    "rounds": 1000,
    "buffers": "local",
    "work": {"batch_size": 10, "lr": 0.005},
}
"""Stem, statistics of BatchNorm, batches and rate are PFLlib's."""
SMALL: dict[str, Any] = FEDERATION | {
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
    "rate 0.04 instead of 1000 of PFLlib's batches of 10 at 0.005: accuracies are far below the papers'; a rule that loses the "
    "scale of the model does so within a few rounds, but an advantage that builds up slowly would be missed"
)
UNLIKE = (
    "a small CNN scored with averaged statistics of BatchNorm instead of ResNet-18 with each client's own, which change accuracies "
    "by tens of points (skew-protocols)"
)


@dataclass(frozen=True)
class Place:
    """A setting of the papers' tables: the options that make it, and where its numbers are printed."""

    options: Options
    table: str
    dataset: str
    entries: Mapping[str, Any]

    def printed(self, method: str) -> Printed:
        """The accuracy of a method."""
        return printed("fedpake", self.table, method, self.dataset, **self.entries)

    def gain(self, method: str = "FedPake", baseline: str = "FedAvg") -> Printed:
        """The accuracy of a method less that of a baseline."""
        return self.printed(method) - self.printed(baseline)


DATASETS = {
    "CIFAR-10": ("cifar10", 2, 4),
    "CIFAR-100": ("cifar100", 10, 5),
    "Tiny-ImageNet": ("tiny_imagenet", 20, 8),
}
"""Data set -> its name here, the classes of a client in the pathological division, and FedPake's C = S."""


def _dirichlet(beta: float) -> str:
    """Not every client can hold PFLlib's 40 samples of Dir(0.01): clients may stay empty then."""
    sizes = "balance=False" if beta < 0.1 else "min_size=40"
    return f"dirichlet(alpha={beta}, {sizes})"


def _places() -> Iterator[tuple[str, Place]]:
    # Table 1.
    for dataset, (data, classes, _) in DATASETS.items():
        pathological = {"data": data, "partition": f"pathological(classes={classes})"}
        yield (
            f"{dataset}, {classes} classes",
            Place(pathological, "1", dataset, {"partition": "pathological"}),
        )
        default = {"data": data, "partition": _dirichlet(0.1)}
        yield (
            f"{dataset}, Dir(0.1)",
            Place(default, "1", dataset, {"partition": "Dir", "model": "ResNet-18"}),
        )
    yield (
        "CIFAR-100, Dir(0.1), ResNet-34",
        Place(
            {
                "data": "cifar100",
                "partition": _dirichlet(0.1),
                "model": "resnet34(stem='imagenet')",
            },
            "1",
            "CIFAR-100",
            {"model": "ResNet-34"},
        ),
    )

    # Table 3: degrees of heterogeneity.
    for beta in (0.01, 0.5, 1.0):
        options = {"data": "cifar100", "partition": _dirichlet(beta)}
        yield f"CIFAR-100, Dir({beta:g})", Place(options, "3", "CIFAR-100", {"beta": beta})

    # Table 2: numbers of clients, and shares of them that take part.
    for dataset in ("CIFAR-10", "CIFAR-100"):
        data, _, _ = DATASETS[dataset]
        for clients, rho in ((50, 1.0), (50, 0.5), (100, 0.5)):
            crowd: Options = {
                "data": data,
                "partition": "dirichlet(alpha=0.1)",
                "clients": clients,
                "participation": rho,
            }
            entries = {"clients": clients, "rho": rho}
            label = f"{dataset}, {clients} clients, {rho:g} take part"
            yield label, Place(crowd, "2", dataset, entries)


PLACES: dict[str, Place] = dict(_places())
"""The 16 settings of tables 1 to 3."""


def place(setting: str) -> Place:
    """A setting by its label; without a data set it is one of CIFAR-10."""
    return PLACES[setting] if setting in PLACES else PLACES[f"CIFAR-10, {setting}"]


def sized(spec: str, settings: Iterable[str], more: str = "") -> Variant:
    """A rule with the C = S of the data set that a setting's name begins with, and `more` after it: 4 is the rule's default."""
    spec_with_open_fields = spec[:-1] + ", " if spec.endswith(")") else spec + "("
    larger = {}
    for setting in settings:
        dataset = setting.partition(",")[0]
        if dataset not in DATASETS:
            continue
        _, _, size = DATASETS[dataset]
        if size != 4:
            larger[setting] = f"{spec_with_open_fields}micro={size}, macro={size}){more}"
    return Variant(spec + more, elsewhere=larger)


PATHOLOGICAL, PRACTICAL = "2 classes", "Dir(0.1)"
SETTINGS: dict[str, Options] = {name: place(name).options for name in (PATHOLOGICAL, PRACTICAL)}
TOYS: dict[str, Options] = {
    PATHOLOGICAL: {"partition": "pathological(classes=2)"},
    PRACTICAL: {"partition": "dirichlet(alpha=0.1)"},
}
FULL: dict[str, Options] = {
    name.removeprefix("CIFAR-10, "): place.options
    for name, place in PLACES.items()
    if place.table == "1"
}
"""The columns of table 1; those of CIFAR-10 without its name."""


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
        "FedBABU": Variant(
            "fedbabu(tune='head')", {"protocol": "personal", "evaluate_every": rounds}
        ),
        "FedALA": Variant("fedala", both),
    }


def of(method: str, setting: str, column: str = "accuracy") -> Quantity:
    """The mean over the last evaluated rounds of a method."""
    return score(method, setting, column, LAST)


def better(
    method: str, baseline: str, setting: str, row: str = "FedPake", column: str = "accuracy"
) -> Claim:
    """The papers' claim that a method, printed in this row, is better than a baseline; or worse, where its number is lower."""
    quantity = gain(method, baseline, setting, column, last=LAST)
    published = place(setting).gain(row, baseline)
    word, expects = as_printed(published)
    return Claim(
        f"{method} is {word} than {baseline}, {setting}",
        quantity,
        expects,
        published,
        for_own_method=row == "FedPake" and published.value > 0,
    )


def by_our_rule(claim: Claim) -> Claim:
    """A statement of the papers, asked of a reading that neither of them prints: a question of ours."""
    remark = "the papers' statement, of a reading that they do not print"
    if claim.published is not None:
        remark += f"; printed: {claim.published}"
    return replace(
        claim,
        source=OURS,
        published=None,
        remark="; ".join(text for text in (claim.remark, remark) if text),
        for_own_method=False,
    )


def asks_better(method: str, baseline: str, setting: str, column: str = "accuracy") -> Claim:
    """The question whether a method is better than another one."""
    quantity = gain(method, baseline, setting, column, last=LAST)
    return question(f"{method} is better than {baseline}, {setting}", quantity, Above())


def better_than_best(method: str, others: Iterable[str], setting: str) -> Claim:
    """The claim that a method is better than the best shared model of others."""
    others = list(others)
    scores_of_others = [of(other, setting) for other in others]
    best_of_others = best(*scores_of_others)
    quantity = difference(of(method, setting), best_of_others)
    printed_numbers = [place(setting).printed(other) for other in others]
    printed_best = max(printed_numbers, key=lambda number: number.value)
    published = place(setting).printed("FedPake") - printed_best
    return Claim(
        f"{method}: better than the best shared model of the baselines, {setting}",
        quantity,
        Above(),
        published,
        for_own_method=published.value > 0,
    )


def better_than_mean(method: str, others: Iterable[str], setting: str) -> Claim:
    """The question whether a method is better than the mean of others.

    The 4.7 of the abstract is the mean of this over 16 settings. The mean is one of shared models and of FedBABU's personal ones,
    so that it says what the comparison with FedBABU says.
    """
    others = list(others)
    scores_of_others = [of(other, setting) for other in others]
    mean_of_others = mean(*scores_of_others)
    quantity = difference(of(method, setting), mean_of_others)
    printed_numbers = [place(setting).printed(other) for other in others]
    published = place(setting).printed("FedPake") - Printed.mean(*printed_numbers)
    return question(
        f"{method}: better than the mean of the eight baselines, {setting}",
        quantity,
        Above(),
        remark=f"of shared and personal models together; printed: {published}",
    )


def same(
    method: str, baseline: str, setting: str, margin: float, published: Printed | None = None
) -> Claim:
    """The claim that two methods are equally good; a question of ours unless the papers print a difference."""
    text = f"{method} is as good as {baseline}, {setting}"
    quantity = gain(method, baseline, setting, last=LAST)
    if published is None:
        return question(text, quantity, Same(margin))
    return Claim(text, quantity, Same(margin), published)


def client_deviation(method: str, setting: str) -> Quantity:
    """The deviation of accuracy over clients."""

    def number(cell: CellResult) -> float | None:
        scores = [value for value in cell.clients.get("accuracy", []) if value is not None]
        return pstdev(scores) if len(scores) > 1 else None

    return by_cell(method, setting, number)


def personal_gain(method: str, setting: str) -> Quantity:
    """The accuracy of a method's personal models less that of its shared model."""
    return difference(of(method, setting, "personal_accuracy"), of(method, setting))


TABLE = MethodTable(
    "Mean accuracy of the last 5 evaluated rounds on the clients' test samples, %", last=LAST
)
PERSONAL = MethodTable(
    "The same for personal models, where a method has both, %", "personal_accuracy", last=LAST
)
SPREAD = ClientSpread("Differences between clients: deviation of accuracy, and the worst client, %")
COSTS = Costs(
    "Cost: time of a round, rounds within 0.5 points of the final mean, parameters sent", last=LAST
)
CURVES = Curves("accuracy, %")
LOSS = Curves("loss", "loss", scale=1, name="loss")
BUBBLES = LabelBubbles("Samples by client and class")
LAYOUTS = (TABLE, SPREAD, COSTS, CURVES, LOSS)
"""The layouts of a table with shared models alone."""
study = StudyTemplate(
    FEDPAKE,
    {
        "smoke": Scale({}, TOYS, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale({}, SETTINGS, SMALL, reduced=REDUCED, unlike=UNLIKE),
        "paper": Scale({}, SETTINGS, PAPERS_OWN),
    },
    LAYOUTS,
).study
"""A study of CIFAR-10 at 20 clients."""


def of_table1(
    name: str, title: str, rules: dict[str, str], claims: Iterable[Claim], *more: Layout, notes: str
) -> Study:
    """A study of table 1: FedAvg, FedALA and `rules` at all scales, the other baselines at small and paper."""
    small: dict[str, str | Variant] = (
        baselines(SMALL["rounds"], 100) | rules | {MEAN: "fedavg + uniform"}
    )
    large = {rule: sized(spec, FULL) for rule, spec in rules.items()}
    in_smoke = ("FedAvg", "FedALA", MEAN, *rules)
    smoke = {label: method for label, method in small.items() if label in in_smoke}
    return study(
        name,
        title,
        small,
        SETTINGS,
        claims,
        (*LAYOUTS, PERSONAL, *more),
        f"{NOTES} {MISPRINTS} {notes}",
        smoke={"methods": smoke},
        small={
            "reduced": f"{REDUCED}; CIFAR-10 alone; 100 steps of FedGen's generator a round, not 1000"
        },
        paper={
            "methods": baselines(PAPERS_OWN["rounds"], 1000) | large | {MEAN: small[MEAN]},
            "settings": FULL,
        },
    )
