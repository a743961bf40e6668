"""The report's charts with their captions and text alternatives; a panel holds the views that a reader switches between."""

from dataclasses import dataclass, replace

import pandas as pd
from markupsafe import Markup

from unalike.metrics.columns import IN_USE, SIMULATED_SECONDS, TEST, VALIDATION, Column
from unalike.reporting import wording
from unalike.reporting.charts import report_charts
from unalike.reporting.charts.figure import Figure
from unalike.reporting.charts.palette import Look, Looks
from unalike.reporting.charts.plotly_figures import page_json
from unalike.reporting.content import ReportContent
from unalike.statistics.costs import PAIRS, on_front, tradeoff

MAX_CLIENT_LINES = 50
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
    base = content.baseline
    views = []
    for protocol in content.scores:
        label = wording.capital(content.models_of(protocol))
        compared = content.scores_of(protocol).dropna(subset="difference")
        if compared.empty:
            continue
        figure = report_charts.forest(compared, base, content.metric, looks)
        methods = wording.listing(compared["method"])
        alt = f"{label}: differences in {content.metric.word} to {base} for {methods}."
        views.append(View(label, figure, alt))
    bars = "one seed, so no intervals"
    if len(content.seeds) > 1:
        bars = f"bars: {wording.confidence(content.rules.level)} intervals over paired seeds"
    caption = f"Difference in {content.metric.word} to {base} (dotted line). Markers: mean over seeds; {bars}."
    return _panel("differences", caption, views, [])


def curves(content: ReportContent, looks: Looks) -> Panel | None:
    """The deciding metric and the loss by round, under each protocol."""
    metric = content.metric.name
    views = []
    for protocol in content.scores:
        for name, split in ((metric, TEST), ("loss", TEST), (metric, VALIDATION)):
            column = content.columns.get(protocol, name, split)
            view = None if column is None else _curves_of(content, column, looks)
            if view is not None:
                views.append(view)
    shown = _with_numbers(content.rounds, "train_loss", looks)
    if shown:
        figure = report_charts.curves(content.rounds, "train_loss", "training loss", shown)
        alt = f"Mean loss of local training by round for {wording.listing(shown)}."
        views.append(View("Training loss", figure, alt))
    views += _spreads(content, looks)
    has_bands = len(content.seeds) > 1 and len(looks) <= report_charts.MAX_BANDS
    bands = "Bands: one standard deviation over seeds. " if has_bands else ""
    caption = f"Mean over seeds after each evaluated round; round 0 is the untrained model. {bands}{_HANDLING}"
    return _panel("curves", caption, views, list(looks.items()))


def _curves_of(content: ReportContent, column: Column, looks: Looks) -> View | None:
    """A column of scores by round; None where no method has a number in it."""
    shown = _with_numbers(content.rounds, column.name, _judged(content, column.protocol, looks))
    if not shown:
        return None
    metric = column.metric
    where = " on validation samples" if column.split == VALIDATION else ""
    axis = f"{metric.word}{where}{metric.axis_unit}"
    figure = report_charts.curves(content.rounds, column.name, axis, shown, metric.scale)
    label = f"{metric.title}{where}, {content.models_of(column.protocol)}"
    return View(label, figure, f"{label} by round for {wording.listing(shown)}.")


def _spreads(content: ReportContent, looks: Looks) -> list[View]:
    """The standard deviation over clients by round, under each protocol."""
    several = wording.several(content.client_noun)
    table = content.client_rounds
    metric = content.metric_of_clients
    views = []
    for protocol, column in content.scores.items():
        if table is None or column.name not in table:
            continue
        by_round = table.groupby(["method", "seed", "round"], sort=False)[column.name]
        spread = by_round.std().reset_index()
        shown = _with_numbers(spread, column.name, _judged(content, protocol, looks))
        if shown:
            title = f"standard deviation of {metric.word} over {several}{metric.axis_unit}"
            figure = report_charts.curves(spread, column.name, title, shown, metric.scale)
            label = f"Spread over {several}, {content.models_of(protocol)}"
            views.append(View(label, figure, f"{label} by round for {wording.listing(shown)}."))
    return views


