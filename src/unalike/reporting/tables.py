"""The report's tables: every number of the charts, as text that can be sorted, copied and read aloud."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from unalike.metrics.columns import USED
from unalike.metrics.costs import to_target, totals
from unalike.metrics.moderated_t import ALPHA
from unalike.metrics.named_metrics import MISSING, Metric
from unalike.metrics.statistics import client_effects, scoring_rule, tail_mean
from unalike.metrics.verdicts import CANDIDATE
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look
from unalike.reporting.content import MODELS, ReportContent
from unalike.reporting.rows import Row, rows
from unalike.runtime.records.history import DIVERGED
from unalike.runtime.stopping import ALL_DONE


@dataclass(frozen=True)
class Cell:
    """Text, and the value by which it is sorted; numbers are aligned right. `look` adds the swatch of a method."""

    text: str
    value: float | str
    look: Look | None = None

    @property
    def numeric(self) -> bool:
        return not isinstance(self.value, str)


@dataclass(frozen=True)
class Table:
    """A table with a caption; the first cell of each row is the row's heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


Column = tuple[str, Callable[[Row], Cell]]


def scores(content: ReportContent, summary: pd.DataFrame, protocol: str, looks: dict[str, Look]) -> Table | None:
    """Score, difference and interval of every method under one protocol; None if the protocol scored no method."""
    metric, shown = content.metric, summary[summary["protocol"] == protocol]
    columns: list[Column] = [("Method", _method(looks))]
    if protocol == USED:
        columns.append(("Model", lambda r: _text(content.model_in_use(r["method"]))))
    columns += [
        (metric.title, lambda r: Cell(wording.score(r[metric.column], metric), r[metric.column])),
        ("± sd", lambda r: Cell(wording.spread(r[f"{metric.column}_sd"], metric), r[f"{metric.column}_sd"])),
    ]
    if shown["difference"].notna().any():
        columns += [("Verdict", _verdict), *_compared(f"Difference to {content.baseline}", metric)]
        columns.append(("P(best)", lambda r: Cell(wording.chance(r["probability_best"]), r["probability_best"])))
    columns += [(other.title, _value(other)) for other in content.columns.further if other.column in content.rounds]
    columns += [
        ("Loss", lambda r: Cell(wording.decimal(r["loss"]), r["loss"])),
        ("Seeds", lambda r: Cell(str(r["seeds"]), r["seeds"])),
    ]
    return _table(f"{_SCORE_CAPTIONS[protocol]}: {scoring_rule(content.rounds, content.columns)}", columns, shown)


def _verdict(row: Row) -> Cell:
    """The verdict on a candidate; for other methods the reason why they are none."""
    return _text(row["verdict"] if row["role"] == CANDIDATE else row["role"])


def _text(text: str) -> Cell:
    return Cell(text, text)


def _value(metric: Metric) -> Callable[[Row], Cell]:
    return lambda r: Cell(metric.text(r[metric.column]), r[metric.column])


_SCORE_CAPTIONS = {
    "server": "The shared model, on the server's held-out test set",
    "clients": "The shared model, on the clients' test data",
    "personal": "Each client's own model, on its own test data",
    "local": "Each client's model after local training, on its own test data",
    USED: "The models that clients use, on their test data",
}


def tests(content: ReportContent, summary: pd.DataFrame, protocol: str, looks: dict[str, Look]) -> Table | None:
    """All numbers behind the verdicts under one protocol; None if nothing could be tested."""
    shown = summary[(summary["protocol"] == protocol) & summary["p"].notna()]
    columns: list[Column] = [
        ("Method", _method(looks)),
        *_compared(f"Difference to {content.baseline}", content.metric)[:2],
        (
            "Bootstrap interval",
            lambda r: Cell(wording.interval(r["boot_low"], r["boot_high"], content.metric), r["boot_low"]),
        ),
        _p("t test, p", "p"),
        _p("corrected", "p_holm"),
        _p("sign flips, corrected p", "p_exact"),
        ("Seeds won", lambda r: Cell(f"{r['won']} of {r['pairs']}", r["won"])),
        ("P(better)", lambda r: Cell(wording.share(r["better"]), r["better"])),
    ]
    return _table(f"The tests over paired seeds: {MODELS[protocol]}", columns, shown)


