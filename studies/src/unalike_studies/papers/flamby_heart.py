"""FLamby's benchmark on heart disease (Ogier du Terrail et al. 2022): seven strategies, local and pooled models, four hospitals."""

from typing import Any

from unalike_studies.claim_verdicts import Above, Expectation, Near, Same
from unalike_studies.claims import ACCURACY, OURS, Claim, Quantity, difference, question, score
from unalike_studies.flamby_heart_rows import PUBLISHED_SPLIT
from unalike_studies.layouts.tables import ClientTable, MethodTable
from unalike_studies.published import Printed
from unalike_studies.study import Scale, Study, Variant

PAPER = (
    "Ogier du Terrail et al.: FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare Settings, "
    "NeurIPS 2022; the results of its repository, five seeds"
)
HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
TEST_ROWS = (104, 89, 16, 45)
WHERE = "four hospitals"
PUBLISHED = {
    "FedAvg": (74.80, 2.68, (73.08, 71.91, 65.00, 64.00)),
    "FedProx": (74.80, 2.68, (73.08, 71.91, 65.00, 64.00)),
    "SCAFFOLD": (74.80, 2.68, (72.69, 71.91, 65.00, 64.00)),
    "FedAdam": (77.87, 1.46, (75.19, 74.61, 73.75, 66.67)),
    "FedYogi": (77.87, 1.53, (75.96, 75.28, 73.75, 67.56)),
    "FedAdagrad": (77.87, 1.53, (75.96, 75.28, 73.75, 67.56)),
    "Cyclic, as coded": (78.50, 1.23, (75.77, 76.18, 71.25, 64.00)),
    "Pooled": (79.53, 0.28, (78.27, 76.40, 75.00, 64.44)),
    "Cleveland alone": (78.43, 0.70, (74.62, 75.96, 72.50, 65.78)),
    "Hungary alone": (72.68, 1.29, (74.62, 74.61, 52.50, 49.78)),
    "Switzerland alone": (48.27, 4.49, (48.08, 39.10, 72.50, 67.11)),
    "VA Long Beach alone": (61.10, 3.93, (57.69, 46.74, 80.00, 70.22)),
}
"""Method -> accuracy on the pooled test rows, its deviation over five seeds, and the accuracy in each hospital, in per cent."""

ROUND = {"steps": 100, "batch_size": 4}
ADAM = {"steps": None, "epochs": 50, "batch_size": 4, "lr": 0.001, "optimizer": "adam"}
COMMON = {
    "partition": "natural(column='hospital')",
    "model": "logistic",
    "rounds": 15,
    "evaluate_every": 15,
    "work": ROUND | {"lr": 0.001},
    "protocol": ("clients", "server"),
}
ONCE = {"rounds": 1, "evaluate_every": 1}
MOMENTS = "b1=0.9, b2=0.999, tau=1e-08"
RATES = {"FedAdam": 0.01, "FedYogi": 0.003162, "FedAdagrad": 0.003162}
"""The clients' rates. That of FedAvg, FedProx and SCAFFOLD is 0.001."""


def _rate(rate: float) -> str:
    return f"FedAvg, rate {rate}"


def _at(rate: float, **more: Any) -> dict[str, Any]:
    return {"work": {"lr": rate}, **more}


def _methods(split: str) -> dict[str, str | Variant]:
    """The methods, of which some have rows of their own; `split` is the seed of the division into training and test rows."""

    def rows(**options: object) -> dict[str, Any]:
        arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return {"data": f"flamby_heart(split={split}, {arguments})"}

    alone = {name: rows(hospital=name) for name in HOSPITALS}
    return {
        "FedAvg": "fedavg",
        "FedProx": "fedprox(mu=0.01)",
        "SCAFFOLD": "scaffold(weighted=True)",
        "SCAFFOLD, hospitals count equally": "scaffold",
        "FedAvg, hospitals count equally": "fedavg + uniform",
        "FedAdam": Variant(f"fedadam(lr=0.01, {MOMENTS})", _at(RATES["FedAdam"])),
        "FedYogi": Variant(f"fedyogi(lr=0.01, {MOMENTS})", _at(RATES["FedYogi"])),
        "FedAdagrad": Variant(f"fedadagrad(lr=0.316228, {MOMENTS})", _at(RATES["FedAdagrad"])),
        "Cyclic, as coded": Variant(
            "fedavg", alone["Cleveland"] | _at(0.01, rounds=4, evaluate_every=4)
        ),
        "One hospital a round": Variant("fedavg", _at(0.01, participation=0.25)),
        **{_rate(rate): Variant("fedavg", _at(rate)) for rate in sorted(set(RATES.values()))},
        "Pooled": Variant("centralised", rows(pooled=True) | {"work": ADAM} | ONCE),
        **{
            f"{name} alone": Variant("centralised", alone[name] | {"work": ADAM} | ONCE)
            for name in HOSPITALS
        },
    }


def _scale(split: str, seeds: int, **more: Any) -> Scale:
    data = {
        "data": f"flamby_heart(split={split})",
        "server_data": f"flamby_heart(split={split}, pooled=True)",
    }
    return Scale(_methods(split), {WHERE: data}, COMMON, tuple(range(seeds)), **more)


def _published(method: str) -> Printed:
    """The published accuracy on the pooled test rows."""
    value, deviation, _ = PUBLISHED[method]
    # The deviation is that of five seeds, whose mean is printed.
    return Printed(value, f"{value:g} ± {deviation:g}, pooled test", deviation=deviation / 5**0.5)


