"""Tables in the explanations hold the numbers of the stored results."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from unalike_studies.catalogue import study
from unalike_studies.claims import recorded_mean
from unalike_studies.ledger import results_of
from unalike_studies.papers.parameter_skew import NORMALIZED, PAKE, PLACES, RANKED
from unalike_studies.papers.skew_protocols import BABU, TWO
from unalike_studies.result_files import read

ROOT = Path(__file__).parents[2]
REGRESSIONS = ("table2-linear", "table3-linear", "table2-logistic", "table3-logistic")


@pytest.mark.parametrize(
    ("name", "cells", "seeds"), [("skew-estimators", 360, 5), ("skew-estimators-cnn", 216, 3)]
)
def test_the_page_on_parameter_skew_has_the_accuracies_of_the_studies(name, cells, seeds):
    skew = study(name)
    results = read(ROOT / "studies/results" / name / "small", skew.scale("small").cells)
    _, *rows = skew.layouts[0].table(results)
    page = (ROOT / "docs/explanation/parameter_skew.md").read_text()
    assert len(rows) == 12 and len(results.cells) == cells
    for method, *scores in rows:
        shown = [score.replace(f" ({seeds})", "") for score in scores]
        assert f"| {' | '.join([method, *shown])} |" in page, method


def test_the_page_on_parameter_skew_has_the_scores_of_the_papers_own_comparison():
    page = (ROOT / "docs/explanation/parameter_skew.md").read_text()
    shared, personal = _rows("fedsa-table1") | _rows("fedpake-table1"), _rows("fedsa-table1", 5)
    assert len(shared) == 14 and len(personal) == 2
    for method, scores in (
        shared | {f"{name}, personal models": scores for name, scores in personal.items()}
    ).items():
        label = "FedBABU, personal models" if method == "FedBABU" else method
        assert f"| {' | '.join([label, *scores])} |" in page, label


def test_the_page_on_parameter_skew_has_the_scores_of_each_protocol():
    page = (ROOT / "docs/explanation/parameter_skew.md").read_text().splitlines()
    rows = _rows("fedpake-protocol")
    settings = list(study("fedpake-protocol").scale("small").settings)
    assert len(settings) == 8
    for i, setting in enumerate(settings):
        shown = [rows[method][i] for method in ("FedAvg", PAKE, NORMALIZED)]
        assert f"| {' | '.join([setting, *shown])} |" in page, setting


def test_the_page_on_parameter_skew_has_the_levels_of_three_protocols_beside_the_printed_ones():
    page, levels = (
        (ROOT / "docs/explanation/parameter_skew.md").read_text(),
        study("skew-protocols-settings"),
    )
    results = read(
        ROOT / "studies/results/skew-protocols-settings/small", levels.scale("small").cells
    )
    head, *rows = levels.layouts[0].table(results)
    printed = head.index("FedAvg, printed")
    rows = [row for row in rows if row[1] not in ("", "-")]
    assert len(rows) == 15
    for row in rows:
        assert f"| {' | '.join(row[:4])} | {row[printed]}".rstrip() in page, row[0]
    head, *rows = levels.layouts[1].table(results)
    names = (
        "FedBABU's tuned heads less FedAvg after local training",
        "FedSA = FedPake, normalized, by rank less FedAvg, own statistics",
        "FedBABU less FedAvg, printed",
        "FedPake less FedAvg, printed",
    )
    assert len(rows) == 15
    for row in rows:
        shown = [row[0], *(row[head.index(name)] for name in names)]
        assert f"| {' | '.join(shown).rstrip(' |')} |" in page, row[0]


def test_the_page_on_parameter_skew_has_the_baselines_in_three_protocols_beside_the_printed_ones():
    page, levels = (
        (ROOT / "docs/explanation/parameter_skew.md").read_text().splitlines(),
        study("skew-protocols-settings"),
    )
    results = read(
        ROOT / "studies/results/skew-protocols-settings/small", levels.scale("small").cells
    )
    tables = [
        {row[0]: row[1] for row in layout.table(results)[1:]} for layout in levels.layouts[2:5]
    ]
    baselines = tables[0].keys() - {BABU, RANKED}
    assert len(baselines) == 7
    for method in baselines:
        shown = [
            method,
            *(table[method] for table in tables),
            f"{PLACES[TWO].printed(method).value:.2f}",
        ]
        assert f"| {' | '.join(shown)} |" in page, method


def test_the_page_on_parameter_skew_has_the_scores_of_the_ablation():
    page = (ROOT / "docs/explanation/parameter_skew.md").read_text()
    rows = _rows("fedpake-ablation")
    for classes in ("micro-classes", "macro-classes", "both"):
        printed, normalized = (
            rows[f"FedPake, random {classes}"],
            rows[f"Normalized, random {classes}"],
        )
        shown = [score for pair in zip(printed, normalized, strict=True) for score in pair]
        assert f"| {' | '.join([f'random {classes}', *shown])} |" in page, classes


def test_the_page_on_parameter_skew_has_the_scores_by_number_of_clients():
    page, rows = (ROOT / "docs/explanation/parameter_skew.md").read_text(), _rows("fedpake-clients")
    assert len(rows) >= 3
    for method, scores in rows.items():
        assert f"| {' | '.join([method, *scores])} |" in page, method


def test_the_page_on_parameter_skew_has_the_shares_of_high_parameters_and_the_sums_of_weights():
    page, high = (ROOT / "docs/explanation/parameter_skew.md").read_text(), study("fedpake-high")
    results = read(ROOT / "studies/results/fedpake-high/small", high.scale("small").cells)
    head, *rows = high.layouts[0].table(results)
    shares = dict(zip(head, rows[-1], strict=True))
    assert shares["layer"] == "model" and len(results.methods) == 7
    for method in results.methods:
        own = [shares[f"{method}, {setting}"] for setting in results.settings]
        sums = [
            recorded_mean(method, setting, "alpha_sum")(results).values()
            for setting in results.settings
        ]
        assert (
            f"| {' | '.join([method, *own, *(f'{fmean(found):.2f}' for found in sums)])} |" in page
        ), method


def _rows(name, layout=0, published=False):
    """Method -> the shown scores of one table of a study, setting by setting, with or without the columns of published numbers."""
    results = results_of(study(name), ROOT / "studies/results")
    results = results["small"] if len(results["small"]) else results["paper"]
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


def test_the_page_on_local_statistics_has_the_scores_of_federated_training_and_of_characters():
    page = (ROOT / "docs/explanation/local_statistics.md").read_text()
    linear, logistic = (
        _rows("local-statistics-federated-linear"),
        _rows("local-statistics-federated-logistic"),
    )
    assert linear.keys() == logistic.keys() and len(linear) >= 17
    for method, scores in linear.items():
        assert f"| {' | '.join([method, *scores, *logistic[method]])} |" in page, method
    characters = _rows("local-statistics-table1", published=True)
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
    quadratics = _rows("fedmix-quadratic")
    for method in ("FedAvg", "FedNova", "pooled"):
        assert f"| {method} | {quadratics[method][0]} |" in page, method


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
    assert len(rows) > 20
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
