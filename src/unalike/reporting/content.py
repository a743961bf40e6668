"""The content of a report: the tables of a comparison and its details, checked for consistency."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property

import pandas as pd

from unalike._utils.errors import UnalikeError
from unalike.metrics.columns import IN_USE, TEST, Column, Columns
from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.decision import Decision, decide
from unalike.reporting.failed_training import nothing_learned, trivially_personal
from unalike.statistics.client_scores import MEAN, POOLED, client_scores, scored_across
from unalike.statistics.costs import traffic_of_clients
from unalike.statistics.models_in_use import personal_methods, protocol_in_use, with_models_in_use
from unalike.statistics.risks import can_be_judged
from unalike.statistics.scores import client_effects, in_order
from unalike.statistics.seed_draws import (
    DIVISIONS,
    OWNERS,
    PARTITIONS,
    POOLED_SCORE,
    SPLITS,
    TRAINING,
    UNKNOWN,
    SharedDetails,
)
from unalike.statistics.summary import scores_by_seed, summary
from unalike.statistics.verdicts import Rules

MODELS = {
    "server": "shared model, server's test set",
    "clients": "shared model",
    "personal": "personal models",
    "local": "models after local training",
    IN_USE: "models that clients use",
}
"""Protocol -> the models that it scores, on the clients' test data unless the text says otherwise.

