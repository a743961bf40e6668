"""Combine comparisons on the same clients into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from unalike.comparison.comparison import Comparison, in_method_order
from unalike.comparison.comparison_json import ComparisonFacts

if TYPE_CHECKING:
    import pandas as pd


def merge(comparisons: Sequence[Comparison]) -> Comparison:
    """The union of the cells; a cell that several comparisons hold is taken from the first of them."""
    if len(comparisons) == 1:
        return in_method_order(comparisons[0])
    columns = reduce(or_, (comparison.columns for comparison in comparisons))
    facts = _merge_facts([comparison.facts for comparison in comparisons])
    tables = {}
    for name in comparisons[0].tables:
        tables[name] = _merged([comparison.tables[name] for comparison in comparisons])
    return in_method_order(Comparison(columns=columns, facts=facts, **tables))


def _merged(tables: Sequence[pd.DataFrame | None]) -> Any:
    """The tables that there are as one, with the rows of a cell (method and seed) from the first that has it; None for none."""
    import pandas as pd

    numbered = [table.assign(table=i) for i, table in enumerate(tables) if table is not None]
    if not numbered:
        return None
    whole = pd.concat(numbered, ignore_index=True)
    first = whole.groupby(["method", "seed"])["table"].transform("min")
    of_first = whole[whole["table"] == first]
    return of_first.drop(columns="table").reset_index(drop=True)


def _merge_facts(all_facts: Sequence[ComparisonFacts]) -> ComparisonFacts:
    """The facts of the first comparison with the methods, notes, commands, ... of all."""
    methods: dict[str, dict[str, Any]] = {}
    wire: dict[str, list[dict[str, Any]]] = {}
    ends: dict[tuple[str, int], dict[str, Any]] = {}
    confusions: dict[str, dict[str, Any]] = {}
    for facts in all_facts:
        for method in facts.methods:
            methods.setdefault(method["label"], method)
        for label in dict.fromkeys(row["method"] for row in facts.wire):
            wire.setdefault(label, [row for row in facts.wire if row["method"] == label])
        for end in facts.ends:
            ends.setdefault((end["method"], end["seed"]), end)
        for confusion in facts.confusions:
            confusions.setdefault(confusion["method"], confusion)
    rows_on_wire = []
    for label in methods:
        rows_on_wire += wire.get(label, [])
    notes = []
    for facts in all_facts:
        notes += facts.notes
    return replace(
        all_facts[0],
        baseline=_baseline(all_facts),
        # A race and other runs together are a race no more.
        race=None,
        methods=list(methods.values()),
        wire=rows_on_wire,
        notes=_distinct(notes),
        ends=list(ends.values()),
        confusions=list(confusions.values()),
        command="\n".join(_distinct(facts.command for facts in all_facts)),
        config="\n".join(_distinct(facts.config for facts in all_facts)),
    )


def _baseline(all_facts: Sequence[ComparisonFacts]) -> str:
    """The baseline of the first comparison with several methods, if there is one."""
    several = [facts for facts in all_facts if len(facts.methods) > 1]
    return (several or all_facts)[0].baseline


def _distinct(texts: Iterable[str]) -> list[str]:
    """The texts in their order, each once."""
    return list(dict.fromkeys(texts))


def with_shared_labels(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Give a method the label that another comparison uses for it.

    The folder of a program's run knows a method only by its spec, and a comparison may have a label for the same spec.
    """
    labels: dict[str, str] = {}
    for comparison in comparisons:
        for method in comparison.facts.methods:
            if method["label"] != method["spec"]:
                labels.setdefault(method["spec"], method["label"])
    return [relabelled(comparison, labels) for comparison in comparisons]


def relabelled(comparison: Comparison, labels: dict[str, str]) -> Comparison:
    """The comparison with other labels of methods, unless they are taken: label -> its replacement."""
    facts = comparison.facts
    used = {method["label"] for method in facts.methods}
    new = {spec: labels[spec] for spec in used & labels.keys() if labels[spec] not in used}
    if not new:
        return comparison

    def relabel(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        return [row | {key: new.get(row[key], row[key])} for row in rows]

    facts = replace(
        facts,
        methods=relabel(facts.methods, "label"),
        baseline=new.get(facts.baseline, facts.baseline),
        wire=relabel(facts.wire, "method"),
        ends=relabel(facts.ends, "method"),
        confusions=relabel(facts.confusions, "method"),
    )
    tables = {}
    for name, table in comparison.tables.items():
        if table is not None:
            tables[name] = table.assign(method=table["method"].replace(new))
    return replace(comparison, facts=facts, **tables)
