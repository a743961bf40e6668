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
        if "best" not in facts:
            return None
        return cls(**facts["best"], tensors=tree.under(tensors, "best/"))

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
    # Rows of an earlier stage are about other models, and do not compete with those of this one.
    best = before if before is not None and before.stage == index else None
    rows = dict(best.rows) if best else {}
    for protocol in columns.protocols:
        column = columns.get(protocol, split=VALIDATION)
        if column is None or math.isnan(column.value(row)):
            continue
        earlier = [rows[column.name]] if column.name in rows else []
        if best_row([*earlier, row], column) is row:
            rows[column.name] = {"round": row["round"], column.name: column.value(row)}
    if not rows:
        return before
    personal = columns.get("personal", split=VALIDATION)
    main = next(iter(rows))
    if personal is not None and personal.name in rows:
        main = personal.name
    if best is not None and rows[main]["round"] != row["round"]:
        return replace(best, rows=rows)
    tensors, groups = clients.state_dict()
    clients.state.pin_client_states(groups)
    return BestRound(index, rows, main, tensors, groups)
