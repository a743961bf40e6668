"""FedLWS: the figures of the paper but for those of the factors. Few have printed numbers."""

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from statistics import fmean
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below
from unalike_studies.claims import (
    FLUCTUATION,
    Claim,
    Quantity,
    after_round,
    best,
    difference,
    gain,
    oscillation,
    question,
    score,
)
from unalike_studies.correlations import pearson
from unalike_studies.layouts.figures import Curves, LabelBubbles, ParameterHistogram
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.layouts.scatter import (
    DataAgainstUpdates,
    RecordedScatter,
    TransportAgainstUpdates,
)
from unalike_studies.layouts.sweeps import MethodSweep, Sweep
from unalike_studies.papers import fedlws_settings as fedlws
from unalike_studies.papers.fedlws_settings import (
    BASES,
    CIFAR,
    CIFARS,
    FIXED,
    LAST,
    LWS,
    PAIR,
    WITH,
    Methods,
    helps,
)
from unalike_studies.published import printed
from unalike_studies.results import Results
from unalike_studies.study import Study, Variant

LEARNED = "gamma learned from test samples"
CORRELATION = "correlation of gradient variance tau and ratio r"
RATIO: Methods = {LEARNED: "fedavg + lws(beta=0, scope='model') + learned_shrinking(epochs=100)"}
SMALL_RATIO: Methods = {
    LEARNED: "fedavg + lws(beta=0, scope='model') + learned_shrinking(epochs=15, lr=0.05)"
}
"""With beta = 0 shrinking notes tau and changes nothing."""
DEGREES = fedlws.by_alpha("cifar10", "CIFAR-10", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1))
"""The heterogeneities over which figure 1(a) correlates."""
SMALL_DEGREES = fedlws.by_alpha("cifar10", "CIFAR-10", (0.1, 0.2, 0.5, 1))
RATIOS: dict[str, Options] = (
    CIFARS | SMALL_DEGREES | {f"{CIFAR}, MLP": {**CIFARS[CIFAR], "model": "mlp(hidden=(64, 64))"}}
)

PEARSON: dict[str, Any] = {"unit": "Pearson's r", "scale": 1, "bounds": (-1, 1)}
RATIO_AT = RecordedScatter("ratio at the best factor", "tau", "ratio", name="ratio-against-tau")


def over_degrees(degrees: Iterable[str]) -> Quantity:
    """Pearson's r of the variance of updates and the ratio at the best factor, over degrees of heterogeneity.

    Both are means over the second half of the rounds: the best factor of the first rounds may be far above 1.
    """

    def values(results: Results) -> dict[int, float]:
        by_seed: dict[int, list[tuple[float, float]]] = {}
        for where in degrees:
            for seed, cell in results.of(LEARNED, where).items():
                tau, ratio = zip(*RATIO_AT.points(cell))
                half = len(tau) // 2
                point = (fmean(tau[half:]), fmean(ratio[half:]))
                by_seed.setdefault(seed, []).append(point)
        return {seed: pearson(points) for seed, points in by_seed.items() if len(points) > 2}

    return values


RATIO_STUDY = fedlws.study(
    "fedlws-ratio",
    "The ratio of regularization to optimization at the best factor, found on test samples, against the variance of updates",
    SMALL_RATIO,
    RATIOS,
    (
        Claim(
            "Over degrees of heterogeneity, the ratio at the best factor grows with the variance of updates",
            over_degrees(SMALL_DEGREES),
            Above(),
            printed(
                "fedlws",
                "text 4.1",
                "FedAvg with gamma optimized on test samples",
                quantity=CORRELATION,
            ),
            **PEARSON,
        ),
        *(
            question(
                f"Over the rounds of a run, the ratio at the best factor grows with the variance of updates, {where}",
                RATIO_AT.correlation(LEARNED, where),
                Above(),
                **PEARSON,
            )
            for where in RATIOS
        ),
    ),
    (RATIO_AT, RecordedCurves("gamma", "gamma", by="part")),
    "The paper correlates over alpha, from 0.1 to 1. The factor is chosen on the samples that measure the accuracy "
    "at full scale, as in the paper: no accuracy of this study may be compared with that of another method.",
    more=fedlws.RECORDED,
    smoke={"more": {"rounds": 6}},
    small={
        "more": {"rounds": 20, "evaluate_every": 1, "proxy": 0.1},
        "reduced": f"{fedlws.REDUCED}; 20 rounds, and the factor is found on 400 test samples that do not test afterwards",
        "unlike": "",
    },
    paper={"methods": RATIO, "settings": DEGREES | RATIOS, "more": {"proxy": "test"}},
)

