"""The report's charts with their captions and text alternatives; a panel holds the views that a reader switches between."""

from dataclasses import dataclass, replace

import pandas as pd
from markupsafe import Markup

from unalike.metrics.columns import TEST, USED, VALIDATION
from unalike.reporting import wording
from unalike.reporting.charts import report_charts
from unalike.reporting.charts.figure import Figure
from unalike.reporting.charts.palette import Look, Looks
from unalike.reporting.charts.plotly_figures import page_json
from unalike.reporting.content import MODELS, ReportContent
from unalike.statistics.costs import PAIRS, on_front, tradeoff

MOST_LINES = 50
"""With more clients there is no line for each."""
_HANDLING = "Select a method to hide it; drag to enlarge, double-click to go back."


@dataclass(frozen=True)
class View:
    """One chart of a panel. `alt` describes it for readers who cannot see it; `narrow` replaces `figure` on narrow screens."""

    label: str
    figure: Figure
    alt: str
    narrow: Figure | None = None


@dataclass(frozen=True)
class Panel:
    """Views under one caption; `legend` lists the methods if the chart itself does not name them."""

    key: str
    caption: str
    views: list[View]
    legend: list[tuple[str, Look]]

    def json(self, figure: Figure) -> Markup:
        """A figure of the panel for its script element; labels that the panel lists are not listed inside of it."""
        return page_json(replace(figure, legend=figure.legend and not self.legend))


def differences(content: ReportContent, looks: Looks) -> Panel | None:
    """Forest plots of the differences under each protocol."""
    base, views = content.baseline, []
    for protocol in content.scores:
        label = wording.capital(MODELS[protocol])
        compared = content.scored(protocol).dropna(subset="difference")
        if len(compared):
            alt = f"{label}: differences in {content.metric.word} to {base} for {wording.listing(compared['method'])}."
            views.append(
                View(label, report_charts.forest(compared, base, content.metric, looks), alt)
            )
    confidence = wording.confidence(content.rules.level)
    bars = (
        f"bars: {confidence} intervals over paired seeds"
        if len(content.seeds) > 1
        else "one seed, so no intervals"
    )
    caption = f"Difference in {content.metric.word} to {base} (dotted line). Markers: mean over seeds; {bars}."
    return _panel("differences", caption, views, [])


def curves(content: ReportContent, looks: Looks) -> Panel | None:
    """The deciding metric and the loss by round, under each protocol."""
    metric, views = content.metric.name, []
    for protocol in content.scores:
        for name, split in ((metric, TEST), ("loss", TEST), (metric, VALIDATION)):
            column = content.columns.get(protocol, name, split)
            shown = (
                {}
                if column is None
                else _scored(content.rounds, column.name, _judged(content, protocol, looks))
            )
            if column is not None and shown:
                where = " on validation samples" if split == VALIDATION else ""
                title, axis = (
                    column.metric.title + where,
                    column.metric.word + where + column.metric.axis_unit,
                )
                figure = report_charts.curves(
                    content.rounds, column.name, axis, shown, column.metric.scale
                )
                label = f"{title}, {MODELS[protocol]}"
                views.append(View(label, figure, f"{label} by round for {wording.listing(shown)}."))
    if shown := _scored(content.rounds, "train_loss", looks):
        figure = report_charts.curves(content.rounds, "train_loss", "training loss", shown)
        alt = f"Mean loss of local training by round for {wording.listing(shown)}."
        views.append(View("Training loss", figure, alt))
    views += _spreads(content, looks)
    banded = len(content.seeds) > 1 and len(looks) <= report_charts.MOST_BANDS
    band = "Bands: one standard deviation over seeds. " if banded else ""
    caption = f"Mean over seeds after each evaluated round; round 0 is the untrained model. {band}{_HANDLING}"
    return _panel("curves", caption, views, list(looks.items()))