def target(content: ReportContent, protocol: str, looks: dict[str, Look]) -> Table | None:
    """The cost until a protocol's score first reaches the target, by default the baseline's final mean."""
    column, metric = content.scores[protocol], content.metric
    final = tail_mean(content.rounds, column)
    if content.target is None and content.baseline not in final.index.get_level_values("method"):
        return None
    goal = float(final.loc[content.baseline].mean()) if content.target is None else content.target
    if not math.isfinite(goal):  # the baseline diverged
        return None
    lost = Counter(end["method"] for end in content.ends if end["why"] == DIVERGED)
    spent = to_target(content.rounds, goal, column, lost)

    def rounds(row: Row) -> str:
        missing = row["seeds"] - row["reached"]
        return f"not reached by {missing} of {row['seeds']}" if missing else f"{row['round']:.1f}"

    columns: list[Column] = [
        ("Method", _method(looks)),
        ("Rounds", lambda r: Cell(rounds(r), r["round"])),
        ("MB", lambda r: Cell(wording.megabytes(r["mb"]), r["mb"])),
        ("Time", lambda r: Cell(wording.duration(r["seconds"]), r["seconds"])),
        ("Seeds", lambda r: Cell(str(r["seeds"]), r["seeds"])),
    ]
    own = f", the final mean of {content.baseline}" if content.target is None else ""
    what = wording.score(goal, metric) + own
    return _table(
        f"Cost to reach {metric.word} {what}, {MODELS[protocol]}: mean over seeds, if all reach it", columns, spent
    )


def ends(content: ReportContent, looks: dict[str, Look]) -> Table | None:
    """The end of each run with its reason, and the selected round; None if all ran all their rounds and none was selected."""
    if not any(end["selected"] is not None or end["why"] != ALL_DONE for end in content.ends):
        return None
    columns: list[Column] = [
        ("Method", _method(looks)),
        ("Seed", lambda r: Cell(str(r["seed"]), r["seed"])),
        ("Rounds", lambda r: Cell(wording.decimal(r["rounds"], 0), r["rounds"])),
        ("Ended by", lambda r: Cell(str(r["why"]), str(r["why"]))),
    ]
    table = pd.DataFrame(content.ends).astype({"rounds": float})
    if table["selected"].notna().any():
        columns.append(("Selected round", lambda r: Cell(wording.decimal(r["selected"], 0), r["selected"])))
    return _table("End of each run", columns, table)


def estimate(content: ReportContent) -> Table | None:
    """The estimated cost beside the actual one; None if there is no estimate."""
    columns: list[Column] = [
        ("Cost of", lambda r: Cell(str(r["what"]), str(r["what"]))),
        ("", lambda r: Cell(str(r["unit"]), str(r["unit"]))),
        ("Estimated", lambda r: Cell(wording.decimal(r["estimated"], 1), r["estimated"])),
        ("Actual", lambda r: Cell(wording.decimal(r["actual"], 1), r["actual"])),
    ]
    table = pd.DataFrame(content.estimate, columns=["what", "unit", "estimated", "actual"]).astype({"actual": float})
    return _table("Cost per run: the estimate of --dry-run and the actual cost", columns, table)


def effects(content: ReportContent, summary: pd.DataFrame, protocol: str, looks: dict[str, Look]) -> Table | None:
    """Spread over clients, worst clients, and gains and losses of clients compared with the baseline."""
    metric, base = content.metric, content.baseline
    shown = summary.loc[summary["protocol"] == protocol, ["method", "client_sd", "worst_decile"]].merge(
        client_effects(content.clients, base, content.scores[protocol]), on="method"
    )
    shown = shown[shown["worst"].notna()]
    columns: list[Column] = [
        ("Method", _method(looks)),
        ("Spread over clients (sd)", lambda r: Cell(wording.spread(r["client_sd"], metric), r["client_sd"])),
        ("Worst tenth", lambda r: Cell(wording.score(r["worst_decile"], metric), r["worst_decile"])),
        ("Worst client", lambda r: Cell(wording.score(r["worst"], metric), r["worst"])),
    ]
    if shown["better_off"].notna().any():
        columns += [
            (f"Better off than with {base}", lambda r: Cell(wording.share(r["better_off"]), r["better_off"])),
            ("Worse off", lambda r: Cell(wording.share(r["worse_off"]), r["worse_off"])),
            ("Largest loss of a client", lambda r: Cell(wording.spread(r["largest_loss"], metric), r["largest_loss"])),
        ]
    return _table(_EFFECT_CAPTIONS[protocol], columns, shown)


_EFFECT_CAPTIONS = {
    "server": "Single clients: the shared model",
    "clients": "Single clients: the shared model",
    "personal": "Single clients: their personal models",
    "local": "Single clients: their models after local training",
    USED: "Single clients: the models in use",
}


