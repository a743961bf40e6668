"""Maps of the clients' models: t-SNE of the distances between their updates, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.manifold import TSNE

from unalike.reporting.charts.figure import Axis, Figure, Plot, Points
from unalike_studies.layouts.looks import HEIGHT
from unalike_studies.results import CellResult, Results

MOST_NEIGHBOURS = 5


@dataclass(frozen=True)
class ClientMap:
    """One point per client, for cells of `method` with `record="updates"`, first seed.

    There is a panel for the first, the middle and the last recorded round of each setting. The distance of two clients is that of
    their updates, from the recorded norms and cosines. Points have the color of the client's most frequent class.
    """

    title: str
    method: str
    name: str = "clients-map"

    def table(self, results: Results) -> list[list[str]]:
        """Whether clients of the same most frequent class lie together: mean distances, relative to the mean update norm."""
        rows = [["setting", "round", "distance within a class", "distance between classes"]]
        for setting, cell in self._cells(results).items():
            kinds = _kinds(cell)
            for number, apart in self._distances(cell).items():
                alike = np.equal.outer(kinds, kinds) & ~np.eye(len(kinds), dtype=bool)
                other = np.not_equal.outer(kinds, kinds)
                means = [f"{apart[where].mean():.3f}" if where.any() else "-" for where in (alike, other)]
                rows.append([setting, str(number), *means])
        return rows

    def figure(self, results: Results) -> Figure:
        plots = []
        for setting, cell in self._cells(results).items():
            kinds = _kinds(cell)
            for number, apart in self._distances(cell).items():
                places = _embedded(apart)
                of_kinds = {kind: places[kinds == kind].T.tolist() for kind in sorted(set(kinds.tolist()))}
                marks = [Points(label=f"class {kind}", x=x, y=y, size=7) for kind, (x, y) in of_kinds.items()]
                plots.append(Plot(marks, Axis(), Axis(self.title), f"{setting}, round {number}"))
        return Figure(plots, HEIGHT)

    def _cells(self, results: Results) -> dict[str, CellResult]:
        """Setting -> the cell of the method under the first seed."""
        seeds = {setting: results.of(self.method, setting) for setting in results.settings}
        return {setting: cells[min(cells)] for setting, cells in seeds.items() if cells and cells[min(cells)].recorded}

    def _distances(self, cell: CellResult) -> dict[int, np.ndarray]:
        """Round -> distances of the clients' updates [K, K] over their mean norm."""
        clients = len(cell.label_counts)
        distances, rounds = {}, cell.recorded["rounds"]
        for place in sorted({0, len(rounds) // 2, len(rounds) - 1}):
            norms, cosines = np.full(clients, np.nan), np.eye(clients)
            for series in cell.recorded["series"]:
                client, other, value = series.get("client", -1), series.get("other"), series["values"][place]
                if client < 0 or value is None:
                    continue
                if series["quantity"] == "update_norm" and "layer" not in series:
                    norms[client] = value
                if series["quantity"] == "cosine":
                    cosines[client, other] = cosines[other, client] = value
            if np.isfinite(norms).all():
                squares = norms[:, None] ** 2 + norms**2 - 2 * np.outer(norms, norms) * cosines
                distances[rounds[place]] = np.sqrt(squares.clip(0)) / norms.mean()
        return distances


def _kinds(cell: CellResult) -> np.ndarray:
    """The most frequent class of each client."""
    return np.array(cell.label_counts).argmax(1)


def _embedded(apart: np.ndarray) -> np.ndarray:
    """Points [K, 2] by t-SNE; the seed is fixed."""
    perplexity = min(MOST_NEIGHBOURS, len(apart) - 1)
    return TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=0).fit_transform(apart)
