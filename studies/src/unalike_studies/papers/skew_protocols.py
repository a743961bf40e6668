"""FedSA and FedPake: which protocol has the printed levels, and is the printed gain a difference between protocols?"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Same
from unalike_studies.claims import Claim, Quantity, as_printed, difference, question, score
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.gains import BesidePrinted, BySetting
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers import parameter_skew as skew
from unalike_studies.papers.parameter_skew import PLACES, RANKED, RANKED_SPEC
from unalike_studies.published import Printed
from unalike_studies.results import Results
from unalike_studies.study import Layout, Scale, Study, Variant

FEDAVG = "FedAvg"
PAKE = "FedPake"
BABU = "FedBABU"
AVERAGED = "averaged statistics"
OWN = "own statistics"
LOCAL = "after local training"
COLUMNS = {AVERAGED: "accuracy", OWN: "personal_accuracy", LOCAL: "local_accuracy"}
"""Protocol -> column: the shared model with averaged running statistics of BatchNorm, the shared model with those that each client
keeps of its own rounds, and each client's model after local training."""
LAST = 2
"""Evaluated rounds that a score is the mean of: the last ten rounds, as in the papers."""
STATISTICS = " + own_statistics"


def _methods(rounds: int) -> dict[str, str | Variant]:
    """FedAvg, FedBABU, whose models are tuned and evaluated after the last of `rounds` only, and FedPake by rank.

    FedPake's other readings are FedAvg for 99.7 % of the parameters (`fedpake-high`).
    """
    once = {"buffers": "local", "protocol": "personal", "evaluate_every": rounds}
    return {
        FEDAVG: f"fedavg{STATISTICS}",
        BABU: Variant("fedbabu(tune='head')", once),
        RANKED: skew.sized(RANKED_SPEC, PLACES, STATISTICS),
    }


PERSONAL = ("Ditto", "FedALA")
"""The baselines with personal models, which are scored in place of the shared one with own statistics."""


def _baselines(rounds: int, steps: int) -> dict[str, str | Variant]:
    """The other baselines of table 1, with own statistics of BatchNorm."""
    methods: dict[str, str | Variant] = {}
    for name, method in skew.baselines(rounds, steps).items():
        if name in (FEDAVG, BABU):
            continue
        spec = method.spec if isinstance(method, Variant) else method
        if name in PERSONAL:
            methods[name] = Variant(spec, {"buffers": "local"})
        else:
            methods[name] = spec + STATISTICS
    return methods


PFLLIB: dict[str, Any] = {"work": {"batch_size": 10, "lr": 0.005}}
"""Batches and rate of PFLlib."""
COMMON: dict[str, Any] = {
    "clients": 20,
    "model": "resnet18(stem='imagenet')",
    "rounds": 25,
    "evaluate_every": 5,
    "precision": "bf16",
    "protocol": ("clients", "personal", "local"),
    "work": {"batch_size": 50, "lr": 0.025},
}
LARGE: dict[str, Any] = COMMON | {"rounds": 1000, "precision": "float32", **PFLLIB}
IMAGES = {"CIFAR-10": "20,000 images of CIFAR-10", "CIFAR-100": "12,500 of CIFAR-100"}
REDUCED = "instead of 60,000; 25 rounds instead of 1000; batches of 50 at rate 0.025 instead of PFLlib's 10 at 0.005, in bfloat16"
UNLIKE = "25 rounds instead of 1000, over which accuracies still rise; batches of 50, not 10, which change them by 5 to 10 points"

TWO = "CIFAR-10, 2 classes"
TEN = "CIFAR-100, 10 classes"
SEVERE = "CIFAR-100, Dir(0.01)"
CLAIMED = (TWO, TEN, SEVERE)
"""The first column of the papers' tables, and the settings of the largest printed gains."""
SMALL_BATCHES = f"{TWO}, batches of 10"
FEW = 12
"""Rounds of batches of 10."""


def level(method: str, column: str) -> BySetting:
    """The score of a method in a setting."""
    return lambda setting: score(method, setting, column, LAST)


def less(first: BySetting, second: BySetting) -> BySetting:
    """The difference of two quantities in a setting."""
    return lambda setting: difference(first(setting), second(setting))