def _error(method: str) -> float:
    """Half the 95 % t interval of the published mean of five seeds, and one point at least."""
    _, deviation, _ = PUBLISHED[method]
    # 2.78 is the t quantile of four degrees of freedom.
    return max(1.0, round(2.78 * deviation / 5**0.5, 1))


def _pooled(method: str) -> Quantity:
    """The accuracy on all test rows, standardized with those of all hospitals: the benchmark's pooled test."""
    return score(method, WHERE, "server_accuracy", last=1)


def _by_hospital(method: str) -> Quantity:
    """The accuracy on all test rows, each standardized as in training: by its own hospital."""
    return score(method, WHERE, "accuracy", last=1)


LEVELS = tuple(
    Claim(
        f"{method} reaches the published accuracy on the pooled test rows",
        _pooled(method),
        Near(margin=_error(method)),
        _published(method),
        **ACCURACY,
        # the printed one of two hospitals alone is near chance, too
        needs_learning=False,
    )
    for method in PUBLISHED
)


def _order(source: str) -> tuple[Claim, ...]:
    """The order of the methods on the pooled test rows, as published."""
    equal, better = Same(0.5), Above()
    expected: dict[str, Expectation] = {
        "FedProx": equal,
        "SCAFFOLD": equal,
        **dict.fromkeys(RATES, better),
        "Pooled": better,
        "Cleveland alone": better,
    }
    claims = []
    for method, expects in expected.items():
        relation = "as good as" if expects is equal else "better than"
        claim = Claim(
            f"{method} is {relation} FedAvg on the pooled test rows",
            difference(_pooled(method), _pooled("FedAvg")),
            expects,
            _published(method) - _published("FedAvg"),
            source=source,
            needs_learning=False,
        )
        claims.append(claim)
    return tuple(claims)


def _equal(text: str, method: str, other: str) -> Claim:
    return question(text, difference(_pooled(method), _pooled(other)), Same(1.0))


QUESTIONS = (
    question(
        "FedAvg's shared model is better on the pooled test rows than on rows standardized by hospital, as in training",
        difference(_pooled("FedAvg"), _by_hospital("FedAvg")),
        Above(),
    ),
    *(
        _equal(
            f"With the clients' rate of {method} FedAvg is as good as {method}", _rate(rate), method
        )
        for method, rate in RATES.items()
    ),
    *(
        question(
            f"With rows standardized by hospital {method} is better than FedAvg",
            difference(_by_hospital(method), _by_hospital("FedAvg")),
            Above(),
        )
        for method in RATES
    ),
    _equal(
        "SCAFFOLD is as good as FedAvg where hospitals count equally in both",
        "SCAFFOLD, hospitals count equally",
        "FedAvg, hospitals count equally",
    ),
    _equal(
        "A model that trains in one hospital a round is as good as FedAvg with the same rate",
        "One hospital a round",
        _rate(0.01),
    ),
)

NOTES = (
    "Rows, features, split, standardization, batches of 4, rates and 15 rounds of 100 updates are the benchmark's. With "
    "its seeds a plain loop in PyTorch gives its numbers of FedAvg, FedAdam, FedYogi, FedAdagrad, Cyclic and the "
    "hospitals alone exactly (tests/test_flamby_heart.py does so for the first). Two of its rules matter. The pooled test "
    "standardizes all test rows with mean and deviation of the training rows of all hospitals, even for models that were "
    "trained on rows standardized by hospital: FedAvg has 74.8 there, and 70.6, the mean of its hospitals, on rows as in "
    "training. The strategy Cyclic does not hand the model on: its published numbers are those of Cleveland's own model "
    "after three or four visits of 100 updates, exactly so under all five seeds; 'Cyclic, as coded' makes four visits "
    "here. 'One hospital a round' does hand the model on, to a hospital that is drawn anew in every round."
)
SPLITS = (
    " The seed also divides the rows of each hospital into training and test rows. Splits share rows: the intervals are "
    "about other splits of these 740 patients, and too narrow for other patients."
)


LAYOUTS = (
    MethodTable(
        "Accuracy on the pooled test rows, %",
        "server_accuracy",
        last=1,
        published={
            (method, WHERE): f"{mean:.2f} ± {deviation:.2f}"
            for method, (mean, deviation, _) in PUBLISHED.items()
        },
    ),
    ClientTable(
        "Accuracy in each hospital, rows standardized as in training, %",
        HOSPITALS,
        published={
            method: hospitals
            for method, (_, _, hospitals) in PUBLISHED.items()
            if method != "Pooled"
        },
    ),
)


def _study(
    name: str, title: str, split: str, seeds: int, claims: tuple[Claim, ...], notes: str
) -> Study:
    full = _scale(split, seeds)
    scales = {"smoke": _scale(split, 1, reduced="one seed"), "small": full, "paper": full}
    return Study(name, title, PAPER, scales, claims, LAYOUTS, notes)


STUDIES = (
    _study(
        "flamby-heart",
        "Heart disease in four hospitals: seven strategies, local and pooled models, on the published split",
        str(PUBLISHED_SPLIT),
        20,
        LEVELS + _order("") + QUESTIONS,
        NOTES,
    ),
    _study(
        "flamby-heart-splits",
        "Heart disease in four hospitals: the order of strategies over 30 random splits",
        "{seed}",
        30,
        _order(OURS) + QUESTIONS,
        NOTES + SPLITS,
    ),
)
