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

VERDICT_SCALES = ("paper", "small")
"""Scales that give verdicts, the more faithful one first."""
CLAIM_COLUMNS = (
    "claim",
    "published",
    "ours",
    "95 % interval",
    "published inside",
    "expected",
    "seeds",
    "scale",
    "verdict",
    "remarks",
)
LEAST_SHARED_CHARACTERS = 60
"""Shorter texts than this are repeated: a reference would not be shorter."""
DO_NOT_EDIT = "<!-- Made by `unalike study ledger` from studies/results; do not edit. -->"
OVERVIEW = "reproduction.md"
"""The page with the verdicts by paper and what they rest on."""
CLAIMS = "reproduction_claims.md"
"""The page with the papers' claims."""
QUESTIONS = "reproduction_questions.md"
"""The page with questions of ours."""


class TextsOnce:
    """Texts that several studies share: each stands at the first one, and the others refer to it."""

    def __init__(self) -> None:
        self._place_of: dict[str, str] = {}

    def once(self, text: str, place: str) -> str:
        """The text, or where it stood already; `place` is a link to where it would stand."""
        first = self._place_of.setdefault(text, place)
        if first == place or len(text) < LEAST_SHARED_CHARACTERS:
            return text
        subject, colon, _ = text.partition(":")
        has_subject = bool(colon) and len(subject) < LEAST_SHARED_CHARACTERS
        return f"{subject}: as in {first}." if has_subject else f"See {first}."


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
        for name in VERDICT_SCALES
        if name in study.scales
    }


def _entry(study: Study, claim: Claim, results: Mapping[str, Results]) -> Entry:
    findings = {
        name: claim.finding(stored, study.scale(name).unlike) for name, stored in results.items()
    }

    def faithfulness(name: str) -> tuple[bool, int]:
        return findings[name].verdict != NOT_RUN, findings[name].seeds

    # Of equals, `max` takes the first, which is the more faithful scale.
    scale = max(findings, key=faithfulness)
    finding = findings[scale]
    return Entry(study, claim, scale if finding.seeds else "", finding)


def pages(studies: Iterable[Study], folder: Path) -> dict[str, str]:
    """File name -> the Markdown page of the ledger."""
    studies = list(studies)
    stored = {study.name: results_of(study, folder) for study in studies}
    entries_of = {study.name: entries(study, stored[study.name]) for study in studies}

    texts = TextsOnce()

    def claims_page(page: str, title: str, text: str, is_listed: Callable[[Claim], bool]) -> str:
        lines = [f"# {title}", "", DO_NOT_EDIT, "", text, ""]
        for study in studies:
            rows = [entry for entry in entries_of[study.name] if is_listed(entry.claim)]
            if not rows:
                continue
            place = f"[{study.name}]({page}#{study.name})"
            about = texts.once(f"{study.title}. {study.paper}.", place)
            lines += [f"## {study.name}", "", about, ""]
            if study.notes:
                lines += [texts.once(study.notes, place), ""]
            lines += [markdown(claims_rows(rows)), ""]
            lines += _costs(study, stored[study.name], folder, texts, place)
        return _text(lines)

    all_entries = [entry for of_study in entries_of.values() for entry in of_study]
    explanation = f"[The ledger]({OVERVIEW}) explains the columns and the verdicts."
    return {
        OVERVIEW: _overview(studies, stored, all_entries),
        CLAIMS: claims_page(
            CLAIMS,
            "Claims of the papers",
            f"Every claim of a paper with its verdict. {explanation}",
            lambda claim: claim.is_papers,
        ),
        QUESTIONS: claims_page(
            QUESTIONS,
            "Questions of ours",
            "What no paper of the study states: questions of ours, equalities that follow from "
            "the equations, and statements of others who repeated a paper; the remark says "
            f"which. {explanation}",
            lambda claim: not claim.is_papers,
        ),
    }


def _overview(
    studies: Sequence[Study],
    stored: Mapping[str, Mapping[str, Results]],
    all_entries: Sequence[Entry],
) -> str:
    """The first page: counts of verdicts by source, and the settings that the verdicts on each paper rest on."""
    verdict_counts = markdown([["claims of", *VERDICTS], *_counts(all_entries)])
    lines = [
        "# Reproduction ledger",
        "",
        DO_NOT_EDIT,
        "",
        f"The claims of the papers are [one page]({CLAIMS}), questions of ours are "
        f"[another]({QUESTIONS}). A row gives the published number, ours at the scale that was "
        "run, the 95 % t interval over seeds, whether the published number lies inside this "
        "interval, the values that the claim expects (with the margin), and the verdict that "
        "[the rule](studies.md#verdicts) gives. A verdict needs at least three seeds.",
        "",
        "`contradicted` and `not reproduced here` both mean that the interval lies on the other "
        "side of what the claim says. The first is said where the cells have the paper's setting "
        "in everything that was shown to change results: the claim is wrong there. The second is "
        "said elsewhere: the statement did not hold in our setting, and may hold in the paper's. "
        "`no effect` means that the seeds show no difference; the column *published inside* says "
        "whether they exclude the published one.",
        "",
        verdict_counts,
        "",
        "## What the verdicts rest on",
        "",
        "The data, models and rounds of the cells behind the verdicts on each paper, and their "
        "differences from the paper that were shown to change results.",
        "",
    ]

    # Only scales behind a verdict on a claim of the paper itself are listed.
    scales_with_verdicts = {
        (entry.study.name, entry.scale) for entry in all_entries if entry.claim.is_papers
    }
    papers = dict.fromkeys(study.paper for study in studies)
    for paper in papers:
        rows = []
        for study in studies:
            if study.paper != paper:
                continue
            for scale_name, results in stored[study.name].items():
                if len(results) and (study.name, scale_name) in scales_with_verdicts:
                    link = f"[{study.name}]({CLAIMS}#{study.name})"
                    unlike = study.scale(scale_name).unlike or "-"
                    rows.append([link, scale_name, *_setting(results), unlike])
        if rows:
            head = ["study", "scale", "data", "model", "rounds", "seeds", "unlike the paper"]
            lines += [f"### {paper}", "", markdown([head, *rows]), ""]
    return _text(lines)


