"""FedSA and FedPake: which parameters the rules treat as high, what their weights sum to, and how large the macro-classes are."""

from collections.abc import Iterator

from unalike_studies.claim_verdicts import Above, Expectation, Near
from unalike_studies.claims import WHOLE_MODEL, Claim, Quantity, question, recorded_mean
from unalike_studies.layouts.recorded import GroupSizes, RecordedCurves, RecordedMap, RecordedTable
from unalike_studies.papers import parameter_skew as skew
from unalike_studies.papers.fedpake import ABLATION_METHODS
from unalike_studies.papers.parameter_skew import NORMALIZED, PAKE, RANKED, RULE, SA
from unalike_studies.study import Variant

RANDOM_MICRO, RANDOM_MACRO = "FedPake, random micro-classes", "FedPake, random macro-classes"
METHODS: dict[str, str | Variant] = {
    **skew.RULES,
    **{label: ABLATION_METHODS[label] for label in (RANDOM_MICRO, RANDOM_MACRO)},
    **skew.READINGS,
}
CLASSES = GroupSizes("Sizes of the macro-classes", "macro_class")
TIES = (14, 2, 2, 2)
"""The sizes that ties give to four macro-classes of 20 clients: see `LiteralPake`."""


def _excess(method: str, setting: str) -> Quantity:
    """The mean sum of a rule's weights over tensors and rounds, less 1."""
    total = recorded_mean(method, setting, "alpha_sum")
    return lambda results: {seed: value - 1 for seed, value in total(results).items()}


def _claims(setting: str) -> Iterator[Claim]:
    """Questions of ours about the share of high parameters, the sizes of macro-classes, and the sum of weights.

    They are about what a rule does in the first rounds, in which no network has learned.
    """

    def share(text: str, quantity: Quantity, expects: Expectation, unit: str) -> Claim:
        return question(
            f"{text}, {setting}", quantity, expects, unit, bounds=(0, 100), needs_learning=False
        )

    def total(
        text: str, quantity: Quantity, expects: Expectation, unit: str = "mean sum over tensors"
    ) -> Claim:
        return question(
            f"{text}, {setting}", quantity, expects, unit, scale=1, needs_learning=False
        )

    for rule, text, expects in (
        (NORMALIZED, "less than 5 %", Near(0, 5)),
        (RULE, "less than 5 %", Near(0, 5)),
        (RANKED, "about 80 %", Near(80, 5)),
    ):
        quantity = recorded_mean(rule, setting, "high", WHOLE_MODEL)
        yield share(
            f"{rule}: {text} of the parameters are high", quantity, expects, "% of the parameters"
        )
    yield share(
        f"{PAKE}: in nearly all tensors the macro-classes have 14, 2, 2 and 2 clients",
        CLASSES.share(PAKE, setting, TIES),
        Near(100, 20),
        "% of tensors and rounds",
    )
    for rule, text, expects in (
        (PAKE, "its weights sum to 1 in nearly all tensors", Near(1, 0.1)),
        (RANDOM_MICRO, "the weights sum to about 0.3", Near(0.3, 0.1)),
    ):
        yield total(f"{rule}: {text}", recorded_mean(rule, setting, "alpha_sum"), expects)
    yield total(
        f"{SA}: its weights sum to more than 1",
        _excess(SA, setting),
        Above(),
        "mean sum over tensors, less 1",
    )


HIGH = skew.study(
    "fedpake-high",
    "CIFAR-10, 20 clients: the share of high parameters, the sum of the weights and the sizes of macro-classes by tensor",
    METHODS,
    claims=(claim for setting in skew.SETTINGS for claim in _claims(setting)),
    layouts=(
        RecordedTable("Share of high parameters: mean (least to largest)", "high"),
        RecordedTable(
            "Sum of the weights at the high parameters: mean (least to largest)", "alpha_sum"
        ),
        CLASSES,
        RecordedMap("share of high parameters", "high"),
        RecordedCurves("sum of weights", "alpha_sum"),
    ),
    notes=skew.NOTES
    + " A study of our own. The share of high parameters of the whole model counts all parameters alike; a sum of weights is "
    "recorded only for tensors with high parameters.",
    more={"record": "server"},
    small={
        "more": {"rounds": 5, "evaluate_every": 2},
        "reduced": f"{skew.REDUCED}; here the first 5 rounds alone",
        "unlike": "",
    },
    paper={"more": {"evaluate_every": 100}},
)
"""At the small scale three rounds are kept (2, 4 and 5): of more, clients would be averaged, and with them the macro-classes."""

STUDIES = (HIGH,)
