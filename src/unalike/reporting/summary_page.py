"""The summary of a comparison for a board: one printed page without charts, jargon and scripts."""

import math
from typing import Any

import numpy as np
import pandas as pd

from unalike.reporting import wording
from unalike.reporting.client_tables import difference_to
from unalike.reporting.content import ReportContent
from unalike.reporting.findings import findings, privacy
from unalike.reporting.html import fill
from unalike.reporting.table import Table, interval, number, rows, words
from unalike.statistics.client_scores import MEAN, POOLED
from unalike.statistics.risks import FEWEST
from unalike.statistics.verdicts import EQUAL, WORSE

MOST_CLIENTS, MOST_RISKS, LONGEST = 12, 3, 240
"""Most clients and warnings on the page, and letters of a warning. Of more clients, the largest losses and gains are shown."""


def render(content: ReportContent) -> str:
    """Render the summary as one HTML document that fits one printed page. The same content gives the same text."""
    clients = _clients(content)
    return fill(
        "summary.html.j2",
        title=content.title,
        decision=_decision(content),
        clients=None if clients is None else _table(content, clients),
        about=_about(content),
        risks=_risks(content, clients),
        cost=_cost(content),
    )


def _decision(content: ReportContent) -> str:
    """The decision in one sentence."""
    found = content.decision
    if found.reason:
        return f"No decision: {wording.capital(found.reason)}"
    gain = f"{content.metric.difference(found.difference)} of {content.metric.word}"
    if found.choice == found.best:
        return f"Use {found.best} instead of {found.baseline}: it predicts better, by {gain}."
    if found.is_behind or found.verdicts[found.best] in (EQUAL, WORSE):
        none = "no other method predicts noticeably better"
        if found.choice:
            return f"Stay with {found.baseline}: {none}."
        return f"Stay with {found.baseline} for now: on average {none}, but that is not shown for all of them yet."
    return f"Stay with {found.baseline} for now: {found.best} may predict better, but that is not shown yet."


def _clients(content: ReportContent) -> pd.DataFrame | None:
    """The scores of the clients on the page with the best candidate, from the largest loss to the largest gain."""
    scores = content.client_scores
    if scores.empty:
        return None
    own = scores[
        (scores["method"] == content.decision.leader) & ~scores["client"].isin([MEAN, POOLED])
    ].dropna(subset="score")
    gain = content.metric_of_clients.sign * own[f"to_{content.baseline}"]
    own = own.assign(gain=gain).sort_values("gain", kind="stable")
    if len(own) > MOST_CLIENTS:
        own = own.iloc[[*range(MOST_CLIENTS // 2), *range(len(own) - MOST_CLIENTS // 2, len(own))]]
    return None if own.empty else own


def _table(content: ReportContent, own: pd.DataFrame) -> Table:
    """Each client with the best candidate: score, gain or loss with its interval, and that in one word."""
    best, metric, to = content.decision.leader, content.metric_of_clients, f"to_{content.baseline}"
    columns = [words("Client", "client"), number("Test samples", "n_test", wording.whole)]
    if own["n_positive"].notna().any():
        columns.append(number("Positives", "n_positive", wording.whole))
    columns.append(number(metric.title, "score", metric.text))
    if best != content.baseline:
        columns += [
            difference_to(content.baseline, metric),
            interval(
                f"{wording.confidence(content.rules.level)} interval",
                f"{to}_low",
                f"{to}_high",
                metric.interval,
            ),
            words("Shown", lambda row: _shown(row, to, metric.sign)),
        ]
    return Table.of(f"Every client with {best}", columns, rows(own))


def _shown(row: dict[str, Any], to: str, sign: int) -> str:
    """Whether the interval of a client's difference shows a gain or a loss."""
    low, high = sorted((sign * row[f"{to}_low"], sign * row[f"{to}_high"]))
    return "gain" if low > 0 else "loss" if high < 0 else "neither"


def _about(content: ReportContent) -> str:
    clients = content.clients.groupby(["method", "seed"])[["n_train", "n_test"]].sum().mean()
    count = wording.plural(int(content.clients.groupby("seed")["client"].nunique().max()), "client")
    samples = f"{clients['n_train']:,.0f} training and {clients['n_test']:,.0f} test samples"
    times = wording.plural(len(content.seeds), "time")
    return (
        f"{wording.plural(len(content.methods), 'method')} were compared on {count} with {samples}, each repeated {times}. "
        f"Scores are {content.metric.word} on samples that were not used for training. {content.about}"
    )


def _risks(content: ReportContent, clients: pd.DataFrame | None) -> list[str]:
    """The clients that lose, the epsilon of private methods, the warnings of the report, and what holds of every comparison."""
    warnings = [
        wording.short(text, LONGEST) for text in (*content.warnings, *findings(content).cautions)
    ]
    worst, found = list(content.decision.losers.items())[:MOST_RISKS], []
    if lose := [f"{name} ({content.metric.difference(d)})" for name, (d, *_) in worst]:
        found.append(
            f"With {content.decision.best}, on average these clients lose: {wording.listing(lose)}."
        )
    if clients is not None:
        fewest = np.minimum(clients["n_positive"], clients["n_test"] - clients["n_positive"])
        if few := list(map(str, clients["client"][fewest < FEWEST])):
            found.append(
                f"Fewer than {FEWEST} test samples of one outcome, so that nothing is certain: {wording.few(few, 'client')}."
            )
    always = "These are past data. New patients, devices or rules of coding can change every number; test again before use."
    return [*found, *privacy(content), *warnings[:MOST_RISKS], always]


def _cost(content: ReportContent) -> str:
    """Traffic and time of a training run with the best candidate, and how many times those of the baseline they are."""
    found = content.decision
    table = {row["method"]: row for row in rows(content.scored(content.decisive))}
    if (name := found.leader) not in table:
        return "The cost was not measured."
    row = table[name]
    sent, time = wording.megabytes(row["mb_down"] + row["mb_up"]), wording.duration(row["seconds"])
    own = f"One training run of {name}: {sent} MB sent, {time} of computation"
    times = [
        f"{ratio:.1f} times the {what}"
        for what, ratio in found.cost.items()
        if math.isfinite(ratio)
    ]
    return f"{own}{f' ({wording.listing(times)} of {content.baseline})' if times and name != content.baseline else ''}."