def single_clients(content: ReportContent, looks: dict[str, Look]) -> Table | None:
    """One row per client under the first seed: its samples and its score with each method.

    Only one seed is shown, because another seed may have another partition and so other clients.
    """
    metric = content.metric
    first = content.clients[content.clients["seed"] == content.seed]
    wide = pd.concat([_wide(first, content.scores[name].name, _TAGS[name]) for name in content.tabled], axis=1)
    facts = first.groupby("client", sort=False)[["n_train", "n_test"]].first()
    columns: list[Column] = [("Client", lambda r: Cell(str(r["client"]), str(r["client"])))]
    columns += [_count("Training samples", "n_train"), _count("Test samples", "n_test")]
    columns += [(str(name), _score_of(str(name), metric)) for name in wide]
    return _table(f"Every client, seed {content.seed}", columns, facts.join(wide).reset_index())


_TAGS = {"server": "", "clients": "", "personal": ", personal", "local": ", after local training", USED: ", in use"}


def costs(content: ReportContent, looks: dict[str, Look]) -> Table | None:
    """Traffic and time of a whole run."""
    columns: list[Column] = [
        ("Method", _method(looks)),
        ("MB to clients", lambda r: Cell(wording.megabytes(r["mb_down"]), r["mb_down"])),
        ("MB from clients", lambda r: Cell(wording.megabytes(r["mb_up"]), r["mb_up"])),
        ("Time", lambda r: Cell(wording.duration(r["seconds"]), r["seconds"])),
    ]
    spent = totals(content.rounds).reindex(content.labels).rename_axis("method").reset_index()
    return _table("A whole run with all its clients, mean over seeds", columns, spent)


def wire(content: ReportContent, looks: dict[str, Look]) -> Table | None:
    """Everything that enters and leaves a client; None if unknown."""
    if content.wire is None:
        return None
    columns: list[Column] = [
        ("Method", _method(looks)),
        ("Direction", lambda r: Cell(str(r["direction"]), str(r["direction"]))),
        ("What", lambda r: Cell(str(r["what"]), str(r["what"]))),
        ("Size", lambda r: Cell(wording.size(r["bytes"]), r["bytes"])),
    ]
    return _table("Sent to and from one client in a round", columns, content.wire)


def methods(content: ReportContent, looks: dict[str, Look]) -> Table | None:
    columns: list[Column] = [("Method", _method(looks)), ("Every field", lambda r: Cell(r["spec"], r["spec"]))]
    if any(method.work for method in content.methods):
        columns.append(("Local training of its own", lambda r: Cell(r["work"] or MISSING, r["work"])))
    specs = pd.DataFrame([{"method": m.label, "spec": m.spec, "work": m.work} for m in content.methods])
    return _table("The methods, with every field", columns, specs)


def facts(caption: str, values: dict[str, Any]) -> Table | None:
    """A table of names and values, such as versions."""
    if not values:
        return None
    pairs = [[Cell(str(name), str(name)), Cell(wording.plain(value), str(value))] for name, value in values.items()]
    return Table(caption, ("Name", "Value"), pairs)


def _table(caption: str, columns: list[Column], table: pd.DataFrame) -> Table | None:
    if table.empty:
        return None
    cells = [[cell(row) for _, cell in columns] for row in rows(table)]
    return Table(caption, [title for title, _ in columns], cells)


def _method(looks: dict[str, Look]) -> Callable[[Row], Cell]:
    return lambda row: Cell(str(row["method"]), str(row["method"]), looks.get(row["method"]))


def _compared(title: str, metric: Metric) -> list[Column]:
    return [
        (title, lambda row: Cell(wording.change(row["difference"], metric), row["difference"])),
        (
            f"{wording.confidence(ALPHA)} interval",
            lambda row: Cell(wording.interval(row["ci_low"], row["ci_high"], metric), row["ci_low"]),
        ),
        _p("p, corrected", "p_holm"),
    ]


def _p(title: str, column: str) -> Column:
    return title, lambda row: Cell(wording.probability(row[column]), row[column])


def _count(title: str, column: str) -> Column:
    return title, lambda row: Cell(f"{row[column]:,.0f}", float(row[column]))


def _score_of(column: str, metric: Metric) -> Callable[[Row], Cell]:
    return lambda row: Cell(wording.score(row[column], metric), row[column])


def _wide(clients: pd.DataFrame, column: str, tag: str) -> pd.DataFrame:
    """One column by client (rows) and method (columns); methods without a score are left out."""
    if column not in clients:
        return pd.DataFrame(index=clients["client"].unique())
    order = clients["method"].unique()
    table = clients.pivot(index="client", columns="method", values=column).reindex(columns=order)
    return table.dropna(axis=1, how="all").add_suffix(tag)
