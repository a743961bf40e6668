"""The looks of methods in the figures of studies, lines over seeds, and the files of a figure."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unalike._utils.tensor_files import writing
from unalike.reporting.charts import matplotlib_figures
from unalike.reporting.charts.figure import AnyMark, Axis, Figure, Line, Mark, Plot, with_marks
from unalike.reporting.charts.palette import Look, looks
from unalike_studies.results import Results

HEIGHT = 330
"""Height of a plot, in pixels of a page."""
POINT_SIZE = 7
"""Diameter of the points of a scatter plot, in pixels of a page."""
ROUNDS = Axis("round", word="round ", form="")
FAINT = Look("faint", "#C4C4C4", "solid", "circle")
"""The look of what stands in the background."""
PLACES = {
    "FedAvg": 0,
    "FedProx": 1,
    "FedNova": 2,
    "FedMix": 3,
    "SCAFFOLD": 4,
    "FedAvg + LWS": 5,
    "FedPake as printed": 6,
    "FedSA as printed": 9,
    "FedSA = FedPake, normalized": 10,
    "weighted mean": 7,
    "mean": 12,
}
"""Label -> place among the looks of the palette, for methods that many figures share."""


def over_seeds(
    label: str, values: Mapping[int, Sequence[float]] | Mapping[float, Sequence[float]]
) -> Line:
    """The mean of the values at each x, with a band of one standard deviation to both sides."""
    means, low, high = [], [], []
    for of_seeds in values.values():
        mean = statistics.fmean(of_seeds)
        deviation = statistics.stdev(of_seeds) if len(of_seeds) > 1 else 0.0
        means.append(mean)
        low.append(mean - deviation)
        high.append(mean + deviation)
    return Line(label=label, x=list(values), y=means, low=low, high=high)


def panels(
    results: Results, marks: Callable[[str], Sequence[AnyMark]], x: Axis, y: str | Axis
) -> Figure:
    """One panel per setting, with the marks of the setting."""
    axis = Axis(y) if isinstance(y, str) else y
    plots = [Plot(marks(setting), x, axis, setting) for setting in results.settings]
    return Figure(plots, HEIGHT)


def styled(figure: Figure) -> Figure:
    """The figure with a look for each label; faint marks take no place among the looks of the others."""
    labels = [label for label, mark in figure.labelled.items() if mark.look != FAINT]
    look_of = looks(labels, PLACES)

    def change(mark: AnyMark) -> AnyMark:
        if isinstance(mark, Mark) and mark.label in look_of:
            return dataclasses.replace(mark, look=look_of[mark.label])
        return mark

    return with_marks(figure, change)


def write(figure: Figure, name: str, folder: Path) -> list[Path]:
    """Write a figure as SVG and PDF. Returns the files."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return matplotlib_figures.write(styled(figure), folder / name)