def _spreads(content: ReportContent, looks: Looks) -> list[View]:
    """The standard deviation over clients by round, under each protocol."""
    table, metric, views = content.client_rounds, content.metric_of_clients, []
    for protocol, score in content.scores.items():
        column = score.name
        if table is None or column not in table:
            continue
        spread = table.groupby(["method", "seed", "round"], sort=False)[column].std().reset_index()
        if shown := _scored(spread, column, _judged(content, protocol, looks)):
            title = f"standard deviation of {metric.word} over clients{metric.axis_unit}"
            figure = report_charts.curves(spread, column, title, shown, metric.scale)
            label = f"Spread over clients, {MODELS[protocol]}"
            views.append(View(label, figure, f"{label} by round for {wording.listing(shown)}."))
    return views


def client_curves(content: ReportContent, looks: Looks) -> Panel | None:
    """One line per client by round, method by method, under the first seed."""
    table, metric, views = content.client_rounds, content.metric_of_clients, list[View]()
    if table is None or table["client"].nunique() > MOST_LINES:
        return None
    first = table[table["seed"] == content.seed]
    for protocol, score in content.scores.items():
        column = score.name
        for name, look in list(_scored(first, column, _judged(content, protocol, looks)).items())[
            : report_charts.MOST_BANDS
        ]:
            of_method = first[first["method"] == name]
            title = f"{metric.word}{metric.axis_unit} of one client"
            figure = report_charts.client_lines(of_method, column, title, look, metric.scale)
            own = "personal" if protocol == USED and name in content.personal else protocol
            label = wording.short(name) + report_charts.MODEL_SUFFIX.get(own, "")
            if label not in [view.label for view in views]:  # the model in use is one of the others
                alt = f"{metric.word} of each client by round under {name}, {MODELS[own]}."
                views.append(View(label, figure, alt))
    caption = f"Thin lines: one client each, seed {content.seed}. Thick line: their mean.{_first_methods(looks)}"
    return _panel("client-curves", caption, views, [])


def class_scores(content: ReportContent, looks: Looks) -> Panel | None:
    """The accuracy on each class under each method."""
    shares = {}
    for name, counts in _confusions(content, looks).items():
        right = pd.Series(counts.to_numpy().diagonal(), counts.index) / counts.sum(axis=1)
        shares[name] = right.dropna()
    if not shares:
        return None
    figure = report_charts.class_scores(shares, looks)
    alt = f"Accuracy on each class under {wording.listing(shares)}."
    caption = f"Share of right predictions among the test samples of a class, {content.when_scored}, {_over(content)}."
    return _panel(
        "classes", caption, [View("Classes", figure, alt)], [(name, looks[name]) for name in shares]
    )


def confusions(content: ReportContent, looks: Looks) -> Panel | None:
    """The classes that each method takes for one another."""
    views = [
        View(
            wording.short(name),
            report_charts.confusion(counts),
            f"Classes by predicted classes under {name}.",
        )
        for name, counts in list(_confusions(content, looks).items())[: report_charts.MOST_BANDS]
    ]
    caption = (
        f"Test samples by class (rows) and predicted class (columns), {content.when_scored}, {_over(content)}, of the models "
        f"that clients use. A perfect model has the diagonal alone.{_first_methods(looks)}"
    )
    return _panel("confusions", caption, views, [])


def _first_methods(looks: Looks) -> str:
    """Says that a panel has no view of the methods after the first ones; empty if it has all."""
    shown, count = report_charts.MOST_BANDS, len(looks)
    return f" Shown are the first {shown} of {count} methods." if count > shown else ""


def _confusions(content: ReportContent, looks: Looks) -> dict[str, pd.DataFrame]:
    """Method -> test samples by class and predicted class, in the order of the methods."""
    entries = {entry["method"]: entry for entry in content.confusions}
    return {
        name: pd.DataFrame(
            entries[name]["counts"],
            index=entries[name]["classes"],
            columns=entries[name]["classes"],
        )
        for name in looks
        if name in entries
    }


def _over(content: ReportContent) -> str:
    return "over all seeds" if len(content.seeds) > 1 else f"seed {content.seed}"


