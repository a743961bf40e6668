"""FedPake and FedSA: the figures. Distributions of parameters over clients, sweeps, and what the rule does to one kernel."""

from collections.abc import Iterable
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below, Same
from unalike_studies.claims import (
    WHOLE_MODEL,
    Claim,
    Quantity,
    best,
    difference,
    gain,
    question,
    recorded_mean,
)
from unalike_studies.layouts.parameter_values import Kernel, ParameterValues
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.layouts.scatter import ClientMap
from unalike_studies.layouts.sweeps import MethodSweep
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers import parameter_skew as skew
from unalike_studies.papers import skew_estimators as estimators
from unalike_studies.papers.parameter_skew import (
    LAST,
    NORMALIZED,
    NOTES,
    PAKE,
    RANKED,
    RANKED_SPEC,
    RULE,
    RULE_SPEC,
    RULES,
    of,
)
from unalike_studies.papers.skew_estimators import CNN, MOMENTS, SKEWNESS, UNIFORM, over_epochs
from unalike_studies.study import Scale, StudyTemplate, Variant

ON_FASHION = (
    "Fashion-MNIST with a small CNN instead of CIFAR-10 with ResNet-18, and 16 rounds instead of 1000: directions carry over, "
    "sizes need not"
)
ONE_ROUND = "Fashion-MNIST instead of CIFAR-10; {}, and one round: the papers do not say which layer and round theirs are of"
LARGE: dict[str, Any] = skew.PAPERS_OWN | {"merge": True, "split": 0.75, "protocol": "clients"}
SMOKE = "digits, 10 clients, 2 rounds: shows that the study runs, nothing else"
NET = {"model": "cnn(channels=(8, 16), hidden=32, norm='batch')"}
TINY = estimators.TOY | {"model": estimators.TOY_CNN}
DIVISIONS: dict[str, Options] = {
    name: {"partition": partition} for name, partition in estimators.PARTITIONS.items()
}
IID, DIR, TWO = DIVISIONS
study = StudyTemplate(
    skew.FEDPAKE,
    {
        "smoke": Scale({}, DIVISIONS, {}, seeds=(0,), reduced=SMOKE),
        "small": Scale({}, DIVISIONS, {}, reduced=ON_FASHION),
        "paper": Scale({}, DIVISIONS, {}),
    },
).study


def _of_model(what: str, setting: str, method: str = "FedAvg") -> Quantity:
    """A recorded number of the whole model."""
    return recorded_mean(method, setting, what, WHOLE_MODEL)


def _more(what: str, setting: str) -> Quantity:
    """A recorded number of a setting less that of the iid one."""
    return difference(_of_model(what, setting), _of_model(what, IID))


SKEW = study(
    "fedpake-skew",
    "Are parameters skewed over clients? Skewness, dispersion and squared deviations by round, and a map of the clients",
    {"FedAvg": "fedavg", RANKED: RANKED_SPEC},
    DIVISIONS,
    (
        *(
            Claim(
                f"{text} with {setting} than with iid clients",
                _more(quantity, setting),
                Above(),
                None,
                quantity.replace("_", " "),
                scale=1,
            )
            for setting in (DIR, TWO)
            for quantity, text in (
                ("skewness", "Parameters are more skewed over clients"),
                ("cv", "The coefficient of variation of parameters over clients is larger"),
                ("squared_deviation", "Parameters deviate more from their mean over clients"),
            )
        ),
        skew.by_our_rule(
            Claim(
                f"Parameters deviate less from their mean over clients with FedPake than with FedAvg, {DIR}",
                difference(
                    _of_model("squared_deviation", DIR, RANKED), _of_model("squared_deviation", DIR)
                ),
                Below(),
                None,
                "squared deviation",
                scale=1,
                remark="figure 6, said of the rounds from 600 on; its range over parameters is not recorded",
            )
        ),
    ),
    (
        skew.BUBBLES,
        *MOMENTS,
        RecordedCurves("squared deviation over clients", "squared_deviation"),
        ClientMap("t-SNE of the clients' updates", "FedAvg"),
        skew.CURVES,
        skew.LOSS,
    ),
    NOTES
    + " Twenty draws from a normal distribution have a mean |skewness| of about 0.38: values about that show no skewness of "
    "the distribution.",
    more=CNN | NET | {"record": "updates + moments", "evaluate_every": 2},
    smoke={"more": TINY},
    paper={"more": LARGE | {"evaluate_every": 100}},
)

