"""Predicted risks client by client: calibration, ROC curve, sensitivity at a specificity, and decision curves."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from unalike.reporting import wording
from unalike.reporting.charts.figure import AnyMark, Axis, Figure, Line, Points, plot
from unalike.reporting.charts.palette import GREY, Look, Looks
from unalike.reporting.client_tables import MAX_LISTED_CLIENTS
from unalike.reporting.content import ReportContent
from unalike.reporting.panels import Panel, View
from unalike.reporting.table import Table, interval, number, words
from unalike.statistics.client_scores import MEAN, POOLED
from unalike.statistics.risks import (
    FALSE_POSITIVE_SHARES,
    MIN_SAMPLES_OF_CLASS,
    THRESHOLDS,
    Risks,
    risks_of,
)

DOTTED = Look("", GREY, "dot", "circle")
DASHED = Look("", GREY, "dash", "circle")
TREAT_ALL = "treat all"


def explanation(content: ReportContent) -> str:
    """The paragraph above the charts, or the reason that there are none; empty where the outcome does not have two classes."""
    if content.classes != 2:
        return ""
    if content.risks is None:
        return (
            "The predictions of single test samples were not kept, as a finished run or comparison with --out keeps them, so there "
            "is no calibration, ROC curve or decision curve."
        )
    outcome = "positive" if content.label_counts is None else list(content.label_counts)[-1]
    noun = content.client_noun
    few = [
        client
        for client, by_method in _shown_risks(content).items()
        if not _with_enough_samples(by_method)
    ]
    without = ""
    if few:
        without = (
            f" No curves for {wording.few(few, noun)}: fewer than {MIN_SAMPLES_OF_CLASS} positives or "
            f"{MIN_SAMPLES_OF_CLASS} others a seed."
        )
    several = wording.several(noun)
    if not content.same_clients:
        without = f" No curves by {noun}: each seed has other {several}."
    elif content.risks["client"].nunique() > MAX_LISTED_CLIENTS:
        without = (
            f" No curves by {noun}: there are more than {MAX_LISTED_CLIENTS} {several}, so that only all test samples pooled are "
            "shown."
        )
    return (
        f"The risk is the predicted probability of the outcome {outcome}, for test samples {content.when_scored}, by the models "
        f"that {several} use. Intervals count the samples of one seed, so they are wide rather than narrow.{without}"
    )


def risk_table(content: ReportContent, looks: Looks) -> Table | None:
    """Counts, calibration and sensitivity of each client, and the unweighted mean of the clients."""
    shown = _shown_risks(content)
    rows = []
    for client, by_method in shown.items():
        rows += [_row(client, method, risks, content) for method, risks in by_method.items()]
    if not rows:
        return None
    noun = content.client_noun
    of_clients = [row for row in rows if row["client"] != POOLED]
    if len(of_clients) > len(_methods(content)):
        rows += [_mean_row(method, of_clients, noun) for method in _methods(content)]
    level = f"{wording.confidence(content.rules.level)} interval"
    sensitivity = f"Sensitivity at {wording.share(content.specificity)} specificity"
    columns = [
        words(wording.capital(noun), "client"),
        words("Method", "method", looks),
        number("Positives", "positives", wording.mean_count),
        number("Others", "others", wording.mean_count),
        number("Brier score", "brier", wording.decimal),
        number("Calibration slope", "slope", _two_decimals),
        interval(level, "slope_low", "slope_high", _between_numbers),
        number("Calibration in the large", "intercept", _two_decimals),
        interval(level, "intercept_low", "intercept_high", _between_numbers),
        number(sensitivity, "sensitivity", wording.share),
        interval(level, "sensitivity_low", "sensitivity_high", _between_shares),
    ]
    caption = f"Risks by {noun}: counts of a seed's test samples, calibration and sensitivity"
    return Table.of(caption, columns, rows)


def risk_panels(content: ReportContent, looks: Looks) -> dict[str, Panel | None]:
    """The panels `calibration`, `roc` and `net_benefit`, with a view for each client with samples enough and for all samples."""
    clients = {}
    for client, by_method in _shown_risks(content).items():
        enough = _with_enough_samples(by_method)
        if enough:
            clients[client] = enough
    if not clients:
        return {"calibration": None, "roc": None, "net_benefit": None}

    calibration, roc, benefit = [], [], []
    for client, by_method in clients.items():
        figure = _calibration(by_method, looks, content.rules.level)
        calibration.append(View(client, figure, f"Observed share by predicted risk at {client}."))
        if client != POOLED or len(clients) == 1:
            # pooled over clients, an ROC curve rewards knowing the client
            figure = _roc(_sensitivities(by_method), looks)
            roc.append(View(client, figure, f"ROC curve at {client}."))
        figure = _benefit(_benefits(by_method), looks)
        benefit.append(View(client, figure, f"Net benefit by threshold at {client}."))

    single = {name: risks for name, risks in clients.items() if name != POOLED}
    if len(single) > 1:
        mean = wording.client(MEAN, content.client_noun)
        figure = _roc(_mean_curves(single, _sensitivities), looks)
        roc.append(View(mean, figure, f"ROC curve, {mean}."))
        figure = _benefit(_mean_curves(single, _benefits), looks)
        benefit.append(View(mean, figure, f"Net benefit, {mean}."))

    legend = [(name, looks[name]) for name in _methods(content)]
    confidence = wording.confidence(content.rules.level)
    return {
        "calibration": Panel(
            "calibration",
            "Test samples in groups of equal size by predicted risk; the pointer shows their number in a seed. "
            f"Bars: {confidence} intervals (Wilson). On the dotted line, risks are right.",
            calibration,
            legend,
        ),
        "roc": Panel(
            "roc",
            "Sensitivity by the share of false alarms, mean over seeds. On the dotted line, risks tell nothing.",
            roc,
            legend,
        ),
        "net_benefit": Panel(
            "net-benefit",
            "Net benefit: true positives a sample, less false positives weighted by the odds of the threshold. "
            "A model helps at a threshold where its line is above both treating everybody (dashed) and treating nobody "
            "(dotted, 0).",
            benefit,
            legend,
        ),
    }


def _methods(content: ReportContent) -> list[str]:
    """The baseline, the best candidate, and training alone."""
    names = dict.fromkeys(filter(None, [content.decision.best, *content.compared_with]))
    present = set() if content.risks is None else set(content.risks["method"])
    return [name for name in names if name in present]


def _shown_risks(content: ReportContent) -> dict[str, dict[str, Risks]]:
    """The clients, and all test samples pooled -> method -> risks; without clients where seeds have other ones, or very many."""
    if content.risks is None:
        return {}
    methods = _methods(content)
    of_all = risks_of(content.risks.assign(client=POOLED), methods)
    count = content.risks["client"].nunique()
    if count == 1:
        return risks_of(content.risks, methods)
    if not content.same_clients or count > MAX_LISTED_CLIENTS:
        return of_all
    return risks_of(content.risks, methods) | of_all


def _row(client: str, method: str, risks: Risks, content: ReportContent) -> dict[str, Any]:
    """The counts of a client, and the calibration and sensitivity of a method, with intervals; NaN for few samples."""
    unknown = (math.nan, math.nan, math.nan)
    slope = intercept = sensitivity = unknown
    if risks.enough:
        level = content.rules.level
        slope = risks.slope(level)
        intercept = risks.intercept(level)
        sensitivity = risks.sensitivity(content.specificity, level)
    row = {
        "client": client,
        "method": method,
        "positives": risks.positives,
        "others": risks.others,
        "brier": risks.brier,
    }
    row |= _with_interval("slope", slope)
    row |= _with_interval("intercept", intercept)
    row |= _with_interval("sensitivity", sensitivity)
    return row


def _with_interval(name: str, estimate: tuple[float, float, float]) -> dict[str, float]:
    value, low, high = estimate
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _mean_row(method: str, rows: list[dict[str, Any]], noun: str) -> dict[str, Any]:
    """The unweighted mean of a method's rows over the clients; without counts and intervals."""
    texts_and_counts = ("client", "method", "positives", "others")
    numbers = [
        key
        for key in rows[0]
        if key not in texts_and_counts and not key.endswith(("_low", "_high"))
    ]
    table = pd.DataFrame([row for row in rows if row["method"] == method])[numbers]
    complete = len(table.dropna())
    name = wording.client(MEAN, noun)
    if complete < len(table):
        name += f" with the score ({complete} of {len(table)} have all)"
    row: dict[str, Any] = dict.fromkeys(rows[0], math.nan)
    row |= {"client": name, "method": method}
    for key, mean in table.mean().items():
        row[str(key)] = mean
    return row


