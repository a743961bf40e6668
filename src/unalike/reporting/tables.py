"""The report's tables: every number of the charts, as text that can be sorted, copied and read aloud."""

import math
from collections import Counter
from functools import partial
from typing import Any

import pandas as pd

from unalike.metrics.columns import IN_USE, SIMULATED_SECONDS
from unalike.metrics.named_metrics import MISSING
from unalike.reporting import wording
from unalike.reporting.charts.palette import Looks
from unalike.reporting.content import ReportContent
from unalike.reporting.summary_columns import columns_of_clients, model_column, summary_columns
from unalike.reporting.table import Row, Table, TableCell, TableColumn, number, rows, words
from unalike.runtime.records.history import DIVERGED
from unalike.runtime.setup.stopping import ALL_DONE
from unalike.statistics.costs import to_target, totals
from unalike.statistics.race_account import Departure
from unalike.statistics.scores import client_effects, scoring_rule, tail_mean


def scores(content: ReportContent, protocol: str, looks: Looks) -> Table | None:
    """Score, difference and interval of every method under one protocol; None if the protocol scored no method."""
    shown = content.scores_of(protocol)
    by_name = summary_columns(content.metric, content.baseline, looks)
    columns = [by_name["method"]]
    if protocol == IN_USE:
        columns.append(model_column(content))
    columns += [by_name["score"], by_name["sd"]]
    if shown["difference"].notna().any():
        columns += [by_name[name] for name in ("verdict", "difference", "interval", "p", "best")]
    further = [other for other in content.columns.further if other.name in content.rounds]
    columns += [number(other.title, other.name, other.text) for other in further]
    columns += [by_name["loss"], by_name["seeds"]]
    rule = scoring_rule(content.rounds, content.columns)
    return _table(f"{wording.capital(content.models_of(protocol))}: {rule}", columns, shown)


def tests(content: ReportContent, protocol: str, looks: Looks) -> Table | None:
    """All numbers behind the verdicts under one protocol; None if nothing could be tested."""
    shown = content.scores_of(protocol).dropna(subset="p")
    by_name = summary_columns(content.metric, content.baseline, looks)
    names = ("method", "difference", "interval", "bootstrap", "t", "p", "exact", "won", "better")
    columns = [by_name[name] for name in names]
    return _table(f"The tests over paired seeds: {content.models_of(protocol)}", columns, shown)


def target(content: ReportContent, protocol: str, looks: Looks) -> Table | None:
    """The cost until a protocol's score first reaches the target, by default the baseline's final mean."""
    column = content.scores[protocol]
    metric = content.metric
    goal = content.target
    what = ""
    if goal is None:
        final = tail_mean(content.rounds, column)
        if content.baseline not in final.index.get_level_values("method"):
            return None
        goal = float(final.loc[content.baseline].mean())
        what = f", the final mean of {content.baseline}"
    # a baseline that diverged has no final mean
    if not math.isfinite(goal):
        return None
    diverged = Counter(end["method"] for end in content.ends if end["why"] == DIVERGED)
    is_judged = content.rounds["method"].isin(content.scores_of(protocol)["method"])
    spent = to_target(content.rounds[is_judged], goal, column, lost=diverged)

    def rounds(row: Row) -> TableCell:
        missing = row["seeds"] - row["reached"]
        text = f"not reached by {missing} of {row['seeds']}" if missing else f"{row['round']:.1f}"
        return TableCell(text, row["round"])

    by_name = summary_columns(metric, content.baseline, looks)
    columns = [
        by_name["method"],
        TableColumn("Rounds", rounds),
        number("MB", "mb", wording.megabytes),
        by_name["time"],
        *[by_name[name] for name in (SIMULATED_SECONDS,) if name in spent],
        by_name["seeds"],
    ]
    models = content.models_of(protocol)
    caption = f"Cost to reach {metric.word} {metric.text(goal)}{what}, {models}: mean over seeds, if all reach it"
    return _table(caption, columns, spent)


def ends(content: ReportContent, looks: Looks) -> Table | None:
    """The end of each run with its reason, and the selected round; None if all ran all their rounds and none was selected."""
    if not any(end["selected"] is not None or end["why"] != ALL_DONE for end in content.ends):
        return None
    columns = [
        words("Method", "method", looks),
        number("Seed", "seed"),
        number("Rounds", "rounds", wording.whole),
        words("Ended by", "why"),
    ]
    table = pd.DataFrame(content.ends).astype({"rounds": float})
    if table["selected"].notna().any():
        columns.append(number("Selected round", "selected", wording.whole))
    return _table("End of each run", columns, table)


def estimate(content: ReportContent) -> Table | None:
    """The estimated cost beside the actual one; None if there is no estimate."""
    one_decimal = partial(wording.decimal, digits=1)
    columns = [
        words("Cost of", "what"),
        words("", "unit"),
        number("Estimated", "estimated", one_decimal),
        number("Actual", "actual", one_decimal),
    ]
    table = pd.DataFrame(content.estimate, columns=["what", "unit", "estimated", "actual"])
    table = table.astype({"actual": float})
    return _table("Cost per run: the estimate of --dry-run and the actual cost", columns, table)


