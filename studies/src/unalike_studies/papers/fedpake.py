"""FedSA (Wang et al. 2024) and FedPake (Liao et al. 2025), two versions of the paper on parameter skew: their tables."""

from dataclasses import replace
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below, Near, Same
from unalike_studies.claims import (
    ACCURACY,
    Claim,
    Quantity,
    bytes_of_client,
    difference,
    gain,
    identity,
    oscillation,
    question,
    ratio,
)
from unalike_studies.papers import parameter_skew as skew
from unalike_studies.papers.parameter_skew import (
    LAST,
    NORMALIZED,
    PAKE,
    PRACTICAL,
    RULE,
    RULES,
    SETTINGS,
    of,
    place,
)
from unalike_studies.published import printed
from unalike_studies.study import Variant

NOTES = f"{skew.NOTES} {skew.MISPRINTS}"
PAIR: dict[str, str | Variant] = {PAKE: RULES[PAKE], NORMALIZED: RULES[NORMALIZED]}
BASE: dict[str, str | Variant] = {"FedAvg": "fedavg"}

BASELINES = skew.baselines(skew.PAPERS_OWN["rounds"], 1000)
"""The baselines of table 1 at scale paper."""
SHARED = tuple(name for name in BASELINES if name != "FedBABU")
"""The baselines with a shared model."""


def _against_baselines(*rules: str) -> tuple[Claim, ...]:
    """The claims of table 1 about the rule and its baselines, by these readings."""
    claims = []
    for rule in rules:
        for where in SETTINGS:
            claims += [
                skew.better(rule, "FedAvg", where),
                skew.better_than_best(rule, SHARED, where),
                skew.better(rule, "FedBABU", where),
                skew.better_than_mean(rule, BASELINES, where),
            ]
    return tuple(claims)


COST_CLAIMS = (
    Claim(
        f"A round takes longer with the rule than with FedAvg, {PRACTICAL}",
        difference(
            skew.COSTS.seconds_a_round(RULE, PRACTICAL),
            skew.COSTS.seconds_a_round("FedAvg", PRACTICAL),
        ),
        Above(),
        None,
        "seconds a round",
        scale=1,
        needs_learning=False,
        remark="printed are 0.248 and 0.246 minutes a round of ResNet-18 and 45,000 images",
    ),
    Claim(
        f"The rule converges in fewer rounds than FedAvg, {PRACTICAL}",
        difference(
            skew.COSTS.rounds_to_convergence(RULE, PRACTICAL),
            skew.COSTS.rounds_to_convergence("FedAvg", PRACTICAL),
        ),
        Below(),
        None,
        "rounds",
        scale=1,
        remark="the text on figure 5; the times of table 6 give 907 rounds, and 846 for FedAvg",
    ),
)
"""The statements on costs (table 6)."""


def _models_sent(method: str) -> Quantity:
    """The bytes that a client receives and sends in a round, in units of those with FedAvg, which are two models."""
    ways = ("bytes_down", "bytes_up")
    return ratio(
        bytes_of_client(method, PRACTICAL, *ways), bytes_of_client("FedAvg", PRACTICAL, *ways)
    )


def _sends_two_models(method: str, row: str, remark: str = "") -> Claim:
    """The communication column of table 6: Sigma is a model, and FedAvg's 2 Sigma is the unit."""
    return Claim(
        f"A client of {method} receives and sends two models in a round",
        _models_sent(method),
        Near(margin=0.01),
        printed("fedpake", "6", row, quantity="parameters sent per iteration"),
        "models",
        scale=2,
        needs_learning=False,
        remark=remark,
    )


COMMUNICATION_CLAIMS = (
    *(
        _sends_two_models(method, method)
        for method in ("FedProx", "MOON", "FedNTD", "Ditto", "FedALA")
    ),
    _sends_two_models(
        "FedGen",
        "FedGen",
        "the generator, which clients receive too, is large beside this CNN and small beside ResNet-18",
    ),
    _sends_two_models(RULE, "FedPake"),
    Claim(
        "A client of FedBABU receives and sends less than one of FedAvg",
        difference(_models_sent("FedBABU"), _models_sent("FedAvg")),
        Below(),
        None,
        "models",
        scale=2,
        needs_learning=False,
        remark="printed are two feature extractors, whose share of the model is not printed",
    ),
)
STEADINESS = Claim(
    f"The training loss oscillates less with the rule than with FedAvg, {PRACTICAL}",
    difference(
        oscillation(RULE, PRACTICAL, "train_loss"), oscillation("FedAvg", PRACTICAL, "train_loss")
    ),
    Below(),
    None,
    "loss",
    scale=1,
    remark="figure 5, said of the rounds from 500 on; here it is the second half of the run",
)
TREND = Claim(
    f"FedAvg is better with {skew.PATHOLOGICAL} than with {PRACTICAL}",
    difference(of("FedAvg", skew.PATHOLOGICAL), of("FedAvg", PRACTICAL)),
    Above(),
    place(skew.PATHOLOGICAL).printed("FedAvg") - place(PRACTICAL).printed("FedAvg"),
)