def client_curves(content: ReportContent, looks: Looks) -> Panel | None:
    """One line per client by round, method by method, under the first seed."""
    noun = content.client_noun
    table = content.client_rounds
    metric = content.metric_of_clients
    if table is None or table["client"].nunique() > MAX_CLIENT_LINES:
        return None
    first = table[table["seed"] == content.seed]
    views: dict[str, View] = {}
    for protocol, column in content.scores.items():
        shown = _with_numbers(first, column.name, _judged(content, protocol, looks))
        for method, look in list(shown.items())[: report_charts.MAX_BANDS]:
            models = protocol
            if protocol == IN_USE and method in content.personal:
                models = "personal"
            label = wording.short(method) + report_charts.MODEL_SUFFIX.get(models, "")
            # the model in use is one of the others
            if label in views:
                continue
            of_method = first[first["method"] == method]
            title = f"{metric.word}{metric.axis_unit} of one {noun}"
            figure = report_charts.client_lines(of_method, column.name, title, look, metric.scale)
            alt = f"{metric.word} of each {noun} by round under {method}, {content.models_of(models)}."
            views[label] = View(label, figure, alt)
    caption = f"Thin lines: one {noun} each, seed {content.seed}. Thick line: their mean.{_first_methods(looks)}"
    return _panel("client-curves", caption, list(views.values()), [])


def class_scores(content: ReportContent, looks: Looks) -> Panel | None:
    """The accuracy on each class under each method."""
    shares = {}
    for name, counts in _confusions(content, looks).items():
        correct = pd.Series(counts.to_numpy().diagonal(), counts.index)
        share = correct / counts.sum(axis=1)
        # without the classes that no test sample has
        shares[name] = share.dropna()
    if not shares:
        return None
    figure = report_charts.class_scores(shares, looks)
    alt = f"Accuracy on each class under {wording.listing(shares)}."
    caption = f"Share of right predictions among the test samples of a class, {content.when_scored}, {_over(content)}."
    legend = [(name, looks[name]) for name in shares]
    return _panel("classes", caption, [View("Classes", figure, alt)], legend)


def confusions(content: ReportContent, looks: Looks) -> Panel | None:
    """The classes that each method takes for one another."""
    first = list(_confusions(content, looks).items())[: report_charts.MAX_BANDS]
    views = []
    for name, counts in first:
        figure = report_charts.confusion(counts)
        alt = f"Classes by predicted classes under {name}."
        views.append(View(wording.short(name), figure, alt))
    caption = (
        f"Test samples by class (rows) and predicted class (columns), {content.when_scored}, {_over(content)}, of the models "
        f"that clients use. A perfect model has the diagonal alone.{_first_methods(looks)}"
    )
    return _panel("confusions", caption, views, [])


def _first_methods(looks: Looks) -> str:
    """Says that a panel has no view of the methods after the first ones; empty if it has all."""
    shown = report_charts.MAX_BANDS
    if len(looks) <= shown:
        return ""
    return f" Shown are the first {shown} of {len(looks)} methods."


def _confusions(content: ReportContent, looks: Looks) -> dict[str, pd.DataFrame]:
    """Method -> test samples by class and predicted class, in the order of the methods."""
    entries = {entry["method"]: entry for entry in content.confusions}
    tables = {}
    for name in looks:
        if name in entries:
            classes = entries[name]["classes"]
            tables[name] = pd.DataFrame(entries[name]["counts"], index=classes, columns=classes)
    return tables


def _over(content: ReportContent) -> str:
    return "over all seeds" if len(content.seeds) > 1 else f"seed {content.seed}"


def distributions(content: ReportContent, looks: Looks) -> Panel | None:
    """The distribution of the clients' scores under each method."""
    noun = content.client_noun
    metric = content.metric_of_clients
    title = f"{metric.word}{metric.axis_unit} of one {noun}"
    views = []
    for protocol, column in content.scores.items():
        shown = _with_numbers(content.clients, column.name, _judged(content, protocol, looks))
        if not shown:
            continue
        figure = report_charts.distribution(
            content.clients, column.name, title, shown, metric.scale
        )
        label = wording.capital(content.models_of(protocol))
        alt = f"{label}: {metric.word} of single {wording.several(noun)} under {wording.listing(shown)}."
        views.append(View(label, figure, alt))
    caption = (
        f"Dots: one {noun} under one seed (only the outliers if there are very many). "
        f"Boxes show the middle half of the {wording.several(noun)}, with a line at the median."
    )
    return _panel("clients", caption, views, [])


