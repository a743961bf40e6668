"""FedSA (Wang et al. 2024), the first version of the paper on parameter skew."""

from __future__ import annotations

from unalike.studies.claims import OURS, Claim, best, difference
from unalike.studies.papers.parameter_skew import (
    AT_HAND,
    CURVES,
    FEDSA,
    MEAN,
    NORMALIZED,
    NUMBERS,
    PERSONAL,
    RULES,
    SA,
    SETTINGS,
    TABLE,
    baselines,
    better,
    of,
    personal_gain,
    same,
    table_scales,
)
from unalike.studies.study import Study
from unalike.studies.verdicts import Above

SHARED = tuple(name for name in baselines(1, 1) if name != "FedBABU")
"""The baselines with a shared model."""

TABLE1 = Study(
    "fedsa-table1",
    "CIFAR-10, 20 clients: accuracy of eight baselines and of FedSA under two kinds of label skew",
    FEDSA,
    table_scales({SA: RULES[SA], NORMALIZED: RULES[NORMALIZED], MEAN: "fedavg + uniform"}, {}),
    (
        *(better(method, "FedAvg", where, 4.7, AT_HAND) for where in SETTINGS for method in (SA, NORMALIZED)),
        *(
            Claim(
                f"{NORMALIZED}: better than the best shared model of the baselines, {where}",
                difference(of(NORMALIZED, where), best(*(of(method, where) for method in SHARED))),
                Above(),
                AT_HAND,
            )
            for where in SETTINGS
        ),
        *(same("MOON", "FedAvg", where, 1.0, "-0.14 (in one setting)") for where in SETTINGS),
        *(same("FedNTD", "FedAvg", where, 1.0, "-0.57 (in one setting)") for where in SETTINGS),
        *(
            same("Ditto", "FedAvg", where, 1e-3, "0 (follows from the equations, for the shared model)")
            for where in SETTINGS
        ),
        *(same(NORMALIZED, MEAN, where, 0.5, "-", OURS) for where in SETTINGS),
        *(
            Claim(
                f"The personal models of {method} are better than its shared model, {where}",
                personal_gain(method, where),
                Above(),
                "-",
                remark=OURS,
            )
            for where in SETTINGS
            for method in ("Ditto", "FedALA")
        ),
    ),
    (TABLE, PERSONAL, CURVES),
    NUMBERS,
)

STUDIES = (TABLE1,)