def _with_enough_samples(by_method: Mapping[str, Risks]) -> dict[str, Risks]:
    return {method: risks for method, risks in by_method.items() if risks.enough}


def _calibration(by_method: Mapping[str, Risks], looks: Looks, level: float) -> Figure:
    marks: list[AnyMark] = [Line(look=DOTTED, x=[0, 100], y=[0, 100], markers=False, width=1.5)]
    for method, risks in by_method.items():
        table = risks.reliability(level)
        expected = list(100 * table["expected"])
        observed = list(100 * table["observed"])
        line = Line(
            look=looks[method], label=method, x=expected, y=observed, markers=False, width=1.25
        )
        points = Points(
            look=looks[method],
            label=method,
            x=expected,
            y=observed,
            low=list(100 * table["low"]),
            high=list(100 * table["high"]),
            along="y",
            texts=[f"{method}: {wording.mean_count(count)} samples" for count in table["count"]],
        )
        marks += [line, points]
    x = Axis("predicted risk (%)", limits=(-3, 103))
    return plot(marks, x, Axis("observed share (%)", limits=(-3, 103)))


def _roc(curves: Mapping[str, np.ndarray], looks: Looks) -> Figure:
    chance = Line(look=DOTTED, x=[0, 100], y=[0, 100], markers=False, width=1.5)
    lines = [
        Line(
            look=looks[method],
            label=method,
            x=list(100 * FALSE_POSITIVE_SHARES),
            y=list(100 * curve),
            markers=False,
            step="x",
        )
        for method, curve in curves.items()
    ]
    x = Axis("false alarms: 100 % − specificity (%)", limits=(-3, 103))
    return plot([chance, *lines], x, Axis("sensitivity (%)", limits=(-3, 103)))


