"""Tables in the explanations hold the numbers of the stored results."""

from __future__ import annotations

import itertools
from pathlib import Path

from unalike_studies.catalogue import study
from unalike_studies.ledger import results_of
from unalike_studies.papers.parameter_skew import NORMALIZED, PAKE
from unalike_studies.result_files import read

ROOT = Path(__file__).parents[2]
REGRESSIONS = ("table2-linear", "table3-linear", "table2-logistic", "table3-logistic")


def test_the_page_on_parameter_skew_has_the_accuracies_of_the_study():
    skew = study("skew-estimators")
    results = read(ROOT / "studies/results/skew-estimators/small", skew.scale("small").cells)
    _, *rows = skew.layouts[0].table(results)
    page = (ROOT / "docs/explanation/parameter_skew.md").read_text()
    assert len(rows) == 12 and len(results.cells) == 360
    for method, *scores in rows:
        shown = [score.replace(" (5)", "") for score in scores]
        assert f"| {' | '.join([method, *shown])} |" in page, method


def test_the_page_on_parameter_skew_has_the_scores_of_the_papers_own_comparison():
    rows = _table("parameter_skew", "| method | 2 classes | Dir(0.1) |")
    shared, personal = _rows("fedsa-table1") | _rows("fedpake-table1"), _rows("fedsa-table1", 5)
    scores = shared | {f"{name}, personal models": found for name, found in personal.items()}
    assert len(rows) == 6
    assert rows == {method: scores[method] for method in rows}


def test_the_page_on_parameter_skew_has_the_scores_of_each_protocol():
    rows = _table(
        "parameter_skew", "| setting | FedAvg | FedPake as printed | FedSA = FedPake, normalized |"
    )
    found = _rows("fedpake-protocol")
    settings = list(study("fedpake-protocol").scale("small").settings)
    two_classes = [setting for setting in settings if setting.startswith("2 classes")]
    assert list(rows) == two_classes and len(rows) == 4
    for setting, scores in rows.items():
        i = settings.index(setting)
        assert scores == [found[method][i] for method in ("FedAvg", PAKE, NORMALIZED)]


def test_the_page_on_parameter_skew_has_the_correlations_with_the_printed_numbers():
    page = " ".join((ROOT / "docs/explanation/parameter_skew.md").read_text().split())
    levels = study("skew-protocols-settings")
    results = read(
        ROOT / "studies/results/skew-protocols-settings/small", levels.scale("small").cells
    )
    shared, _, local = _correlations(levels.layouts[0].table(results))[:3]
    assert (
        f"the shared model's by {shared[0]}, with models after local training by {_both(local)}"
        in page
    )
    head, *_ = table = levels.layouts[1].table(results)
    found = dict(zip(head[1:], _correlations(table), strict=True))
    heads = found["FedBABU's tuned heads less FedAvg after local training"]
    ranked = found["FedSA = FedPake, normalized, by rank less FedAvg, own statistics"]
    assert f"here by {_both(heads)}; the rule's own gains here by {_both(ranked)}" in page


def _correlations(table):
    """The correlation and its interval of each column, from the last two rows of a table."""
    values, intervals = table[-2:]
    assert "correlation" in values[0] and "interval" in intervals[0]
    return list(zip(values[1:], intervals[1:], strict=True))


def _both(correlation):
    value, interval = correlation
    return f"{value} ({interval})"


def _table(page, head):
    """Name -> the cells of the rows below this head on a page."""
    lines = (ROOT / f"docs/explanation/{page}.md").read_text().splitlines()
    first = lines.index(head) + 2
    rows = [
        line.strip("| ").split(" | ")
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    ]
    return {name: cells for name, *cells in rows}


def _rows(name, layout=0, published=False, scale="small"):
    """Method -> the shown scores of one table of a study, setting by setting, with or without the columns of published numbers."""
    results = results_of(study(name), ROOT / "studies/results")
    results = results[scale] if len(results[scale]) else results["paper"]
    head, *rows = study(name).layouts[layout].table(results.instead(study(name).instead))
    kept = [
        i
        for i, column in enumerate(head)
        if i and (published or not column.endswith(", published"))
    ]
    return {
        method: [
            score.replace(" (3)", "") for i, score in enumerate([method, *scores]) if i in kept
        ]
        for method, *scores in rows
    }