FEDSA_TABLE1 = skew.of_table1(
    "fedsa-table1",
    "CIFAR-10, 20 clients: accuracy of eight baselines and of FedSA under two kinds of label skew",
    {skew.SA: RULES[skew.SA], NORMALIZED: RULES[NORMALIZED], RULE: skew.RULE_SPEC},
    (
        *_against_baselines(RULE),
        *(
            skew.same(method, "FedAvg", where, 1.0, place(where).gain(method))
            for method in ("MOON", "FedNTD", "FedALA")
            for where in SETTINGS
        ),
        Claim(
            f"Accuracy differs less between clients with the rule than with FedAvg, {PRACTICAL}",
            difference(
                skew.client_deviation(RULE, PRACTICAL), skew.client_deviation("FedAvg", PRACTICAL)
            ),
            Below(),
            remark="figure 5 of v1, without numbers",
        ),
        *(
            identity(
                f"Ditto's shared model is FedAvg's, {where}",
                gain("Ditto", "FedAvg", where, last=LAST),
                Same(1e-3),
            )
            for where in SETTINGS
        ),
        *(skew.same(NORMALIZED, skew.MEAN, where, 0.5) for where in SETTINGS),
        *(skew.asks_better(skew.SA, "FedAvg", where) for where in SETTINGS),
        *(
            question(
                f"The personal models of {method} are better than its shared model, {where}",
                skew.personal_gain(method, where),
                Above(),
            )
            for where in SETTINGS
            for method in ("Ditto", "FedALA")
        ),
    ),
    skew.BUBBLES,
    notes="The other tables and the figures of FedSA are those of FedPake, see the studies fedpake-*.",
)

TABLE1 = skew.of_table1(
    "fedpake-table1",
    "CIFAR-10, 20 clients: accuracy of eight baselines and of FedPake under two kinds of label skew",
    {PAKE: RULES[PAKE], NORMALIZED: RULES[NORMALIZED], **skew.READINGS},
    (
        *_against_baselines(*skew.READINGS),
        TREND,
        *COST_CLAIMS,
        *COMMUNICATION_CLAIMS,
        STEADINESS,
        *(skew.asks_better(PAKE, "FedAvg", where) for where in SETTINGS),
    ),
    notes="The same comparison with ResNet-18 and each client's own statistics is in skew-protocols-settings.",
)

SIMPLE = "FedPake, simple CNN"
CONCAT = "fedconcat(clusters=5, encoder_rounds=50, classifier_rounds=1000)"
TABLE5_METHODS = BASE | {
    "SCAFFOLD": "scaffold",
    "FedDyn": "feddyn(alpha=0.1)",
    "FedConcat": CONCAT,
    PAKE: RULES[PAKE],
    NORMALIZED: RULES[NORMALIZED],
    RULE: skew.RULE_SPEC,
}
SIMPLE_CNN = {"model": "lenet"}


def _printed5(method: str, model: str = "ResNet-18") -> Any:
    return printed("fedpake", "5", method, model=model)


def _rule5(setting: str) -> Quantity:
    """The rule with the network of FedConcat: at the small scale all methods have it."""
    simple = of(SIMPLE, setting)
    common = of(RULE, setting)
    return lambda results: simple(results) or common(results)


TABLE5 = skew.study(
    "fedpake-table5",
    "CIFAR-10, 20 clients: SCAFFOLD, FedDyn and FedConcat beside FedAvg and FedPake",
    TABLE5_METHODS
    | {"FedConcat": "fedconcat(clusters=5, encoder_rounds=20, classifier_rounds=10)"},
    SETTINGS,
    (
        Claim(
            f"FedPake is better than FedConcat, {PRACTICAL}",
            difference(_rule5(PRACTICAL), of("FedConcat", PRACTICAL)),
            Above(),
            _printed5("FedPake", "simple CNN") - _printed5("FedConcat", "simple CNN"),
            for_own_method=True,
        ),
        Claim(
            f"FedPake is better than SCAFFOLD, {PRACTICAL}",
            gain(RULE, "SCAFFOLD", PRACTICAL, last=LAST),
            Above(),
            _printed5("FedPake") - _printed5("Scaffold"),
            for_own_method=True,
        ),
        Claim(
            f"FedDyn is better than FedPake, {PRACTICAL}",
            gain("FedDyn", RULE, PRACTICAL, last=LAST),
            Above(),
            _printed5("FedDyn") - _printed5("FedPake"),
            remark="the text says about 0.5",
        ),
    ),
    notes=f"{NOTES} The table has Dir(0.1) alone, without FedAvg; FedConcat and one row of FedPake have a simple CNN.",
    smoke={
        "methods": TABLE5_METHODS
        | {"FedConcat": "fedconcat(clusters=2, encoder_rounds=1, classifier_rounds=1)"},
        "settings": {PRACTICAL: skew.TOYS[PRACTICAL]},
    },
    small={"reduced": f"{skew.REDUCED}; FedConcat trains encoders for 20 rounds, the head for 10"},
    paper={
        "methods": TABLE5_METHODS
        | {"FedConcat": Variant(CONCAT, SIMPLE_CNN), SIMPLE: Variant(skew.RULE_SPEC, SIMPLE_CNN)},
        "settings": {PRACTICAL: SETTINGS[PRACTICAL]},
    },
)