DEVIATIONS = study(
    "fedpake-figure6",
    "Squared deviations of parameters over clients: their mean and their range over the parameters, by round",
    {"FedAvg": "fedavg", RULE: RULE_SPEC},
    {DIR: DIVISIONS[DIR]},
    (
        Claim(
            f"{text} over parameters is smaller with the rule than with FedAvg, {DIR}",
            difference(_of_model(quantity, DIR, RULE), _of_model(quantity, DIR)),
            Below(),
            None,
            "squared deviation",
            scale=1,
            remark="said of the rounds from 600 on",
        )
        for quantity, text in (
            ("squared_deviation", "The mean squared deviation"),
            ("squared_deviation_range", "The range of squared deviations"),
        )
    ),
    (
        RecordedCurves("mean squared deviation over clients", "squared_deviation"),
        RecordedCurves("range of squared deviations over clients", "squared_deviation_range"),
    ),
    NOTES,
    more=CNN | NET | {"record": "moments", "evaluate_every": 2},
    smoke={"more": TINY},
    paper={"more": LARGE | {"evaluate_every": 100}},
)

FIRST_ROUND = {"rounds": 1, "evaluate_every": 1, "record": "entries(layers='head.weight', first=8)"}
VALUES_SHOWN = ParameterValues("(value - mean) / deviation over clients")
VALUES = study(
    "fedpake-figure2",
    "Single parameters of the head at 20 clients after the first round, and each method's estimate of their centre",
    estimators.ESTIMATORS | {UNIFORM: "fedavg + uniform", RANKED: RANKED_SPEC},
    DIVISIONS,
    (
        skew.by_our_rule(
            Claim(
                f"The rule's value lies closer to the main peak over the clients than the mean does, {setting}",
                difference(
                    VALUES_SHOWN.from_peak(RANKED, setting),
                    VALUES_SHOWN.from_peak(UNIFORM, setting),
                ),
                Below(),
                None,
                "standard deviations over clients",
                scale=1,
                needs_learning=False,
            )
        )
        for setting in (DIR, TWO)
    ),
    (VALUES_SHOWN,),
    NOTES
    + " The entries are the first eight of the tensor. Under the first seed, which is drawn, all of them are high for "
    "FedPake as printed in all settings, and none for the normalized rule.",
    more=CNN | NET,
    smoke={"more": TINY | FIRST_ROUND},
    small={"more": FIRST_ROUND, "reduced": ONE_ROUND.format("a small CNN instead of ResNet-18")},
    paper={"more": LARGE | FIRST_ROUND},
)

KERNEL = {
    "rounds": 1,
    "evaluate_every": 1,
    "record": "entries(layers='convolutions.0.weight', first=25)",
}
KERNEL_TOY = {
    "data": "glyphs(train=6000, test=1200)",
    "model": "emnist_cnn",
    "record": "entries(layers='body.0.weight', first=25)",
}
KERNEL_METHODS: dict[str, str | Variant] = {
    "mean": "fedavg + uniform",
    PAKE: RULES[PAKE],
    **{f"threshold {v:g}": f"fedpake(variant='literal', threshold={v})" for v in (0.05, 0.5, 0.8)},
    **{f"C = {v}": f"fedpake(variant='literal', micro={v})" for v in (2, 8)},
    **{f"S = {v}": f"fedpake(variant='literal', macro={v})" for v in (2, 8)},
}
NINE = "9 clients"
NINE_CLIENTS: dict[str, Options] = {NINE: {"partition": "dirichlet(alpha=0.1)"}}
FIGURE7 = study(
    "fedpake-figure7",
    "One 5x5 kernel of 9 clients: the new values by threshold, number of micro-classes C and of macro-classes S",
    KERNEL_METHODS,
    NINE_CLIENTS,
    (),
    (Kernel("(new value - mean) / deviation over clients", NINE),),
    NOTES
    + " The paper does not say which network and kernel; here it is the first kernel of LeNet under the first seed. C changes "
    "nothing, because squared deviations are far below 1/C: all micro-classes are class 1. The threshold changes nothing, because "
    "the few parameters with mu near 0 decide the range of sd / mu, and all others lie close together, here above any threshold; "
    "under another seed 0.8 gives the mean. S = 8 halves the kernel: nine clients form four macro-classes, and each counts 1/8.",
    more=estimators.FASHION | {"clients": 9, "model": "lenet", "work": CNN["work"]} | KERNEL,
    smoke={"settings": NINE_CLIENTS, "more": KERNEL_TOY},
    small={"reduced": ONE_ROUND.format("LeNet at both scales")},
    paper={"more": LARGE | KERNEL | {"model": "lenet"}},
)

