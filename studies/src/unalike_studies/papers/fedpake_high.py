"""FedSA and FedPake: which parameters the rules treat as high, what their weights sum to, and how large the macro-classes are."""

from __future__ import annotations

from typing import Any

from unalike_studies.claim_verdicts import Above, Expectation, Near
from unalike_studies.claims import WHOLE_MODEL, Claim, Quantity, question, recorded_mean
from unalike_studies.layouts.recorded import GroupSizes, RecordedCurves, RecordedMap, RecordedTable
from unalike_studies.papers.fedpake import ABLATION_METHODS
from unalike_studies.papers.parameter_skew import (
    FEDPAKE,
    NORMALIZED,
    NOTES,
    PAKE,
    PAPERS_OWN,
    RANKED,
    READINGS,
    REDUCED,
    RULE,
    RULES,
    SA,
    SETTINGS,
    SMALL,
    SMOKE,
    TOY,
    TOYS,
)
from unalike_studies.study import Layout, Scale, Study, Variant

RANDOM_MICRO, RANDOM_MACRO = "FedPake, random micro-classes", "FedPake, random macro-classes"
METHODS: dict[str, str | Variant] = {
    **RULES,
    **{label: ABLATION_METHODS[label] for label in (RANDOM_MICRO, RANDOM_MACRO)},
    **READINGS,
}
RECORDED: dict[str, Any] = {"record": "server", "rounds": 5, "evaluate_every": 2}
"""Three rounds are kept (2, 4 and 5): of more, clients would be averaged, and with them the macro-classes."""
CLASSES = GroupSizes("Sizes of the macro-classes", "macro_class")
TIES = (14, 2, 2, 2)
"""The sizes that ties give to four macro-classes of 20 clients: see `LiteralPake`."""
LAYOUTS: tuple[Layout, ...] = (
    RecordedTable("Share of high parameters: mean (least to largest)", "high"),
    RecordedTable("Sum of the weights at the high parameters: mean (least to largest)", "alpha_sum"),
    CLASSES,
    RecordedMap("share of high parameters", "high"),
    RecordedCurves("sum of weights", "alpha_sum"),
)


def _excess(method: str, setting: str) -> Quantity:
    """The mean sum of a rule's weights over tensors and rounds, less 1."""
    total = recorded_mean(method, setting, "alpha_sum")
    return lambda results: {seed: value - 1 for seed, value in total(results).items()}


def _sum(text: str, quantity: Quantity, expects: Expectation, unit: str = "mean sum over tensors") -> Claim:
    """A question of ours about the sum of weights."""
    return question(text, quantity, expects, unit, scale=1)


def _share(text: str, quantity: Quantity, expects: Expectation, unit: str) -> Claim:
    """A question of ours about a share."""
    return question(text, quantity, expects, unit, bounds=(0, 100))


def _claims(setting: str) -> tuple[Claim, ...]:
    return (
        *(
            _share(
                f"{rule}: {text} of the parameters are high, {setting}",
                recorded_mean(rule, setting, "high", WHOLE_MODEL),
                expects,
                "% of the parameters",
            )
            for rule, text, expects in (
                (NORMALIZED, "less than 5 %", Near(0, 5)),
                (RULE, "less than 5 %", Near(0, 5)),
                (RANKED, "about 80 %", Near(80, 5)),
            )
        ),
        _share(
            f"{PAKE}: in nearly all tensors the macro-classes have 14, 2, 2 and 2 clients, {setting}",
            CLASSES.share(PAKE, setting, TIES),
            Near(100, 20),
            "% of tensors and rounds",
        ),
        _sum(
            f"{PAKE}: its weights sum to 1 in nearly all tensors, {setting}",
            recorded_mean(PAKE, setting, "alpha_sum"),
            Near(1, 0.1),
        ),
        _sum(
            f"{RANDOM_MICRO}: the weights sum to about 0.3, {setting}",
            recorded_mean(RANDOM_MICRO, setting, "alpha_sum"),
            Near(0.3, 0.1),
        ),
        _sum(
            f"{SA}: its weights sum to more than 1, {setting}",
            _excess(SA, setting),
            Above(),
            "mean sum over tensors, less 1",
        ),
    )


HIGH = Study(
    "fedpake-high",
    "CIFAR-10, 20 clients: the share of high parameters, the sum of the weights and the sizes of macro-classes by tensor",
    FEDPAKE,
    {
        "smoke": Scale(METHODS, TOYS, TOY | {"record": "server"}, seeds=(0,), reduced=SMOKE),
        "small": Scale(METHODS, SETTINGS, SMALL | RECORDED, reduced=f"{REDUCED}; here the first 5 rounds alone"),
        "paper": Scale(METHODS, SETTINGS, PAPERS_OWN | {"record": "server", "evaluate_every": 100}),
    },
    tuple(claim for setting in SETTINGS for claim in _claims(setting)),
    LAYOUTS,
    NOTES
    + " A study of our own. The share of high parameters of the whole model counts all parameters alike; a sum of weights is "
    "recorded only for tensors with high parameters.",
)

STUDIES = (HIGH,)
