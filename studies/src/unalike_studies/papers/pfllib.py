"""PFLlib (Zhang et al. 2025): the Fashion-MNIST column of its published benchmark."""

from unalike_studies.claim_verdicts import Above, Near
from unalike_studies.claims import ACCURACY, Claim, difference, peak
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.published import Printed
from unalike_studies.study import Scale, Study, Variant

PAPER = "Zhang et al.: PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library, JMLR 2025"
NUMBERS = (
    "The published numbers are those of the benchmark page of PFLlib's site: mean and deviation of its runs, each with the score "
    "of its best round, chosen by the test samples. The claims compare them with our best rounds."
)

OWN = {"protocol": "personal"}
"""Each client's own model, on its own test samples."""
SHARED = {"FedAvg": "fedavg", "FedProx": "fedprox(mu=0.01)"}
PERSONAL = {
    "Per-FedAvg": Variant("perfedavg(alpha=0.005)", OWN),
    "pFedMe": Variant("pfedme", OWN),
    "Ditto": Variant("ditto(lam=0.1)", OWN),
    "APFL": Variant("apfl", OWN),
    "FedALA": Variant("fedala", OWN),
}
METHODS: dict[str, str | Variant] = {**SHARED, **PERSONAL}
SETTINGS = {
    "2 classes": {"partition": "pathological(classes=2)"},
    "Dir(0.1)": {"partition": "dirichlet(alpha=0.1, min_size=40)"},
}
PAGE = {
    "FedAvg": ("80.41 ± 0.08", "85.85 ± 0.19"),
    "FedProx": ("78.08 ± 0.15", "85.63 ± 0.57"),
    "Per-FedAvg": ("99.18 ± 0.08", "95.10 ± 0.10"),
    "pFedMe": ("99.35 ± 0.14", "97.25 ± 0.17"),
    "Ditto": ("99.44 ± 0.06", "97.47 ± 0.04"),
    "APFL": ("99.41 ± 0.02", "97.25 ± 0.08"),
    "FedALA": ("99.57 ± 0.01", "97.66 ± 0.02"),
}
"""Method -> the numbers in the two settings."""
PUBLISHED = {
    (method, setting): text for method, row in PAGE.items() for setting, text in zip(SETTINGS, row)
}

PAPERS_OWN = {
    "data": "fashion_mnist",
    "clients": 20,
    "model": "cnn(channels=(32, 64), hidden=512)",
    "rounds": 2000,
    "evaluate_every": 10,
    "work": {"batch_size": 10, "lr": 0.005},
}
SMALL = PAPERS_OWN | {"rounds": 30, "evaluate_every": 1, "model": "lenet"}
LONGER = {"rounds": 1000, "evaluate_every": 20}
"""A shared model needs more rounds than personal ones."""


def _published(method: str, setting: str) -> Printed:
    text = PUBLISHED[method, setting]
    return Printed(float(text.split()[0]), f"{text}, benchmark page")


STUDIES = (
    Study(
        "pfllib-fashion",
        "Fashion-MNIST, 20 clients: accuracy of shared and of personal models on the clients' own test samples",
        PAPER,
        {
            "smoke": Scale(
                {name: METHODS[name] for name in ("FedAvg", "Ditto")},
                SETTINGS | {"Dir(0.1)": {"partition": "dirichlet(alpha=0.1)"}},
                PAPERS_OWN
                | {
                    "data": "digits",
                    "clients": 10,
                    "model": "mlp(hidden=32)",
                    "rounds": 3,
                    "evaluate_every": 1,
                },
                reduced="digits, 10 clients, 3 rounds and a small network: shows that the study runs, nothing else",
            ),
            "small": Scale(
                {"FedAvg": Variant(SHARED["FedAvg"], LONGER), **PERSONAL},
                SETTINGS,
                SMALL,
                reduced="1000 rounds for FedAvg and 30 for personal models instead of 2000, and LeNet instead of PFLlib's CNN with "
                "13 times the parameters: FedAvg may not have reached its final accuracy; personal models need few rounds. FedProx "
                "is left out",
                unlike="FedAvg's accuracy still rises when its 1000 rounds end (Dir(0.1): by a point over the last 300)",
            ),
            "paper": Scale(METHODS, SETTINGS, PAPERS_OWN),
        },
        (
            *(
                Claim(
                    f"FedAvg reaches the published accuracy, {setting}",
                    peak("FedAvg", setting),
                    Near(margin=1.0),
                    _published("FedAvg", setting),
                    **ACCURACY,
                    remark="at the scale small, the accuracy still rises when training ends",
                )
                for setting in SETTINGS
            ),
            *(
                Claim(
                    f"The personal models of {method} are better than FedAvg's shared model, {setting}",
                    difference(peak(method, setting), peak("FedAvg", setting)),
                    Above(),
                    _published(method, setting) - _published("FedAvg", setting),
                )
                for setting in SETTINGS
                for method in PERSONAL
            ),
        ),
        (
            MethodTable(
                "Accuracy of the best round, chosen by the test samples, %",
                best=True,
                published=PUBLISHED,
            ),
            MethodTable("Mean accuracy of the last 10 evaluated rounds, %"),
            Curves("accuracy, %", log_rounds=True),
        ),
        NUMBERS,
    ),
)
