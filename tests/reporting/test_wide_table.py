"""The wide table of papers: methods by rows, data settings by columns."""

import dataclasses
import io

import pandas as pd
import pytest

from unalike._utils.errors import UnalikeError
from unalike.reporting.export import export_table
from unalike.reporting.wide_table import wide_table


@pytest.fixture(scope="module")
def parts(simulate):
    """The second setting lacks the last method of the first one."""
    return [
        ("digits, dirichlet(alpha=0.1)", simulate(methods=3, rounds=4)),
        ("digits, dirichlet(alpha=1.0)", simulate(methods=2, rounds=4, seeds=4)),
    ]


def test_wide_table_has_a_column_for_each_setting_and_its_best_method_in_bold(parts):
    table = wide_table(parts)
    assert table.columns == ["Method", "alpha=0.1", "alpha=1.0"]
    assert table.caption == (
        "Digits, dirichlet: accuracy (%) of the shared model, mean ± sd over 3 and 4 seeds, the best of each column in bold."
    )
    assert [row[0].text for row in table.rows] == ["fedavg", "fedprox(mu=0.1)", "fedavg + lws"]
    assert table.rows[2][2].text == "–"
    for place, (_, content) in enumerate(parts, start=1):
        scores = content.summary.set_index("method")["accuracy"]
        cells = {row[0].text: row[place] for row in table.rows}
        assert {name: cells[name].value for name in scores.index} == scores.to_dict()
        assert [name for name, cell in cells.items() if cell.strong] == [scores.idxmax()]


def test_folders_of_one_partition_are_told_apart_by_their_names(parts):
    contents = [content for _, content in parts]
    names = ["digits, iid [A: the first]", "digits, iid [B: second]"]
    table = wide_table(list(zip(names, contents, strict=True)))
    assert table.columns == ["Method", "[A: the first]", "[B: second]"]


def test_wide_csv_has_every_digit(parts):
    table = pd.read_csv(io.StringIO(export_table(parts, "wide", "csv")), index_col="method")
    name, content = parts[0]
    scores = content.summary.set_index("method")
    assert table[f"{name} mean"].tolist() == pytest.approx(scores["accuracy"].tolist(), abs=1e-15)
    assert table[f"{name} sd"].tolist() == pytest.approx(scores["accuracy_sd"].tolist(), abs=1e-15)


def test_methods_with_the_same_label_have_rows_of_their_own(parts):
    (name, content), second = parts
    other = dataclasses.replace(content.methods[1], spec="fedprox(mu=5)")
    methods = [content.methods[0], other, content.methods[2]]
    table = wide_table([(name, dataclasses.replace(content, methods=methods)), second])
    assert "fedprox(mu=5)" in [row[0].text for row in table.rows] and len(table.rows) == 4


def test_wide_table_of_several_metrics_is_refused(parts, simulate):
    regression = ("prices", simulate(methods=2, rounds=4, regression=True))
    with pytest.raises(UnalikeError, match="found comparisons by accuracy and RMSE, expected one"):
        wide_table([*parts, regression])
    with pytest.raises(UnalikeError, match="unknown table 'wid'"):
        export_table(parts, "wid", "csv")
