"""The summary for a board: its sentences, and that it is one printed page."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import unalike as ua
from unalike.cli import app
from unalike.reporting import summary_page, write_text
from unalike.statistics.seed_draws import SPLITS, SeedDraws


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "out"
    options = {
        "model": "linear",
        "rounds": 3,
        "metric": "roc_auc",
        "seeds": 2,
        "work": ua.Work(lr=0.3),
    }
    return ua.compare(["fedavg", "ditto"], data="heart_disease", out=folder, **options), folder


def test_summary_has_decision_hospitals_limits_and_cost(compared, tmp_path):
    found, _ = compared
    text = found.report(tmp_path / "s.html", title="Four hospitals", summary=True).read_text(
        "utf-8"
    )
    assert "<h1>Four hospitals</h1>" in text and "<script" not in text and len(text) < 40_000
    for name in ("Cleveland", "Hungary", "VA Long Beach"):
        assert text.count(name) >= 1
    for jargon in ("Holm", "moderated", "p\u00a0=", "seeds won"):
        assert jargon not in re.sub(r"<[^>]+>", "", text.partition("</style>")[2])
    # Switzerland has 29 positives and 2 others: it is counted, and has no points
    assert "how often a positive sample has a larger risk than a negative one" in text
    assert "1 hospital with fewer than 10 test rows of an outcome counted" in text
    assert "Switzerland" not in text
    assert (
        "Gain over fedavg" in text
        and "samples that were not used for training" in text
        and "MB sent" in text
    )


def test_summary_begins_with_the_answer_and_its_key_facts(simulate):
    content = simulate(methods=3)
    content = replace(content, warnings=["test samples of one class"])
    text = html.unescape(summary_page.render(content))
    assert "3 methods were compared" in text and "<li>Test samples of one class</li>" in text
    assert f'<p class="answer">{content.decision.answer}</p>' in text
    assert all(fact.value in text and fact.note in text for fact in content.decision.key_facts)


def test_command_writes_the_summary_and_refuses_other_formats(compared):
    _, folder = compared
    done = CliRunner().invoke(app, ["report", str(folder), "--summary"])
    assert (
        done.exit_code == 0 and (folder / "summary.html").read_text("utf-8").count("<section") == 6
    )
    refused = CliRunner().invoke(app, ["report", str(folder), "--summary", "--format", "csv"])
    assert refused.exit_code != 0


@pytest.mark.browser
def test_summary_is_one_printed_page(compared, simulate, browser, tmp_path):
    content = compared[0].content()
    many = replace(simulate(methods=6, clients=60), sampling=SeedDraws(SPLITS, 0.25))
    many = replace(
        many,
        warnings=["A long warning about this comparison that takes a whole line of the page. " * 2]
        * 6,
    )
    for i, shown in enumerate((content, many)):
        page = browser.new_page()
        page.goto(write_text(summary_page.render(shown), tmp_path / f"{i}.html").as_uri())
        pdf = page.pdf(prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1
        page.close()
