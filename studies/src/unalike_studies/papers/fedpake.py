"""FedSA (Wang et al. 2024) and FedPake (Liao et al. 2025), two versions of the paper on parameter skew: their tables."""

from __future__ import annotations

from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Near
from unalike_studies.claims import EQUATIONS, OURS, Claim, difference, question
from unalike_studies.papers.parameter_skew import (
    AT_HAND,
    BUBBLES,
    FEDPAKE,
    FEDSA,
    LAYOUTS,
    MEAN,
    NORMALIZED,
    NUMBERS,
    PAKE,
    PAPERS_OWN,
    PERSONAL,
    PRACTICAL,
    REDUCED,
    RULES,
    SA,
    SETTINGS,
    SMALL,
    SMOKE,
    TOY,
    TOYS,
    baselines,
    better,
    better_than_best,
    of,
    personal_gain,
    same,
    table_scales,
)
from unalike_studies.study import Scale, Study, Variant

PAIR: dict[str, str | Variant] = {PAKE: RULES[PAKE], NORMALIZED: RULES[NORMALIZED]}
RULE = PAIR | {MEAN: "fedavg + uniform"}
BASE: dict[str, str | Variant] = {"FedAvg": "fedavg"}


def _scales(
    methods: dict[str, str | Variant], settings: dict[str, Options], others: dict[str, str | Variant] | None = None
) -> dict[str, Scale]:
    """The scales of a table with the same settings at small and paper; the methods `others` are left out but at paper."""
    reduced = f"{REDUCED}; without {', '.join(name for name in others if name not in methods)}" if others else REDUCED
    toys = {name: {**options, **_toy(options)} for name, options in settings.items()}
    some = dict(list(toys.items())[:2])
    return {
        "smoke": Scale(methods, some, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale(methods, settings, SMALL, reduced=reduced),
        "paper": Scale((others or {}) | methods, settings, PAPERS_OWN),
    }


def _toy(options: Options) -> dict[str, Any]:
    """The changes that make a setting fit the few digits of the smoke scale."""
    text = str(options["partition"]).replace(", min_size=40", "")
    return {"partition": text} | ({"clients": 10} if "clients" in options else {})


BASELINES = baselines(PAPERS_OWN["rounds"], 1000)
"""The baselines of table 1 at scale paper."""
SHARED = tuple(name for name in BASELINES if name != "FedBABU")
"""The baselines with a shared model."""


def _against_baselines(*rules: str) -> tuple[Claim, ...]:
    """The claims of table 1 that rules are better than its baselines."""
    return (
        *(better(rule, "FedAvg", where, 4.7, AT_HAND) for where in SETTINGS for rule in rules),
        *(better_than_best(rule, SHARED, where, AT_HAND) for where in SETTINGS for rule in rules),
        *(better(rule, "FedBABU", where) for where in SETTINGS for rule in rules),
    )


FEDSA_TABLE1 = Study(
    "fedsa-table1",
    "CIFAR-10, 20 clients: accuracy of eight baselines and of FedSA under two kinds of label skew",
    FEDSA,
    table_scales({SA: RULES[SA], NORMALIZED: RULES[NORMALIZED], MEAN: "fedavg + uniform"}, {}),
    (
        *_against_baselines(SA, NORMALIZED),
        *(same("MOON", "FedAvg", where, 1.0, "-0.14 (in one setting)") for where in SETTINGS),
        *(same("FedNTD", "FedAvg", where, 1.0, "-0.57 (in one setting)") for where in SETTINGS),
        *(same("Ditto", "FedAvg", where, 1e-3, "-", EQUATIONS) for where in SETTINGS),
        *(same(NORMALIZED, MEAN, where, 0.5, "-", OURS) for where in SETTINGS),
        *(
            question(
                f"The personal models of {method} are better than its shared model, {where}",
                personal_gain(method, where),
                Above(),
            )
            for where in SETTINGS
            for method in ("Ditto", "FedALA")
        ),
    ),
    (*LAYOUTS, PERSONAL, BUBBLES),
    NUMBERS + " The other tables and the figures of FedSA are those of FedPake, see the studies fedpake-*.",
)

TABLE1 = Study(
    "fedpake-table1",
    "CIFAR-10, 20 clients: accuracy of eight baselines and of FedPake under two kinds of label skew",
    FEDPAKE,
    table_scales(RULE, {}),
    _against_baselines(PAKE),
    (*LAYOUTS, PERSONAL),
    NUMBERS,
)

TABLE5_METHODS = BASE | {
    "SCAFFOLD": "scaffold",
    "FedDyn": "feddyn(alpha=0.1)",
    "FedConcat": "fedconcat(clusters=5, encoder_rounds=50, classifier_rounds=1000)",
    PAKE: RULES[PAKE],
    NORMALIZED: RULES[NORMALIZED],
}
TABLE5_SMALL = TABLE5_METHODS | {"FedConcat": "fedconcat(clusters=5, encoder_rounds=20, classifier_rounds=10)"}
TABLE5 = Study(
    "fedpake-table5",
    "CIFAR-10, 20 clients: SCAFFOLD, FedDyn and FedConcat beside FedAvg and FedPake",
    FEDPAKE,
    {
        "smoke": Scale(
            TABLE5_SMALL | {"FedConcat": "fedconcat(clusters=2, encoder_rounds=1, classifier_rounds=1)"},
            {PRACTICAL: TOYS[PRACTICAL]},
            TOY,
            seeds=(0,),
            reduced=SMOKE,
        ),
        "small": Scale(
            TABLE5_SMALL,
            SETTINGS,
            SMALL,
            reduced=f"{REDUCED}; FedConcat trains encoders for 20 rounds, the head for 10",
        ),
        "paper": Scale(TABLE5_METHODS, SETTINGS, PAPERS_OWN),
    },
    (
        *(better("FedAvg", "FedConcat", where, 2.0, "2.0 (59.7 against 57.7, in one setting)") for where in SETTINGS),
        *(better(PAKE, other, where) for where in SETTINGS for other in ("SCAFFOLD", "FedDyn", "FedConcat")),
    ),
    LAYOUTS,
    NUMBERS,
)

DRAWN = {
    "micro-classes": "random_micro",
    "macro-classes": "random_macro",
    "both": "random",
}
ABLATION_METHODS: dict[str, str | Variant] = {
    **BASE,
    MEAN: "fedavg + uniform",
    PAKE: RULES[PAKE],
    **{f"FedPake, random {what}": f"fedpake(variant='literal', assignment='{how}')" for what, how in DRAWN.items()},
    NORMALIZED: RULES[NORMALIZED],
    **{f"Normalized, random {what}": f"fedpake(assignment='{how}')" for what, how in DRAWN.items()},
}
ABLATION = Study(
    "fedpake-ablation",
    "CIFAR-10, 20 clients: micro- and macro-classes drawn at random instead of measured",
    FEDPAKE,
    _scales(ABLATION_METHODS, SETTINGS),
    (
        *(better(PAKE, f"FedPake, random {what}", where) for where in SETTINGS for what in DRAWN),
        *(
            Claim(
                f"With random micro- and macro-classes FedPake has 14 to 25 % of accuracy, {where}",
                of("FedPake, random both", where),
                Near(19.5, 5.5),
                "14 to 25 (which setting is not at hand)",
                "accuracy, %",
            )
            for where in SETTINGS
        ),
        *(
            same(f"Normalized, random {what}", NORMALIZED, where, 0.5, "-", OURS)
            for where in SETTINGS
            for what in DRAWN
        ),
    ),
    LAYOUTS,
    NUMBERS
    + " A rule whose alphas do not sum to 1 shrinks or grows the high parameters in every round, whatever the classes are.",
)

DEGREES: dict[str, Options] = {
    "Dir(0.01)": {"partition": "dirichlet(alpha=0.01, balance=False)"},
    PRACTICAL: SETTINGS[PRACTICAL],
    "Dir(0.5)": {"partition": "dirichlet(alpha=0.5, min_size=40)"},
    "Dir(1)": {"partition": "dirichlet(alpha=1.0, min_size=40)"},
}
DEGREE = Study(
    "fedpake-heterogeneity",
    "CIFAR-10, 20 clients: FedAvg and FedPake from severe to mild label skew",
    FEDPAKE,
    _scales(BASE | PAIR, DEGREES, BASELINES),
    tuple(better(PAKE, "FedAvg", where) for where in DEGREES),
    LAYOUTS,
    NUMBERS + " With alpha 0.01 clients may stay empty: not every client can hold 40 samples then.",
)

CROWDS: dict[str, Options] = {
    f"{clients} clients, {share:g} take part": {
        **SETTINGS[PRACTICAL],
        "partition": "dirichlet(alpha=0.1)",
        "clients": clients,
        "participation": share,
    }
    for clients in (50, 100)
    for share in (0.5, 1.0)
}
CROWD = Study(
    "fedpake-clients",
    "CIFAR-10, Dir(0.1): FedAvg and FedPake with 50 and 100 clients, of which half or all take part",
    FEDPAKE,
    _scales(BASE | PAIR, CROWDS, BASELINES),
    tuple(better(PAKE, "FedAvg", where) for where in CROWDS),
    LAYOUTS,
    NUMBERS,
)

LOCAL, GROUP, TRAINED = "BatchNorm kept at clients", "GroupNorm", "tested after local training"


def _protocols(settings: dict[str, Options], group_norm: str) -> dict[str, Options]:
    """The settings as they are (BatchNorm averaged, shared models tested), and with one choice changed at a time."""
    variants: dict[str, Options] = {
        "": {},
        f", {LOCAL}": {"buffers": "local"},
        f", {TRAINED}": {"protocol": ("clients", "local")},
        f", {GROUP}": {"model": group_norm},
    }
    return {where + name: {**options, **more} for where, options in settings.items() for name, more in variants.items()}


ZERO = {"MOON, term at zero": "moon(mu=0, tau=1.0)", "FedNTD, term at zero": "fedntd(beta=0)"}
PROTOCOL_METHODS: dict[str, str | Variant] = {**BASE, **PAIR, **ZERO}
PROTOCOLS = _protocols(SETTINGS, "cnn(channels=(8, 16, 32), norm='group')")
ONCE = frozenset((method, where) for method in ZERO for where in PROTOCOLS if where != PRACTICAL)
AFTER_TRAINING = {f"{where}, {TRAINED}": {"accuracy": "local_accuracy", "loss": "local_loss"} for where in SETTINGS}
"""In these settings, layouts show clients' own models."""
PROTOCOL = Study(
    "fedpake-protocol",
    "CIFAR-10, 20 clients: the likely protocol of the papers, and how much of the gains each choice explains",
    FEDPAKE,
    {
        "smoke": Scale(
            PROTOCOL_METHODS,
            _protocols({PRACTICAL: TOYS[PRACTICAL]}, "cnn(channels=4, hidden=8, norm='group')"),
            TOY,
            seeds=(0,),
            left_out=ONCE,
            reduced=SMOKE,
        ),
        "small": Scale(PROTOCOL_METHODS, PROTOCOLS, SMALL, left_out=ONCE, reduced=REDUCED),
        "paper": Scale(PROTOCOL_METHODS, _protocols(SETTINGS, "resnet18(norm='group')"), PAPERS_OWN, left_out=ONCE),
    },
    (
        *(
            same(method, "FedAvg", PRACTICAL, 1e-3, f"{printed} (in one setting)")
            for method, printed in zip(ZERO, ("-0.14", "-0.57"))
        ),
        *(
            better(PAKE, "FedAvg", f"{where}, {changed}", column=column)
            for where in SETTINGS
            for changed, column in ((LOCAL, "accuracy"), (TRAINED, "local_accuracy"), (GROUP, "accuracy"))
        ),
        *(
            question(
                f"Clients' models after local training are better than FedAvg's shared model, {where}",
                difference(of("FedAvg", f"{where}, {TRAINED}", "local_accuracy"), of("FedAvg", f"{where}, {TRAINED}")),
                Above(),
            )
            for where in SETTINGS
        ),
        *(
            question(
                f"Statistics of BatchNorm that stay at clients raise FedAvg's accuracy, {where}",
                difference(of("FedAvg", f"{where}, {LOCAL}"), of("FedAvg", where)),
                Above(),
            )
            for where in SETTINGS
        ),
    ),
    LAYOUTS,
    NUMBERS
    + " The papers' hyperparameters are those of PFLlib, whose shared models are tested with each client's own BatchNorm "
    "statistics, and whose terms of MOON and FedNTD are zero by default. Networks without a norm are in skew-estimators-cnn: the "
    "small one here does not learn within 30 rounds (10 to 15 % with FedAvg and one seed).",
    instead=AFTER_TRAINING,
)

STUDIES = (FEDSA_TABLE1, TABLE1, TABLE5, ABLATION, DEGREE, CROWD, PROTOCOL)