AT = {f"factor {gamma:g}": gamma for gamma in (0.9, 0.95, 0.98, 0.99, 0.995)}
CONSTANT: Methods = {"FedAvg": "fedavg", FIXED: "fedavg + fixed_shrink(step=0.01)"} | {
    label: f"fedavg + fixed_shrink(step=0, first={gamma})" for label, gamma in AT.items()
}
SCORES_OF_FACTORS = [score(label, CIFAR, last=LAST) for label in AT]
BEST_FACTOR = best(*SCORES_OF_FACTORS)
FIXED_STUDY = fedlws.study(
    "fedlws-fixed",
    "Accuracy of FedAvg with fixed factors in every round: one for the model, or 1 - 0.01 l for layer l",
    CONSTANT,
    fedlws.ON_CIFAR,
    (
        fedlws.FIXED_HELPS,
        Claim(
            "Fixed factors by layer are better than the best fixed factor of the model",
            difference(score(FIXED, CIFAR, last=LAST), BEST_FACTOR),
            Above(),
        ),
        Claim(
            "The best fixed factor of the model makes FedAvg better",
            difference(BEST_FACTOR, score("FedAvg", CIFAR, last=LAST)),
            Above(),
        ),
        fedlws.is_better(
            "A factor slightly below 1 (0.99) makes FedAvg better", "factor 0.99", "FedAvg"
        ),
        question(
            "A factor of 0.9 makes FedAvg worse",
            gain("factor 0.9", "FedAvg", CIFAR, last=LAST),
            Below(),
        ),
    ),
    (
        fedlws.TABLE,
        MethodSweep("accuracy, %", "factor", {"fixed factor": AT}, "FedAvg", last=LAST, log=False),
    ),
    "The paper's factors by layer (figure 1b) fall from 1 in the first to 0.96 in the fifth layer; table 11 has their accuracy. "
    "The best factor of the model is chosen by the test samples.",
    small={"unlike": fedlws.UNDERFITTED},
    paper={"settings": CIFARS},
)


def _swept(
    name: str,
    title: str,
    parameter: str,
    options: Callable[[float], Options],
    small: tuple[float, ...],
    paper: tuple[float, ...],
    claims: tuple[Claim, ...] = (),
) -> Study:
    """FedAvg with and without LWS over a parameter of the federation: ours at the small scale, at full those of figure 4, too."""
    settings: dict[str, Options] = {}
    value_at: dict[str, float] = {}
    for value in sorted({*small, *paper}):
        where = _where(parameter, value)
        settings[where] = {**CIFARS[CIFAR], **options(value)}
        value_at[where] = value
    few: dict[str, Options] = {}
    for value in small:
        where = _where(parameter, value)
        few[where] = settings[where]
    few_samples = fedlws.setting("digits", 0.1)
    toys: dict[str, Options] = {where: {**few_samples, **_toy(settings[where])} for where in few}

    # The claim about the usual value is that of table 1.
    better_claims = []
    for where in few:
        if where != CIFAR:
            text = f"LWS makes FedAvg better, {where}"
            better_claims.append(fedlws.better(text, LWS, "FedAvg", None, where))
    values = ", ".join(f"{value:g}" for value in paper)
    return fedlws.study(
        name,
        title,
        PAIR,
        settings,
        (*better_claims, *claims),
        (fedlws.TABLE, Sweep("accuracy, %", parameter, value_at, last=LAST)),
        f"Figure 4 of the paper has {values}, without numbers and without naming its data.",
        smoke={"settings": toys},
        small={"settings": few},
    )


NAMES = {"clients": "{:g} clients", "epochs": "{:g} epochs", "participation": "{:g} of the clients"}
USUAL = {"clients": 20, "epochs": 1, "participation": 1}


def _where(parameter: str, value: float) -> str:
    if value == USUAL[parameter]:
        return CIFAR
    name = NAMES[parameter].format(value)
    return f"{CIFAR}, {name}"