PARAMETERS = {
    "threshold": ("threshold", (0.05, 0.2, 0.5, 0.8), 0.2),
    "similarity": ("similarity", (0.0, 0.2, 0.3, 0.5, 0.8), 0.2),
    "micro-classes C": ("micro", (2, 4, 5, 8), 4),
    "macro-classes S": ("macro", (2, 4, 5, 8), 4),
}
SWEPT = {
    PAKE: "fedpake(variant='literal', {}={})",
    NORMALIZED: "fedpake({}={})",
    RANKED: f"{RANKED_SPEC[:-1]}, {{}}={{}})",
}


def _label(rule: str, parameter: str, value: float) -> str:
    _, _, default = PARAMETERS[parameter]
    if value == default:
        return rule
    return f"{rule}, {parameter} {value:g}"


SWEEP_METHODS: dict[str, str | Variant] = {
    UNIFORM: "fedavg + uniform",
    PAKE: RULES[PAKE],
    NORMALIZED: RULES[NORMALIZED],
    RANKED: RANKED_SPEC,
}
BASE = tuple(SWEEP_METHODS)


def _swept_methods() -> dict[str, str]:
    """Each rule with each value of each parameter that is not the default."""
    methods = {}
    for rule, template in SWEPT.items():
        for parameter, (field, values, _) in PARAMETERS.items():
            for value in values:
                label = _label(rule, parameter, value)
                if label not in BASE:
                    methods[label] = template.format(field, value)
    return methods


def _families(parameter: str, values: Iterable[float]) -> dict[str, dict[str, float]]:
    """Rule -> its label with each value of a parameter -> the value."""
    families = {}
    for rule in SWEPT:
        families[rule] = {_label(rule, parameter, value): value for value in values}
    return families


SWEEP_METHODS |= _swept_methods()
EXTREMES = {
    threshold: (f"{RULE}, threshold {threshold:g}", f"{RULE_SPEC[:-1]}, threshold={threshold})")
    for threshold in (0.05, 0.8)
}
"""The smallest and the largest threshold -> label and spec of the reading by which the papers' claims are judged."""
SWEEP_METHODS |= dict(EXTREMES.values())
LITERAL = [label for label in SWEEP_METHODS if label.startswith(PAKE)]
"""The printed rule with all values of all parameters."""


def _changed(rule: str, parameter: str, value: float) -> Quantity:
    """The accuracy with another value of a parameter, less that with the papers' value."""
    return gain(_label(rule, parameter, value), rule, DIR, last=LAST)


SCORES_OF_LITERAL = [of(label, DIR) for label in LITERAL]

