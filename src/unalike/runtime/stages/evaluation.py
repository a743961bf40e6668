"""Evaluation of a round under four protocols, which no table mixes in one column.

server    the shared model on a held-out test set
clients   the shared model on each client's own test samples, pooled and per client; with its own statistic where it is
          conditional, and its own buffers where none are averaged. There is none where clients train what they never send
personal  each client's own model (personal, fine-tuned or conditional) on its own test samples
local     each client's model after its local training, on its own test samples; what was sent as the server reads it

Where clients have validation samples, each protocol but `server` is measured on those too; for `server` the shared model is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled
from unalike.core.tasks.task import TWO_CLASSES, Task
from unalike.core.types import Tree
from unalike.methods.return_checks import untouched
from unalike.metrics.columns import TEST, TRIGGERED, VALIDATION
from unalike.metrics.metrics import (
    Metrics,
    RunMetrics,
    leading_columns,
    measure,
    metric_names,
)
from unalike.metrics.scoring import Predict, Scores, score
from unalike.runtime.records.history import Row
from unalike.runtime.setup.attackers import trained_status
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.splits import ProtocolMetrics, Rows, splits_of
from unalike.runtime.stages.stage_state import RoundResult, StageState

Models = Iterable[tuple[Sequence[int], Predict]]
"""(clients, their model) pairs."""
Splits = dict[str, str]
"""Split of a column (`TEST`, `VALIDATION`) -> the samples that are scored."""
SplitScores = dict[str, list[Scores]]
"""Split of a column -> scores of several models on these samples."""
MeasuredSplits = dict[str, ProtocolMetrics | None]
"""Split of a column -> the metrics on these samples; None where there is no such model."""


class ClientModels(Protocol):
    """The models of a stage's clients on this machine."""

    @property
    def state(self) -> StageState: ...
    def shared_model(self, client: int) -> Predict:
        """The shared model as the client uses it."""

    def personal_models(self, clients: Sequence[int]) -> Iterator[tuple[int, Predict]]:
        """Each client's model: a personal or fine-tuned one, or the shared one where the method has neither."""

    def local_model(self, result: RoundResult, client: int) -> Predict:
        """The client's model after its local training in the round of `result`."""


MAX_LISTED_CLIENTS = 10_000
"""With more clients than this, only the clients of a round have a row in the history and a personal model evaluated."""
MAX_RISK_SAMPLES = 20_000
"""With more test samples their risks are not kept."""
RESAMPLES = 200
"""Number of times that test samples are drawn again, for a variance that is known to 10 %."""
RESAMPLE_SEED = 0
"""Seed of these draws."""


