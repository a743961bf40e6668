"""The result of a diagnosis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike._utils.notebook import paragraph
from unalike._utils.version import __version__
from unalike.diagnosis.clusters import Clusters
from unalike.diagnosis.concepts import ConceptShift
from unalike.diagnosis.findings import MEASURE_COLUMNS, sentences
from unalike.diagnosis.measure import Measure
from unalike.diagnosis.training import TrainingSkew
from unalike.reporting.table import Table, html

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND_OF_TEST = {
    "label_tv": "label skew",
    "feature_distance_within": "feature skew",
    "concept_gap": "concept shift",
}
"""Name of a measure -> the kind of heterogeneity that is tested by it."""


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """The kinds of heterogeneity of some clients, as `ua.diagnose` returns them.

    `str(diagnosis)` is the summary. A notebook shows it with the table.

    Attributes:
        name: The data and its partition, such as "digits, dirichlet(alpha=0.1)".
        measures: Name -> measure, such as "label_tv".
        counts: Training samples by client (rows) and class (columns).
        regression: Whether the labels are numbers; the classes are then ranges of them.
        label_distances: The Hellinger distances between the clients' label distributions.
        concept: The concept shift, pair by pair; None where it could not be tested.
        clusters: The tested ways to divide the clients into clusters.
        training: The result of the trained rounds; None without rounds.
        notes: Limits of this diagnosis, such as clients that were left out.
        command: The command that repeats the diagnosis; empty for clients from a program.
        unavailable: What the diagnosis cannot say -> the reason, where clients kept their samples.
        sent: What each client sent, with its bytes, where clients kept their samples.

    Shapes:
        label_distances: [K, K].
    """

    name: str
    measures: Mapping[str, Measure]
    counts: pd.DataFrame
    regression: bool
    label_distances: np.ndarray
    concept: ConceptShift | None
    clusters: list[Clusters]
    training: TrainingSkew | None = None
    notes: list[str] = field(default_factory=list)
    command: str = ""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    sent: Sequence[tuple[str, int]] = ()

    @cached_property
    def findings(self) -> list[str]:
        """One sentence or two about each kind of heterogeneity."""
        return sentences(self.measures, self.clusters, self.regression, self.unavailable)

    @property
    def summary(self) -> str:
        """The findings as a paragraph in plain words."""
        return " ".join(self.findings)

    @property
    def table(self) -> pd.DataFrame:
        """One row per measure: `kind measure value low high p place scale`; `place` is its place on the scale in words."""
        import pandas as pd

        rows = []
        for measure in self.measures.values():
            row = {
                "kind": measure.kind,
                "measure": measure.title,
                "value": measure.value,
                "low": measure.low,
                "high": measure.high,
                "p": float("nan") if measure.p is None else measure.p,
                "place": measure.place,
                "scale": scale_text(measure),
            }
            rows.append(row)
        return pd.DataFrame(rows, index=list(self.measures))

    def to_json(self) -> str:
        """All numbers as JSON text, for other programs."""
        layers = [] if self.training is None else self.training.layers
        clusters = []
        for tested in self.clusters:
            members = dict(zip(tested.names, tested.members.tolist()))
            clusters.append({"basis": tested.basis, "found": tested.found, "members": members})
        concept_gaps = None
        if self.concept is not None:
            concept_gaps = {"clients": self.concept.names, "gaps": self.concept.gaps.tolist()}
        content: dict[str, Any] = {
            "unalike": __version__,
            "name": self.name,
            "command": self.command,
            "clients": list(self.counts.index),
            "classes": list(self.counts.columns),
            "counts": self.counts.to_numpy().tolist(),
            "measures": {name: measure.as_dict() for name, measure in self.measures.items()},
            "layers": {measure.name: measure.as_dict() for measure in layers},
            "label_distances": self.label_distances.tolist(),
            "clusters": clusters,
            "concept_gaps": concept_gaps,
            "cosines": None if self.training is None else self.training.cosines.tolist(),
            "findings": self.findings,
            "notes": self.notes,
            "unavailable": dict(self.unavailable),
            "sent": [list(item) for item in self.sent],
        }
        return json.dumps(_finite(content), indent=1, allow_nan=False)

    def plot(self, kind: str = "labels") -> go.Figure:
        """Draw one of the charts of the page.

        Args:
            kind: "labels" (samples by client and class), "scale" (each measure beside its references), "distances" (between
                label distributions), "concepts" (errors that other clients' models add), "clusters" (the dendrogram),
                "cosines" or "layers" (these two with rounds).

        Returns:
            The Plotly figure.

        Raises:
            UnalikeError: The kind is unknown, or this diagnosis has nothing to draw for it.
        """
        from unalike.reporting.pages import plot

        needs_rounds = kind in ("cosines", "layers")
        remedy = "diagnose with rounds=5" if needs_rounds else "see diagnosis.summary"
        return plot("diagnosis", self, kind, remedy)

    def save(self, folder: str | Path) -> Path:
        """Write the page `diagnosis.html`, which needs no network, and the numbers as `diagnosis.json`.

        The folder is made if it does not exist. Returns the path of the page. Raises `UnalikeError` if it cannot be written.
        """
        from unalike.reporting.pages import save

        return save("diagnosis", self, folder)

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        clients = len(self.counts)
        samples = int(self.counts.to_numpy().sum())
        kinds = []
        for name, kind in KIND_OF_TEST.items():
            if name in self.measures and self.measures[name].found:
                kinds.append(kind)
        kinds += [f"clusters by {tested.basis}" for tested in self.clusters if tested.found]
        content = ", ".join(kinds) or "nothing beyond chance"
        return f"<Diagnosis of {clients} clients with {samples} samples: {content}>"

    def _repr_html_(self) -> str:
        findings = [paragraph(text) for text in self.findings]
        table = Table.of("", MEASURE_COLUMNS, self.measures.values())
        return "".join(findings) + html(table)


def scale_text(measure: Measure) -> str:
    """The scale of a measure as text: `iid 0.05, Dir(1) 0.33, Dir(0.1) 0.71`."""
    return ", ".join(f"{name} {value:.2g}" for name, value in measure.scale.items())


def _finite(value: Any) -> Any:
    """The same with null for numbers that are not finite, as JSON has no others."""
    if isinstance(value, dict):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