def _benefit(curves: Mapping[str, np.ndarray], looks: Looks) -> Figure:
    x = list(100 * THRESHOLDS)
    look_of = {TREAT_ALL: DASHED} | dict(looks)
    lines = [
        Line(look=look_of[name], label=name, x=x, y=list(curve), markers=False)
        for name, curve in curves.items()
    ]
    nobody = Line(look=DOTTED, label="treat none", x=[0, 100], y=[0, 0], markers=False, width=1.5)
    # curves fall far below 0, where no model is of use
    top = max(float(np.max(curve)) for curve in curves.values())
    y = Axis("net benefit", limits=(-0.25 * top, 1.1 * top))
    return plot([nobody, *lines], Axis("threshold risk (%)", limits=(0, 100)), y)


def _sensitivities(by_method: Mapping[str, Risks]) -> dict[str, np.ndarray]:
    specificities = 1 - FALSE_POSITIVE_SHARES
    return {method: risks.sensitivities(specificities) for method, risks in by_method.items()}


def _benefits(by_method: Mapping[str, Risks]) -> dict[str, np.ndarray]:
    """The net benefit of each method and of treating everybody."""
    curves = {method: risks.net_benefit() for method, risks in by_method.items()}
    # the outcomes are the same under all methods
    any_risks = next(iter(by_method.values()))
    return curves | {TREAT_ALL: any_risks.treat_all()}


def _mean_curves(
    clients: Mapping[str, Mapping[str, Risks]],
    curves_of: Callable[[Mapping[str, Risks]], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """The mean of the clients' curves."""
    by_client = [curves_of(by_method) for by_method in clients.values()]
    means = {}
    for name in by_client[0]:
        means[name] = np.mean([curves[name] for curves in by_client if name in curves], axis=0)
    return means


def _two_decimals(value: float) -> str:
    return wording.decimal(value, 2).replace("-", "−")


def _between_numbers(low: float, high: float) -> str:
    return f"{_two_decimals(low)} to {_two_decimals(high)}"


def _between_shares(low: float, high: float) -> str:
    return f"{wording.share(low)} to {wording.share(high)}"