def labels(content: ReportContent) -> Panel | None:
    """Training samples of each client by class."""
    if content.label_counts is None or content.label_counts.empty:
        return None
    noun = content.client_noun
    clients, classes = content.label_counts.shape
    most = content.label_counts.to_numpy().max()
    alt = f"Training samples of {wording.plural(clients, noun)} in {classes} classes, at most {most} in one cell."
    figure = report_charts.labels(content.label_counts)
    caption = f"Training samples by {noun} and class, seed {content.seed}. Larger or darker marks mean more samples."
    return _panel("labels", caption, [View("Labels", figure, alt)], [])


def cost(content: ReportContent, looks: Looks) -> Panel | None:
    """Score by traffic and by time, also that of simulated devices."""
    metric = content.metric
    judged = _judged(content, content.unprefixed_protocol, looks)
    shown = _with_numbers(content.rounds, metric.name, judged)
    if not shown:
        return None
    goal = metric.word + metric.axis_unit
    axes = [
        ("Traffic", "mb", f"MB to and from all {wording.several(content.client_noun)}"),
        ("Time", "seconds", "seconds on the machine that ran this"),
    ]
    if SIMULATED_SECONDS in content.rounds:
        axes.append(("Simulated time", SIMULATED_SECONDS, "seconds of the simulated devices"))
    views = []
    for label, spent, title in axes:
        figure = report_charts.cost(
            content.rounds, spent, title, metric.name, goal, shown, metric.scale
        )
        views.append(View(label, figure, f"{goal} by {title}: {wording.listing(shown)}."))
    towards = "higher" if metric.sign > 0 else "lower"
    caption = f"Cost of the shared model's {metric.word}: {towards} and further left is better. Mean over seeds."
    return _panel("cost", caption, views, list(shown.items()))


def timeline(content: ReportContent, looks: Looks) -> Panel | None:
    """The timeline of devices or sites, method by method, under the first seed: one bar for each request to a client."""
    table = content.timeline
    if table is None:
        return None
    is_simulated = SIMULATED_SECONDS in content.rounds
    clock = "seconds of the simulated devices" if is_simulated else "seconds"
    of_seed = table[table["seed"] == content.seed]
    most = report_charts.MAX_TURNS
    views = []
    is_cut = False
    for method in list(looks)[: report_charts.MAX_BANDS]:
        turns = of_seed[of_seed["method"] == method]
        if turns.empty:
            continue
        is_cut |= len(turns) > most
        earliest = turns["ended"].rank(method="first") <= most
        figure = report_charts.timeline(turns[earliest], clock)
        fates = wording.listing(
            f"{count} {fate}" for fate, count in turns["fate"].value_counts().items()
        )
        alt = (
            f"Timeline of the clients under {method}, {wording.plural(len(turns), 'bar')}: {fates}."
        )
        views.append(View(wording.short(method), figure, alt))
    noun = content.client_noun
    caption = (
        f"Who trained when. A bar is one {noun}, from the request of the server to the update, or to the moment when the server "
        f"gave it up; seed {content.seed}."
    )
    shown = of_seed["client"].nunique()
    everybody = content.clients["client"].nunique()
    if shown < everybody:
        several = wording.several(noun)
        caption += (
            f" Shown are {shown} of {everybody} {several}: the first of those that were asked."
        )
    if is_cut:
        caption += f" Of each method the first {most} bars are shown."
    return _panel("timeline", caption + _first_methods(looks), views, [])


def pareto(content: ReportContent, looks: Looks) -> Panel | None:
    """Score, score of the worst tenth of clients, traffic and time: one chart for each pair and protocol."""
    metric = content.metric
    titles = {
        "score": metric.word + metric.axis_unit,
        "worst": f"{metric.word} of the {content.worst_clients}{content.metric.axis_unit}",
        "mb": f"MB to and from all {wording.several(content.client_noun)}",
        "seconds": "seconds on the machine that ran this",
    }
    names = {"score": metric.word, "worst": "fairness", "mb": "traffic", "seconds": "time"}
    views = []
    for protocol in content.scores:
        table = tradeoff(content.scores_of(protocol), metric)
        if len(table) < 2:
            continue
        for x, y in PAIRS:
            label = f"{wording.capital(names[y])} against {names[x]}, {content.models_of(protocol)}"
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
    return {name: looks[name] for name in looks if name in content.judged_methods(protocol)}


def _with_numbers(table: pd.DataFrame, column: str, looks: Looks) -> Looks:
    """The looks of the methods that have a number in this column."""
    if column not in table:
        return {}
    present = set(table.loc[table[column].notna(), "method"])
    return {name: look for name, look in looks.items() if name in present}
