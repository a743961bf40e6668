"""The ledger: one row per claim, with the verdict that its stored results give, on three pages."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unalike_studies.claim_verdicts import NOT_RUN, VERDICTS, Finding
from unalike_studies.claims import Claim
from unalike_studies.layouts.tables import markdown
from unalike_studies.result_files import estimates, read
from unalike_studies.results import Results
from unalike_studies.study import Scale, Study

RUNS = ("paper", "small")
"""Scales that give verdicts, the more faithful one first."""
HEAD = (
    *(
        "claim",
        "published",
        "ours",
        "95 % interval",
        "published inside",
        "expected",
        "seeds",
        "scale",
        "verdict",
    ),
    "remarks",
)
MADE = "<!-- Made by `unalike study ledger` from studies/results; do not edit. -->"
OVERVIEW, CLAIMS, QUESTIONS = (
    "reproduction.md",
    "reproduction_claims.md",
    "reproduction_questions.md",
)
"""The pages: verdicts by paper and what they rest on, the papers' claims, and questions of ours."""


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
    return {
        name: read(folder / study.name / name, study.scale(name).cells)
        for name in RUNS
        if name in study.scales
    }


def _entry(study: Study, claim: Claim, results: Mapping[str, Results]) -> Entry:
    findings = {
        name: claim.finding(stored, study.scale(name).unlike) for name, stored in results.items()
    }
    scale = max(
        findings, key=lambda name: (findings[name].verdict != NOT_RUN, findings[name].seeds)
    )
    return Entry(study, claim, scale if findings[scale].seeds else "", findings[scale])


def pages(studies: Iterable[Study], folder: Path) -> dict[str, str]:
    """File name -> the Markdown page of the ledger."""
    studies = list(studies)
    stored = {study.name: results_of(study, folder) for study in studies}
    found = {study.name: entries(study, stored[study.name]) for study in studies}

    def listed(title: str, text: str, wanted: Callable[[Claim], bool]) -> str:
        lines = [f"# {title}", "", MADE, "", text, ""]
        for study in studies:
            if rows := [entry for entry in found[study.name] if wanted(entry.claim)]:
                lines += [f"## {study.name}", "", f"{study.title}. {study.paper}.", ""]
                lines += [study.notes, ""] if study.notes else []
                lines += [
                    markdown(claims_rows(rows)),
                    "",
                    *_spent(study, stored[study.name], folder),
                ]
        return _text(lines)

    return {
        OVERVIEW: _overview(studies, stored, [entry for rows in found.values() for entry in rows]),
        CLAIMS: listed(
            "Claims of the papers",
            f"Every claim of a paper with its verdict. [The ledger]({OVERVIEW}) explains the columns and the verdicts.",
            lambda claim: claim.is_papers,
        ),
        QUESTIONS: listed(
            "Questions of ours",
            "What no paper of the study states: questions of ours, equalities that follow from the equations, and statements of "
            f"others who repeated a paper; the remark says which. [The ledger]({OVERVIEW}) explains the columns and the verdicts.",
            lambda claim: not claim.is_papers,
        ),
    }


def _overview(
    studies: Sequence[Study], stored: Mapping[str, Mapping[str, Results]], found: Sequence[Entry]
) -> str:
    """The first page: counts of verdicts by source, and the settings that the verdicts on each paper rest on."""
    lines = [
        "# Reproduction ledger",
        "",
        MADE,
        "",
        f"The claims of the papers are [one page]({CLAIMS}), questions of ours are [another]({QUESTIONS}). A row gives the "
        "published number, ours at the scale that was run, the 95 % t interval over seeds, whether the published number lies "
        "inside this interval, the values that the claim expects (with the margin), and the verdict that "
        "[the rule](studies.md#verdicts) gives. A verdict needs at least three seeds.",
        "",
        "`contradicted` and `not reproduced here` both mean that the interval lies on the other side of what the claim says. "
        "The first is said where the cells have the paper's setting in everything that was shown to change results: the claim "
        "is wrong there. The second is said elsewhere: the statement did not hold in our setting, and may hold in the paper's. "
        "`no effect` means that the seeds show no difference; the column *published inside* says whether they exclude the "
        "published one.",
        "",
        markdown([["claims of", *VERDICTS], *_counts(found)]),
        "",
        "## What the verdicts rest on",
        "",
        "The data, models and rounds of the cells behind the verdicts on each paper, and their differences from the paper that "
        "were shown to change results.",
        "",
    ]
    papers = dict.fromkeys(study.paper for study in studies)
    for paper in papers:
        rows = [
            [
                f"[{s.name}]({CLAIMS}#{s.name})",
                name,
                *_setting(results),
                s.scale(name).unlike or "-",
            ]
            for s in studies
            if s.paper == paper
            for name, results in stored[s.name].items()
            if len(results)
            and any(e.study is s and e.scale == name and e.claim.is_papers for e in found)
        ]
        if rows:
            head = ["study", "scale", "data", "model", "rounds", "seeds", "unlike the paper"]
            lines += [f"### {paper}", "", markdown([head, *rows]), ""]
    return _text(lines)


def _setting(results: Results) -> list[str]:
    """Data, models, rounds and seeds of stored cells, each value once."""

    def values(name: str) -> str:
        return ", ".join(dict.fromkeys(str(cell.options.get(name, "-")) for cell in results.cells))

    seeds = {cell.seed for cell in results.cells}
    return [values("data"), values("model"), values("rounds"), str(len(seeds))]


def claims_rows(entries: Iterable[Entry]) -> list[list[str]]:
    """The table of claims: the heading `HEAD`, and a row for each."""
    return [list(HEAD), *map(_row, entries)]


def _counts(found: Sequence[Entry]) -> list[list[str]]:
    """The number of claims with each verdict: of each paper, of each other source, and in all."""
    verdicts: dict[str, list[str]] = {entry.study.paper: [] for entry in found}
    for entry in found:
        verdicts.setdefault(entry.claim.source or entry.study.paper, []).append(
            entry.finding.verdict
        )
    verdicts["all"] = [verdict for of_source in verdicts.values() for verdict in of_source]
    return [
        [source, *(str(of_source.count(v)) for v in VERDICTS)]
        for source, of_source in verdicts.items()
        if of_source
    ]


def _row(entry: Entry) -> list[str]:
    claim, finding = entry.claim, entry.finding
    has_value = finding.seeds > 0
    return [
        claim.text,
        _published(claim),
        _shown(finding, claim.unit) if has_value else "-",
        f"{_number(finding.low)} to {_number(finding.high)}" if math.isfinite(finding.low) else "-",
        claim.contains_published(finding),
        str(claim.expects),
        str(finding.seeds) if has_value else "-",
        entry.scale or "-",
        finding.verdict,
        claim.remarks or "-",
    ]


def _published(claim: Claim) -> str:
    """The published number with its source; a statement of a paper may have none."""
    return (
        ("no number" if claim.is_papers else "-")
        if claim.published is None
        else str(claim.published)
    )


def _spent(study: Study, stored: Mapping[str, Results], folder: Path) -> list[str]:
    """One line per scale with results: the number of cells, the seconds that they took, and what was reduced."""
    lines = []
    for name, results in stored.items():
        if len(results):
            scale = study.scale(name)
            reduced = f" Reduced: {scale.reduced}." if scale.reduced else ""
            unlike = f" Shown to change results: {scale.unlike}." if scale.unlike else ""
            estimated = estimates(folder / study.name / name)
            lines += [f"Scale {name}: {spent(scale, results, estimated)}{reduced}{unlike}", ""]
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


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"