DRAWN = {"micro-classes": "random_micro", "macro-classes": "random_macro", "both": "random"}
BY_RANK, BY_RANK_SPEC = (
    "FedSA = FedPake, consistent, by rank",
    "fedpake(variant='consistent', normalize_by='rank')",
)
"""The reading whose weights sum to 1 where classes are measured, and to less where they are drawn, on 80 % of the parameters."""
MODAL = "modal classes"
RANDOM = DRAWN | {MODAL: "random_modal"}
"""A macro-class stands in eq. 11 by its modal micro-class alone: to draw that is another reading of a macro-class at random."""
ABLATION_METHODS: dict[str, str | Variant] = {
    **BASE,
    skew.MEAN: "fedavg + uniform",
    PAKE: RULES[PAKE],
    **{
        f"FedPake, random {what}": f"fedpake(variant='literal', assignment='{how}')"
        for what, how in DRAWN.items()
    },
    NORMALIZED: RULES[NORMALIZED],
    **{f"Normalized, random {what}": f"fedpake(assignment='{how}')" for what, how in DRAWN.items()},
    BY_RANK: BY_RANK_SPEC,
    **{
        f"{BY_RANK}, random {what}": f"{BY_RANK_SPEC[:-1]}, assignment='{how}')"
        for what, how in RANDOM.items()
    },
}
PRINTED4 = {
    what: printed("fedpake", "4", "FedPake", micro_class=micro, macro_class=macro)
    for what, micro, macro in (
        ("", "measured", "measured"),
        ("micro-classes", "random", "measured"),
        ("macro-classes", "measured", "random"),
        (MODAL, "measured", "random"),
        ("both", "random", "random"),
    )
}
"""Table 4: which classes are drawn -> accuracy. The setting is not said; by the measured row it is close to Dir(0.1)."""
ABLATION = skew.study(
    "fedpake-ablation",
    "CIFAR-10, 20 clients: micro- and macro-classes drawn at random instead of measured",
    ABLATION_METHODS,
    SETTINGS,
    (
        *(
            skew.by_our_rule(
                Claim(
                    f"{BY_RANK} is better than with random {what}, {PRACTICAL}",
                    gain(BY_RANK, f"{BY_RANK}, random {what}", PRACTICAL, last=LAST),
                    Above(),
                    PRINTED4[""] - PRINTED4[what],
                )
            )
            for what in RANDOM
        ),
        *(
            skew.by_our_rule(
                Claim(
                    f"With random {what} {BY_RANK} falls to the printed accuracy, {PRACTICAL}",
                    of(f"{BY_RANK}, random {what}", PRACTICAL),
                    Near(PRINTED4[what].value, margin=5),
                    PRINTED4[what],
                    **ACCURACY,
                )
            )
            for what in RANDOM
        ),
        *(
            question(
                f"{PAKE} is better than with random {what}, {where}",
                gain(PAKE, f"FedPake, random {what}", where, last=LAST),
                Above(),
            )
            for where in SETTINGS
            for what in DRAWN
        ),
        *(
            skew.same(f"Normalized, random {what}", NORMALIZED, where, 0.5)
            for where in SETTINGS
            for what in DRAWN
        ),
    ),
    notes=f"{NOTES} A rule whose alphas do not sum to 1 shrinks or grows the high parameters in every round, whatever the "
    "classes are.",
    small={
        "left_out": frozenset(
            (label, skew.PATHOLOGICAL) for label in ABLATION_METHODS if label.startswith(BY_RANK)
        )
    },
)


