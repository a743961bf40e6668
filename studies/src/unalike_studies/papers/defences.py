"""Defences against malicious clients on skewed clients, and compressed updates: tables of our own with claims of papers."""

from dataclasses import replace
from typing import Any

from unalike_studies.claim_verdicts import Above, Below, Expectation, Same
from unalike_studies.claims import OURS, Claim, difference, question, score
from unalike_studies.layouts.scatter import ScoreAgainstBytes
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.study import Scale, Study, Variant

LAST = 2
"""Evaluated rounds that a score is the mean of: the 25th and the 30th."""
WORK: dict[str, Any] = {"batch_size": 32, "lr": 0.1, "epochs": 3}
COMMON: dict[str, Any] = {
    "data": "digits",
    "clients": 20,
    "rounds": 30,
    "evaluate_every": 5,
    "work": WORK,
}
COMMON["model"] = "mlp(hidden=(32,))"
SKEWS = {"iid": "iid", "Dir(0.5)": "dirichlet(alpha=0.5)", "Dir(0.1)": "dirichlet(alpha=0.1)"}
SKEWED = "Dir(0.1)"
DEFENCES = {
    "mean": "fedavg",
    "median": "median",
    "trimmed mean": "trimmed_mean(beta=0.2)",
    "Krum": "krum(byzantine=4)",
    "Multi-Krum": "multikrum(byzantine=4)",
    "Bulyan": "bulyan(byzantine=4)",
    "geometric median": "geometric_median",
    "centered clipping": "centered_clipping(norm=1)",
    "norm bound": "norm_bound",
    "bucketing, median": "bucketing + median",
    "FLTrust": "fltrust",
}
NONE = "no attack"
FLIP = "label flip"
SIGN = "sign flip x 10"
ALIE = "ALIE, z = 1.5"
IPM = "IPM 0.5"
DOOR = "backdoor x 5"
ATTACKS = {
    FLIP: "label_flip",
    SIGN: "scaling(factor=-10.0)",
    ALIE: "alie(z=1.5)",
    IPM: "inner_product(epsilon=0.5)",
    DOOR: "backdoor(scale=5.0)",
}
ATTACK_IN = {f"{skew}, {name}": text for skew in SKEWS for name, text in ATTACKS.items()}
"""Setting -> the attack there."""


def _under_attacks(spec: str) -> Variant:
    """A defence, with the attack of each setting that has one."""
    attacked = {where: f"{spec} + {attack}" for where, attack in ATTACK_IN.items()}
    return Variant(spec, elsewhere=attacked)


METHODS = {name: _under_attacks(spec) for name, spec in DEFENCES.items()}
PLAIN = "uncompressed"
COMPRESSORS = {
    PLAIN: "fedavg",
    "bfloat16": "half_precision",
    "8 bits": "quantize",
    "QSGD, 127 levels": "quantize(stochastic=True, norm='l2')",
    "top 10 %": "topk(fraction=0.1)",
    "top 10 %, feedback": "topk(fraction=0.1, error_feedback=True)",
    "top 1 %": "topk(fraction=0.01)",
    "top 1 %, feedback": "topk(fraction=0.01, error_feedback=True)",
    "top 1 %, feedback, 8 bits": "topk(fraction=0.01, error_feedback=True) + quantize",
    "PowerSGD, r = 1": "powersgd(components=1)",
    "PowerSGD, r = 2": "powersgd",
    "PowerSGD, r = 4": "powersgd(components=4)",
}


def claim(
    first: str, second: str, where: str, expects: Expectation, source: str = OURS, **other: str
) -> Claim:
    """The score of a method less that of another one, there or in the setting `base`."""
    base = other.get("base", where)
    column = other.get("column", "accuracy")
    quantity = difference(score(first, where, column, LAST), score(second, base, column, LAST))
    text = f"{first} less {second}"
    if base != where:
        text += f" in {base}"
    column_in_words = column.replace("_", " ")
    unit = f"points of {column_in_words}"
    return question(
        f"{text}: {column}, {where}",
        quantity,
        expects,
        unit,
        source=source,
        # an attack may leave a model at chance
        needs_learning=False,
    )


