"""FedLWS: its factors by layer and round (figures 3a and 9, table 12), and the bound of theorem D.2."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from statistics import fmean, pstdev

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Near, Same
from unalike_studies.claims import (
    Claim,
    Quantity,
    by_cell,
    difference,
    question,
    recorded_mean,
)
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.layouts.scatter import GapAgainstBound
from unalike_studies.papers import fedlws_settings as fedlws
from unalike_studies.papers.fedlws_settings import CIFAR, CIFARS, FACTORS, LWS
from unalike_studies.published import Printed, printed
from unalike_studies.recorded_numbers import by_round
from unalike_studies.results import CellResult

Rounds = list[dict[str, float]]
"""The factors of the recorded rounds: layer -> gamma."""


def of_factors(method: str, where: str, number: Callable[[Rounds], float]) -> Quantity:
    """A number that is made of the factors of all layers and rounds."""

    def of_cell(cell: CellResult) -> float | None:
        layers = by_round(cell.recorded, "gamma")
        if not layers:
            return None
        gammas_of_layers = [by_number.values() for by_number in layers.values()]
        rounds = [dict(zip(layers, gammas)) for gammas in zip(*gammas_of_layers)]
        return number(rounds)

    return by_cell(method, where, of_cell)


def mean_factor(method: str, where: str, *parts: str) -> Quantity:
    """The mean factor of the layers whose names have one of these parts; of all layers without parts."""

    def is_wanted(layer: str) -> bool:
        return not parts or any(part in layer for part in parts)

    def number(rounds: Rounds) -> float:
        return fmean(gamma for row in rounds for layer, gamma in row.items() if is_wanted(layer))

    return of_factors(method, where, number)


def _from_others(row: dict[str, float], layer: str) -> float:
    others = [gamma for other, gamma in row.items() if other != layer]
    return abs(row[layer] - fmean(others))


def _classifier_first(rounds: Rounds) -> float:
    """The distance of the classifier's factor from the others' mean, less the largest such distance of another layer, at first."""
    first_round = rounds[0]
    *others, classifier = first_round
    largest_of_others = max(_from_others(first_round, layer) for layer in others)
    return _from_others(first_round, classifier) - largest_of_others


def _change(of_row: Callable[[Iterable[float]], float]) -> Callable[[Rounds], float]:
    """A number of the factors of a round: its mean over the last third of the rounds less that over the first third."""

    def number(rounds: Rounds) -> float:
        third = max(1, len(rounds) // 3)
        values = [of_row(row.values()) for row in rounds]
        return fmean(values[-third:]) - fmean(values[:third])

    return number


def _spread_shrinks(rounds: Rounds) -> float:
    def spread(gammas: Iterable[float]) -> float:
        return pstdev(list(gammas))

    return -_change(spread)(rounds)


def factor_claims(method: str, where: str) -> tuple[Claim, ...]:
    """The paper's statements on figures 3a and 9."""
    statements = {
        "At first the factor of the classifier differs most from the others": _classifier_first,
        "The spread of the factors over layers shrinks": _spread_shrinks,
        "The factors tend to 1: their mean grows": _change(fmean),
    }
    claims = []
    for text, number in statements.items():
        quantity = of_factors(method, where, number)
        claims.append(Claim(f"{text}, {where}", quantity, Above(), unit="of gamma", scale=1))
    return tuple(claims)


def printed_factor(layers: str) -> Printed:
    """The mean factor of table 12 of a type of layer.

    Its deviation is one between layers, and says nothing about how runs deviate.
    """
    number = printed(
        "fedlws", "12", "FedLWS", quantity="mean shrinking factor gamma over layers", layers=layers
    )
    return replace(number, deviation=None)


GAMMA = RecordedCurves("gamma", "gamma")
MILD = "CIFAR-10, alpha 100"
"""The mildest heterogeneity of the small scale."""
BOUND = GapAgainstBound("|test loss - training loss|")


def bound_claim(method: str, where: str) -> Claim:
    """Theorem D.2 with the constant 1, which the last line of its proof has; equation 10 leaves it free."""
    text = (
        "The mean generalization gap is at most sqrt(2 tau / K) (theorem D.2 with the constant 1): "
        f"bound less gap, {method}, {where}"
    )
    return question(text, BOUND.slack(method, where), Above(), unit="loss", scale=1)


def common_constant(method: str, severe: str, mild: str) -> Claim:
    """Whether one constant fits two degrees of heterogeneity, as equation 10 says."""
    text = (
        "One constant of theorem D.2 fits both: the ratio of gap and bound is as large with "
        f"{severe} as with {mild}, {method}"
    )
    quantity = difference(BOUND.ratio(method, severe), BOUND.ratio(method, mild))
    return question(text, quantity, Same(0.2), unit="gap / bound", scale=1)