FIGURE6 = "figure 6 of v1, without numbers"
SMALLEST, LARGEST = (label for label, _ in EXTREMES.values())
SWEEP_CLAIMS = (
    Claim(
        f"The rule converges in fewer rounds with a threshold of 0.8 than with 0.05, {DIR}",
        difference(
            skew.COSTS.rounds_to_convergence(LARGEST, DIR),
            skew.COSTS.rounds_to_convergence(SMALLEST, DIR),
        ),
        Below(),
        None,
        "rounds",
        scale=1,
        remark="the text on figure 4: it converges faster as lambda gets larger",
    ),
    *(
        skew.by_our_rule(
            Claim(text.format(value), _changed(RANKED, parameter, value), expects, remark=remark)
        )
        for parameter, values, text, expects, remark in (
            (
                "threshold",
                (0.05, 0.5, 0.8),
                "A threshold of {:g} is worse than 0.2",
                Below(),
                FIGURE6,
            ),
            (
                "similarity",
                (0.3,),
                "A least similarity of {:g} is worse than 0.2",
                Below(),
                f"{FIGURE6}; fewer clients count",
            ),
            (
                "micro-classes C",
                (2, 5, 8),
                "micro-classes C = {} is as good as 4",
                Same(1),
                f'"little influence", {FIGURE6}',
            ),
            (
                "macro-classes S",
                (2, 5, 8),
                "macro-classes S = {} is as good as 4",
                Same(1),
                f'"little influence", {FIGURE6}',
            ),
        )
        for value in values
    ),
    question(
        f"{PAKE} with the best threshold, similarity, C and S is better than the mean",
        difference(best(*SCORES_OF_LITERAL), of(UNIFORM, DIR)),
        Above(),
        remark="chosen by the test accuracy, one parameter at a time",
    ),
    *(
        question(
            f"{_label(PAKE, parameter, value)}: as good as with {default}",
            _changed(PAKE, parameter, value),
            Same(0.5),
        )
        for parameter, (_, values, default) in PARAMETERS.items()
        for value in values
        if value != default
    ),
)
SWEEP = study(
    "fedpake-sweeps",
    "Accuracy over the threshold, the least similarity, and the numbers of micro- and macro-classes",
    SWEEP_METHODS,
    {DIR: DIVISIONS[DIR]},
    SWEEP_CLAIMS,
    (
        MethodTable("Mean accuracy of the last 5 evaluated rounds, %", last=LAST),
        *(
            MethodSweep(
                "accuracy, %",
                parameter,
                _families(parameter, values),
                UNIFORM,
                last=LAST,
                log=False,
                name=f"sweep-{field}",
            )
            for parameter, (field, values, _) in PARAMETERS.items()
        ),
    ),
    f"{NOTES} {skew.MISPRINTS} The figure is for CIFAR-10.",
    smoke={
        "methods": {name: SWEEP_METHODS[name] for name in (*BASE, _label(PAKE, "threshold", 0.8))},
        "settings": {DIR: DIVISIONS[DIR]},
        "more": CNN | TINY,
    },
    small={"more": CNN | NET, "unlike": skew.UNLIKE},
    paper={"settings": {DIR: skew.SETTINGS[DIR]}, "more": skew.PAPERS_OWN},
)

LONG = over_epochs({1: 40, 10: 10})
MATCHING = study(
    "skew-matching",
    "Do neurons of different clients correspond? Skewness and dispersion before and after weight matching, with an MLP",
    {"FedAvg": "fedavg"},
    LONG,
    (
        question(
            f"Matching neurons {text}, {where}",
            difference(_of_model(f"matched_{what}", where), _of_model(what, where)),
            expects,
            what.replace("_", " "),
            scale=1,
        )
        for what, text, expects in (
            ("skewness", "leaves the skewness as it is", Same(0.02)),
            ("squared_deviation", "makes clients more alike", Below()),
        )
        for where in LONG
    ),
    (
        SKEWNESS,
        RecordedCurves("skewness over clients, matched", "matched_skewness"),
        RecordedCurves("share of neurons that move", "moved"),
    ),
    "A study of our own. Within a round all clients start from the same model, so that neurons move only where local training is "
    "long.",
    more=estimators.MLP | {"record": "moments + matched_moments", "evaluate_every": 2},
    smoke={"settings": LONG, "more": estimators.TOY | {"model": "mlp(hidden=8)"}},
    small={"reduced": "a fifth of the training images"},
    paper={"more": {"split": 1.0}},
)

STUDIES = (SKEW, DEVIATIONS, VALUES, FIGURE7, SWEEP, MATCHING)
