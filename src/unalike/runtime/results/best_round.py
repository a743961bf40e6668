"""The best round of a stage by its validation samples, whose models a run with `select="best"` gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from unalike.core import tree
from unalike.core.types import Tree
from unalike.metrics.columns import VALIDATION, Columns
from unalike.runtime.records.history import History
from unalike.runtime.setup.stopping import best_row
from unalike.runtime.stages.backend import StageBackend


@dataclass(frozen=True)
class BestRound:
    """The best rounds of a stage by the validation samples.

    `rows` holds the round and score of the best one by each column of the history; the frozen stage is that of `main`, the column
    that decides which models the run gives.
    """

    stage: int
    rows: dict[str, dict[str, Any]]
    main: str
    tensors: Tree
    groups: list[dict[str, Any]]

    @property
    def facts(self) -> dict[str, Any]:
        """Its plain values in a checkpoint."""
        return {"stage": self.stage, "rows": self.rows, "main": self.main, "groups": self.groups}

    @classmethod
    def saved(cls, tensors: Tree, facts: dict[str, Any]) -> BestRound | None:
        """The one in a checkpoint."""
        return (
            cls(**facts["best"], tensors=tree.under(tensors, "best/")) if "best" in facts else None
        )

    def restore(self, clients: StageBackend, history: History) -> None:
        """Give the stage the models of the best round, and mark the best rounds in the history."""
        history.select({column: row["round"] for column, row in self.rows.items()})
        clients.load_state_dict(self.tensors, self.groups)


def best_round(
    before: BestRound | None,
    index: int,
    clients: StageBackend,
    row: dict[str, Any],
    columns: Columns,
) -> BestRound | None:
    """The best round of a stage when a round with this `row` is complete; `before` is the best one of the rounds before.

    The models that are kept are those of the round that is best for the personal models, or without them for the shared one.
    """
    scored = [
        c
        for p in columns.protocols
        if (c := columns.get(p, split=VALIDATION)) and not math.isnan(c.value(row))
    ]
    best = before if before is not None and before.stage == index else None
    rows = dict(best.rows) if best else {}
    for column in scored:
        if best_row([*([rows[column.name]] if column.name in rows else []), row], column) is row:
            rows[column.name] = {"round": row["round"], column.name: column.value(row)}
    personal = columns.get("personal", split=VALIDATION)
    main = max(rows, key=lambda name: personal is not None and name == personal.name, default=None)
    if main is None:
        return before
    if best is not None and rows[main]["round"] != row["round"]:
        return replace(best, rows=rows)
    tensors, groups = clients.state_dict()
    clients.state.pin_client_states(groups)
    return BestRound(index, rows, main, tensors, groups)
