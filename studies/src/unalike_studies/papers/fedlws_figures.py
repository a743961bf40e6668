"""FedLWS: the figures of the paper. Those whose numbers were not at hand have names instead of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below
from unalike_studies.claims import Claim, Quantity, difference, gain, score
from unalike_studies.layouts.figures import Curves, LabelBubbles, ParameterHistogram
from unalike_studies.layouts.recorded import RecordedCurves
from unalike_studies.layouts.scatter import DataAgainstUpdates, RecordedScatter, TransportAgainstUpdates
from unalike_studies.layouts.sweeps import MethodSweep, Sweep
from unalike_studies.papers.fedlws_settings import (
    ALPHAS,
    BASES,
    CIFAR,
    CIFARS,
    LAST,
    LWS,
    NUMBERS,
    PAIR,
    PAPER,
    PAPERS_OWN,
    RECORDED,
    REDUCED,
    SMALL,
    SMOKE,
    STATED,
    TABLE,
    TOY,
    TOYS,
    WITH,
    Methods,
    helps,
    setting,
    with_lws,
)
from unalike_studies.study import Scale, Study, Variant

LEARNED = "gamma learned from test samples"
RATIO: Methods = {LEARNED: "fedavg + lws(beta=0, scope='model') + learned_shrinking(epochs=100)"}
SMALL_RATIO: Methods = {LEARNED: "fedavg + lws(beta=0, scope='model') + learned_shrinking(epochs=15, lr=0.05)"}
"""With beta = 0 shrinking notes tau and changes nothing."""
RATIOS: dict[str, Options] = CIFARS | {f"{CIFAR}, MLP": {**CIFARS[CIFAR], "model": "mlp(hidden=(64, 64))"}}

RATIO_AT = RecordedScatter("ratio at the best factor", "tau", "ratio")
RATIO_STUDY = Study(
    "fedlws-ratio",
    "The ratio of regularization to optimization at the best factor, found on test samples, against the variance of updates",
    PAPER,
    {
        "smoke": Scale(SMALL_RATIO, TOYS, TOY | RECORDED | {"rounds": 6}, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            SMALL_RATIO,
            RATIOS,
            SMALL | RECORDED | {"rounds": 20, "evaluate_every": 1, "proxy": 0.1},
            reduced=f"{REDUCED}; 20 rounds, and the factor is found on 400 test samples that do not test afterwards",
        ),
        "paper": Scale(RATIO, RATIOS, PAPERS_OWN | RECORDED | {"proxy": "test"}),
    },
    tuple(
        Claim(
            f"The ratio at the best factor grows with the variance of updates, {where}",
            RATIO_AT.correlation(LEARNED, where),
            Above(),
            unit="Pearson's r",
            scale=1,
            remark=STATED,
        )
        for where in RATIOS
    ),
    (RATIO_AT, RecordedCurves("gamma", "gamma", by="part")),
    NUMBERS
    + " The factor is chosen on the samples that measure the accuracy at full scale, as in the paper: no accuracy of this "
    "study may be compared with that of another method.",
)

FACTORS = (0.9, 0.95, 0.98, 0.99, 0.995)
CONSTANT: Methods = {"FedAvg": "fedavg"} | {
    f"factor {gamma:g}": f"fedavg + fixed_shrink(step=0, first={gamma})" for gamma in FACTORS
}
FIXED_STUDY = Study(
    "fedlws-fixed",
    "Accuracy of FedAvg with one fixed factor for the model in every round",
    PAPER,
    {
        "smoke": Scale(CONSTANT, TOYS, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale(CONSTANT, {CIFAR: CIFARS[CIFAR]}, SMALL, reduced=REDUCED),
        "paper": Scale(CONSTANT, CIFARS, PAPERS_OWN),
    },
    (
        Claim(
            "A factor slightly below 1 (0.99) makes FedAvg better",
            gain("factor 0.99", "FedAvg", CIFAR, last=LAST),
            Above(),
            remark=STATED,
        ),
        Claim(
            "A factor of 0.9 makes FedAvg worse",
            gain("factor 0.9", "FedAvg", CIFAR, last=LAST),
            Below(),
            remark=STATED,
        ),
    ),
    (
        TABLE,
        MethodSweep(
            "accuracy, %",
            "factor",
            {"fixed factor": {f"factor {gamma:g}": gamma for gamma in FACTORS}},
            "FedAvg",
            last=LAST,
            log=False,
        ),
    ),
    NUMBERS,
)

FACTORS_STUDY = Study(
    "fedlws-factors",
    "The factors of LWS by layer and round, and the norms of the layers",
    PAPER,
    {
        "smoke": Scale(PAIR, TOYS, TOY | RECORDED, seeds=(0,), reduced=SMOKE),
        "small": Scale(PAIR, CIFARS, SMALL | RECORDED, seeds=(0,), reduced=f"{REDUCED}; one seed"),
        "paper": Scale(PAIR, CIFARS, PAPERS_OWN | RECORDED),
    },
    (),
    (
        RecordedCurves("gamma", "gamma"),
        RecordedCurves("variance of updates (tau)", "tau"),
        RecordedCurves("norm of parameters", "model_norm"),
    ),
    NUMBERS,
)


def _swept(name: str, title: str, parameter: str, at: Mapping[str, tuple[float, dict[str, Any]]], most: float) -> Study:
    """FedAvg with and without LWS over a parameter of the federation; the small scale sweeps it up to `most`."""
    settings: dict[str, Options] = {
        (CIFAR if not options else f"{CIFAR}, {where}"): {**CIFARS[CIFAR], **options}
        for where, (_, options) in at.items()
    }
    values = {where: value for where, (value, _) in zip(settings, at.values())}
    few = {where: options for where, options in settings.items() if values[where] <= most}
    few_samples = setting("digits", 0.1)
    toys: dict[str, Options] = {where: {**few_samples, **_toy(o)} for where, o in few.items()}
    return Study(
        name,
        title,
        PAPER,
        {
            "smoke": Scale(PAIR, toys, TOY, seeds=(0,), reduced=SMOKE),
            "small": Scale(PAIR, few, SMALL, reduced=REDUCED),
            "paper": Scale(PAIR, settings, PAPERS_OWN),
        },
        tuple(helps("FedAvg", where) for where in few if where != CIFAR),
        (TABLE, Sweep("accuracy, %", parameter, values, last=LAST)),
        NUMBERS,
    )


def _toy(options: Options) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in ("clients", "work", "participation")}


CLIENTS_STUDY = _swept(
    "fedlws-clients",
    "Numbers of clients: FedAvg with and without LWS",
    "clients",
    {f"{n} clients": (n, {} if n == 20 else {"clients": n}) for n in (10, 20, 40, 100)},
    most=40,
)
EPOCHS_STUDY = _swept(
    "fedlws-epochs",
    "Local epochs: FedAvg with and without LWS",
    "epochs",
    {f"{n} epochs": (n, {} if n == 1 else {"work": {"epochs": n}}) for n in (1, 2, 5, 10)},
    most=2,
)
PARTICIPATION_STUDY = _swept(
    "fedlws-participation",
    "Share of clients in a round: FedAvg with and without LWS",
    "participation",
    {f"{p:g} of the clients": (p, {} if p == 1 else {"participation": p}) for p in (0.25, 0.5, 1.0)},
    most=1,
)

HISTOGRAM = {"histogram": {"limit": 0.25, "bins": 50}}
PARAMETERS_STUDY = Study(
    "fedlws-parameters",
    "Histogram of the final parameters of FedAvg with and without LWS",
    PAPER,
    {
        "smoke": Scale(PAIR, TOYS, TOY | HISTOGRAM, seeds=(0,), reduced=SMOKE),
        "small": Scale(PAIR, {CIFAR: CIFARS[CIFAR]}, SMALL | HISTOGRAM, seeds=(0,), reduced=f"{REDUCED}; one seed"),
        "paper": Scale(PAIR, {CIFAR: CIFARS[CIFAR]}, PAPERS_OWN | HISTOGRAM),
    },
    (),
    (ParameterHistogram("share of the parameters"),),
    NUMBERS,
)

TWELVE = {"clients": 12, "record": "updates"}
DIVERGENCE = DataAgainstUpdates("1 - cosine of updates")
TRANSPORT = TransportAgainstUpdates("1 - cosine of updates")
TRANSPORTED = {"transport": {"samples": 300}}
DIVERGENCE_STUDY = Study(
    "fedlws-divergence",
    "Divergence of data against divergence of updates for every two of 12 clients",
    PAPER,
    {
        "smoke": Scale({"FedAvg": "fedavg"}, TOYS, TOY | TWELVE | {"evaluate_every": 3}, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            {"FedAvg": "fedavg"},
            {CIFAR: CIFARS[CIFAR]},
            SMALL | TWELVE | TRANSPORTED | {"rounds": 10, "evaluate_every": 10},
            reduced="4,000 training images of CIFAR-10, the tenth round alone",
        ),
        "paper": Scale(
            {"FedAvg": "fedavg"}, {CIFAR: CIFARS[CIFAR]}, PAPERS_OWN | TWELVE | TRANSPORTED | {"evaluate_every": 50}
        ),
    },
    tuple(
        Claim(
            f"Updates of clients diverge the more the more their {what} diverge",
            layout.correlation("FedAvg", CIFAR),
            Above(),
            unit="Pearson's r",
            scale=1,
            remark=STATED,
        )
        for what, layout in {"labels": DIVERGENCE, "samples, by optimal transport,": TRANSPORT}.items()
    ),
    (DIVERGENCE, TRANSPORT, LabelBubbles("Samples by client and class")),
    NUMBERS
    + " Labels diverge by the total variation of their distributions, which is the cost of optimal transport between them "
    "where every change of class costs the same. Samples are moved with their labels: the cost is the mean squared difference of "
    "pixels, in units of their variance, and 1 more where the labels differ; at most 300 samples of a client count.",
)

SOME_BASES = {name: BASES[name] for name in ("FedProx", "FedDisco")}
SOME_BETAS = (0.01, 1.0)


def _betas(bases: dict[str, str]) -> dict[str, str | Variant]:
    swept = {
        f"{name}{WITH}, beta {b:g}": f"{spec} + lws(beta={b})" for (name, spec), b in product(bases.items(), SOME_BETAS)
    }
    return with_lws(bases) | swept


BASES_STUDY = Study(
    "fedlws-beta-bases",
    "Accuracy over beta for several base methods",
    PAPER,
    {
        "smoke": Scale(_betas(SOME_BASES), TOYS, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale(
            _betas(SOME_BASES), {CIFAR: CIFARS[CIFAR]}, SMALL, reduced=f"{REDUCED}; FedProx and FedDisco only"
        ),
        "paper": Scale(_betas(BASES), {CIFAR: CIFARS[CIFAR]}, PAPERS_OWN),
    },
    tuple(helps(name, CIFAR) for name in SOME_BASES),
    (
        TABLE,
        *(
            MethodSweep(
                "accuracy, %",
                "beta",
                {name + WITH: {name + WITH: 0.1} | {f"{name}{WITH}, beta {b:g}": b for b in SOME_BETAS}},
                name,
                last=LAST,
                name=f"sweep-{name.lower()}",
            )
            for name in SOME_BASES
        ),
    ),
    NUMBERS,
)

ONE_ROUND = {"rounds": 1, "evaluate_every": 1, "model": "linear"}
LABELS_STUDY = Study(
    "fedlws-labels",
    "The samples of each client and class by heterogeneity",
    PAPER,
    {
        "smoke": Scale({"FedAvg": "fedavg"}, TOYS, TOY | ONE_ROUND, seeds=(0,), reduced=SMOKE),
        "small": Scale({"FedAvg": "fedavg"}, CIFARS, SMALL | ONE_ROUND, seeds=(0,), reduced="4,000 training images"),
        "paper": Scale({"FedAvg": "fedavg"}, CIFARS, PAPERS_OWN | ONE_ROUND, seeds=(0,)),
    },
    (),
    (LabelBubbles("Samples by client and class"),),
    NUMBERS,
)


def _gap(method: str, where: str) -> Quantity:
    return difference(score(method, where, "loss", LAST), score(method, where, "train_loss", LAST))


GAP_STUDY = Study(
    "fedlws-gap",
    "The generalization gap of FedAvg with and without LWS by heterogeneity",
    PAPER,
    {
        "smoke": Scale(PAIR, TOYS, TOY, seeds=(0,), reduced=SMOKE),
        "small": Scale(PAIR, CIFARS, SMALL, reduced=REDUCED),
        "paper": Scale(PAIR, CIFARS, PAPERS_OWN),
    },
    tuple(
        Claim(
            f"LWS makes the generalization gap smaller, alpha {alpha:g}",
            difference(_gap(LWS, where), _gap("FedAvg", where)),
            Below(),
            unit="loss",
            scale=1,
            remark=STATED,
        )
        for alpha, where in zip(ALPHAS, CIFARS)
    ),
    (Curves("test loss less training loss", "loss", scale=1, name="gap", less="train_loss"),),
    NUMBERS
    + " The gap is the loss on the server's test samples less the mean loss of local training in the round, so that it "
    "also holds what local training gains over the shared model. The bound of Theorem D.2 was not at hand.",
)

STUDIES = (
    *(RATIO_STUDY, FIXED_STUDY, FACTORS_STUDY, CLIENTS_STUDY, EPOCHS_STUDY, PARTICIPATION_STUDY),
    *(PARAMETERS_STUDY, DIVERGENCE_STUDY, BASES_STUDY, LABELS_STUDY, GAP_STUDY),
)
