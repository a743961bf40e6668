"""The ledger: one row per claim of the papers, with the verdict that its stored results give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from unalike_studies.claim_verdicts import NOT_RUN, VERDICTS, Finding
from unalike_studies.claims import Claim
from unalike_studies.layouts.tables import markdown
from unalike_studies.result_files import estimates, read
from unalike_studies.results import Results
from unalike_studies.study import Scale, Study

RUNS = ("paper", "small")
"""Scales that give verdicts, the more faithful one first."""
HEAD = ("claim", "published", "ours", "95 % interval", "expected", "seeds", "scale", "verdict", "remarks")


@dataclass(frozen=True)
class Entry:
    """A claim, and the finding of the most faithful scale that has results for it."""

    study: Study
    claim: Claim
    scale: str
    finding: Finding


def entries(study: Study, results: Mapping[str, Results]) -> list[Entry]:
    """The entries of a study's claims; `results` are those of `results_of`."""
    return [_entry(study, claim, results) for claim in study.claims]


def results_of(study: Study, folder: Path) -> dict[str, Results]:
    """Scale -> the study's stored results."""
    return {name: read(folder / study.name / name, study.scale(name).cells) for name in RUNS if name in study.scales}


def _entry(study: Study, claim: Claim, results: Mapping[str, Results]) -> Entry:
    findings = {scale: claim.finding(stored) for scale, stored in results.items()}
    scale = max(findings, key=lambda name: (findings[name].verdict != NOT_RUN, findings[name].seeds))
    return Entry(study, claim, scale if findings[scale].seeds else "", findings[scale])


def page(studies: Iterable[Study], folder: Path) -> str:
    """The Markdown page of the ledger."""
    studies = list(studies)
    stored = {study.name: results_of(study, folder) for study in studies}
    claims = {study.name: entries(study, stored[study.name]) for study in studies}
    lines = [
        "# Reproduction ledger",
        "",
        "<!-- Made by `unalike study ledger` from studies/results; do not edit. -->",
        "",
        "One row for each claim of the papers: the published number, ours at the scale that was run, the 95 % t interval over "
        "seeds, the values that the claim expects (with the margin), and the verdict that [the rule](studies.md#verdicts) gives. A "
        "verdict needs at least three seeds. Below each table stands what was reduced, and why it may matter.",
        "",
        markdown([["claims of", *VERDICTS], *_counts(list(chain.from_iterable(claims.values())))]),
        "",
    ]
    for study in studies:
        if of_study := claims[study.name]:
            lines += [f"## {study.name}", "", f"{study.title}. {study.paper}.", ""]
            lines += [study.notes, ""] if study.notes else []
            lines += [claims_table(of_study), "", *_spent(study, stored[study.name], folder)]
    return "\n".join(lines).rstrip() + "\n"


def claims_table(rows: Iterable[Entry]) -> str:
    """The Markdown table of claims, with the columns of `HEAD`."""
    return markdown([HEAD, *map(_row, rows)])


def _counts(claims: Sequence[Entry]) -> list[list[str]]:
    """The number of claims with each verdict: of each paper, of each other source, and in all."""
    verdicts: dict[str, list[str]] = {entry.study.paper: [] for entry in claims}
    for entry in claims:
        verdicts.setdefault(entry.claim.source or entry.study.paper, []).append(entry.finding.verdict)
    verdicts["all"] = [verdict for of_source in verdicts.values() for verdict in of_source]
    return [
        [source, *(str(of_source.count(v)) for v in VERDICTS)] for source, of_source in verdicts.items() if of_source
    ]


def _row(entry: Entry) -> list[str]:
    claim, finding = entry.claim, entry.finding
    has_value = finding.seeds > 0
    return [
        claim.text,
        claim.published,
        _shown(finding, claim.unit) if has_value else "-",
        f"{_number(finding.low)} to {_number(finding.high)}" if math.isfinite(finding.low) else "-",
        str(claim.expects),
        str(finding.seeds) if has_value else "-",
        entry.scale or "-",
        finding.verdict,
        claim.remarks or "-",
    ]


def _spent(study: Study, stored: Mapping[str, Results], folder: Path) -> list[str]:
    """One line per scale with results: the number of cells, the seconds that they took, and what was reduced."""
    lines = []
    for name, results in stored.items():
        if len(results):
            scale = study.scale(name)
            reduced = f" Reduced: {scale.reduced}." if scale.reduced else ""
            estimated = estimates(folder / study.name / name)
            lines += [f"Scale {name}: {spent(scale, results, estimated)}{reduced}", ""]
    return lines


def spent(scale: Scale, results: Results, estimated: Mapping[str, float]) -> str:
    """The seconds that the stored cells took, and those that were estimated for them, as far as there are estimates."""
    expected = [estimated[cell.kind] for cell in results.cells if cell.kind in estimated]
    line = f"{len(results)} of {len(scale.cells)} cells took {results.seconds:,.0f} seconds"
    if not expected:
        return f"{line}."
    part = "" if len(expected) == len(results) else f" for {len(expected)} of them"
    return f"{line}; estimated were {sum(expected):,.0f}{part}."


def _shown(finding: Finding, unit: str) -> str:
    """The mean of a finding with its unit."""
    return "a method diverges" if math.isinf(finding.mean) else f"{_number(finding.mean)} {unit}"


def _number(value: float) -> str:
    """A number with about three significant digits; one that is smaller than 1e-12 is rounding, and is 0."""
    if not math.isfinite(value):
        return "-"
    if abs(value) < 0.001:
        return f"{round(value, 12) + 0.0:.3g}"
    return f"{value:.{2 if abs(value) >= 1 else 4}f}"