LEVELS: dict[str, BySetting] = {
    **{f"FedAvg, {protocol}": level(FEDAVG, column) for protocol, column in COLUMNS.items()},
    "FedBABU, tuned heads": level(BABU, "accuracy"),
    f"{RANKED}, own statistics": level(RANKED, COLUMNS[OWN]),
}
AVG_AVERAGED, AVG_OWN, AVG_LOCAL, HEADS, *_ = LEVELS.values()
GAINS: dict[str, BySetting] = {
    "FedAvg: own less averaged statistics": less(AVG_OWN, AVG_AVERAGED),
    "FedAvg: after local training less own statistics": less(AVG_LOCAL, AVG_OWN),
    "FedBABU's tuned heads less FedAvg, own statistics": less(HEADS, AVG_OWN),
    "FedBABU's tuned heads less FedAvg after local training": less(HEADS, AVG_LOCAL),
    f"{RANKED} less FedAvg, own statistics": less(level(RANKED, COLUMNS[OWN]), AVG_OWN),
    f"{RANKED} after local training less FedAvg, own statistics": less(
        level(RANKED, COLUMNS[LOCAL]), AVG_OWN
    ),
}


def _printed_scores(method: str) -> dict[str, Printed]:
    """Setting -> the printed accuracy of a method."""
    return {setting: place.printed(method) for setting, place in PLACES.items()}


def _printed_gains(method: str) -> dict[str, Printed]:
    """Setting -> the printed accuracy of a method less that of FedAvg."""
    return {setting: place.gain(method) for setting, place in PLACES.items()}


PRINTED = {method: _printed_scores(method) for method in (FEDAVG, PAKE, BABU)}
PRINTED_GAINS = {f"{method} less FedAvg": _printed_gains(method) for method in (PAKE, BABU)}


def _protocol_questions(setting: str) -> Iterator[Claim]:
    """Questions about the accuracy of FedAvg under two protocols."""
    for text, quantity in (
        (
            "Each client's own statistics of BatchNorm raise the accuracy of FedAvg's shared model",
            less(AVG_OWN, AVG_AVERAGED),
        ),
        (
            "Models after local training are better than FedAvg's shared model with own statistics",
            less(AVG_LOCAL, AVG_OWN),
        ),
    ):
        yield question(f"{text}, {setting}", quantity(setting), Above())


def _better(row: str, method: str, setting: str) -> Claim:
    """The claim that a method, printed in this row, is better than FedAvg with own statistics; or worse, where it is lower."""
    published = PLACES[setting].gain(row)
    column = "accuracy" if method == BABU else COLUMNS[OWN]
    word, expects = as_printed(published)
    quantity = less(level(method, column), AVG_OWN)(setting)
    claim = Claim(f"{method} is {word} than FedAvg, {setting}", quantity, expects, published)
    return skew.by_our_rule(claim) if method == RANKED else claim


def _larger_batches(column: str) -> Quantity:
    """The accuracy with batches of 50 less that with PFLlib's batches of 10, in the last round that both have evaluated."""

    def values(results: Results) -> dict[int, float]:
        large = results.of(FEDAVG, TWO)
        small = results.of(FEDAVG, SMALL_BATCHES)
        differences = {}
        for seed in large.keys() & small.keys():
            of_large = large[seed].by_number(column)
            of_small = small[seed].by_number(column)
            last = max(of_large.keys() & of_small.keys())
            differences[seed] = of_large[last] - of_small[last]
        return differences

    return values


def _trend(severe: str, mild: str) -> Claim:
    """FedAvg itself in two degrees of skew."""
    published = PRINTED[FEDAVG][severe] - PRINTED[FEDAVG][mild]
    word, expects = as_printed(published)
    quantity = difference(AVG_OWN(severe), AVG_OWN(mild))
    _, _, mild_without_data = mild.partition(", ")
    text = f"FedAvg is {word} in {severe} than in {mild_without_data}"
    return Claim(text, quantity, expects, published)


LAYOUTS: tuple[Layout, ...] = (
    BesidePrinted("accuracy, %", LEVELS, PRINTED, FEDAVG, name="levels"),
    BesidePrinted("difference, points", GAINS, PRINTED_GAINS, "FedPake less FedAvg", name="gains"),
    MethodTable(
        "Mean accuracy of the last 2 evaluated rounds, averaged statistics (FedBABU: tuned heads), %",
        last=LAST,
    ),
    MethodTable("The same with each client's own statistics, %", COLUMNS[OWN], last=LAST),
    MethodTable("The same after local training, %", COLUMNS[LOCAL], last=LAST),
    *(
        Curves(f"accuracy, {protocol}, %", column, name=column)
        for protocol, column in COLUMNS.items()
    ),
)
NOTE = (
    f"{skew.NOTES} {skew.MISPRINTS} In training, BatchNorm takes the statistics of the batch, so that averaged and own statistics "
    "belong to one course of training, scored in two ways. FedBABU is scored once, after the last round, with heads that are tuned "
    "for 10 epochs and the clients' own statistics."
)
DEGREES = tuple(f"CIFAR-100, Dir({beta})" for beta in ("0.01", "0.1", "0.5", "1"))
WITH_DATA = tuple(
    name
    for name, where in PLACES.items()
    if where.dataset != "Tiny-ImageNet" and "model" not in where.options
)
"""All settings of the papers with ResNet-18 on CIFAR-10 and CIFAR-100, whose data are open to all."""
WITH_BATCHES: dict[str, Options] = {SMALL_BATCHES: {**PLACES[TWO].options, **PFLLIB, "rounds": FEW}}


