"""All studies by name."""

import fnmatch
from collections.abc import Iterable
from importlib import import_module

from unalike._utils.errors import unknown
from unalike_studies.study import Study

PAPERS = (
    "fedlws_central",
    "fedlws_effects",
    "fedlws_factors",
    "fedlws_tables",
    "fedlws_figures",
    "fedmix",
    "fedmix_quadratics",
    "flamby_heart",
    "local_statistics",
    "local_statistics_characters",
    "local_statistics_federated",
    "local_statistics_sizes",
    "defences",
    "privacy",
    "natural",
    "niid_bench",
    "pfllib",
    "fedpake",
    "fedpake_figures",
    "fedpake_high",
    "skew_estimators",
    "skew_protocols",
)
"""The modules of `papers/`, in the order of the ledger."""
STUDIES: dict[str, Study] = {
    study.name: study
    for name in PAPERS
    for study in import_module(f"unalike_studies.papers.{name}").STUDIES
}


def study(name: str) -> Study:
    """The study of this name. Raises `UnalikeError` for an unknown one."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def matching(patterns: Iterable[str]) -> list[Study]:
    """The studies with these names, or whose names match patterns such as "fedlws-*".

    Raises `UnalikeError` for a name or pattern without a study.
    """
    studies: dict[str, Study] = {}
    for pattern in patterns:
        names = fnmatch.filter(STUDIES, pattern) or [pattern]
        for name in names:
            studies[name] = study(name)
    return list(studies.values())