class Evaluator:
    """Evaluates the models of a stage under the protocols asked for. The first one fills the plain columns."""

    def __init__(self, run_config: RunConfig):
        population = run_config.population
        chain = run_config.options.chain
        self.population = population
        self.protocols = run_config.options.protocols
        self.custom = run_config.metrics
        self.columns = run_config.columns
        self.prepare = None if chain is None else chain.fixed
        self.splits = splits_of(run_config)
        self._last: dict[tuple[str, str], Scores | None] = {}

    def names(self, stage: StageState) -> tuple[str, ...]:
        """The protocols to record: those asked for, and "personal" where clients have something of their own."""
        extra = ("personal",) if stage.is_personal else ()
        return tuple(dict.fromkeys((*self.protocols, *extra)))

    def __call__(self, models: ClientModels, result: RoundResult | None) -> tuple[Row, list[Row]]:
        """The metrics of a round (None: before training), and one row per client."""
        with profiled("evaluation"):
            return self.tables(
                models.state, result, lambda protocol: self.measured(protocol, models, result)
            )

    def tables(
        self,
        stage: StageState,
        result: RoundResult | None,
        measured: Callable[[str], MeasuredSplits],
    ) -> tuple[Row, list[Row]]:
        """The same, where `measured` gives the metrics under each protocol."""
        values: Tree = {}
        for group, state in stage.states.items():
            for name, t in state.params.items():
                values[f"{group}: {name}"] = t
        with untouched(stage.method, values, stage.round):
            measured_splits = {name: measured(name) for name in self.names(stage)}

        # One column for each protocol, split and metric: of all clients together in the row, of each one in the table.
        clients_shown = shown(stage, result)
        no_metrics = dict.fromkeys(metric_names(self.population.task, self.custom), float("nan"))
        row: Row = {}
        table: list[Metrics] = [{} for _ in clients_shown]
        for protocol, splits in measured_splits.items():
            for split, metrics in splits.items():
                names = self.columns.names(protocol, VALIDATION if split == VALIDATION else TEST)
                together = no_metrics if metrics is None else metrics.together
                for metric, value in together.items():
                    row[names[metric]] = value
                by_client = None if metrics is None else metrics.clients
                if by_client is None and protocol == self.columns.unprefixed_protocol:
                    # the plain columns are always there
                    by_client = [no_metrics] * len(clients_shown)
                if by_client is None:
                    continue
                labels = [names[metric] for metric in next(iter(by_client), {})]
                for client_row, client_metrics in zip(table, by_client, strict=True):
                    client_row |= zip(labels, client_metrics.values(), strict=True)
        return row, self._clients(stage, result, table, clients_shown)

    def measured(
        self, protocol: str, models: ClientModels, result: RoundResult | None
    ) -> MeasuredSplits:
        """The metrics of the round's models under a protocol."""
        splits = self.splits_of(protocol)
        clients_shown = shown(models.state, result)
        # before training, with more clients than are listed
        if protocol == "personal" and not clients_shown:
            return dict.fromkeys(splits)
        return self.scored(splits, MODELS[protocol](models, result), clients_shown)

    def splits_of(self, protocol: str) -> Splits:
        """The samples that a protocol is measured on."""
        if protocol == "server":
            further = {VALIDATION: "val"}
            test = "server" if "server" in self.splits else "test"
        else:
            further = {VALIDATION: "val", TRIGGERED: TRIGGERED}
            test = "test"
        splits = {TEST: test}
        for split, name in further.items():
            if name in self.splits:
                splits[split] = name
        return splits

    def last(self, models: ClientModels, protocol: str, split: str) -> Scores | None:
        """The samples of a split as the last models of a run score them, which is done once; None where there is no model."""
        key = protocol, split
        if key not in self._last:
            protocol_models = MODELS[protocol](models, None)
            scores: list[Scores] = []
            if protocol_models is not None:
                scores = self.scores({TEST: split}, protocol_models)[TEST]
            self._last[key] = Scores.join(scores) if scores else None
        return self._last[key]

    def confusion(self, models: ClientModels) -> np.ndarray | None:
        """Test samples by class (row) and predicted class (column) of the last models in use, as in `risks`.

        None for regression, and where there is no test sample or no model.
        """
        split = "test" if len(self.population.test.values) else "server"
        if self.population.classes is None or split not in self.splits:
            return None
        scores = self.last(models, self._in_use(models), split)
        if scores is None:
            return None
        size = len(self.population.classes)
        pairs = scores.y.astype(np.int64) * size + scores.predicted.astype(np.int64)
        return np.bincount(pairs, minlength=size**2).reshape(size, size)

    def resampled(self, models: ClientModels, protocol: str) -> list[Metrics] | None:
        """The metrics of the last models under a protocol, on test samples that are drawn again with replacement in each client.

        The draws are the same for all models that are scored on the same samples. None where a protocol has no model then, and
        where not every client is evaluated.
        """
        clients = range(len(self.population))
        if len(clients) > MAX_LISTED_CLIENTS:
            return None
        split = self.splits_of(protocol)[TEST]
        indices, _ = self.splits[split].of(clients)
        if not len(indices):
            return None
        scores = self.last(models, protocol, split)
        if scores is None:
            return None

        return resampled_metrics(self.population.task, scores, self.custom)

    def risks(self, models: ClientModels) -> Scores | None:
        """The clients' test samples as the last models in use score them: the clients' own where they have some, else the shared.

        None where there are more or fewer than two classes, more than `MAX_RISK_SAMPLES` samples or `MAX_LISTED_CLIENTS` clients,
        or no samples.
        """
        samples = len(self.population.test.values)
        if not self.population.task.offers(TWO_CLASSES) or not 0 < samples <= MAX_RISK_SAMPLES:
            return None
        if len(self.population) > MAX_LISTED_CLIENTS:
            return None
        return self.last(models, self._in_use(models), "test")

    def _in_use(self, models: ClientModels) -> str:
        """The protocol of the models that clients use."""
        return "personal" if models.state.is_personal else "clients"

    def scored(
        self, splits: Splits, models: Models | None, clients_shown: Sequence[int] = ()
    ) -> MeasuredSplits:
        """The metrics of models on these splits, and per client for `clients_shown`; None where there is no model."""
        if models is None:
            return dict.fromkeys(splits)
        return self.measures(splits, self.scores(splits, models), clients_shown)

    def measures(
        self, splits: Splits, scores: SplitScores, clients_shown: Sequence[int]
    ) -> MeasuredSplits:
        """The metrics of scores on these splits, and per client for `clients_shown`."""
        measured: MeasuredSplits = {}
        for split, name in splits.items():
            joined = Scores.join(scores[split])
            measured[split] = self.splits[name].metrics(
                self.population.task, joined, clients_shown, self.custom
            )
        return measured

    def scores(self, splits: Splits, models: Models) -> SplitScores:
        """The scores of each model on these splits. A model is made once, because fine-tuning it is expensive."""
        scores: SplitScores = {split: [] for split in splits}
        for clients, predict in models:
            for split, name in splits.items():
                scores[split].append(self.scores_of(predict, name, clients))
        return scores

    def scores_of(self, predict: Predict, split: str, clients: Sequence[int]) -> Scores:
        """A model on clients' samples of a split."""
        return self.score(predict, split, self.splits[split].of(clients))

    def _clients(
        self,
        stage: StageState,
        result: RoundResult | None,
        table: list[Metrics],
        clients_shown: Sequence[int],
    ) -> list[Row]:
        """One row per client: who it is, the leading metrics, its status, and all metrics."""
        clients = np.asarray(clients_shown, np.int64)
        train_sizes = self.population.sizes[clients].tolist()
        test_sizes = self.population.test.sizes[clients].tolist()
        leading_metrics = [*leading_columns(next(iter(table), {}))]
        personal = self.columns.get("personal", "accuracy")
        rows = []
        for client, n_train, n_test, metrics in zip(
            clients.tolist(), train_sizes, test_sizes, table, strict=True
        ):
            row: Row = {"client": client, "n_train": n_train, "n_test": n_test}
            for name in leading_metrics:
                row[name] = metrics[name]
            if personal is not None:
                row[personal.name] = metrics.get(personal.name, float("nan"))
            row["status"] = "idle" if n_train else "no training data"
            rows.append(row | metrics)
        if result is None:
            return rows

        # What happened to a client in the round is its status.
        row_of = {row["client"]: row for row in rows}
        for client in () if stage.stage.pooled else result.trained:
            row_of[client]["status"] = trained_status(client, stage.settings)
        for client, why in (result.lost | result.faults).items():
            row_of[client]["status"] = why
        for client, why in result.chosen.items():
            row_of[client]["chosen"] = why
        return rows

    def score(self, predict: Predict, split: str, rows: Rows) -> Scores:
        """A model on samples of a split, prepared as in training but for what is drawn."""
        indices, owners = rows
        index = torch.from_numpy(indices)
        samples = self.splits[split]
        prepared = predict if self.prepare is None else self.prepare.before(predict)
        return score(
            self.population.task,
            prepared,
            samples.x,
            samples.y[index],
            owners,
            logits=bool(self.custom),
            index=index.to(samples.y.device),
        )


