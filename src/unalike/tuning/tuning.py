"""The result of `ua.tune`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike.reporting import wording
from unalike.tuning.content import TuningContent

if TYPE_CHECKING:
    import plotly.graph_objects as go

FILE, PAGE = "tuning.json", "tuning.html"


@dataclass(frozen=True, repr=False)
class Tuning(TuningContent):
    """The result of `ua.tune`: `print(tuning)` is a summary, `tuning.table` has the numbers, `tuning.save(folder)` writes a page.

    `tuning.chosen` has the chosen values by method, `tuning.before` and `tuning.after` are the comparisons with the values as
    they were given and with the chosen ones, `tuning.trials` all trials.
    """

    def plot(self, kind: str = "ranking") -> go.Figure:
        """Draw one of the charts of the page.

        Args:
            kind: "ranking" (scores before and after tuning), "search" (best score by trial), "rates" (score by learning rate) or
                "spread" (the scores of all trials).

        Returns:
            The Plotly figure.

        Raises:
            UnalikeError: The kind is unknown.
        """
        from unalike.tuning.page import figure

        return figure(self, kind)

    def save(self, folder: str | Path) -> Path:
        """Write the page `tuning.html`, which needs no network, and the numbers as `tuning.json`.

        Args:
            folder: The folder; it is made if it does not exist.

        Returns:
            The path of the page.

        Raises:
            UnalikeError: The folder cannot be written.
        """
        from unalike.reporting.html import write_folder
        from unalike.tuning.page import render

        return write_folder(folder, (FILE, self.to_json()), (PAGE, render(self)))

    def to_json(self) -> str:
        """All numbers as JSON text, for other programs."""
        content: dict[str, Any] = {
            "name": self.name,
            "objective": self.metric.column,
            "budget": asdict(self.budget),
            "rounds": self.rounds,
            "seed": self.seed,
            "command": self.command,
            "chosen": self.chosen,
            "trials": {label: [asdict(trial) for trial in own] for label, own in self.trials.items()},
            "ranking": json.loads(self.table.to_json(orient="records")),
            "findings": self.findings,
        }
        return json.dumps(content, indent=1, allow_nan=False)

    def __str__(self) -> str:
        table = self.table.to_string(index=False, float_format=lambda v: f"{v:.4f}", na_rep="-")
        return "\n".join([*self.findings, "", table])

    def __repr__(self) -> str:
        return (
            f"<Tuning of {', '.join(self.methods)} on {self.name}, {wording.plural(self.budget.trials, 'trial')} each>"
        )