A client uses its personal model where the method trains one, else the shared model.
"""
FEWEST_OF_TENTHS = 20
"""With fewer clients the worst tenth of them is the worst one (`statistics.scores.worst_decile`)."""


@dataclass(frozen=True)
class MethodResult:
    """One compared method.

    `label` is short, `spec` has every field. `reference` says what the method shows if it is no candidate, such as `UPPER`;
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
class ReportContent(SharedDetails):
    """Everything that a report shows: the details that its folder keeps, and these tables.

    * `rounds`: `method seed` and the columns of `History.rounds`.
    * `clients`: `method seed` and the columns of `History.clients`, one row per method, seed and client.
    * `label_counts`: training samples by client (index) and class (columns) under `seed`; None for regression.
    * `target`: the score for which costs are compared; None for the baseline's final mean.
    * `columns`: what the columns of scores in these tables measure.
    * `client_rounds`: `method seed round client` and the headline metric under each protocol; None if it is not known.
    * `resampled`: `method seed draw` and the headline metric on resampled test samples,
      where all seeds have the same; None for none.
    * `risks`: `method seed client outcome risk`, the test samples of two-class tasks (`statistics.risks`); None if not known.
    * `fitted`: the scores of references that were fitted to convergence (`statistics.fitted_scores`); None where there are none.
    * `timeline`: `method seed` and the columns of `History.timeline`, of some clients; None without simulated devices.
    * `wire`: `method direction what bytes`, everything that enters and leaves a client in a round.
    * `client_noun`: what the user's data calls a client, such as `hospital`.

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
    client_noun: str = "client"
    target: float | None = None
    client_rounds: pd.DataFrame | None = None
    resampled: pd.DataFrame | None = None
    risks: pd.DataFrame | None = None
    fitted: pd.DataFrame | None = None
    timeline: pd.DataFrame | None = None
    pooled_rounds: pd.DataFrame | None = field(default=None, init=False)
    own_metric: Metric | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._check()
        for name in ("rounds", "clients"):
            self._set(name, in_order(getattr(self, name), self.labels))
        # personal models are compared with shared ones by columns of both
        if self.deciding_protocol == IN_USE:
            self._add_models_in_use()
        # after that, so that it is taken across the scores of the models in use
        if self.across != POOLED_SCORE:
            self._score_across_clients()

    def _check(self) -> None:
        """Raise `UnalikeError` if the tables are not consistent."""
        _check_labels(self.labels, self.baseline)
        _check_table(
            "rounds",
            self.rounds,
            key=["method", "seed", "round"],
            others=["seconds", "bytes_down", "bytes_up"],
            labels=self.labels,
        )
        _check_table(
            "clients",
            self.clients,
            key=["method", "seed", "client"],
            others=["n_train", "n_test"],
            labels=self.labels,
        )
        for name, table in (("rounds", self.rounds), ("clients", self.clients)):
            if self.metric.name not in table:
                raise UnalikeError(
                    f"the {name} table has no {self.metric.name}, by which the methods are compared"
                )
        if self.target is not None and not self.metric.low <= self.target <= self.metric.high:
            expected = f"a number from {self.metric.low:g} to {self.metric.high:g}"
            if self.metric.percent:
                expected = "a share such as 0.8"
            raise UnalikeError(
                f"target={self.target:g} is not a possible {self.metric.word}; expected {expected}"
            )

    def _add_models_in_use(self) -> None:
        """Add columns of the models in use to every table of scores."""
        personal = self.personal
        columns = self.columns
        for name in ("rounds", "clients", "client_rounds", "resampled"):
            table = getattr(self, name)
            if table is not None:
                self._set(name, with_models_in_use(table, personal, columns))
        self._set("columns", columns.with_models_in_use())

    def _score_across_clients(self) -> None:
        """Put scores across the clients in the place of those of pooled samples, which are kept in `pooled_rounds`."""
        rounds, columns = scored_across(
            self.across,
            self.rounds,
            self.client_rounds,
            self.columns,
            clients=wording.several(self.client_noun),
        )
        self._set("pooled_rounds", self.rounds)
        self._set("own_metric", self.metric)
        self._set("rounds", rounds)
        self._set("columns", columns)
        # test samples were resampled for the pooled score alone
        self._set("resampled", None)

    def _set(self, name: str, value: object) -> None:
        """Set a field of this frozen content while it is made."""
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
            baseline=self.baseline,
            references=references,
            smallest_effect=self.smallest_effect,
            looks=self.looks,
            overlap=self.sampling.overlap,
        )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per method and protocol (`statistics.summary.summary`); a score over the worst tenth is `worst_decile`, too."""
        table = summary(self.rounds, self.clients, self.columns, self.rules, self.resampled)
        if self.across == "worst":
            table = table.assign(worst_decile=table[self.metric.name])
        return table

    @property
    def about(self) -> str:
        """The subject of the intervals: the draws of the seeds besides training runs, and the samples that they share."""
        seeds = len(self.seeds)
        if seeds == 1:
            return "One seed: there is no interval."
        count = self.clients["client"].nunique()
        noun = self.client_noun
        clients = f"this {noun}" if count == 1 else f"these {count} {wording.several(noun)}"
        others_like = "this one" if count == 1 else f"these {count}"
        column = self.columns.get(self.deciding_protocol)
        is_resampled = (
            self.resampled is not None and column is not None and column.name in self.resampled
        )

        # what other draws an interval speaks of, and how the seeds drew them
        draws = {
            PARTITIONS: (
                "other partitions of this data set",
                f"{seeds} seeds with a partition each",
            ),
            DIVISIONS: (
                "this test set only: other partitions",
                f"{seeds} seeds divide the same test samples",
            ),
            SPLITS: (
                f"other samples of {clients}",
                f"{seeds} divisions into training and test samples",
            ),
            OWNERS: (
                f"other {wording.several(noun)} like {others_like}",
                f"{seeds} seeds, each tests {wording.several(noun)} that it leaves out of training",
            ),
            TRAINING: ("this test set only:", f"{seeds} seeds on the same samples"),
            UNKNOWN: ("", f"{seeds} seeds; what they share was not recorded"),
        }
        subject, how = draws[self.sampling.redrawn]
        if self.sampling.folds is not None:
            how = f"{seeds} folds of repeated {self.sampling.folds}-fold cross-validation"

        # resampled test samples stand for others, which the seeds themselves do not draw
        if is_resampled:
            if self.sampling.redrawn == TRAINING:
                subject = ""
            tests = "other test samples"
            if self.deciding_protocol != "server":
                tests += f" of {clients}"
            subject = f"{subject}, {tests}" if subject else tests
            how += ", the test samples resampled"

        if subject:
            subject += " " if subject.endswith(":") else " and "
        return f"The intervals hold for {subject}other training runs; {how}."

    @property
    def has_fits(self) -> bool:
        """Whether there are fitted references with a score by the deciding metric, which joined folders may lack."""
        return self.fitted is not None and self.metric.name in self.fitted

    @property
    def smallest_difference(self) -> float:
        """The smallest difference of interest under the deciding protocol; NaN if the baseline has no score there."""
        scores = self.scores_of(self.deciding_protocol).set_index("method")[self.metric.name]
        return self.rules.effect(self.metric, float(scores.get(self.baseline, math.nan)))

    @cached_property
    def decision(self) -> Decision:
        """The decision that the results support, by the models that clients use, with the clients that lose by it."""
        decision = self._decide(self.deciding_protocol, self.scores_of(self.deciding_protocol))
        return replace(
            decision,
            losers=self._losers(decision),
            few_clients=int((~self.judged_clients).sum()),
            has_judged_clients=bool(self.judged_clients.any()),
            worse_off=self._worse_off(decision.best),
            client_noun=self.client_noun,
        )

    def _losers(self, decision: Decision) -> dict[str, tuple[float, float, float]] | None:
        """The clients that lose with the best candidate, by more than the smallest effect of interest, the largest loss first.

        Clients with too few test samples are none of them. None where seeds have other clients.
        """
        table = self.client_scores
        if not decision.best or table.empty:
            return None
        judged = self.judged_clients
        is_client = table["client"].isin(judged[judged].index)
        with_best = table[(table["method"] == decision.best) & is_client]
        difference = f"to_{self.baseline}"
        loss = -self.metric.sign * with_best[difference]
        large = loss[loss >= self.smallest_difference]
        large = large.sort_values(ascending=False, kind="stable")
        return {
            str(row["client"]): (
                row[difference],
                row[f"{difference}_low"],
                row[f"{difference}_high"],
            )
            for row in with_best.loc[large.index].to_dict("records")
        }

    @property
    def judged_clients(self) -> pd.Series:
        """Client -> whether it has test samples enough, on average over seeds, for a score of its own."""
        tested = self.clients[self.clients["n_test"] > 0].reindex(
            columns=["client", "n_test", "n_positive"]
        )
        sizes = tested.groupby("client", sort=False).mean()
        return pd.Series(
            {
                str(name): can_be_judged(n_test, n_positive)
                for name, n_test, n_positive in sizes.itertuples()
            },
            dtype=bool,
        )

    def _worse_off(self, method: str) -> float:
        """The share of clients that are worse off with a method than with the baseline; NaN if it is not known."""
        effects = client_effects(self.clients, self.baseline, self.deciding_column)
        shares = effects.loc[effects["method"] == method, "worse_off"]
        return float(shares.max())

    @property
    def same_clients(self) -> bool:
        """Whether all seeds have the same clients, so that a client has a score over seeds."""
        return len(self.seeds) == 1 or self.sampling.redrawn in (SPLITS, OWNERS, TRAINING)

    @property
    def compared_with(self) -> list[str]:
        """The methods that every client is compared with: the baseline, and training alone where it was run."""
        alone = [method.label for method in self.methods if method.alone]
        return [self.baseline, *(label for label in alone if label != self.baseline)]

    @cached_property
    def client_scores(self) -> pd.DataFrame:
        """The scores of single clients by the models in use (`statistics.client_scores`); empty where seeds have other clients.

        The interval of the row that decides, that of pooled samples or of the mean, is the one of the summary, also where it
        compares the baseline with another method.
        """
        column = self.columns.get(self.deciding_protocol)
        if column is None or not self.same_clients:
            return pd.DataFrame()
        rounds = self.rounds if self.pooled_rounds is None else self.pooled_rounds
        table = client_scores(rounds, self.clients, column, self.compared_with, self.rules)
        if self.timeline is not None and len(table):
            table = table.merge(traffic_of_clients(self.timeline), "left", ["method", "client"])
        if table.empty or self.across == "worst":
            return table
        # one difference has one interval, on the page of clients as in the summary
        by_method = self.scores_of(self.deciding_protocol).set_index("method")
        is_pooled = table["client"] == (POOLED if self.across == POOLED_SCORE else MEAN)
        for end in ("low", "high"):
            ends = table["method"].map(by_method[f"ci_{end}"])
            table.loc[is_pooled, f"to_{self.baseline}_{end}"] = ends
        is_baseline = is_pooled & (table["method"] == self.baseline)
        for other in self.compared_with:
            if other != self.baseline and other in by_method.index:
                # seen from the baseline, the interval of the other method is mirrored
                mirrored = -by_method[["ci_low", "ci_high"]].loc[other]
                table.loc[is_baseline, f"to_{other}_low"] = mirrored["ci_high"]
                table.loc[is_baseline, f"to_{other}_high"] = mirrored["ci_low"]
        return table

    @cached_property
    def shared_decision(self) -> Decision:
        """The decision for one model that serves all clients."""
        table = self.scores_of(self.unprefixed_protocol)
        with_one_model = table[table["method"].isin(self._ungrouped)]
        return self._decide(self.unprefixed_protocol, with_one_model)

    @property
    def when_scored(self) -> str:
        """The round that the charts of single samples show, as captions say it."""
        is_selected = any(end["selected"] is not None for end in self.ends)
        return "in the round that each run selected" if is_selected else "after the last round"

    @property
    def _ungrouped(self) -> list[str]:
        """The baseline and the methods that end with one model for all clients."""
        return [
            label for label in self.labels if label == self.baseline or label not in self.grouped
        ]

    def judged_methods(self, protocol: str) -> list[str]:
        """The methods that a protocol judges; beside the models in use, methods with groups have no shared model."""
        return self.labels if protocol == self.deciding_protocol else self._ungrouped

    def _decide(self, protocol: str, scores: pd.DataFrame) -> Decision:
        """The decision from these rows of the summary, or the reason why scores like these decide nothing."""
        decision = decide(self.rounds, scores, self.columns, self.rules, protocol, self.resampled)
        reason = nothing_learned(self.pooled_scores_of(protocol), self.metric, self.classes)
        if not reason and protocol == IN_USE and self.personal:
            reason = trivially_personal(self.label_counts)
        if self.unfinished and len(self.labels) > 1:
            reason = f"No decision yet: {self.unfinished} are finished."
        return replace(decision, choice="", reason=reason) if reason else decision

    def scores_of(self, protocol: str) -> pd.DataFrame:
        """The rows of the summary under a protocol, of the methods that it judges."""
        is_judged = self.summary["method"].isin(self.judged_methods(protocol))
        return self.summary[(self.summary["protocol"] == protocol) & is_judged]

    def pooled_scores_of(self, protocol: str) -> pd.DataFrame:
        """The same with the scores of all test samples pooled, whatever score across the clients decides."""
        table = self.scores_of(protocol)
        if self.pooled_rounds is None:
            return table
        means = {}
        for column in self.columns.all:
            if (column.protocol, column.split) != (protocol, TEST):
                continue
            by_method = scores_by_seed(self.pooled_rounds, column)
            if by_method:
                mean_of = {method: scores.mean() for method, scores in by_method.items()}
                means[column.metric.name] = table["method"].map(mean_of)
        return table.assign(**means)

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
    def unprefixed_protocol(self) -> str:
        """The protocol of the columns without a prefix."""
        return self.columns.unprefixed_protocol

    @cached_property
    def personal(self) -> list[str]:
        """The methods with personal models."""
        return personal_methods(self.rounds, self.columns)

    @property
    def grouped(self) -> list[str]:
        """The methods with a model for each group of clients."""
        return [method.label for method in self.methods if method.grouped]

    def models_of(self, protocol: str) -> str:
        """The models that a protocol scores, in the user's words: `models that hospitals use`."""
        return MODELS[protocol].replace("clients", wording.several(self.client_noun))

    @property
    def worst_clients(self) -> str:
        """The clients of which `worst_decile` is the mean: `worst hospital`, or `worst tenth of the hospitals`."""
        tested = self.clients.loc[self.clients["n_test"] > 0, "client"].nunique()
        if tested < FEWEST_OF_TENTHS:
            return f"worst {self.client_noun}"
        return f"worst tenth of the {wording.several(self.client_noun)}"

    def model_kind(self, method: str, protocol: str) -> str:
        """The models of a method that a protocol scores, in one word: `shared`, `group` or `personal`."""
        if protocol == IN_USE:
            protocol = "personal" if method in self.personal else self.unprefixed_protocol
        kind = MODELS[protocol].partition(" model")[0]
        return "group" if kind == "shared" and method in self.grouped else kind

    @cached_property
    def deciding_protocol(self) -> str:
        """The protocol that decides: that of the models in use."""
        return protocol_in_use(self.rounds, self.columns)

    @property
    def deciding_column(self) -> Column:
        """The column of `rounds` whose scores decide."""
        return self.scores[self.deciding_protocol]

    @property
    def scores(self) -> dict[str, Column]:
        """Protocol -> the column of its score, for the protocols that have one in `rounds`; the deciding one first."""
        columns = {
            column.protocol: column for column in self.columns.scores if column.name in self.rounds
        }
        deciding_first = dict.fromkeys((self.deciding_protocol, *columns))
        return {name: columns[name] for name in deciding_first if name in columns}

    @property
    def protocols_with_tables(self) -> list[str]:
        """The protocols that have tables: all but `personal` where `used` has the same scores beside those of other methods."""
        return [
            name for name in self.scores if (name, self.deciding_protocol) != ("personal", IN_USE)
        ]

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
        first = ", ".join(f"{column} {twice.iloc[0][column]}" for column in key)
        raise UnalikeError(f"the {name} table has {first} twice; expected one row for each")