def _setting(results: Results) -> list[str]:
    """Data, models, rounds and seeds of stored cells, each value once."""

    def values(name: str) -> str:
        texts = [str(cell.options.get(name, "-")) for cell in results.cells]
        return ", ".join(dict.fromkeys(texts))

    seeds = {cell.seed for cell in results.cells}
    return [values("data"), values("model"), values("rounds"), str(len(seeds))]


def claims_rows(entries: Iterable[Entry]) -> list[list[str]]:
    """The table of claims: the heading `CLAIM_COLUMNS`, and a row for each."""
    rows = [_row(entry) for entry in entries]
    return [list(CLAIM_COLUMNS), *rows]


def _counts(all_entries: Sequence[Entry]) -> list[list[str]]:
    """The number of claims with each verdict: of each paper, of each other source, and in all."""
    # Papers come first, in the order of their studies; other sources follow.
    verdicts: dict[str, list[str]] = {entry.study.paper: [] for entry in all_entries}
    for entry in all_entries:
        source = entry.claim.source or entry.study.paper
        verdicts.setdefault(source, []).append(entry.finding.verdict)
    verdicts["all"] = [verdict for of_source in verdicts.values() for verdict in of_source]

    rows = []
    for source, of_source in verdicts.items():
        if of_source:
            counts = [str(of_source.count(verdict)) for verdict in VERDICTS]
            rows.append([source, *counts])
    return rows


def _row(entry: Entry) -> list[str]:
    claim, finding = entry.claim, entry.finding
    ours = seeds = interval = "-"
    if finding.seeds > 0:
        ours = _shown(finding, claim.unit)
        seeds = str(finding.seeds)
    if math.isfinite(finding.low):
        interval = f"{_number(finding.low)} to {_number(finding.high)}"
    return [
        claim.text,
        _published(claim),
        ours,
        interval,
        claim.contains_published(finding),
        str(claim.expects),
        seeds,
        entry.scale or "-",
        finding.verdict,
        claim.remarks or "-",
    ]


def _published(claim: Claim) -> str:
    """The published number with its source; a statement of a paper may have none."""
    if claim.published is not None:
        return str(claim.published)
    return "no number" if claim.is_papers else "-"


def _costs(
    study: Study, stored: Mapping[str, Results], folder: Path, texts: TextsOnce, place: str
) -> list[str]:
    """One line per scale with results: the number of cells, the seconds that they took, and what was reduced."""
    lines = []
    for name, results in stored.items():
        if not len(results):
            continue
        scale = study.scale(name)
        estimated = estimates(folder / study.name / name)
        line = f"Scale {name}: {cost_of(scale, results, estimated)}"
        if scale.reduced:
            line += " " + texts.once(f"Reduced: {scale.reduced}.", place)
        if scale.unlike:
            line += " " + texts.once(f"Shown to change results: {scale.unlike}.", place)
        lines += [line, ""]
    return lines


def cost_of(scale: Scale, results: Results, estimated: Mapping[str, float]) -> str:
    """The seconds that the stored cells took, and those that were estimated for them, as far as there are estimates."""
    expected = [estimated[cell.kind] for cell in results.cells if cell.kind in estimated]
    line = f"{len(results)} of {len(scale.cells)} cells took {results.seconds:,.0f} seconds"
    if not expected:
        return f"{line}."
    part = "" if len(expected) == len(results) else f" for {len(expected)} of them"
    return f"{line}; estimated were {sum(expected):,.0f}{part}."


def _shown(finding: Finding, unit: str) -> str:
    """The mean of a finding with its unit."""
    if math.isinf(finding.mean):
        return "a method diverges"
    return f"{_number(finding.mean)} {unit}"


def _number(value: float) -> str:
    """A number with about three significant digits; one that is smaller than 1e-12 is rounding, and is 0."""
    if not math.isfinite(value):
        return "-"
    if abs(value) < 0.001:
        return f"{round(value, 12) + 0.0:.3g}"
    digits = 2 if abs(value) >= 1 else 4
    return f"{value:.{digits}f}"


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"