def effects(content: ReportContent, protocol: str, looks: Looks) -> Table | None:
    """Spread over clients, worst clients, and gains and losses of clients compared with the baseline."""
    metric = content.metric
    noun = content.client_noun
    base = content.baseline
    spread = content.scores_of(protocol)[["method", "client_sd", "worst_decile"]]
    gains = client_effects(content.clients, base, content.scores[protocol])
    shown = spread.merge(gains, on="method")
    shown = shown[shown["worst"].notna()]
    by_name = summary_columns(metric, base, looks) | columns_of_clients(content)
    columns = [by_name["method"], by_name["spread"]]
    worst_one = f"Worst {noun}"
    if by_name["worst"].title != worst_one:
        columns.append(by_name["worst"])
    columns.append(number(worst_one, "worst", metric.text))
    if shown["better_off"].notna().any():
        columns += [
            number(f"Better off than with {base}", "better_off", wording.share),
            number("Worse off", "worse_off", wording.share),
            number(f"Largest loss of a {noun}", "largest_loss", metric.amount),
        ]
    return _table(f"Single {wording.several(noun)}: {content.models_of(protocol)}", columns, shown)


def single_clients(content: ReportContent, looks: Looks) -> Table | None:
    """One row per client under the first seed: its samples and its score with each method.

    Only one seed is shown, because another seed may have another partition and so other clients.
    """
    metric = content.metric
    noun = content.client_noun
    first = content.clients[content.clients["seed"] == content.seed]
    by_protocol = [
        _by_client(first, content.scores[name].name, suffix=_SUFFIXES[name])
        for name in content.protocols_with_tables
    ]
    scores = pd.concat(by_protocol, axis=1)
    sizes = first.groupby("client", sort=False)[["n_train", "n_test"]].first()
    columns = [
        words(wording.capital(noun), "client"),
        number("Training samples", "n_train", wording.whole),
        number("Test samples", "n_test", wording.whole),
    ]
    columns += [number(str(name), str(name), metric.text) for name in scores]
    return _table(f"Every {noun}, seed {content.seed}", columns, sizes.join(scores).reset_index())


_SUFFIXES = {
    "server": "",
    "clients": "",
    "personal": ", personal",
    "local": ", after local training",
    IN_USE: ", in use",
}


def race(content: ReportContent, looks: Looks) -> Table | None:
    """The methods that left a race, with the difference that a look found; None for other comparisons, and if all stayed."""
    if content.race is None or not content.race.departures:
        return None
    metric = content.metric

    def between(departure: Departure) -> TableCell:
        if departure.low is None or departure.high is None:
            return TableCell(MISSING, math.nan)
        return TableCell(metric.interval(departure.low, departure.high), departure.low)

    columns = [
        words("Method", lambda departure: departure.method, looks),
        words("Why it left", lambda departure: departure.why),
        number("After seeds", lambda departure: departure.seeds or None),
        number("Difference", lambda departure: departure.difference, metric.difference),
        TableColumn(f"{wording.confidence(content.rules.level)} interval", between),
    ]
    return Table.of("What left the race", columns, content.race.departures)


def costs(content: ReportContent, looks: Looks) -> Table | None:
    """Traffic and time of a whole run."""
    several = wording.several(content.client_noun)
    by_name = summary_columns(content.metric, content.baseline, looks) | columns_of_clients(content)
    spent = totals(content.rounds).reindex(content.labels).rename_axis("method").reset_index()
    names = ["method", "down", "up", "time"]
    if spent["evaluation_seconds"].notna().any():
        names.append("evaluation")
    if SIMULATED_SECONDS in spent:
        names.append(SIMULATED_SECONDS)
    columns = [by_name[name] for name in names]
    return _table(f"A whole run with all its {several}, mean over seeds", columns, spent)


def wire(content: ReportContent, looks: Looks) -> Table | None:
    """Everything that enters and leaves a client; None if unknown."""
    if content.wire is None:
        return None
    columns = [
        words("Method", "method", looks),
        words("Direction", "direction"),
        words("What", "what"),
        number("Size", "bytes", wording.size),
    ]
    return _table(f"Sent to and from one {content.client_noun} in a round", columns, content.wire)


def methods(content: ReportContent, looks: Looks) -> Table | None:
    """The methods with every field, and with a local training of their own where some have one."""
    columns = [words("Method", "method", looks), words("Every field", "spec")]
    if any(method.work for method in content.methods):
        columns.append(words("Local training of its own", "work"))
    specs = pd.DataFrame(
        [{"method": m.label, "spec": m.spec, "work": m.work} for m in content.methods]
    )
    return _table("The methods, with every field", columns, specs)


def names_and_values(caption: str, values: dict[str, Any]) -> Table | None:
    """A table of names and values, such as versions."""
    if not values:
        return None
    columns = [
        words("Name", lambda item: item[0]),
        words("Value", lambda item: wording.value(item[1])),
    ]
    return Table.of(caption, columns, values.items())


def _table(caption: str, columns: list[TableColumn], table: pd.DataFrame) -> Table | None:
    return None if table.empty else Table.of(caption, columns, rows(table))


def _by_client(clients: pd.DataFrame, column: str, suffix: str) -> pd.DataFrame:
    """One column by client (rows) and method (columns); methods without a score are left out."""
    if column not in clients:
        return pd.DataFrame(index=clients["client"].unique())
    table = clients.pivot(index="client", columns="method", values=column)
    # in the order of the methods, not sorted by their names
    table = table.reindex(columns=clients["method"].unique())
    return table.dropna(axis=1, how="all").add_suffix(suffix)