def test_the_page_on_local_statistics_has_our_scores_beside_the_printed_ones():
    page = (ROOT / "docs/explanation/local_statistics.md").read_text()
    tables = [_rows(f"local-statistics-{name}", published=True) for name in REGRESSIONS]
    methods = {method for table in tables for method in table}
    assert len(methods) == 10
    for method in methods:
        row = [score for table in tables for score in table.get(method, ["-", "-"])]
        assert f"| {' | '.join([method, *row])} |" in page, method


def test_the_page_on_local_statistics_has_the_scores_of_characters():
    page = (ROOT / "docs/explanation/local_statistics.md").read_text()
    characters = _rows("local-statistics-table1", published=True, scale="handwriting")
    assert len(characters) == 9
    for method, scores in characters.items():
        assert f"| {' | '.join([method, *scores])} |" in page, method


def test_the_page_on_unequal_clients_has_the_scores_of_the_studies():
    page = (ROOT / "docs/explanation/unequal_clients.md").read_text()
    for method, number in (("FedAvg", 4), ("FedNova", 5), ("FedProx", 6), ("FedMix", 7)):
        local, macro = (
            _rows(f"fedmix-figure{number}", 0)[method],
            _rows(f"fedmix-figure{number}", 1)[method],
        )
        shown = [score for pair in zip(local, macro, strict=True) for score in pair]
        assert f"| {' | '.join([method, *shown])} |" in page, method
    identities = _rows("fedmix-identities")
    assert len(identities) == 4
    for method, scores in identities.items():
        assert f"| {' | '.join([method, *scores[3:]])} |" in page, method
    roots = [
        _rows("fedmix-quadratic")[method][0].partition(" ")[0]
        for method in ("FedNova", "FedAvg", "pooled")
    ]
    assert "FedNova ends at {}, FedAvg at {}, where {} is best".format(*roots) in " ".join(
        page.split()
    )
    of_work = _rows("fedmix-work", 1)
    for method in ("FedAvg", "FedNova"):
        _, few, slowly, _, drawn = of_work[method]
        shown = [score.replace(" (5)", "") for score in (few, slowly, drawn)]
        assert f"| {' | '.join([method, *shown])} |" in page, method


def test_the_page_on_weight_shrinking_has_the_differences_of_the_ledger():
    ledger, study_name = {}, ""
    pages = ("docs/reproduction_claims.md", "docs/reproduction_questions.md")
    for line in "".join((ROOT / page).read_text() for page in pages).splitlines():
        study_name = line.removeprefix("## ") if line.startswith("## ") else study_name
        if line.startswith("| ") and line.count(" | ") > 6:
            claim, printed, ours, interval, _, _, _, seeds, _, verdict, *_ = line.removeprefix(
                "| "
            ).split(" | ")
            published = "-" if printed == "no number" else printed.partition(" ")[0]
            ledger[study_name, claim] = (
                published,
                ours.partition(" ")[0],
                interval,
                seeds,
                verdict,
            )
    page = (ROOT / "docs/explanation/weight_shrinking.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in page if line.startswith("| `fedlws")]
    assert len(rows) == 16
    for name, claim, *shown in rows:
        published, ours, interval, seeds, verdict = ledger[name.strip("`"), claim]
        between = " to ".join(f"{float(end):.1f}" for end in interval.split(" to "))
        assert shown == [published, f"{float(ours):.1f}", between, seeds, verdict], (name, claim)


def test_the_page_of_findings_has_the_scores_of_the_benchmarks():
    lines = (ROOT / "docs/explanation/findings.md").read_text().splitlines()
    rows = [
        line.strip("| ").split(" | ")
        for line in lines
        if line.startswith(("| NIID-Bench", "| PFLlib", "| FLamby"))
    ]
    names = {
        "NIID-Bench": "niid-bench-fashion",
        "PFLlib": "pfllib-fashion",
        "FLamby": "flamby-heart",
    }
    scores = {benchmark: _rows(name) for benchmark, name in names.items()}
    assert len(rows) == 20
    for benchmark, setting, method, published, ours in rows:
        found = study(names[benchmark])
        place = list(found.scale("small").settings).index(setting)
        assert scores[benchmark][method][place] == ours, (benchmark, setting, method)
        printed = found.layouts[0].published.get((method, setting), "-")
        assert printed.replace(" (paper)", "") == published.removesuffix(" *")
