"""The results of a comparison: tables, summary and report; in memory or in a folder."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unalike._utils.errors import UnalikeError, refuse_empty_path
from unalike._utils.notebook import bold_paragraph, paragraph
from unalike._utils.tensor_files import write_bytes
from unalike.comparison.comparison_json import ComparisonFacts, read_facts
from unalike.comparison.run_as_comparison import facts_of_run
from unalike.data.partitioning.origin_schemes import SITE, client_noun
from unalike.metrics.columns import Columns
from unalike.metrics.named_metrics import read
from unalike.runtime.records.history import History, Row, last_stage
from unalike.runtime.records.run_directory import RunDirectory
from unalike.statistics.seed_draws import SharedDetails

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from unalike.reporting.content import ReportContent
    from unalike.reporting.decision import Decision
    from unalike.reporting.findings import Findings
    from unalike.reporting.together_or_alone import TogetherOrAlone

COLUMNS = {
    "rounds": {"round", "seconds", "bytes_down", "bytes_up"},
    "clients": {"client", "n_train", "n_test"},
}
"""Columns that each table must have."""
OPTIONAL_TABLES = ("client_rounds", "resampled", "risks", "fitted", "timeline")
"""Tables that a comparison may have besides."""
MOST_CLIENTS, MOST_ROUNDS = 100, 150
"""With more clients their rounds are not kept; of more evaluated rounds, so many evenly spaced ones are."""
MOST_CLIENTS_OF_TIMELINE = 50
"""Of more clients with simulated devices, the timeline of those with the lowest numbers is kept."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The results of several methods under several seeds, as `ua.compare` returns them.

    Attributes:
        rounds: the history of every run, with the columns `method` and `seed` in front.
        clients: one row per method, seed and client: means over the rounds that the score of a run counts, or the
            values of the selected round where one was selected.
        columns: what the columns of scores in these tables measure.
        facts: how the data differs, what crosses the wire, how to repeat the comparison.
        client_rounds: the scores of single clients by round, for at most 100 clients; None for more.
        resampled: scores on resampled test samples where all seeds have the same ones: `method seed draw` and the headline metric
            under each protocol; None where each seed tests others.
        risks: the test samples of two-class tasks after the last round, `method seed client outcome risk`; None for other tasks
            and very many samples.
        fitted: the scores of references that scikit-learn fitted to convergence, each client alone and all data pooled
            (`statistics.fitted_scores`); None for data that is no table.
        timeline: `method seed` and the columns of `History.timeline`, for at most 50 clients; None without simulated devices.

    Example:
        >>> clients = ua.partition(ua.load("digits"), "dirichlet(alpha=0.1)", clients=3)  # doctest: +SKIP
        >>> table = ua.compare(["fedavg", "fedprox(mu=0.1)"], clients, rounds=5, seeds=2)  # doctest: +SKIP
        >>> table.summary[["method", "accuracy", "difference"]]  # doctest: +SKIP
        >>> table.report("report.html")  # doctest: +SKIP
    """

    rounds: pd.DataFrame
    clients: pd.DataFrame
    columns: Columns
    facts: ComparisonFacts
    client_rounds: pd.DataFrame | None = None
    resampled: pd.DataFrame | None = None
    risks: pd.DataFrame | None = None
    fitted: pd.DataFrame | None = None
    timeline: pd.DataFrame | None = None

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per method and protocol: mean score, role, verdict, difference to the baseline with its tests.

        A run's score is its mean over the last third of its evaluated rounds, at most ten, or that of the selected round.
        """
        return self._content.summary

    @property
    def decision(self) -> Decision:
        """The decision that the results support, by the models that clients would use; its `answer` is one sentence."""
        return self._content.decision

    @property
    def shared_decision(self) -> Decision:
        """The decision for one model that serves all clients."""
        return self._content.shared_decision

    def together_or_alone(self) -> TogetherOrAlone | None:
        """Whether training together pays, by models of scikit-learn that were fitted to convergence on the same rows.

        `str(answer)` begins with the answer in one line. None for data that is no table, and before the comparison has ended.
        """
        from unalike.reporting.together_or_alone import together_or_alone

        return together_or_alone(self._content)

    @property
    def findings(self) -> Findings:
        """The report in words: the answer, its key facts, one sentence per method, and the limits."""
        from unalike.reporting.findings import findings

        return findings(self._content)

    @cached_property
    def _content(self) -> ReportContent:
        return self.content()

    @property
    def tables(self) -> dict[str, Any]:
        """Name of a table, in its folder too -> the table, or None."""
        return {name: getattr(self, name) for name in (*COLUMNS, *OPTIONAL_TABLES)}

    @property
    def name(self) -> str:
        """The data set and the partition as the user wrote them, such as `digits, iid`."""
        config = tomllib.loads(self.facts.config)
        texts = (config.get(key) or self.facts.partition.get(key) for key in ("data", "partition"))
        return ", ".join(str(text) for text in texts if text) or "your clients"

    @property
    def client_noun(self) -> str:
        """The word for a client: `site` in a federation, the column of the owners where one divides the data, else `client`."""
        # joined folders have the text of several configurations, which is no TOML
        settings = self.facts.config.splitlines()
        if any(line.startswith("federation = ") for line in settings):
            return SITE
        return client_noun(str(self.facts.partition.get("partition", "")))

    def judged_by(
        self,
        smallest_effect: float | None = None,
        across: str | None = None,
        baseline: str | None = None,
    ) -> Comparison:
        """The same results with another smallest effect of interest, score of all clients, or baseline; None changes nothing.

        `across`: "pooled" (the metric of all test samples together), "clients" (its mean over the clients) or "worst" (over the
        worst tenth of them). `baseline`: the label of one of the methods.

        By another score of all clients the metric that the user chose decides, also where no value of it is known of all samples
        together: a federation has each site's own ROC AUC alone.
        """
        facts = self.facts
        columns = self.columns
        if smallest_effect is not None:
            facts = replace(facts, smallest_effect=smallest_effect)
        if across not in (None, facts.across):
            facts = replace(facts, across=across)
            columns = columns.led_by(_chosen_metrics(facts))
        if baseline is not None:
            facts = replace(facts, baseline=baseline)
        return replace(self, facts=facts, columns=columns)

    @property
    def client_scores(self) -> pd.DataFrame:
        """The score of each client with each method: mean over seeds, interval, difference to the baseline and to training alone.

        The columns are those of `statistics.client_scores.client_scores`. Empty where seeds divide the data among other clients.
        """
        return self._content.client_scores

    def report(
        self, path: str | Path | None = None, title: str | None = None, summary: bool = False
    ) -> Path:
        """Write the report as one HTML file that needs no network, or its table for a paper.

        Args:
            path: the file to write; `report.html` or `summary.html` unless given. The ending says the format: `.html`, or a table
                as `.md`, `.tex`, `.csv` or `.json`.
            title: headline of the page; made from the methods and the data unless given.
            summary: write one page for a board instead: decision, clients that gain or lose, limits, and cost.

        Returns:
            The path of the file.

        Raises:
            UnalikeError: if the file cannot be written, or has another ending.
        """
        from unalike.reporting import export, html, summary_page

        refuse_empty_path("the report", path)
        content = self.content(title)
        target = path or ("summary.html" if summary else "report.html")
        if (kind := export.format_of(target)) != "html":
            if title is not None or summary:
                raise UnalikeError(
                    f"{target} is a table, without title and summary; leave them out, or write .html"
                )
            return html.write_text(export.export([(self.name, content)], kind), target)
        page = summary_page.render(content) if summary else html.render(content)
        return html.write_text(page, target)

    def content(self, title: str | None = None, target: float | None = None) -> ReportContent:
        """The content of the report and of its figures. `target`: the score for which the costs are compared."""
        import pandas as pd

        from unalike.comparison.references import is_alone, is_grouped, protects, reference
        from unalike.reporting.content import MethodResult, ReportContent
        from unalike.reporting.wording import plural

        facts = self.facts
        if not title:
            data = facts.partition.get("data", "your clients")
            title = f"{plural(len(facts.methods), 'method')} on {data}"
        counts = None
        if facts.label_counts is not None:
            counts = pd.DataFrame.from_dict(facts.label_counts, orient="index")

        # What a method is follows from its spec, so that the folder need not say it.
        methods = []
        for method in facts.methods:
            spec = method["spec"]
            methods.append(
                MethodResult(
                    method["label"],
                    spec,
                    reference=reference(spec),
                    untuned=method.get("untuned", ""),
                    work=method.get("work", ""),
                    alone=is_alone(spec),
                    grouped=is_grouped(spec),
                    protects=protects(spec),
                )
            )
        shared = {field.name: getattr(facts, field.name) for field in fields(SharedDetails)}
        return ReportContent(
            **shared,
            title=title,
            methods=methods,
            **self.tables,
            columns=self.columns,
            label_counts=counts,
            wire=pd.DataFrame(facts.wire) if facts.wire else None,
            warnings=facts.notes,
            client_noun=self.client_noun,
            target=target,
        )

    def save(self, folder: str | Path) -> None:
        """Write the tables and the facts into a folder, which is made; `ua.open_comparison` reads them."""
        refuse_empty_path("the folder", folder)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Of an earlier comparison in this folder, which had tables that this one lacks.
        for name in OPTIONAL_TABLES:
            (folder / f"{name}.parquet").unlink(missing_ok=True)
        self.columns.save(folder)
        for name, table in self.tables.items():
            if table is not None:
                write_bytes(folder / f"{name}.parquet", table.to_parquet(index=False))
        self.facts.save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """Read a comparison or a run from its folder, as `open_comparison`. Of an unfinished run, read the rounds that are done."""
        folder = Path(folder)
        try:
            rounds, clients = (_read(folder / f"{name}.parquet") for name in COLUMNS)
            _check_columns(rounds=rounds, clients=clients)
            files = {name: folder / f"{name}.parquet" for name in OPTIONAL_TABLES}
            kept = {name: _read(file) for name, file in files.items() if file.exists()}
            is_single_run = bool(RunDirectory(folder).events)
            columns = Columns.load(folder)
            rows, client_rows = (
                cast(list[Row], table.to_dict("records")) for table in (rounds, clients)
            )
            history = History(rows, client_rows, columns)
            facts = facts_of_run(folder, history) if is_single_run else read_facts(folder)
        except (OSError, ValueError, TypeError, KeyError) as error:
            if (folder / "sweep.json").exists():
                raise UnalikeError(
                    f"{folder} holds a sweep, whose page is sweep.html; the folders in {folder / 'points'} hold its comparisons"
                ) from None
            found = (
                f"{folder} holds no finished comparison or run ({error})"
                if folder.exists()
                else f"{folder} does not exist"
            )
            raise UnalikeError(
                f"{found}; give a folder that `unalike compare --out` or "
                "`unalike run --out` wrote, or run the command to its end"
            ) from None
        if "method" not in rounds:
            risks = None if facts.unfinished else kept.get("risks")
            return cls._of_run(history, facts, risks, kept.get("timeline"))
        return cls(rounds, clients, columns, facts, **kept)

    @classmethod
    def _of_run(
        cls,
        history: History,
        facts: ComparisonFacts,
        risks: pd.DataFrame | None,
        timeline: pd.DataFrame | None,
    ) -> Comparison:
        """The comparison of one method under one seed, from the history of a single run."""
        label, seed = facts.methods[0]["label"], facts.seed
        by_round = client_rounds(history, facts.clients, _chosen_metrics(facts))
        clients = labelled(last_rounds(history, facts.clients), label, seed)
        if risks is not None:
            clients["n_positive"] = clients["client"].map(risks.groupby("client")["outcome"].sum())
        if timeline is not None:
            timeline = labelled(client_timeline(timeline, facts.clients), label, seed)
        return cls(
            labelled(history.rounds, label, seed),
            clients,
            history.columns,
            facts,
            None if by_round is None else labelled(by_round, label, seed),
            risks=None if risks is None else labelled(risks, label, seed),
            timeline=timeline,
        )

    def plot(self, kind: str = "decision", protocol: str | None = None) -> go.Figure:
        """Draw the comparison with the charts of the report.

        Args:
            kind: "decision" (differences to the baseline with their intervals), "curves" (the score over the rounds) or
                "clients" (the scores of all clients).
            protocol: "clients", "personal", ...: the models that are drawn; those of the first protocol unless given.

        Returns:
            The Plotly figure.

        Raises:
            UnalikeError: the kind is unknown, or there is nothing to draw, such as differences of a single method.
        """
        from unalike.reporting.figures import comparison_figure

        return comparison_figure(self._content, kind, protocol)

    def __repr__(self) -> str:
        from unalike.reporting.wording import plural

        methods = ", ".join(method["label"] for method in self.facts.methods)
        return f"<Comparison of {methods} on {self.name}, {plural(self.rounds['seed'].nunique(), 'seed')}>"

    def _repr_html_(self) -> str:
        from unalike.reporting.client_tables import overview
        from unalike.reporting.table import html

        tables = [paragraph(table.caption) + html(table) for table in overview(self._content)]
        answers = [bold_paragraph(answer) for answer in self._answers]
        return "".join([paragraph(repr(self)), *answers, *tables, paragraph(self._content.about)])

    def __str__(self) -> str:
        from unalike.reporting.client_tables import overview
        from unalike.reporting.table import aligned_text

        tables = [
            f"{table.caption}\n{aligned_text(table)}".lstrip() for table in overview(self._content)
        ]
        return "\n\n".join([*self._answers, *tables, self._content.about])

    @property
    def _answers(self) -> list[str]:
        """Whether to train together, where that is known, and which method to use, in one line each."""
        together = self.together_or_alone()
        answers = [] if together is None else [together.answer]
        return [*answers, self.decision.answer]


