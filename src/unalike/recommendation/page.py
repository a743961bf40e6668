"""The page of a recommendation: one HTML file in the looks of the report."""

from collections.abc import Sequence

from unalike.recommendation.judgement import HELD_OUT, SURE, MeanInterval
from unalike.recommendation.recommendation import POINTS, Advice, Recommendation
from unalike.reporting.charts.figure import Axis, Figure, Points, Rule, rows_plot
from unalike.reporting.charts.palette import BLUE, look_of_color
from unalike.reporting.html import fill
from unalike.reporting.pages import Page, pages
from unalike.reporting.panels import Panel, View
from unalike.reporting.table import Table, number, words
from unalike.reporting.wording import capital, share

HELD_OUT_TITLES = {
    "data": "Held-out data sets",
    "kind": "Held-out kinds of heterogeneity",
    "owners": "Held-out data sets with real owners",
    "owners, unknown kind": "The same, learned from tasks without real owners",
}
ROW_HEIGHT = 50
ADVICE_CAPTION = "All methods, best first; gains in points, of errors in per cent of FedAvg's"


def render(recommendation: Recommendation) -> str:
    """Render the page as one HTML document. The same recommendation gives the same text."""
    judged = recommendation.judgement
    stored = judged.owners if recommendation.owners else judged.tasks
    return fill(
        "recommendation.html.j2",
        title=f"Methods for {recommendation.name}",
        warnings=list(recommendation.notes),
        scale={"method": len(recommendation.advice), "stored task": stored},
        findings=recommendation.findings,
        kinds=[
            (kind, capital(text))
            for kind, _, text in (
                line.partition(": ") for line in recommendation.diagnosis.findings
            )
        ],
        reasons=recommendation.reasons,
        panels=panels(recommendation),
        tables={
            "advice": Table.of(ADVICE_CAPTION, recommendation.columns, recommendation.advice),
            "alike": _alike(recommendation),
        },
        command=recommendation.command,
    )


def panels(recommendation: Recommendation) -> dict[str, Panel | None]:
    """The panels of the page by kind of figure."""
    return {"gains": _gains(recommendation.advice), "regret": _regret(recommendation)}


def _gains(advice: Sequence[Advice]) -> Panel:
    gains = [MeanInterval(one.gain, one.low, one.high) for one in advice]
    figure = _dots(
        [one.method for one in advice], gains, Axis("gain over FedAvg (points)", form=".1f")
    )
    caption = (
        "Markers: the median gain over FedAvg. Bars: eight of ten stored tasks lie between their ends, by weight. Left of the "
        "dotted line: worse than FedAvg."
    )
    alt = "; ".join(f"{one.method} {POINTS.change(one.gain)}" for one in advice)
    return Panel("gains", caption, [View("Gains", figure, f"Median gains in points: {alt}.")], [])


def _regret(recommendation: Recommendation) -> Panel:
    views = []
    own_first = sorted(HELD_OUT_TITLES, key=lambda by: HELD_OUT[by].owners != recommendation.owners)
    for by in own_first:
        label = HELD_OUT_TITLES[by]
        policies = recommendation.judgement.regret[by]
        regret = {
            policy: mean
            for policy, mean in policies.items()
            if policy != SURE or HELD_OUT[by].owners
        }
        axis = Axis("regret (points)", from_zero=True, form=".1f")
        figure = _dots(list(regret), list(regret.values()), axis)
        alt = "; ".join(
            f"{policy} {POINTS.amount(estimate.mean)}" for policy, estimate in regret.items()
        )
        views.append(View(label, figure, f"{label}, mean regret in points: {alt}."))
    caption = (
        "Regret: the score of the best method of a task less that of the chosen method, on tasks that were held out. Markers: "
        "means. Bars: 95 % intervals over the groups that were held out. 0 would be the best choice on every task, known after the "
        "fact."
    )
    return Panel("regret", caption, views, [])


def _dots(names: Sequence[str], estimates: Sequence[MeanInterval], axis: Axis) -> Figure:
    """One row per name: an estimate in points with its interval, the first one on top."""
    values, low, high = (
        [100 * getattr(one, end) for one in estimates] for end in ("mean", "low", "high")
    )
    places = list(range(len(names)))
    dots = Points(
        look=look_of_color(BLUE), x=values, y=places, low=low, high=high, texts=list(names), size=10
    )
    return rows_plot(list(names), [dots, Rule(0)], axis, ROW_HEIGHT)


def _alike(recommendation: Recommendation) -> Table:
    columns = [
        words("Task", lambda task: task.task),
        number("Weight", lambda task: task.weight, share),
        words("Best method", lambda task: task.best),
        number(f"Gain of {recommendation.advice[0].method}", lambda task: task.gain, POINTS.change),
    ]
    caption = (
        "The stored tasks that are most alike; C: share of clients in a round, E: local epochs"
    )
    return Table.of(caption, columns, recommendation.alike)


pages.register("recommendation")(Page(render, panels))
