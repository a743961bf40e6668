"""Predicted risks client by client: calibration, ROC curve, sensitivity at a specificity, and decision curves."""

import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from unalike.reporting import wording
from unalike.reporting.charts.figure import AnyMark, Axis, Figure, Line, Points, plot
from unalike.reporting.charts.palette import GREY, Look, Looks
from unalike.reporting.client_tables import MOST_CLIENTS
from unalike.reporting.content import ReportContent
from unalike.reporting.panels import Panel, View
from unalike.reporting.table import Table, interval, number, words
from unalike.statistics.client_scores import MEAN
from unalike.statistics.risks import FEWEST, GRID, THRESHOLDS, Risks, risks_of

DOTTED, DASHED = Look("", GREY, "dot", "circle"), Look("", GREY, "dash", "circle")


def explanation(content: ReportContent) -> str:
    """The paragraph above the charts, or the reason that there are none; empty where the outcome does not have two classes."""
    if content.classes != 2:
        return ""
    if content.risks is None:
        return (
            "The predictions of single test samples were not kept, as a finished run or comparison with --out keeps them, so there "
            "is no calibration, ROC curve or decision curve."
        )
    outcome = list(content.label_counts)[-1] if content.label_counts is not None else "positive"
    few = [
        name
        for name, own in _shown(content).items()
        if not any(risks.enough for risks in own.values())
    ]
    why = f"fewer than {FEWEST} positives or {FEWEST} others a seed"
    without = f" No curves for {wording.few(few, 'client')}: {why}." if few else ""
    return (
        f"The risk is the predicted probability of the outcome {outcome}, for test samples {content.when_scored}, by the models "
        f"that clients use. Intervals count the samples of one seed, so they are wide rather than narrow.{without}"
    )


def risk_table(content: ReportContent, looks: Looks) -> Table | None:
    """Counts, calibration and sensitivity of each client, and the unweighted mean of the clients."""
    rows = [
        _row(client, m, risks, content)
        for client, own in _shown(content).items()
        for m, risks in own.items()
    ]
    if not rows:
        return None
    counts = ("client", "method", "positives", "others")
    numbers = [key for key in rows[0] if key not in counts and not key.endswith(("low", "high"))]
    for method in _methods(content) if len(_shown(content)) > 1 else ():
        own = pd.DataFrame([row for row in rows if row["method"] == method])[numbers]
        whole, means = len(own.dropna()), own.mean()
        name = (
            MEAN if whole == len(own) else f"{MEAN} with the score ({whole} of {len(own)} have all)"
        )
        rows.append(
            {key: means.get(key, math.nan) for key in rows[0]} | {"client": name, "method": method}
        )
    level = f"{wording.confidence(content.rules.level)} interval"
    columns = [
        words("Client", "client"),
        words("Method", "method", looks),
        number("Positives", "positives", wording.mean_count),
        number("Others", "others", wording.mean_count),
        number("Brier score", "brier", wording.decimal),
        number("Calibration slope", "slope", _two),
        interval(level, "slope_low", "slope_high", _between),
        number("Calibration in the large", "intercept", _two),
        interval(level, "intercept_low", "intercept_high", _between),
        number(
            f"Sensitivity at {wording.share(content.specificity)} specificity",
            "sensitivity",
            wording.share,
        ),
        interval(
            level,
            "sensitivity_low",
            "sensitivity_high",
            lambda a, b: f"{wording.share(a)} to {wording.share(b)}",
        ),
    ]
    return Table.of(
        "Risks by client: counts of a seed's test samples, calibration and sensitivity",
        columns,
        rows,
    )


def risk_panels(content: ReportContent, looks: Looks) -> dict[str, Panel | None]:
    """The panels `calibration`, `roc` and `net_benefit`, with a view for each client that has samples enough."""
    enough = {c: {m: r for m, r in own.items() if r.enough} for c, own in _shown(content).items()}
    clients = {client: own for client, own in enough.items() if own}
    legend = [(name, looks[name]) for name in _methods(content)] if clients else []
    calibration = [
        View(
            c,
            _calibration(own, looks, content.rules.level),
            f"Observed share by predicted risk at {c}.",
        )
        for c, own in clients.items()
    ]
    roc = [
        View(c, _roc(_sensitivities(own), looks), f"ROC curve at {c}.")
        for c, own in clients.items()
    ]
    benefit = [
        View(c, _benefit(_benefits(own), looks), f"Net benefit by threshold at {c}.")
        for c, own in clients.items()
    ]
    if len(clients) > 1:
        roc.append(
            View(
                MEAN,
                _roc(_means(clients, _sensitivities), looks),
                "ROC curve, mean of the clients.",
            )
        )
        benefit.append(
            View(
                MEAN,
                _benefit(_means(clients, _benefits), looks),
                "Net benefit, mean of the clients.",
            )
        )
    captions = {
        "calibration": "Test samples in groups of equal size by predicted risk; the pointer shows their number in a seed. "
        f"Bars: {wording.confidence(content.rules.level)} intervals (Wilson). On the dotted line, risks are right.",
        "roc": "Sensitivity by the share of false alarms, mean over seeds. On the dotted line, risks tell nothing.",
        "net_benefit": "Net benefit: true positives a sample, less false positives weighted by the odds of the threshold. "
        "A model helps at a threshold where its line is above both treating everybody (dashed) and treating nobody (dotted, 0).",
    }
    views = {"calibration": calibration, "roc": roc, "net_benefit": benefit}
    return {
        key: Panel(key.replace("_", "-"), captions[key], found, legend) if found else None
        for key, found in views.items()
    }