def _toy(options: Options) -> dict[str, Any]:
    """The options that a parameter changes, which toys have, too."""
    names = ("clients", "work", "participation")
    return {name: value for name, value in options.items() if name in names}


CLIENTS_STUDY = _swept(
    "fedlws-clients",
    "Numbers of clients: FedAvg with and without LWS",
    "clients",
    lambda n: {} if n == 20 else {"clients": int(n)},
    (10, 20, 40),
    (10, 30, 50),
)
EPOCHS_STUDY = _swept(
    "fedlws-epochs",
    "Local epochs: FedAvg with and without LWS",
    "epochs",
    lambda n: {} if n == 1 else {"work": {"epochs": int(n)}},
    (1, 2),
    (1, 5, 10),
    (
        Claim(
            "More local epochs converge faster: the accuracy after 15 rounds, 2 epochs less 1",
            difference(
                after_round(15, "FedAvg", _where("epochs", 2)),
                after_round(15, "FedAvg", _where("epochs", 1)),
            ),
            Above(),
        ),
    ),
)
PARTICIPATION_STUDY = _swept(
    "fedlws-participation",
    "Share of clients in a round: FedAvg with and without LWS",
    "participation",
    lambda p: {} if p == 1 else {"participation": p},
    (0.25, 0.5, 1),
    (0.1, 0.3, 0.5),
    (
        Claim(
            "The accuracy oscillates more where half of the clients take part than where all do",
            difference(
                oscillation("FedAvg", _where("participation", 0.5)), oscillation("FedAvg", CIFAR)
            ),
            Above(),
            unit=FLUCTUATION,
        ),
    ),
)

NEAR_ZERO = ParameterHistogram("share of the parameters")
PARAMETERS_STUDY = fedlws.study(
    "fedlws-parameters",
    "Histogram of the final parameters of FedAvg with and without LWS",
    PAIR,
    fedlws.ON_CIFAR,
    (
        Claim(
            "LWS leaves more parameters near 0 than FedAvg: within a tenth of 0.25",
            difference(NEAR_ZERO.near_zero(LWS, CIFAR), NEAR_ZERO.near_zero("FedAvg", CIFAR)),
            Above(),
            unit="points of parameters",
        ),
    ),
    (NEAR_ZERO,),
    more={"histogram": {"limit": 0.25, "bins": 50}},
    small={"unlike": ""},
)

DIVERGENCE = DataAgainstUpdates("1 - cosine of updates")
TRANSPORT = TransportAgainstUpdates("1 - cosine of updates")
TRANSPORTED = {"transport": {"samples": 300}}
HALVES = "CIFAR-10, halves and all"
DIVIDED: dict[str, Options] = {
    CIFAR: CIFARS[CIFAR],
    HALVES: {"data": "cifar10", "partition": "halves"},
}


def _apart(low: float, high: float) -> Quantity:
    return DIVERGENCE.mean_between(low, high, "FedAvg", HALVES)


# The distance of the updates of two clients by the total variation of their labels: about 0, 1/2
# or 1.
SAME_CLASSES = _apart(0, 0.25)
HALF_OF_THEM = _apart(0.25, 0.75)
OTHERS = _apart(0.75, 1)
ORDER = {
    "two clients with the same classes differ less than those of a half and of all classes": (
        SAME_CLASSES,
        HALF_OF_THEM,
    ),
    "clients of a half and of all classes differ less than those of opposite halves": (
        HALF_OF_THEM,
        OTHERS,
    ),
}
DIVERGES = {"labels": DIVERGENCE, "samples, by optimal transport,": TRANSPORT}
DIVERGENCE_STUDY = fedlws.study(
    "fedlws-divergence",
    "Divergence of data against divergence of updates for every two of 12 clients",
    {"FedAvg": "fedavg"},
    DIVIDED,
    (
        *(
            Claim(
                f"Updates of {which}", difference(more, less), Above(), unit="1 - cosine", scale=1
            )
            for which, (less, more) in ORDER.items()
        ),
        *(
            question(
                f"Updates of clients diverge the more the more their {what} diverge, {where}",
                layout.correlation("FedAvg", where),
                Above(),
                **PEARSON,
            )
            for where, (what, layout) in product(DIVIDED, DIVERGES.items())
        ),
    ),
    (DIVERGENCE, TRANSPORT, LabelBubbles("Samples by client and class")),
    "Of the paper's 12 clients, four have the first five classes, four the others, and four all ten. Labels diverge by the total "
    "variation of their distributions, which is the cost of optimal transport between them where every change of class costs the "
    "same. Samples are moved with their labels: the cost is the mean squared difference of pixels, in units of their variance, and "
    "1 more where the labels differ; at most 300 samples of a client count.",
    more={"clients": 12, "record": "updates"},
    smoke={"more": {"evaluate_every": 3}},
    small={
        "more": {**TRANSPORTED, "rounds": 10, "evaluate_every": 10},
        "reduced": "4,000 training images of CIFAR-10, the tenth round alone",
        "unlike": "",
    },
    paper={"more": {**TRANSPORTED, "evaluate_every": 50}},
)