def _scales(
    names: Iterable[str],
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    more: dict[str, Options],
    why: str = "",
) -> dict[str, Scale]:
    """The scales of a study in these settings of the papers, and in `more` for FedAvg alone."""
    settings = {name: PLACES[name].options for name in names} | more
    toys = {}
    for name, options in settings.items():
        toys[name] = {**options, **skew.TOY, "partition": "dirichlet(alpha=0.5)"}
    others = [method for method in methods if method != FEDAVG]
    left_out = frozenset((method, setting) for method in others for setting in more)

    data_of_settings = {name.partition(",")[0] for name in settings}
    images = " and ".join(text for data, text in IMAGES.items() if data in data_of_settings)

    def chosen_methods(common: Options) -> dict[str, str | Variant]:
        available = _methods(common["rounds"])
        return {name: method for name, method in available.items() if name in methods}

    return {
        "smoke": Scale(
            chosen_methods(skew.TOY),
            toys,
            COMMON,
            seeds=(0,),
            left_out=left_out,
            reduced=skew.SMOKE,
        ),
        "small": Scale(
            chosen_methods(COMMON),
            settings,
            COMMON,
            seeds,
            left_out,
            reduced=f"{images} {REDUCED}{why}",
            unlike=UNLIKE,
        ),
        "paper": Scale(chosen_methods(LARGE), settings, LARGE, left_out=left_out),
    }


def _with_baselines(scales: dict[str, Scale]) -> dict[str, Scale]:
    """The scales with the other baselines of table 1, at the small scale in one setting: each takes as long as FedAvg or longer."""

    def larger(scale: Scale, steps: int, settings: Iterable[str]) -> Scale:
        more = _baselines(scale.common["rounds"], steps)
        without = [setting for setting in scale.settings if setting not in settings]
        left_out = scale.left_out | {(method, setting) for method in more for setting in without}
        return replace(scale, methods={**scale.methods, **more}, left_out=left_out)

    return {
        "smoke": larger(scales["smoke"], 5, (TWO,)),
        "small": larger(scales["small"], 100, (TWO,)),
        "paper": larger(scales["paper"], 1000, WITH_DATA),
    }


STUDIES = (
    Study(
        "skew-protocols",
        "FedAvg, FedBABU and FedPake with ResNet-18 in three protocols, in the settings of the largest printed gains",
        skew.FEDPAKE,
        _scales(CLAIMED, (FEDAVG, BABU, RANKED), (0, 1, 2), WITH_BATCHES),
        (
            *(
                claim
                for setting in CLAIMED
                for claim in (
                    _better(PAKE, RANKED, setting),
                    _better(BABU, BABU, setting),
                    *_protocol_questions(setting),
                )
            ),
            *(
                question(
                    f"Batches of 50 at rate 0.025 are as good as of 10 at 0.005 after {FEW} rounds, FedAvg, {protocol}",
                    _larger_batches(column),
                    Same(3),
                )
                for protocol, column in COLUMNS.items()
            ),
        ),
        LAYOUTS,
        NOTE,
    ),
    Study(
        "fedpake-heterogeneity",
        "CIFAR-100, 20 clients, ResNet-18: FedAvg and FedPake from severe to mild label skew",
        skew.FEDPAKE,
        _scales(DEGREES, (FEDAVG, RANKED), (0, 1, 2), {}),
        (
            *(_better(PAKE, RANKED, setting) for setting in DEGREES),
            *(_trend(setting, DEGREES[-1]) for setting in DEGREES[:-1]),
        ),
        LAYOUTS,
        f"{NOTE} With alpha 0.01 clients may stay empty: not every client can hold 40 samples then.",
    ),
    Study(
        "skew-protocols-settings",
        "FedAvg, FedBABU and FedPake over the settings of the papers: which differences follow the printed gains?",
        skew.FEDPAKE,
        _with_baselines(
            _scales(
                WITH_DATA,
                (FEDAVG, BABU, RANKED),
                (0,),
                {},
                f"; one seed, since what counts are the 13 settings; the other baselines in {TWO} alone, "
                "with 100 steps of FedGen's generator a round, not 1000",
            )
        ),
        (),
        LAYOUTS,
        f"{NOTE} {' and '.join(PERSONAL)} have their personal models scored with own statistics. A study of our own.",
    ),
)