DEFENDED = (
    claim("Krum", "mean", f"iid, {SIGN}", Above(), "Blanchard et al. 2017"),
    claim("Bulyan", "mean", f"iid, {SIGN}", Above(), "El Mhamdi et al. 2018"),
    claim("trimmed mean", "mean", f"iid, {ALIE}", Below(), "Baruch et al. 2019"),
    claim("Krum", "mean", f"iid, {IPM}", Below(), "Xie et al. 2020"),
    claim(
        "norm bound", "mean", f"iid, {DOOR}", Below(), "Sun et al. 2019", column="attack_success"
    ),
    claim("centered clipping", "median", f"iid, {ALIE}", Above(), "Karimireddy et al. 2021"),
    claim("FLTrust", "mean", f"iid, {SIGN}", Same(2), "Cao et al. 2021", base=f"iid, {NONE}"),
    claim("bucketing, median", "median", f"{SKEWED}, {NONE}", Above(), "Karimireddy et al. 2022"),
    claim("bucketing, median", "median", f"{SKEWED}, {ALIE}", Above(), "Karimireddy et al. 2022"),
    *(claim(name, "mean", f"{SKEWED}, {NONE}", Below()) for name in DEFENCES if name != "mean"),
)
SOURCES = {
    "PowerSGD, r = 2": "Vogels et al. 2019",
    "QSGD, 127 levels": "Alistarh et al. 2017",
    "bfloat16": OURS,
}
COMPRESSED = (
    *(
        claim(name, PLAIN, skew, Same(2), source)
        for name, source in SOURCES.items()
        for skew in ("iid", SKEWED)
    ),
    claim("top 1 %, feedback", "top 1 %", "iid", Above(), "Stich et al. 2018"),
    claim("top 1 %, feedback", "top 1 %", SKEWED, Above(), "Stich et al. 2018"),
)


def scales(methods: dict[str, Any], partitions: dict[str, str], **more: Any) -> dict[str, Scale]:
    """The scales of a study."""
    settings = {where: {"partition": text} for where, text in partitions.items()}
    small = Scale(methods, settings, COMMON | more)
    two_methods = {name: methods[name] for name in list(methods)[:2]}
    smoke = replace(small, methods=two_methods, seeds=(0,), reduced="two methods")
    return {"smoke": smoke, "small": small, "paper": replace(small, seeds=tuple(range(10)))}


STUDIES = (
    Study(
        "defences",
        "Ten defences against five attacks by 4 of 20 clients, on three skews",
        "A table of our own",
        scales(
            METHODS,
            {f"{skew}, {attack}": SKEWS[skew] for skew in SKEWS for attack in (NONE, *ATTACKS)},
            proxy=0.1,
        ),
        DEFENDED,
        (
            MethodTable("Accuracy of the honest clients (%)", last=LAST, digits=1),
            MethodTable("Success of the backdoor (%)", "attack_success", LAST, digits=0),
        ),
        "The digits of scikit-learn, 30 rounds of three local epochs. Scores are those of the honest clients: without an attack of "
        "all 20. Krum and Bulyan know that 4 are malicious. FLTrust learns from a tenth of the samples, which no client has. The "
        "papers train other models on other data: their statements are checked in words, not in numbers.",
    ),
    Study(
        "compression",
        "Eleven compressions of the update: accuracy against bytes",
        "A table of our own",
        scales(COMPRESSORS, SKEWS),
        COMPRESSED,
        (
            MethodTable("Accuracy (%)", last=LAST, digits=1),
            ScoreAgainstBytes("accuracy, %", "kB up a client and round", last=LAST),
        ),
        "The digits of scikit-learn among 20 clients, 30 rounds of three local epochs. Bytes are those of an update as it is sent.",
    ),
)