TYPES: dict[str, Options] = {
    "MLP": {**CIFARS[CIFAR], "model": "mlp(hidden=(64, 64))"},
    "convolutions": {**CIFARS[CIFAR], "model": "cnn"},
    "attention": {**CIFARS[CIFAR], "model": "vit"},
}
SMALL_TYPES: dict[str, Options] = TYPES | {
    "convolutions": {**CIFARS[CIFAR], "model": fedlws.NARROW},
    "attention": {**CIFARS[CIFAR], "model": "vit(patch=8, width=48, depth=2, heads=2)"},
}
PRINTED_TYPES = {
    ("MLP", 0.011): (printed_factor("MLP, 3 layers"), mean_factor(LWS, "MLP")),
    ("attention", 0.003): (
        printed_factor("ViT, attention"),
        mean_factor(LWS, "attention", ".attention."),
    ),
    ("linear layers of the transformer", 0.037): (
        printed_factor("ViT, MLP"),
        mean_factor(LWS, "attention", ".expand.", ".contract."),
    ),
}
MLP_LAYERS = ("body.1.weight", "body.3.weight", "head.weight")
TABLE12 = fedlws.study(
    "fedlws-table12",
    "The factors of LWS by type of layer: linear layers, convolutions, attention",
    {LWS: fedlws.PAIR[LWS]},
    TYPES,
    (
        *(
            Claim(
                f"The mean factor is the printed one, {layers}",
                quantity,
                Near(margin=sd),
                number,
                "factor",
                1,
            )
            for (layers, sd), (number, quantity) in PRINTED_TYPES.items()
        ),
        *(
            Claim(
                f"The factor is the printed one, layer {n} of the MLP",
                recorded_mean(LWS, "MLP", "gamma", layer),
                Near(margin=0.011),
                printed(
                    "fedlws",
                    "text B.6",
                    "FedLWS",
                    layers=f"MLP, layer {n}",
                    quantity="shrinking factor gamma",
                ),
                "factor",
                1,
            )
            for n, layer in enumerate(MLP_LAYERS, 1)
        ),
        *(claim for where in TYPES for claim in factor_claims(LWS, where)),
    ),
    (FACTORS, GAMMA, RecordedCurves("tau", "tau")),
    "Margins are the deviations of table 12. Its convolutions are those of ResNet-20: fedlws-resnet has them; here they "
    "are those of a CNN with beta 0.1.",
    more=fedlws.RECORDED,
    small={
        "settings": SMALL_TYPES,
        "reduced": f"{fedlws.REDUCED}; a transformer of two blocks for patches of 8 x 8",
        "unlike": "beta, on which a factor hangs: the paper states none for the MLP and the transformer, here it is 0.1",
    },
)

PRETRAINED = fedlws.study(
    "fedlws-pretrained",
    "The factors of LWS from a pretrained start",
    {LWS: fedlws.PAIR[LWS]},
    claims=(
        Claim(
            "From a pretrained start the mean factor is about the printed one",
            mean_factor(LWS, CIFAR),
            Near(margin=0.005),
            printed("fedlws", "text B.1", "FedLWS", quantity="gamma during training (approximate)"),
            "factor",
            1,
            remark="the margin is half of the last printed digit",
        ),
    ),
    layouts=(FACTORS, GAMMA),
    notes="The start is that of fedlws-table9, which has the accuracies.",
    more=fedlws.RECORDED | fedlws.PRETRAINED,
    paper={
        "methods": {LWS: fedlws.lws("fedavg", fedlws.RESNET_BETA)},
        "more": fedlws.RESNET,
    },
)

WITH_TAU = {"FedAvg": fedlws.lws("fedavg", 0), LWS: fedlws.PAIR[LWS]}
"""With beta = 0 shrinking notes tau and changes nothing."""
MODEL_WISE = f"{LWS}, model-wise"
FACTORS_STUDY = fedlws.study(
    "fedlws-factors",
    "The factors of LWS by layer and round, and the norms of the layers",
    WITH_TAU | {MODEL_WISE: fedlws.lws("fedavg", scope="model")},
    CIFARS,
    (
        *(claim for where in CIFARS for claim in factor_claims(LWS, where)),
        Claim(
            f"The mean of the factors by layer is that of the whole model, {CIFAR}",
            difference(mean_factor(LWS, CIFAR), recorded_mean(MODEL_WISE, CIFAR, "gamma")),
            Same(0.001),
            unit="of gamma",
            scale=1,
        ),
    ),
    (
        FACTORS,
        GAMMA,
        RecordedCurves("variance of updates (tau)", "tau"),
        RecordedCurves("norm of parameters", "model_norm"),
    ),
    more=fedlws.RECORDED,
    left_out=frozenset((MODEL_WISE, where) for where in CIFARS if where != CIFAR),
)

WITHOUT_FEDAVG = frozenset(product(["FedAvg"], ("MLP", "attention")))
BOUND_SETTINGS = CIFARS | {name: SMALL_TYPES[name] for name in ("MLP", "attention")}
BOUND_STUDY = fedlws.study(
    "fedlws-bound",
    "Theorem D.2: the generalization gap of the evaluated rounds beside its bound sqrt(2 tau / K)",
    WITH_TAU,
    BOUND_SETTINGS,
    [
        bound_claim(method, where)
        for where, method in product(BOUND_SETTINGS, WITH_TAU)
        if (method, where) not in WITHOUT_FEDAVG
    ]
    + [common_constant(method, CIFAR, MILD) for method in WITH_TAU],
    (BOUND,),
    "Equation 10 has a free constant C, the last line of the proof has none: whether the bound holds with 1, and whether one C "
    "fits several degrees of heterogeneity, are questions of ours. The least C with "
    "gap <= C sqrt(2 tau / K) is given. The printed gap takes every client's loss after training, with equal weights; kept is the "
    "mean loss while clients train, which is larger, so that the printed gap would be larger, too. Layers store their own tau: the "
    "bound has their sum, which is at least the model's tau.",
    more=fedlws.RECORDED,
    paper={"settings": {**BOUND_SETTINGS, **TYPES}},
    left_out=WITHOUT_FEDAVG,
    unlike="",
)

STUDIES = (TABLE12, PRETRAINED, FACTORS_STUDY, BOUND_STUDY)
