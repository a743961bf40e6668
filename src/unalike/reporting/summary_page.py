"""The summary of a comparison for a board: one printed page without charts, jargon and scripts."""

import math
from typing import Any

import pandas as pd

from unalike.metrics.named_metrics import registry
from unalike.reporting import wording
from unalike.reporting.client_tables import difference_to
from unalike.reporting.content import ReportContent
from unalike.reporting.findings import epsilons, findings
from unalike.reporting.html import fill
from unalike.reporting.table import Table, interval, number, rows, words
from unalike.reporting.together_or_alone import TogetherOrAlone, together_or_alone

MAX_SHOWN_CLIENTS = 12
"""Most clients on the page. Of more clients, the largest losses and gains are shown."""
MAX_WARNINGS = 3
"""Most warnings on the page."""
MAX_WARNING_LETTERS = 240


def render(content: ReportContent) -> str:
    """Render the summary as one HTML document that fits one printed page. The same content gives the same text."""
    clients = _clients(content)
    found = together_or_alone(content)
    return fill(
        "summary.html.j2",
        title=content.title,
        together=found,
        decision=content.decision,
        clients=None if clients is None else _table(content, clients, found),
        about=_about(content),
        risks=_risks(content),
        cost=_cost(content),
    )


def _clients(content: ReportContent) -> pd.DataFrame | None:
    """The scores of the clients on the page with the method of the answer, from the largest loss to the largest gain.

    Clients with too few test samples are left out.
    """
    scores = content.client_scores
    if scores.empty:
        return None
    judged = content.judged_clients
    is_client = scores["client"].isin(judged[judged].index)
    shown = scores[(scores["method"] == content.decision.in_use) & is_client]
    shown = shown.dropna(subset="score")
    gain = content.metric_of_clients.sign * shown[f"to_{content.baseline}"]
    shown = shown.assign(gain=gain).sort_values("gain", kind="stable")
    if len(shown) > MAX_SHOWN_CLIENTS:
        half = MAX_SHOWN_CLIENTS // 2
        shown = pd.concat([shown.head(half), shown.tail(half)])
    return None if shown.empty else shown


def _table(content: ReportContent, clients: pd.DataFrame, found: TogetherOrAlone | None) -> Table:
    """Each client with the method of the answer: score, that alone, gain or loss with its interval, and that in one word."""
    best = content.decision.in_use
    metric = content.metric_of_clients
    difference = f"to_{content.baseline}"
    columns = [
        words(wording.capital(content.client_noun), "client"),
        number("Test samples", "n_test", wording.mean_count),
    ]
    if clients["n_positive"].notna().any():
        columns.append(number("Positives", "n_positive", wording.mean_count))
    columns.append(number(metric.title, "score", metric.text))
    if found is not None:
        alone = {client.client: client.alone for client in found.clients}
        columns.append(
            number(
                f"{metric.title} alone",
                lambda row: alone.get(str(row["client"]), math.nan),
                metric.text,
            )
        )
    if best != content.baseline:
        title = f"{wording.confidence(content.rules.level)} interval"
        columns += [
            difference_to(content.baseline, metric),
            interval(title, f"{difference}_low", f"{difference}_high", metric.interval),
            words("Shown", lambda row: _shown(row, difference, metric.sign)),
        ]
    return Table.of(f"Every {content.client_noun} with {best}", columns, rows(clients))


def _shown(row: dict[str, Any], difference: str, sign: int) -> str:
    """Whether the interval of a client's difference shows a gain or a loss."""
    low, high = sorted((sign * row[f"{difference}_low"], sign * row[f"{difference}_high"]))
    if low > 0:
        return "gain"
    return "loss" if high < 0 else "neither"


def _about(content: ReportContent) -> str:
    clients = content.clients.groupby(["method", "seed"])[["n_train", "n_test"]].sum().mean()
    number_of_clients = int(content.clients.groupby("seed")["client"].nunique().max())
    count = wording.plural(number_of_clients, content.client_noun)
    samples = f"{clients['n_train']:,.0f} training and {clients['n_test']:,.0f} test samples"
    methods = len(content.methods)
    were = "was" if methods == 1 else "were"
    times = wording.plural(len(content.seeds), "time")
    metric = content.metric
    # a user's own metric has no description
    meaning = f" {metric.title}: {registry.summary(metric.name)}" if metric.name in registry else ""
    return (
        f"{wording.plural(methods, 'method')} {were} compared on {count} with {samples}, each repeated {times} (seeds). "
        f"Scores are {metric.word} on samples that were not used for training.{meaning} {content.about}"
    )


def _risks(content: ReportContent) -> list[str]:
    """The epsilon of private methods, the warnings of the report, and what holds of every comparison."""
    sentences = []
    few = content.decision.few_clients
    if few:
        sentences.append(
            f"{wording.capital(wording.not_judged(few, content.client_noun))}: chance alone decides what they score."
        )
    sentences += epsilons(content)
    warnings = [*content.warnings, *findings(content).cautions]
    for text in warnings[:MAX_WARNINGS]:
        sentences.append(wording.capital(wording.short(text, MAX_WARNING_LETTERS)))
    # holds of every comparison, and stands last for that
    sentences.append(
        "These are past data. New patients, devices or rules of coding can change every number; test again before use."
    )
    return sentences


def _cost(content: ReportContent) -> str:
    """Traffic and time of a training run with the method of the answer."""
    table = {row["method"]: row for row in rows(content.scores_of(content.deciding_protocol))}
    name = content.decision.in_use
    if name not in table:
        return "The cost was not measured."
    row = table[name]
    sent = wording.megabytes(row["mb_down"] + row["mb_up"])
    return f"One training run of {name}: {sent} MB sent, {wording.duration(row['seconds'])} of computation."
