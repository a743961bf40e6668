"""The result of `ua.recommend`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unalike._utils.notebook import paragraph
from unalike._utils.notebook import table as html_table
from unalike._utils.version import __version__
from unalike.recommendation.content import COLUMNS, RecommendationContent, row_texts

if TYPE_CHECKING:
    import pandas as pd

PAGE, FILE = "recommendation.html", "recommendation.json"


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation(RecommendationContent):
    """Methods for some clients, best first, as `ua.recommend` returns them; `str(recommendation)` is the summary.

    Attributes:
        name: The data and its partition.
        objective: The score that counts, "accuracy" or "worst_decile".
        advice: The methods, best first; FedAvg is among them with a gain of 0.
        reasons: The answers that lead to tasks like these clients.
        alike: The stored tasks that are most like these clients.
        judgement: How good such recommendations were on held-out tasks.
        diagnosis: The diagnosis of the clients.
        notes: Limits of this recommendation.
        command: The command that repeats it; empty for clients from a program.
    """

    @property
    def table(self) -> pd.DataFrame:
        """One row per method, best first: the fields of `Advice`."""
        import pandas as pd

        return pd.DataFrame([asdict(one) for one in self.advice]).set_index("method")

    def to_json(self) -> str:
        """All numbers as JSON text, for other programs."""
        content = {
            "unalike": __version__,
            "name": self.name,
            "objective": self.objective,
            "advice": [asdict(one) for one in self.advice],
            "reasons": list(self.reasons),
            "alike": [asdict(one) for one in self.alike],
            "judgement": asdict(self.judgement),
            "findings": self.findings,
            "notes": list(self.notes),
            "command": self.command,
        }
        return json.dumps(content, indent=1, allow_nan=False)

    def save(self, folder: str | Path) -> Path:
        """Write the page `recommendation.html`, which needs no network, and the numbers as `recommendation.json`.

        Args:
            folder: The folder; it is made if it does not exist.

        Returns:
            The path of the page.

        Raises:
            UnalikeError: The folder cannot be written.
        """
        from unalike.recommendation.page import render
        from unalike.reporting.html import write_folder

        return write_folder(folder, (FILE, self.to_json()), (PAGE, render(self)))

    def __str__(self) -> str:
        return " ".join(self.findings)

    def __repr__(self) -> str:
        names = ", ".join(one.method for one in self.short_list) or "FedAvg"
        return f"<Recommendation for {self.name}: {names}>"

    def _repr_html_(self) -> str:
        return "".join(map(paragraph, self.findings)) + html_table(COLUMNS, map(row_texts, self.advice))
