"""The content of a report: the tables and facts of a comparison, checked for consistency."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property

import pandas as pd

from unalike._utils.errors import UnalikeError
from unalike.metrics.columns import TEST, USED, Column, Columns
from unalike.metrics.named_metrics import Metric
from unalike.reporting.decision import Decision, decide
from unalike.reporting.failed_training import nothing_learned, trivially_personal
from unalike.statistics.client_scores import MEAN, POOLED, client_scores, scored_across
from unalike.statistics.models_in_use import personal_methods, protocol_in_use, with_models_in_use
from unalike.statistics.sampling import (
    DIVISIONS,
    OWNERS,
    PARTITIONS,
    POOLED_SCORE,
    SPLITS,
    TRAINING,
    UNKNOWN,
    SharedFacts,
)
from unalike.statistics.scores import in_order
from unalike.statistics.summary import scores_by_seed, summary
from unalike.statistics.verdicts import Rules

MODELS = {
    "server": "shared model, server's test set",
    "clients": "shared model",
    "personal": "personal models",
    "local": "models after local training",
    USED: "models in use",
}
"""Protocol -> the models that it scores, on the clients' test data unless the text says otherwise.

The model in use is a client's personal model where the method trains one, else the shared model.
"""


@dataclass(frozen=True)
class MethodResult:
    """One compared method.

    `label` is short, `spec` has every field. `reference` says what the method shows if it is no candidate (`upper reference`);
    `untuned` lists what ran with default settings (`moon(mu=1.0)`), `work` says how its local training differs from the baseline's
    (`lr=0.3`), `alone` whether clients train without communication, `grouped` whether it ends with a model for each group of
    clients, `protects` what epsilon means (`at delta 1e-05 for each client`).
    """

    label: str
    spec: str
    reference: str = ""
    untuned: str = ""
    work: str = ""
    alone: bool = False
    grouped: bool = False
    protects: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportContent(SharedFacts):
    """Everything that a report shows: the facts that its folder keeps, and these tables.

    * `rounds`: `method seed` and the columns of `History.rounds`.
    * `clients`: `method seed` and the columns of `History.clients`, one row per method, seed and client.
    * `label_counts`: training samples by client (index) and class (columns) under `seed`; None for regression.
    * `target`: the score for which costs are compared; None for the baseline's final mean.
    * `columns`: what the columns of scores in these tables measure.
    * `client_rounds`: `method seed round client` and the headline metric under each protocol; None if it is not known.
    * `resampled`: `method seed draw` and the headline metric on resampled test samples,
      where all seeds have the same; None for none.
    * `risks`: `method seed client outcome risk`, the test samples of two-class tasks (`statistics.risks`); None if not known.
    * `wire`: `method direction what bytes`, everything that enters and leaves a client in a round.

    Raises `UnalikeError` if the tables are not consistent.
    """

    title: str
    methods: list[MethodResult]
    rounds: pd.DataFrame
    clients: pd.DataFrame
    columns: Columns
    label_counts: pd.DataFrame | None = None
    wire: pd.DataFrame | None = None
    warnings: list[str] = field(default_factory=list)
    target: float | None = None
    client_rounds: pd.DataFrame | None = None
    resampled: pd.DataFrame | None = None
    risks: pd.DataFrame | None = None
    pooled_rounds: pd.DataFrame | None = field(default=None, init=False)
    own_metric: Metric | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        _check_labels(self.labels, self.baseline)
        _check_table(
            "rounds",
            self.rounds,
            ["method", "seed", "round"],
            ["seconds", "bytes_down", "bytes_up"],
            self.labels,
        )
        _check_table(
            "clients",
            self.clients,
            ["method", "seed", "client"],
            ["n_train", "n_test"],
            self.labels,
        )
        for name, table in (("rounds", self.rounds), ("clients", self.clients)):
            if self.metric.name not in table:
                raise UnalikeError(
                    f"the {name} table has no {self.metric.name}, by which the methods are compared"
                )
        if self.target is not None and not self.metric.low <= self.target <= self.metric.high:
            expected = (
                "a share such as 0.8"
                if self.metric.percent
                else f"a number from {self.metric.low:g} to {self.metric.high:g}"
            )
            raise UnalikeError(
                f"target={self.target:g} is not a possible {self.metric.word}; expected {expected}"
            )
        for name in ("rounds", "clients"):
            object.__setattr__(self, name, in_order(getattr(self, name), self.labels))
        if self.decisive == USED:
            personal, columns = self.personal, self.columns
            for name in ("rounds", "clients", "client_rounds", "resampled"):
                table = getattr(self, name)
                used = None if table is None else with_models_in_use(table, personal, columns)
                object.__setattr__(self, name, used)
            object.__setattr__(self, "columns", columns.with_used())
        if self.across != POOLED_SCORE:
            rounds, columns = scored_across(
                self.across, self.rounds, self.client_rounds, self.columns
            )
            made = {
                "pooled_rounds": self.rounds,
                "own_metric": self.metric,
                "rounds": rounds,
                "columns": columns,
            }
            for name, value in (made | {"resampled": None}).items():
                object.__setattr__(self, name, value)

    @property
    def labels(self) -> list[str]:
        """The labels of the methods, in the order of the report."""
        return [method.label for method in self.methods]

    @property
    def specificity(self) -> float:
        """The specificity at which sensitivities of clients are shown: that of the headline metric, or 0.9."""
        return self.metric.specificity or 0.9

    @property
    def rules(self) -> Rules:
        """The rules by which the methods are judged."""
        references = {method.label: method.reference for method in self.methods if method.reference}
        return Rules(
            self.baseline, references, self.smallest_effect, self.looks, self.sampling.overlap
        )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per method and protocol (`statistics.summary.summary`); a score over the worst tenth is `worst_decile`, too."""
        table = summary(self.rounds, self.clients, self.columns, self.rules, self.resampled)
        return (
            table.assign(worst_decile=table[self.metric.name]) if self.across == "worst" else table
        )

    @property
    def about(self) -> str:
        """The subject of the intervals: the draws of the seeds besides training runs, and the samples that they share."""
        seeds, count = len(self.seeds), self.clients["client"].nunique()
        clients = "this client" if count == 1 else f"these {count} clients"
        if seeds == 1:
            return "One seed: there is no interval."
        column = self.columns.get(self.decisive)
        fixed = self.resampled is not None and column is not None and column.name in self.resampled
        drawn = {
            PARTITIONS: (
                "other partitions of this data set",
                f"{seeds} seeds with a partition each",
            ),
            DIVISIONS: (
                "this test set only: other partitions",
                f"{seeds} seeds divide the same test samples",
            ),
            SPLITS: (f"other samples of {clients}", f"{seeds} redrawn splits"),
            OWNERS: (
                "other clients like " + ("this one" if count == 1 else f"these {count}"),
                f"{seeds} seeds, each tests clients that it leaves out of training",
            ),
            TRAINING: (
                "" if fixed else "this test set only:",
                f"{seeds} seeds on the same samples",
            ),
            UNKNOWN: ("", f"{seeds} seeds; what they share was not recorded"),
        }
        subject, how = drawn[self.sampling.redrawn]
        if self.sampling.folds is not None:
            how = f"{seeds} folds of repeated {self.sampling.folds}-fold cross-validation"
        if fixed:
            tests = "other test samples" + ("" if self.decisive == "server" else f" of {clients}")
            subject = ", ".join(filter(None, [subject, tests]))
            how += ", the test samples resampled"
        joint = "" if not subject else " " if subject.endswith(":") else " and "
        return f"Interval: {subject}{joint}other training runs; {how}."

    @property
    def smallest_difference(self) -> float:
        """The smallest difference of interest under the decisive protocol; NaN if the baseline has no score there."""
        scores = self.scored(self.decisive).set_index("method")[self.metric.name]
        return self.rules.effect(self.metric, float(scores.get(self.baseline, math.nan)))

    @cached_property
    def decision(self) -> Decision:
        """The decision that the results support, by the models that clients use, with the clients that lose by it."""
        found = self._decided(self.decisive, self.scored(self.decisive))
        return replace(found, losers=self._losers(found))

    def _losers(self, found: Decision) -> dict[str, tuple[float, float, float]]:
        """The clients that lose with the best candidate, by more than the smallest effect of interest, the largest loss first."""
        table = self.client_scores
        if not found.best or table.empty:
            return {}
        own = table[(table["method"] == found.best) & ~table["client"].isin([MEAN, POOLED])]
        loss = -self.metric.sign * own[f"to_{self.baseline}"]
        lost = own.loc[
            loss[loss >= self.smallest_difference].sort_values(ascending=False, kind="stable").index
        ]
        ends = [f"to_{self.baseline}{end}" for end in ("", "_low", "_high")]
        return {
            str(row["client"]): (row[ends[0]], row[ends[1]], row[ends[2]])
            for row in lost.to_dict("records")
        }

    @property
    def same_clients(self) -> bool:
        """Whether all seeds have the same clients, so that a client has a score over seeds."""
        return len(self.seeds) == 1 or self.sampling.redrawn in (SPLITS, OWNERS, TRAINING)

    @property
    def compared_with(self) -> list[str]:
        """The methods that every client is compared with: the baseline, and training alone where it was run."""
        return [
            self.baseline,
            *(m.label for m in self.methods if m.alone and m.label != self.baseline),
        ]

    @cached_property
    def client_scores(self) -> pd.DataFrame:
        """The scores of single clients by the models in use (`statistics.client_scores`); empty where seeds have other clients.

        Where pooled samples decide, the interval of their row is the one of the summary.
        """
        column = self.columns.get(self.decisive)
        if column is None or not self.same_clients:
            return pd.DataFrame()
        rounds = self.rounds if self.pooled_rounds is None else self.pooled_rounds
        table = client_scores(rounds, self.clients, column, self.compared_with, self.rules)
        if table.empty or self.pooled_rounds is not None:
            return table
        judged, pooled = self.scored(self.decisive).set_index("method"), table["client"] == POOLED
        for end in ("low", "high"):  # one difference has one interval
            table.loc[pooled, f"to_{self.baseline}_{end}"] = table["method"].map(
                judged[f"ci_{end}"]
            )
        return table

    @cached_property
    def shared_decision(self) -> Decision:
        """The decision for one model that serves all clients."""
        scored = self.scored(self.plain)
        return self._decided(self.plain, scored[scored["method"].isin(self._ungrouped)])

    @property
    def when_scored(self) -> str:
        """The round that the charts of single samples show, as captions say it."""
        chosen = any(end["selected"] is not None for end in self.ends)
        return "in the round that each run selected" if chosen else "after the last round"

    @property
    def _ungrouped(self) -> list[str]:
        """The baseline and the methods that end with one model for all clients."""
        return [
            label for label in self.labels if label == self.baseline or label not in self.grouped
        ]

    def judged(self, protocol: str) -> list[str]:
        """The methods that a protocol judges; beside the models in use, methods with groups have no shared model."""
        return self.labels if protocol == self.decisive else self._ungrouped

    def _decided(self, protocol: str, scored: pd.DataFrame) -> Decision:
        found = decide(self.rounds, scored, self.columns, self.rules, protocol, self.resampled)
        failed = nothing_learned(self.pooled(protocol), self.metric, self.classes)
        if not failed and protocol == USED and self.personal:
            failed = trivially_personal(self.label_counts)
        if self.unfinished and len(self.labels) > 1:
            failed = f"No decision yet: {self.unfinished} are finished."
        return replace(found, choice="", reason=failed) if failed else found

    def scored(self, protocol: str) -> pd.DataFrame:
        """The rows of the summary under a protocol, of the methods that it judges."""
        return self.summary[
            (self.summary["protocol"] == protocol)
            & self.summary["method"].isin(self.judged(protocol))
        ]

    def pooled(self, protocol: str) -> pd.DataFrame:
        """The same with the scores of all test samples pooled, whatever score across the clients decides."""
        table = self.scored(protocol)
        if self.pooled_rounds is None:
            return table
        own = [
            column
            for column in self.columns.all
            if (column.protocol, column.split) == (protocol, TEST)
        ]
        means = {c.metric.name: scores_by_seed(self.pooled_rounds, c) for c in own}
        return table.assign(
            **{
                name: table["method"].map({m: s.mean() for m, s in found.items()})
                for name, found in means.items()
                if found
            }
        )

    @property
    def classes(self) -> int | None:
        """The number of classes; None for regression."""
        return None if self.label_counts is None else len(self.label_counts.columns)

    @property
    def metric(self) -> Metric:
        """The metric that decides."""
        return self.columns.metric

    @property
    def metric_of_clients(self) -> Metric:
        """The metric of a single client: the one that decides, before it was taken across clients."""
        return self.metric if self.own_metric is None else self.own_metric

    @property
    def plain(self) -> str:
        """The protocol of the columns without a prefix."""
        return self.columns.plain

    @cached_property
    def personal(self) -> list[str]:
        """The methods with personal models."""
        return personal_methods(self.rounds, self.columns)

    @property
    def grouped(self) -> list[str]:
        """The methods with a model for each group of clients."""
        return [method.label for method in self.methods if method.grouped]

    def model_kind(self, method: str, protocol: str) -> str:
        """The models of a method that a protocol scores, in one word: `shared`, `group` or `personal`."""
        scored = (
            ("personal" if method in self.personal else self.plain)
            if protocol == USED
            else protocol
        )
        kind = MODELS[scored].partition(" model")[0]
        return "group" if kind == "shared" and method in self.grouped else kind

    @cached_property
    def decisive(self) -> str:
        """The protocol that decides: that of the models in use."""
        return protocol_in_use(self.rounds, self.columns)

    @property
    def decisive_column(self) -> Column:
        """The column of `rounds` whose scores decide."""
        return self.scores[self.decisive]

    @property
    def scores(self) -> dict[str, Column]:
        """Protocol -> the column of its score, for the protocols that have one in `rounds`; the decisive one first."""
        found = {
            column.protocol: column for column in self.columns.scores if column.name in self.rounds
        }
        return {
            name: found[name] for name in dict.fromkeys((self.decisive, *found)) if name in found
        }

    @property
    def tabled(self) -> list[str]:
        """The protocols that have tables: all but `personal` where `used` has the same scores beside those of other methods."""
        return [name for name in self.scores if (name, self.decisive) != ("personal", USED)]

    @property
    def seeds(self) -> list[int]:
        return sorted(int(seed) for seed in self.rounds["seed"].unique())