SOME_BASES = {name: BASES[name] for name in ("FedProx", "FedDisco")}
SOME_BETAS = (0.01, 1.0)


def _with_betas(name: str) -> dict[str, float]:
    """The labels of a base method with LWS -> beta."""
    betas = {name + WITH: 0.1}
    for beta in SOME_BETAS:
        betas[f"{name}{WITH}, beta {beta:g}"] = beta
    return betas


def _betas(bases: Mapping[str, str]) -> dict[str, str | Variant]:
    swept = {}
    for name, spec in bases.items():
        for label, beta in _with_betas(name).items():
            swept[label] = fedlws.lws(spec, beta)
    return fedlws.with_lws(bases) | swept


BASES_STUDY = fedlws.study(
    "fedlws-beta-bases",
    "Accuracy over beta for several base methods",
    _betas(SOME_BASES),
    fedlws.ON_CIFAR,
    (helps(name, CIFAR) for name in SOME_BASES),
    (
        fedlws.TABLE,
        *(
            MethodSweep(
                "accuracy, %",
                "beta",
                {name + WITH: _with_betas(name)},
                name,
                last=LAST,
                name=f"sweep-{name.lower()}",
            )
            for name in SOME_BASES
        ),
    ),
    small={"reduced": f"{fedlws.REDUCED}; FedProx and FedDisco only"},
    paper={"methods": _betas(BASES)},
)

LABELS_STUDY = fedlws.study(
    "fedlws-labels",
    "The samples of each client and class by heterogeneity",
    {"FedAvg": "fedavg"},
    CIFARS,
    layouts=(LabelBubbles("Samples by client and class"),),
    more={"rounds": 1, "evaluate_every": 1, "model": "linear"},
    small={"reduced": "4,000 training images"},
    seeds=(0,),
    unlike="",
)


def _gap(method: str, where: str) -> Quantity:
    return difference(score(method, where, "loss", LAST), score(method, where, "train_loss", LAST))


GAP_STUDY = fedlws.study(
    "fedlws-gap",
    "The generalization gap of FedAvg with and without LWS by heterogeneity",
    PAIR,
    CIFARS,
    (
        *(
            Claim(
                f"LWS makes the generalization gap smaller, {where}",
                difference(_gap(LWS, where), _gap("FedAvg", where)),
                Below(),
                unit="loss",
                scale=1,
            )
            for where in CIFARS
        ),
        Claim(
            "The accuracy oscillates more at alpha 0.1 than at alpha 100",
            difference(oscillation("FedAvg", CIFAR), oscillation("FedAvg", "CIFAR-10, alpha 100")),
            Above(),
            unit=FLUCTUATION,
        ),
    ),
    (Curves("test loss less training loss", "loss", scale=1, name="gap", less="train_loss"),),
    "The gap is the loss on the server's test samples less the mean loss of local training in the round, so that it also holds "
    "what local training gains over the shared model. fedlws-bound has the bound of theorem D.2.",
)

STUDIES = (
    RATIO_STUDY,
    FIXED_STUDY,
    CLIENTS_STUDY,
    EPOCHS_STUDY,
    PARTICIPATION_STUDY,
    PARAMETERS_STUDY,
    DIVERGENCE_STUDY,
    BASES_STUDY,
    LABELS_STUDY,
    GAP_STUDY,
)