def resampled_metrics(task: Task, scores: Scores, custom: RunMetrics) -> list[Metrics]:
    """The metrics on samples drawn again with replacement in each client; the draws depend on the clients' sizes alone."""
    # Sorted by client, the samples of each one stand together: every place draws one of its client's rows.
    by_client = scores.of(np.argsort(scores.client, kind="stable"))
    starts = np.searchsorted(by_client.client, by_client.client)
    sizes = np.bincount(by_client.client)[by_client.client]
    rng = np.random.default_rng(RESAMPLE_SEED)
    metrics = []
    for _ in range(RESAMPLES):
        rows = starts + (rng.random(len(sizes)) * sizes).astype(int)
        metrics.append(measure(task, by_client.of(rows), custom))
    return metrics


def shown(stage: StageState, result: RoundResult | None) -> Sequence[int]:
    """The clients with a row of their own: all, or of more than `MAX_LISTED_CLIENTS` those of the round.

    Where clients do not train, as in a stage that pools their data, the clients that would have been drawn are shown.
    """
    clients = len(stage.population)
    if clients <= MAX_LISTED_CLIENTS:
        return range(clients)
    if result is None:
        return []
    if stage.stage.pooled or not stage.stage.trained:
        return stage.draw(stage.done - 1)
    return sorted({*result.trained, *result.faults, *result.lost, *result.chosen})


def server_models(stage: StageState) -> Models | None:
    """The shared model for all clients. Raises `UnalikeError` where clients use it in different ways."""
    if len(stage.groups) > 1 or not stage.has_shared_model:
        return None
    if not stage.predicts_the_same_for_all:
        raise UnalikeError(
            f"protocol 'server' has one model for all clients, and this run {stage.why_no_single_model}; use 'clients'"
        )
    [group] = stage.groups.values()
    return [(range(len(stage.population)), group.server_model)]


def _clients(models: ClientModels, result: RoundResult | None) -> Models | None:
    stage = models.state
    if not stage.has_shared_model:
        return None
    members = stage.tested_by_group([*range(len(stage.population))])
    if not stage.predicts_the_same_for_all:
        clients = sorted(client for ids in members.values() for client in ids)
        return (([client], models.shared_model(client)) for client in clients)
    group_models = []
    for name, group in stage.groups.items():
        if members[name]:
            group_models.append((members[name], group.server_model))
    return group_models


def _personal(models: ClientModels, result: RoundResult | None) -> Models | None:
    if not models.state.is_personal:
        return None
    return one_by_one(models.personal_models(shown(models.state, result)))


def one_by_one(models: Iterator[tuple[int, Predict]]) -> Models:
    """Clients' own models as an evaluator takes them."""
    return (([client], predict) for client, predict in models)


def _local(models: ClientModels, result: RoundResult | None) -> Models | None:
    if result is None or not result.trained or models.state.stage.pooled:
        return None
    return (([client], models.local_model(result, client)) for client in result.trained)


MODELS: dict[str, Callable[[ClientModels, RoundResult | None], Models | None]] = {
    "server": lambda models, result: server_models(models.state),
    "clients": _clients,
    "personal": _personal,
    "local": _local,
}