CROWDS: dict[str, Options] = {
    f"{clients} clients, {share:g} take part": {
        "data": "cifar10",
        "partition": "dirichlet(alpha=0.1)",
        "clients": clients,
        "participation": share,
    }
    for clients in (50, 100)
    for share in (0.5, 1.0)
}
PRINTED_CROWDS = [name for name in CROWDS if f"CIFAR-10, {name}" in skew.PLACES]
HALF, ALL = (f"50 clients, {share} take part" for share in ("0.5", "1"))
ALL_CROWDS: dict[str, Options] = {name: CROWDS[name] for name in PRINTED_CROWDS} | {
    name: found.options
    for name, found in skew.PLACES.items()
    if found.table == "2" and found.dataset == "CIFAR-100"
}
CROWD = skew.study(
    "fedpake-clients",
    "CIFAR-10, Dir(0.1): FedAvg and FedPake with 50 and 100 clients, of which half or all take part",
    {**BASE, **PAIR, RULE: skew.RULE_SPEC},
    CROWDS,
    (
        *(skew.better(RULE, "FedAvg", where) for where in PRINTED_CROWDS),
        Claim(
            "FedPake is better when all of 50 clients take part than when half of them do",
            difference(of(RULE, ALL), of(RULE, HALF)),
            Above(),
            place(ALL).printed("FedPake") - place(HALF).printed("FedPake"),
        ),
    ),
    notes=f"{NOTES} The papers have no run of 100 clients that all take part. CIFAR-100 is in skew-protocols-settings.",
    smoke={
        "settings": {
            where: {**CROWDS[where], "data": "digits", "clients": 10} for where in (HALF, ALL)
        }
    },
    small={"left_out": frozenset((RULE, name) for name in CROWDS if name not in PRINTED_CROWDS)},
    paper={
        "methods": BASELINES | {RULE: skew.sized(skew.RULE_SPEC, ALL_CROWDS)},
        "settings": ALL_CROWDS,
    },
)

LOCAL = "BatchNorm kept at clients"
GROUP = "GroupNorm"
TRAINED = "tested after local training"


def _protocols(settings: dict[str, Options], group_norm: str) -> dict[str, Options]:
    """The settings as they are (BatchNorm averaged, shared models tested), and with one choice changed at a time."""
    variants: dict[str, Options] = {
        "": {},
        f", {LOCAL}": {"buffers": "local"},
        f", {TRAINED}": {"protocol": ("clients", "local")},
        f", {GROUP}": {"model": group_norm},
    }
    changed: dict[str, Options] = {}
    for where, options in settings.items():
        for name, more in variants.items():
            changed[where + name] = {**options, **more}
    return changed


ZERO = {"MOON, term at zero": "moon(mu=0, tau=1.0)", "FedNTD, term at zero": "fedntd(beta=0)"}
PROTOCOLS = _protocols(SETTINGS, "cnn(channels=(8, 16, 32), norm='group')")
ONCE = frozenset((method, where) for method in ZERO for where in PROTOCOLS if where != PRACTICAL)
AFTER_TRAINING = {
    f"{where}, {TRAINED}": {"accuracy": "local_accuracy", "loss": "local_loss"}
    for where in SETTINGS
}
"""In these settings, layouts show clients' own models."""
PROTOCOL = skew.study(
    "fedpake-protocol",
    "CIFAR-10, 20 clients, a small CNN: how much of the gains each choice of the protocol explains",
    {**BASE, **PAIR, **ZERO},
    PROTOCOLS,
    (
        *(
            identity(
                f"{method} is FedAvg, {PRACTICAL}",
                gain(method, "FedAvg", PRACTICAL, last=LAST),
                Same(1e-3),
            )
            for method in ZERO
        ),
        *(
            skew.asks_better(PAKE, "FedAvg", f"{where}, {changed}", column)
            for where in SETTINGS
            for changed, column in (
                (LOCAL, "accuracy"),
                (TRAINED, "local_accuracy"),
                (GROUP, "accuracy"),
            )
        ),
        *(
            question(
                f"Clients' models after local training are better than FedAvg's shared model, {where}",
                difference(
                    of("FedAvg", f"{where}, {TRAINED}", "local_accuracy"),
                    of("FedAvg", f"{where}, {TRAINED}"),
                ),
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
    notes=f"{skew.NOTES} PFLlib tests shared models with each client's own BatchNorm statistics, and its terms of MOON and FedNTD "
    "are zero by default. With ResNet-18 the protocols are in skew-protocols. Networks without a norm are in skew-estimators-cnn: "
    "the small one here does not learn within 30 rounds (10 to 15 % with FedAvg and one seed).",
    smoke={
        "settings": _protocols(
            {PRACTICAL: skew.TOYS[PRACTICAL]}, "cnn(channels=4, hidden=8, norm='group')"
        )
    },
    paper={
        "settings": _protocols(SETTINGS, "resnet18(stem='imagenet', norm='group')"),
        "more": {"buffers": "average"},
    },
    left_out=ONCE,
)

STUDIES = (
    replace(FEDSA_TABLE1, paper=skew.FEDSA),
    TABLE1,
    TABLE5,
    ABLATION,
    CROWD,
    replace(PROTOCOL, instead=AFTER_TRAINING),
)
