"""Tables: a column that is declared once gives the same text on every surface."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from unalike.cli import terminal_tables
from unalike.metrics.named_metrics import read
from unalike.reporting import render
from unalike.reporting.charts.palette import looks
from unalike.reporting.export import export
from unalike.reporting.summary_columns import summary_tables
from unalike.reporting.table import (
    Table,
    aligned_text,
    html,
    interval,
    latex,
    markdown,
    number,
    words,
)

COLUMNS = [
    words("Method", "method"),
    number("Score", "score", lambda value: f"{100 * value:.1f} %"),
    interval("Interval", "low", "high", lambda low, high: f"{low:+.1f} to {high:+.1f}"),
]
ROWS = [
    {"method": "fedavg", "score": 0.341, "low": math.nan, "high": math.nan},
    {"method": "", "score": None, "low": -1.0, "high": 2.0},
]


def test_table_cells_have_text_and_the_value_that_sorts_them():
    table = Table.of("caption", COLUMNS, ROWS)
    assert table.columns == ["Method", "Score", "Interval"] and table.caption == "caption"
    assert table.texts == [["fedavg", "34.1 %", "–"], ["–", "–", "-1.0 to +2.0"]]
    assert table.numeric == [False, True, True] and table.words == 1
    assert (
        table.rows[0][1].value == 0.341
        and math.isnan(table.rows[1][1].value)
        and table.rows[1][2].value == -1.0
    )


def test_table_writers_keep_words_left_and_numbers_right():
    table = Table.of("", COLUMNS[:2], ROWS[:1])
    assert markdown(table) == "| Method | Score |\n| :-- | --: |\n| fedavg | 34.1 % |"
    assert aligned_text(table) == "Method   Score\nfedavg  34.1 %"
    assert r"\begin{tabular}{lr}" in latex(table) and r"fedavg & 34.1 \%" in latex(table)
    assert ">34.1 %</td>" in html(table)


def test_json_export_has_a_metric_that_is_computed_from_samples(simulate):
    content = simulate(rounds=4)
    [metric] = read(["roc_auc"])
    content.__dict__["decision"] = decision = replace(content.decision, metric=metric)
    [block] = json.loads(export([("one", content)], "json"))
    exported = block["decision"]
    assert exported["metric"] == metric.stored_fields and exported["answer"] == decision.answer
    # times differ on every machine, so no exported sentence has one
    assert "time" in str(decision) and "time" not in exported["text"]


def test_words_have_the_look_of_their_method():
    [[cell]] = Table.of("", [words("Method", "method", looks(["fedavg"]))], ROWS[:1]).rows
    assert cell.look == looks(["fedavg"])["fedavg"]


@pytest.mark.parametrize("shape", [{"methods": 4}, {"methods": 3, "regression": True}])
def test_number_of_a_summary_is_the_same_text_on_every_surface(simulate, monkeypatch, shape):
    content = simulate(rounds=6, **shape)
    metric, printed = content.metric, io.StringIO()
    monkeypatch.setattr(
        terminal_tables, "console", lambda: Console(file=printed, width=300, markup=False)
    )
    for table in summary_tables(content):
        terminal_tables.tables(table.columns, table.texts, table.caption, table.words)
    block = ("one", content)
    surfaces = {
        "page": render(content),
        "terminal": printed.getvalue(),
        "aligned_text": "\n".join(map(aligned_text, summary_tables(content))),
        "notebook": "\n".join(map(html, summary_tables(content))),
        "paper": export([block], "markdown"),
    }
    decided = content.summary[content.summary["protocol"] == content.deciding_protocol]
    for _, row in decided.iterrows():
        texts = [
            metric.text(row[metric.name]),
            metric.amount(row[f"{metric.name}_sd"]),
            metric.text(row["worst_decile"]),
        ]
        if not math.isnan(row["difference"]):
            texts += [
                metric.difference(row["difference"]),
                metric.interval(row["ci_low"], row["ci_high"]),
            ]
        for text in texts:
            number = text.removesuffix(metric.unit).removesuffix(
                "\u00a0%"
            )  # a paper has the unit in the heading
            in_paper = f"[{number.replace(' to ', ', ')}]" if " to " in number else number
            expected = dict.fromkeys(surfaces, text) | {"paper": in_paper}
            missing = [name for name, shown in surfaces.items() if expected[name] not in shown]
            assert not missing, (text, missing)


def test_names_are_text_in_every_writer():
    """A name of a site or class may end a line or a cell, be a link, a command of TeX or of a terminal."""
    name = "a\rb\x1b[2J\\| [c](https://example.org) \\input{d}\r<img src=x>"
    table = Table.of("", COLUMNS[:2], [{"method": name, "score": 0.5}])
    line = markdown(table).split("\n")[-1]
    assert line.startswith(r"| a b [2J\\\| [c]\(https://example.org) \\input{d} &lt;img src=x>")
    row = next(line for line in latex(table).split("\n") if line.startswith("a b"))
    assert r"\textbackslash{}input\{d\} $<$img" in row
    for text in (markdown(table), latex(table), aligned_text(table)):
        assert not {"\r", "\x1b"} & set(text)
