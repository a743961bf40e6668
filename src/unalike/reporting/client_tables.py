"""The tables of the clients: each client's score with a method, its interval, and its gain or loss compared with other methods."""

import pandas as pd

from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.content import ReportContent
from unalike.reporting.findings import fact_table, findings
from unalike.reporting.summary_columns import summary_tables
from unalike.reporting.table import Table, TableColumn, interval, number, rows, words

MAX_LISTED_CLIENTS = 30
"""With more clients a terminal and a notebook show no table of them."""


def client_columns(content: ReportContent, methods: bool = False) -> list[TableColumn]:
    """The columns for the rows of `content.client_scores`; `methods`: with the method."""
    metric = content.metric_of_clients
    table = content.client_scores
    level = f"{wording.confidence(content.rules.level)} interval"
    noun = content.client_noun
    columns = [words(wording.capital(noun), lambda row: wording.client(row["client"], noun))]
    if methods:
        columns.append(words("Method", "method"))
    columns.append(number("Test samples", "n_test", wording.mean_count))
    if table["n_positive"].notna().any():
        columns.append(number("Positives", "n_positive", wording.mean_count))
    # clients with one class in some seeds have a score in fewer seeds than others
    seeds = table.loc[table["seeds"] > 0, "seeds"]
    if seeds.min() < seeds.max():
        columns.append(number("Seeds", "seeds", wording.mean_count))
    columns += [
        number(metric.title, "score", metric.text),
        interval(level, "low", "high", metric.between),
    ]
    for other in content.compared_with:
        if table[f"to_{other}"].notna().any():
            columns.append(difference_to(other, metric))
            columns.append(interval(level, f"to_{other}_low", f"to_{other}_high", metric.interval))
    if "mb_up" in table:
        columns.append(number("MB received", "mb_down", wording.megabytes))
        columns.append(number("MB sent", "mb_up", wording.megabytes))
    return columns


def difference_to(other: str, metric: Metric) -> TableColumn:
    """The column of differences to a method: gains, where more is better."""
    return number(wording.gain_over(other, metric), f"to_{other}", metric.difference)


def client_table(content: ReportContent, method: str) -> Table | None:
    """The clients with one method; None where it has no score of clients that all seeds have."""
    scores = content.client_scores
    of_method = scores[scores["method"] == method] if len(scores) else scores
    if of_method.empty:
        return None
    seeds = wording.plural(int(of_method["seeds"].max()), "seed")
    # the numbers of clients with few test samples are accidents
    judged = content.judged_clients
    few = judged.index[~judged]
    shown = of_method[~of_method["client"].isin(few)]
    caption = f"Every {content.client_noun} with {method}, mean over {seeds}"
    if len(few):
        caption += f"; {wording.not_judged(len(few), content.client_noun)}"
    return Table.of(caption, _with_values(client_columns(content), shown), rows(shown))


def clients_of_best(content: ReportContent) -> list[Table]:
    """The table of the clients with the best candidate, or with the baseline; none for many clients."""
    if content.clients["client"].nunique() > MAX_LISTED_CLIENTS:
        return []
    table = client_table(content, content.decision.leader)
    return [] if table is None else [table]


def overview(content: ReportContent) -> list[Table]:
    """The tables that a notebook and `print` show: key facts, the summary by protocol, and the clients with the best candidate."""
    facts = findings(content).key_facts
    of_facts = [fact_table(facts)] if facts else []
    return [*of_facts, *summary_tables(content), *clients_of_best(content)]


def client_tables(content: ReportContent) -> list[Table]:
    """The table of the clients with each method, that of the best candidate first."""
    best_first = dict.fromkeys([content.decision.leader, *content.labels])
    tables = [client_table(content, name) for name in best_first]
    return [table for table in tables if table is not None]


def _with_values(columns: list[TableColumn], table: pd.DataFrame) -> list[TableColumn]:
    """The columns that have a number in some row, and those of text."""
    shown = []
    for column in columns:
        cells = [column.cell(row) for row in rows(table)]
        # NaN is not equal to itself
        if any(not cell.numeric or cell.value == cell.value for cell in cells):
            shown.append(column)
    return shown
