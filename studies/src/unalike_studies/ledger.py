"""The ledger: one row per claim, with the verdict that its stored results give, on three pages."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unalike_studies.claim_verdicts import NOT_LEARNED, NOT_RUN, VERDICTS, Finding
from unalike_studies.claims import Claim
from unalike_studies.layouts.tables import markdown
from unalike_studies.published import records
from unalike_studies.result_files import estimates, read
from unalike_studies.results import Results
from unalike_studies.study import Scale, Study

VERDICT_SCALES = ("paper", "handwriting", "small")
"""Scales that give verdicts, the more faithful one first."""
CLAIM_COLUMNS = (
    "claim",
    "published",
    "ours",
    "95 % interval",
    "least visible",
    "published agrees",
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
    findings = {name: claim.finding(stored) for name, stored in results.items()}

    def faithfulness(name: str) -> tuple[bool, int]:
        return findings[name].verdict not in (NOT_RUN, NOT_LEARNED), findings[name].seeds

    # Of equals, `max` takes the first, which is the more faithful scale.
    scale = max(findings, key=faithfulness)
    finding = findings[scale]
    return Entry(study, claim, scale if finding.seeds else "", finding)


def pages(studies: Iterable[Study], folder: Path) -> dict[str, str]:
    """File name -> the Markdown page of the ledger."""
    studies = list(studies)
    stored = {study.name: results_of(study, folder) for study in studies}
    entries_of = _without_repeated(
        {study.name: entries(study, stored[study.name]) for study in studies}
    )

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
            f"Claims of the papers with their verdicts. {explanation}",
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


def _without_repeated(entries_of: Mapping[str, Sequence[Entry]]) -> dict[str, list[Entry]]:
    """The entries without those whose numbers an earlier one has: the same runs, said twice.

    A question of ours repeats an earlier one only if it says the same, too: two questions may be asked of one number.
    """
    seen: set[tuple[object, ...]] = set()
    kept_of: dict[str, list[Entry]] = {}
    for name, of_study in entries_of.items():
        kept_of[name] = []
        for entry in of_study:
            finding = entry.finding
            said = "" if entry.claim.is_papers else entry.claim.text
            numbers = (finding.mean, finding.low, finding.high, said)
            has_spread = finding.low < finding.high
            if has_spread:
                if numbers in seen:
                    continue
                seen.add(numbers)
            kept_of[name].append(entry)
    return kept_of


def _overview(
    studies: Sequence[Study],
    stored: Mapping[str, Mapping[str, Results]],
    all_entries: Sequence[Entry],
) -> str:
    """The first page: counts of verdicts by source, and the settings that the verdicts on each paper rest on."""
    papers_entries = [entry for entry in all_entries if entry.claim.is_papers]
    own_entries = [entry for entry in papers_entries if entry.claim.for_own_method]
    lines = [
        "# Reproduction ledger",
        "",
        DO_NOT_EDIT,
        "",
        "What five papers say of their methods, and what came out when it was repeated here.",
        "",
        "## Do the papers' own methods win here?",
        "",
        "The claims of a paper that its own method is better than another one. `reproduced`: the "
        "interval is on the paper's side of 0, and the printed number agrees. `same direction`: "
        "on its side, with another number. `excluded`: the printed gain can be told from ours, "
        "and no gain is shown. `undecided`: the runs can tell ours neither from 0 nor from the "
        "printed gain. `none within 1 point`: a gain of a point is excluded, and none was "
        "printed. `against`: the other method is better here. `not learned`: the networks were "
        "at chance, or one had less than half of the printed accuracy. `not run`: fewer than three "
        "seeds.",
        "",
        markdown([["claims of", *VERDICTS], *_counts(own_entries)]),
        "",
        "## How much is judged?",
        "",
        "The printed numbers of each table that a claim looks up, of all that are legible. "
        "Figures without numbers are not counted.",
        "",
        markdown(_coverage(papers_entries)),
        "",
        "## All claims",
        "",
        f"The claims of the papers are [one page]({CLAIMS}), questions of ours are "
        f"[another]({QUESTIONS}). A row gives the published number, ours at the scale that was "
        "run, the 95 % t interval over seeds, the least difference that these seeds would have "
        "shown with a probability of 80 %, whether the published number agrees with ours, the "
        "values that the claim expects (with the margin), and the verdict that "
        "[the rule](studies.md#verdicts) gives. A printed number counts as one run, with the "
        "deviation that is printed with it, or else with ours. `against` is said of our setting, "
        "which the next section describes: the statement may hold in the paper's. Claims whose "
        "numbers an earlier row has are left out.",
        "",
        markdown([["claims of", *VERDICTS], *_counts(all_entries)]),
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


def _coverage(papers_entries: Sequence[Entry]) -> list[list[str]]:
    """Paper by paper and table by table, how many printed numbers the claims with a verdict look up."""
    judged: set[int] = set()
    for entry in papers_entries:
        has_verdict = entry.finding.verdict not in (NOT_RUN, NOT_LEARNED)
        if entry.claim.published is not None and has_verdict:
            judged |= entry.claim.published.records

    counts: dict[tuple[str, str], list[int]] = {}
    for place, record in enumerate(records()):
        if not record.get("legible", True):
            continue
        of_table = counts.setdefault((record["paper"], record["table"]), [0, 0])
        of_table[0] += place in judged
        of_table[1] += 1

    tables: dict[str, list[str]] = {}
    totals: dict[str, list[int]] = {}
    for (paper, table), (found, printed) in counts.items():
        total = totals.setdefault(paper, [0, 0])
        total[0] += found
        total[1] += printed
        if found:
            name = f"table {table}" if table[0].isdigit() else table
            tables.setdefault(paper, []).append(f"{name}: {found} of {printed}")
    rows = [["paper", "judged", "printed", "where"]]
    for paper, (found, printed) in totals.items():
        rows.append([paper, str(found), str(printed), "; ".join(tables.get(paper, ["-"]))])
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
        _number(finding.visible),
        finding.agreement,
        str(claim.expects),
        seeds,
        entry.scale or "-",
        finding.verdict,
        _remarks(entry) or "-",
    ]


def _remarks(entry: Entry) -> str:
    """The claim's own remarks, and the runs that do not count."""
    texts = [entry.claim.remarks]
    if entry.finding.not_learned:
        texts.append(f"at chance: {', '.join(entry.finding.not_learned)}")
    elif entry.finding.verdict == NOT_LEARNED:
        texts.append("less than half of the printed accuracy")
    return "; ".join(text for text in texts if text)


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