def distributions(content: ReportContent, looks: Looks) -> Panel | None:
    """The distribution of the clients' scores under each method."""
    metric, views = content.metric_of_clients, []
    for protocol, column in content.scores.items():
        shown = _scored(content.clients, column.name, _judged(content, protocol, looks))
        if shown:
            title = f"{metric.word}{metric.axis_unit} of one client"
            figure = report_charts.distribution(
                content.clients, column.name, title, shown, metric.scale
            )
            label = wording.capital(MODELS[protocol])
            views.append(
                View(
                    label,
                    figure,
                    f"{label}: {metric.word} of single clients under {wording.listing(shown)}.",
                )
            )
    caption = (
        "Dots: one client under one seed (only the outliers if there are very many). "
        "Boxes show the middle half of the clients, with a line at the median."
    )
    return _panel("clients", caption, views, [])


def labels(content: ReportContent) -> Panel | None:
    """Training samples of each client by class."""
    if content.label_counts is None or content.label_counts.empty:
        return None
    clients, classes = content.label_counts.shape
    most = content.label_counts.to_numpy().max()
    alt = f"Training samples of {clients} clients in {classes} classes, at most {most} in one cell."
    figure = report_charts.labels(content.label_counts)
    caption = f"Training samples by client and class, seed {content.seed}. Larger or darker marks mean more samples."
    return _panel("labels", caption, [View("Labels", figure, alt)], [])


def cost(content: ReportContent, looks: Looks) -> Panel | None:
    """Score by traffic and by time."""
    column = content.metric.name
    shown = _scored(content.rounds, column, _judged(content, content.plain, looks))
    axes = (
        ("Traffic", "mb", "MB to and from all clients"),
        ("Time", "seconds", "seconds on the machine that ran this"),
    )
    goal, scale = content.metric.word + content.metric.axis_unit, content.metric.scale
    views = [
        View(
            label,
            report_charts.cost(content.rounds, spent, title, column, goal, shown, scale),
            f"{goal} by {title}: {wording.listing(shown)}.",
        )
        for label, spent, title in axes
        if shown
    ]
    towards = "higher" if content.metric.sign > 0 else "lower"
    caption = f"Cost of the shared model's {content.metric.word}: {towards} and further left is better. Mean over seeds."
    return _panel("cost", caption, views, list(shown.items()))


def pareto(content: ReportContent, looks: Looks) -> Panel | None:
    """Score, score of the worst tenth of clients, traffic and time: one chart for each pair and protocol."""
    metric = content.metric
    titles = {
        "score": metric.word + metric.axis_unit,
        "worst": f"{metric.word} of the worst tenth of clients{content.metric.axis_unit}",
        "mb": "MB to and from all clients",
        "seconds": "seconds on the machine that ran this",
    }
    names = {"score": metric.word, "worst": "fairness", "mb": "traffic", "seconds": "time"}
    views = []
    for protocol in content.scores:
        table = tradeoff(content.scored(protocol), metric)
        for x, y in PAIRS if len(table) > 1 else ():
            label = f"{wording.capital(names[y])} against {names[x]}, {MODELS[protocol]}"
            figure = Figure([report_charts.pareto(table, x, y, metric, titles, looks)])
            front = wording.listing(table.loc[on_front(table, x, y, metric), "method"])
            views.append(View(label, figure, f"{label}. On the Pareto front: {front}."))
    towards = "higher" if metric.sign > 0 else "lower"
    caption = (
        "Filled: on the Pareto front of the picture (dotted line), that is, no other method is at least as good on both axes and "
        f"better on one. Hollow: not on it. {wording.capital(towards)} {metric.word}, fewer MB and fewer seconds are better. "
        "The means over seeds are noisy: a method close to the front may be on it."
    )
    return _panel("pareto", caption, views, list(looks.items()))


def _panel(
    key: str, caption: str, views: list[View], legend: list[tuple[str, Look]]
) -> Panel | None:
    return Panel(key, caption, views, legend) if views else None


def _judged(content: ReportContent, protocol: str, looks: Looks) -> Looks:
    """The looks of the methods that a protocol judges."""
    return {name: looks[name] for name in looks if name in content.judged(protocol)}


def _scored(table: pd.DataFrame, column: str, looks: Looks) -> Looks:
    """The looks of the methods that have a number in this column."""
    if column not in table:
        return {}
    present = set(table.loc[table[column].notna(), "method"])
    return {name: look for name, look in looks.items() if name in present}