def _check_labels(labels: list[str], baseline: str) -> None:
    if not labels:
        raise UnalikeError("the report has no method; expected at least one")
    twice = [label for label, count in Counter(labels).items() if count > 1]
    if twice:
        raise UnalikeError(f"two methods share the label {twice[0]!r}; give each its own")
    if baseline not in labels:
        raise UnalikeError(
            f"the baseline {baseline!r} is not among the methods; expected one of {', '.join(labels)}"
        )


def _check_table(
    name: str, table: pd.DataFrame, key: list[str], others: list[str], labels: list[str]
) -> None:
    """Check that a table has its columns, one row per `key`, and rows of every method and of no other."""
    missing = [column for column in key + others if column not in table]
    if missing:
        raise UnalikeError(
            f"the {name} table lacks the columns {', '.join(missing)}; found {', '.join(map(str, table))}"
        )
    unknown = sorted(set(table["method"]) - set(labels))
    if unknown:
        raise UnalikeError(
            f"the {name} table has the method {unknown[0]!r}; expected only {', '.join(labels)}"
        )
    absent = [label for label in labels if label not in set(table["method"])]
    if absent:
        raise UnalikeError(
            f"the {name} table has no rows of {absent[0]!r}; leave the method out or add its rows"
        )
    twice = table[table.duplicated(key)]
    if len(twice):
        found = ", ".join(f"{column} {twice.iloc[0][column]}" for column in key)
        raise UnalikeError(f"the {name} table has {found} twice; expected one row for each")
