"""The page of a diagnosis: one HTML file in the looks of the report."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from unalike.diagnosis import charts
from unalike.diagnosis.clusters import NO_GROUPS
from unalike.diagnosis.diagnosis import Diagnosis
from unalike.diagnosis.findings import INTERVALS, MEASURE_COLUMNS
from unalike.diagnosis.measure import FINDING_LEVEL, Measure
from unalike.reporting.charts.report_charts import labels
from unalike.reporting.html import fill
from unalike.reporting.pages import Page, pages
from unalike.reporting.panels import Panel, View
from unalike.reporting.table import Table, number, words
from unalike.reporting.wording import capital, probability, significant

AXES = {
    "label skew": "0: equal labels, 1: no label in common",
    "quantity skew": "0: equal sizes, 1: one client has everything",
    "feature skew": "standard deviations",
    "concept shift": "errors added (share of the samples; variances for regression)",
    "training": "share that cancels",
}
"""The axis of each kind of measure. Measures with another axis are in the table only."""
MEASURES = f"All measures; heterogeneity is found where p is at most {FINDING_LEVEL}"
NOT_DRAWN = ("size_ratio", "cosine")


def render(diagnosis: Diagnosis) -> str:
    """Render the page as one HTML document. The same diagnosis gives the same text."""
    counts = diagnosis.counts
    return fill(
        "diagnosis.html.j2",
        title=f"How the clients differ: {diagnosis.name}",
        warnings=diagnosis.notes,
        scale={
            "client": len(counts),
            _counted(diagnosis): counts.shape[1],
            "training sample": int(counts.to_numpy().sum()),
        },
        findings=[_kind_and_text(sentence) for sentence in diagnosis.findings],
        panels=panels(diagnosis),
        tables={
            "measures": Table.of(MEASURES, MEASURE_COLUMNS, diagnosis.measures.values()),
            "layers": None if diagnosis.training is None else _layers(diagnosis.training.layers),
            "clusters": _clusters(diagnosis),
            "sent": _sent(diagnosis.sent) if diagnosis.sent else None,
        },
        unavailable={what: capital(reason) for what, reason in diagnosis.unavailable.items()},
        command=diagnosis.command,
    )


def _kind_and_text(sentence: str) -> tuple[str, str]:
    """The kind of heterogeneity that a finding begins with, and the rest of it."""
    kind, _, text = sentence.partition(": ")
    return kind, capital(text)


def panels(diagnosis: Diagnosis) -> dict[str, Panel | None]:
    """The panels of the page by kind of figure; None where there is nothing to draw."""
    training = diagnosis.training
    return {
        "labels": _label_panel(diagnosis),
        "scale": _scale_panel(list(diagnosis.measures.values())),
        "distances": _distance_panel(diagnosis),
        "concepts": _concept_panel(diagnosis),
        "clusters": _cluster_panel(diagnosis),
        "cosines": None if training is None else _cosine_panel(diagnosis, training.cosines),
        "layers": None if training is None else _layer_panel(training.layers),
    }


def _scale_panel(measures: Sequence[Measure]) -> Panel:
    views = []
    for kind, axis in AXES.items():
        of_kind = [m for m in measures if m.kind == kind and m.name not in NOT_DRAWN]
        if of_kind:
            title = capital(kind)
            values = "; ".join(f"{m.title} {significant(m.value)}, {m.place}" for m in of_kind)
            views.append(View(title, charts.scale(of_kind, axis), f"{title}. {values}."))
    caption = (
        "Blue: these clients, with the 95 % interval over other clients of the same kind. "
        "Grey ticks: the same samples divided among as many clients in known ways; iid "
        "deals them by chance."
    )
    return Panel("scale", caption, views, [])


def _counted(diagnosis: Diagnosis) -> str:
    """The word for what samples are counted by: a class, or a range of the labels of a regression."""
    return "label range" if diagnosis.regression else "class"


def _label_panel(diagnosis: Diagnosis) -> Panel:
    clients, classes = diagnosis.counts.shape
    what = _counted(diagnosis)
    alt = f"Training samples of {clients} clients by {what}, of which there are {classes}."
    figure = labels(diagnosis.counts, what)
    return Panel(
        "labels",
        f"Training samples by client and {what}; larger marks mean more.",
        [View("Labels", figure, alt)],
        [],
    )


def _distance_panel(diagnosis: Diagnosis) -> Panel:
    names = [str(name) for name in diagnosis.counts.index]
    order = _order(diagnosis, "label distributions")
    figure = charts.heat_map(diagnosis.label_distances, names, order, "Hellinger distance")
    caption = (
        "Hellinger distances between the label distributions of any two clients: 0 for "
        "equal ones, 1 for clients without a common class. Similar clients stand side by "
        "side."
    )
    view = View("Distances", figure, "Heat map of the distances between clients.")
    return Panel("distances", caption, [view], [])


def _concept_panel(diagnosis: Diagnosis) -> Panel | None:
    concept = diagnosis.concept
    if concept is None:
        return None
    # Clients whose models and samples agree with the others' come first.
    gaps = np.nan_to_num(concept.gaps)
    order = np.argsort((gaps + gaps.T).mean(0), kind="stable").tolist()
    figure = charts.heat_map(
        concept.gaps,
        concept.names,
        order,
        title="errors added",
        least=0.2,
        axes=("tested on the samples of", "model of"),
    )
    caption = (
        "Errors that the model of one client (rows) adds on the samples of another one "
        "(columns), compared with that one's own model and beyond chance. Orange: equal "
        "inputs seem to have other labels. Empty: too few samples of common classes lie "
        "where both clients have samples."
    )
    view = View("Concepts", figure, "Heat map of the errors that other models add.")
    return Panel("concepts", caption, [view], [])


def _cluster_panel(diagnosis: Diagnosis) -> Panel | None:
    if not diagnosis.clusters:
        return None
    views = []
    for clusters in diagnosis.clusters:
        judgement = " that are real." if clusters.found else ", no better than chance."
        alt = f"Dendrogram of the clients by {clusters.basis}, cut into {clusters.count} clusters{judgement}"
        views.append(View(f"By {clusters.basis}", charts.dendrogram(clusters), alt))
    caption = (
        "Clients and groups of clients are joined at the distance where the lines meet. "
        "Colors: the clusters of the best cut (dotted line). Any clients can be cut; the "
        "table says whether the clusters are more than that."
    )
    return Panel("clusters", caption, views, [])


def _cosine_panel(diagnosis: Diagnosis, cosines: np.ndarray) -> Panel:
    names = [str(name) for name in diagnosis.counts.index]
    order = _order(diagnosis, "gradients")
    figure = charts.heat_map(cosines, names, order, "cosine", least=1.0)
    caption = "Cosines of any two clients' updates, means over the rounds: 1 for the same direction, -1 for opposite ones."
    view = View("Cosines", figure, "Heat map of the cosines of the updates.")
    return Panel("cosines", caption, [view], [])


def _layer_panel(layers: Sequence[Measure]) -> Panel:
    caption = (
        "The share of each layer's movement that cancels in the average, with 95 % "
        "intervals. Marks: the same for reference divisions. Layers with long bars are the "
        "first candidates to be kept at the clients."
    )
    view = View("Layers", charts.bars(layers), "Bars of the drift of each layer.")
    return Panel("layers", caption, [view], [])


def _layers(layers: Sequence[Measure]) -> Table:
    def in_reference(reference: str, layer: Measure) -> float:
        return layer.scale[reference]

    columns = [
        words("Layer", lambda m: m.name),
        number("Share", lambda m: m.value, significant),
        INTERVALS,
    ]
    for reference in layers[0].scale:
        columns.append(number(reference, partial(in_reference, reference), significant))
    return Table.of("Share of the movement that cancels, by layer", columns, layers)


def _clusters(diagnosis: Diagnosis) -> Table | None:
    if not diagnosis.clusters:
        return None
    columns = [
        words("Clusters by", lambda tested: capital(tested.basis)),
        number("Number", lambda tested: tested.count),
        number("Silhouette", lambda tested: tested.silhouette.value, significant),
        number("Without groups", lambda tested: tested.silhouette.scale[NO_GROUPS], significant),
        number("p", lambda tested: tested.silhouette.p or 1.0, probability),
        number("Stability", lambda tested: tested.stability.value, significant),
        words("More than chance", lambda tested: "yes" if tested.found else "no"),
    ]
    return Table.of("Are these clusters?", columns, diagnosis.clusters)


def _sent(items: Sequence[tuple[str, int]]) -> Table:
    columns = [
        words("What", lambda item: capital(item[0])),
        number("Bytes", lambda item: item[1], "{:,}".format),
    ]
    return Table.of("What each client sent", columns, items)


def _order(diagnosis: Diagnosis, basis: str) -> list[int]:
    """The order of the clients along their dendrogram by `basis`; as they are numbered where they were not clustered by it."""
    from scipy.cluster.hierarchy import leaves_list

    for clusters in diagnosis.clusters:
        if clusters.basis == basis:
            return [int(k) for k in leaves_list(clusters.linkage)]
    return list(range(len(diagnosis.counts)))


pages.register("diagnosis")(Page(render, panels))
