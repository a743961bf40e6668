"""The table of most papers: a row for each method, a column for each data setting, mean and deviation in a cell."""

import math
import re
from collections.abc import Sequence

import pandas as pd

from unalike._utils.errors import UnalikeError
from unalike.metrics.named_metrics import MISSING
from unalike.reporting import wording
from unalike.reporting.content import ReportContent
from unalike.reporting.summary_columns import score_of_paper
from unalike.reporting.table import Table, TableCell, rows

Parts = Sequence[tuple[str, ReportContent]]
"""The name and the content of each comparison; each is a column."""
NO_SCORE = TableCell(MISSING, math.nan)
"""The cell of a method that a comparison does not have."""


def wide_table(parts: Parts) -> Table:
    """The score that decides of every method in every comparison, `mean ± sd` over seeds.

    In each column the best method that is no reference is bold, and so are those with the same score as printed. A label that
    stands for several methods is replaced by their specs. Raises `UnalikeError` if the comparisons have several metrics.
    """
    _check_one_metric(parts)
    names = [name for name, _ in parts]
    contents = [content for _, content in parts]
    method_names = _method_names(contents)
    columns = []
    for content, of_content in zip(contents, method_names):
        columns.append(_cells(content, of_content))
    lines = []
    for method in _in_order(method_names):
        cells = [column.get(method, NO_SCORE) for column in columns]
        lines.append([TableCell(method, method), *cells])
    return Table(_caption(names, contents), ["Method", *_titles(names)], lines)


def wide_frame(parts: Parts) -> pd.DataFrame:
    """The same with all digits: `method`, and `mean` and `sd` of each comparison under its name."""
    _check_one_metric(parts)
    method_names = _method_names([content for _, content in parts])
    tables = []
    for (name, content), of_content in zip(parts, method_names):
        scored = content.scores_of(content.deciding_protocol)
        metric = content.metric.name
        methods = scored["method"].map(of_content)
        scores = scored[[metric, f"{metric}_sd"]].set_axis([f"{name} mean", f"{name} sd"], axis=1)
        tables.append(scores.set_index(methods))
    whole = pd.concat(tables, axis=1).reindex(_in_order(method_names))
    return whole.rename_axis("method").reset_index()


def has_one_metric(parts: Parts) -> bool:
    """Whether all comparisons are decided by the same metric."""
    return len({content.metric.word for _, content in parts}) == 1


def _check_one_metric(parts: Parts) -> None:
    if not has_one_metric(parts):
        metrics = dict.fromkeys(content.metric.word for _, content in parts)
        raise UnalikeError(
            f"found comparisons by {wording.listing(metrics)}, expected one metric in a wide table; "
            "write a table for each metric"
        )


def _cells(content: ReportContent, names: dict[str, str]) -> dict[str, TableCell]:
    """Name of a method in the table -> the cell of its score."""
    protocol = content.deciding_protocol
    column = score_of_paper(content, protocol)
    return {names[row["method"]]: column.cell(row) for row in rows(content.scores_of(protocol))}


def _method_names(contents: Sequence[ReportContent]) -> list[dict[str, str]]:
    """For each comparison: label -> the name in the table, which is the spec if other methods have the same label."""
    specs: dict[str, set[str]] = {}
    for content in contents:
        for method in content.methods:
            specs.setdefault(method.label, set()).add(method.spec)
    names = []
    for content in contents:
        of_content = {}
        for method in content.methods:
            is_ambiguous = len(specs[method.label]) > 1
            of_content[method.label] = method.spec if is_ambiguous else method.label
        names.append(of_content)
    return names


def _in_order(method_names: Sequence[dict[str, str]]) -> list[str]:
    """The names of all methods, each once."""
    names: dict[str, None] = {}
    for of_content in method_names:
        names |= dict.fromkeys(of_content.values())
    return list(names)


def _titles(names: Sequence[str]) -> list[str]:
    """The part of each name in which it differs from the others: `alpha=0.1` of `digits, dirichlet(alpha=0.1)`."""
    terms = [_terms(name) for name in names]
    if len(names) == 1 or len({len(of_name) for of_name in terms}) > 1:
        return list(names)
    shared = _shared_terms(names)
    titles = []
    for of_name in terms:
        titles.append(", ".join(term for term in of_name if term not in shared))
    return titles


def _caption(names: Sequence[str], contents: Sequence[ReportContent]) -> str:
    """The caption: the score in a cell, its models and seeds, and the terms that all settings have in common."""
    first = contents[0]
    models = dict.fromkeys(content.models_of(content.deciding_protocol) for content in contents)
    seeds = sorted({len(content.seeds) for content in contents})
    counts = wording.listing(map(str, seeds))
    noun = "seed" if seeds == [1] else "seeds"
    common = [term for term in _terms(names[0]) if term in _shared_terms(names)]
    subject = f"{', '.join(common)}: " if common and len(names) > 1 else ""
    score = f"{first.metric.word}{first.metric.axis_unit} of the {wording.listing(models)}"
    return wording.capital(
        f"{subject}{score}, mean ± sd over {counts} {noun}, the best of each column in bold."
    )


def _shared_terms(names: Sequence[str]) -> set[str]:
    """The terms that all names have."""
    first, *others = names
    shared = set(_terms(first))
    for name in others:
        shared &= set(_terms(name))
    return shared


def _terms(name: str) -> list[str]:
    """The terms of a name: `digits`, `dirichlet`, `alpha=0.1` and `[A: first]` of `digits, dirichlet(alpha=0.1) [A: first]`."""
    return re.findall(r"\[[^]]*\]|[^\s,()]+", name)