def _read(file: Path) -> pd.DataFrame:
    """A stored table. Raises `ValueError`, with the name of the file, if it is damaged."""
    import pandas as pd

    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name}: {error}") from None


def _check_columns(**tables: pd.DataFrame) -> None:
    for name, table in tables.items():
        if missing := sorted(COLUMNS[name] - {*table}):
            raise ValueError(f"{name}.parquet lacks {', '.join(missing)}")


def in_method_order(comparison: Comparison) -> Comparison:
    """The comparison with the rows of its tables in the order of its methods."""
    from unalike.statistics.scores import in_order

    order = [method["label"] for method in comparison.facts.methods]
    return replace(
        comparison,
        rounds=in_order(comparison.rounds, order),
        clients=in_order(comparison.clients, order),
    )


def labelled(table: pd.DataFrame, method: str, seed: int) -> pd.DataFrame:
    """The table with the columns `method` and `seed` in front."""
    columns = list(table)
    return table.assign(method=method, seed=seed)[["method", "seed", *columns]]


def last_rounds(history: History, names: Sequence[str]) -> pd.DataFrame:
    """One row per client: the means of its metrics over the rounds that the score of a run counts, and its last status.

    Only rounds of the last stage count. Where a round was selected for a protocol, the columns of that protocol hold the
    values of that round.
    """
    from unalike.statistics.scores import scored_rounds

    clients = history.clients
    since = max(1, last_stage(history.rows))
    evaluated = sorted(clients["round"].unique())
    of_last_stage = [number for number in evaluated if number >= since] or evaluated
    counted = of_last_stage[-scored_rounds(len(of_last_stage)) :]
    recent = clients[clients["round"].isin(counted)].groupby("client", as_index=False)
    means = recent.mean(numeric_only=True).drop(columns="round")

    # A selected round counts instead of these means.
    for protocol, number in history.selected.items():
        of_round = clients[clients["round"] == number]
        selected_rows = of_round.set_index("client").reindex(means["client"])
        for column in history.columns.all:
            if column.protocol == protocol and column.name in means:
                means[column.name] = selected_rows[column.name].to_numpy()
    sizes = {column: means[column].astype(int) for column in ("n_train", "n_test")}
    return means.assign(
        **sizes,
        client=[names[int(k)] for k in means["client"]],
        status=recent["status"].last()["status"],
    )