def _methods(content: ReportContent) -> list[str]:
    """The baseline, the best candidate, and training alone."""
    names = dict.fromkeys(filter(None, [content.decision.best, *content.compared_with]))
    present = set() if content.risks is None else set(content.risks["method"])
    return [name for name in names if name in present]


def _shown(content: ReportContent) -> dict[str, dict[str, Risks]]:
    """Client -> method -> risks; none where seeds have other clients, or very many."""
    if (
        content.risks is None
        or not content.same_clients
        or content.risks["client"].nunique() > MOST_CLIENTS
    ):
        return {}
    return risks_of(content.risks, _methods(content))


def _row(client: str, method: str, risks: Risks, content: ReportContent) -> dict[str, Any]:
    level, found = content.rules.level, [(math.nan,) * 3] * 3
    if risks.enough:
        found = [
            risks.slope(level),
            risks.intercept(level),
            risks.sensitivity(content.specificity, level),
        ]
    counts = {"positives": risks.positives, "others": risks.others, "brier": risks.brier}
    names = (
        name + end
        for name in ("slope", "intercept", "sensitivity")
        for end in ("", "_low", "_high")
    )
    return (
        {"client": client, "method": method}
        | counts
        | dict(zip(names, chain.from_iterable(found), strict=True))
    )


def _calibration(own: Mapping[str, Risks], looks: Looks, level: float) -> Figure:
    marks: list[AnyMark] = [Line(look=DOTTED, x=[0, 100], y=[0, 100], markers=False, width=1.5)]
    for name, risks in own.items():
        table = risks.reliability(level)
        expected, observed, low, high = (
            list(100 * table[c]) for c in ("expected", "observed", "low", "high")
        )
        texts = [f"{name}: {wording.mean_count(count)} samples" for count in table["count"]]
        marks.append(
            Line(look=looks[name], label=name, x=expected, y=observed, markers=False, width=1.25)
        )
        marks.append(
            Points(
                look=looks[name],
                label=name,
                x=expected,
                y=observed,
                low=low,
                high=high,
                along="y",
                texts=texts,
            )
        )
    return plot(
        marks,
        Axis("predicted risk (%)", limits=(-3, 103)),
        Axis("observed share (%)", limits=(-3, 103)),
    )


def _roc(curves: Mapping[str, np.ndarray], looks: Looks) -> Figure:
    chance = Line(look=DOTTED, x=[0, 100], y=[0, 100], markers=False, width=1.5)
    lines = [
        Line(
            look=looks[name],
            label=name,
            x=list(100 * GRID),
            y=list(100 * found),
            markers=False,
            step="x",
        )
        for name, found in curves.items()
    ]
    x = Axis("false alarms: 100 % − specificity (%)", limits=(-3, 103))
    return plot([chance, *lines], x, Axis("sensitivity (%)", limits=(-3, 103)))


def _benefit(curves: Mapping[str, np.ndarray], looks: Looks) -> Figure:
    x = list(100 * THRESHOLDS)
    known = {"treat all": DASHED} | dict(looks)
    lines = [
        Line(look=known[n], label=n, x=x, y=list(found), markers=False)
        for n, found in curves.items()
    ]
    nobody = Line(look=DOTTED, label="treat none", x=[0, 100], y=[0, 0], markers=False, width=1.5)
    top = max(float(np.max(found)) for found in curves.values())
    y = Axis("net benefit", limits=(-0.25 * top, 1.1 * top))
    return plot([nobody, *lines], Axis("threshold risk (%)", limits=(0, 100)), y)


def _sensitivities(own: Mapping[str, Risks]) -> dict[str, np.ndarray]:
    return {name: risks.sensitivities(1 - GRID) for name, risks in own.items()}


def _benefits(own: Mapping[str, Risks]) -> dict[str, np.ndarray]:
    """The net benefit of each method and of treating everybody."""
    return {name: risks.net_benefit() for name, risks in own.items()} | {
        "treat all": next(iter(own.values())).treat_all()
    }


def _means(
    clients: Mapping[str, Mapping[str, Risks]],
    of: Callable[[Mapping[str, Risks]], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """The mean of the clients' curves."""
    found = [of(own) for own in clients.values()]
    return {name: np.mean([own[name] for own in found if name in own], axis=0) for name in found[0]}


def _two(value: float) -> str:
    return wording.decimal(value, 2).replace("-", "−")


def _between(low: float, high: float) -> str:
    return f"{_two(low)} to {_two(high)}"
