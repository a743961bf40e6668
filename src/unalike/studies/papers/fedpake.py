"""FedPake (Liao et al. 2025), the second version of the paper on parameter skew. It shares most cells with FedSA's studies."""

from __future__ import annotations

from unalike.studies.papers.parameter_skew import (
    AT_HAND,
    CURVES,
    FEDPAKE,
    MEAN,
    NORMALIZED,
    NUMBERS,
    PAKE,
    PERSONAL,
    RULES,
    SETTINGS,
    TABLE,
    better,
    table_scales,
)
from unalike.studies.study import Study

TABLE1 = Study(
    "fedpake-table1",
    "CIFAR-10, 20 clients: accuracy of eight baselines and of FedPake under two kinds of label skew",
    FEDPAKE,
    table_scales({PAKE: RULES[PAKE], NORMALIZED: RULES[NORMALIZED], MEAN: "fedavg + uniform"}, {}),
    tuple(better(PAKE, "FedAvg", where, 4.7, AT_HAND) for where in SETTINGS),
    (TABLE, PERSONAL, CURVES),
    NUMBERS,
)

STUDIES = (TABLE1,)
