"""Test helper: the table that `unalike evaluate` prints, as numbers."""

from __future__ import annotations

import re


def scores(text):
    """The row of all samples that `evaluate` prints, by column."""
    # a note on the intervals, which stand in brackets behind the scores, follows the table
    table, _, _ = text.strip().partition("\n\n")
    head, *rows = [line for line in table.splitlines() if not line.startswith("In brackets")]
    names = re.split("  +", head.strip())
    pooled = [row for row in rows if row.startswith("all samples pooled")]
    cells = re.split("  +", (pooled or rows)[-1].strip())[-len(names) :]
    found = {}
    for name, cell in zip(names, cells, strict=True):
        score = cell.partition(" (")[0]
        if score != "–":
            found[name] = float(score.removesuffix("\u00a0%")) / (100 if "%" in score else 1)
    return found