def _chosen_metrics(facts: ComparisonFacts) -> list[str]:
    """The names of the metrics that the configuration has; none of joined folders, whose several texts are no TOML."""
    try:
        specs = tomllib.loads(facts.config).get("metric", [])
    except tomllib.TOMLDecodeError:
        return []
    return [metric.name for metric in read([specs] if isinstance(specs, str) else specs)]


def client_rounds(
    history: History, names: Sequence[str], metrics: Collection[str] = ()
) -> pd.DataFrame | None:
    """The deciding metric and these ones of each client by round, under each protocol; None for too many clients."""
    import numpy as np

    clients = history.clients
    if len(names) > MOST_CLIENTS or clients.empty:
        return None
    rounds = clients["round"].unique()
    spaced = np.linspace(0, len(rounds) - 1, min(MOST_ROUNDS, len(rounds)))
    shown = rounds[np.unique(spaced.round().astype(int))]
    columns = history.columns.scores
    columns += [column for column in history.columns.all if column.metric.name in metrics]
    scores = dict.fromkeys(column.name for column in columns if column.name in clients)
    table = clients.loc[clients["round"].isin(shown), ["round", "client", *scores]].reset_index(
        drop=True
    )
    return table.assign(client=[names[int(k)] for k in table["client"]])


def client_timeline(timeline: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The timeline of a run with the names of the clients, by client, of at most `MOST_CLIENTS_OF_TIMELINE` of them."""
    numbers = sorted(timeline["client"].unique())[:MOST_CLIENTS_OF_TIMELINE]
    shown = timeline[timeline["client"].isin(numbers)]
    shown = shown.sort_values("client", kind="stable", ignore_index=True)
    return shown.assign(client=[names[int(k)] for k in shown["client"]])
