"""Evaluation of a round under four protocols, which no table mixes in one column.

server    the shared model on a held-out test set
clients   the shared model on each client's own test samples, pooled and per client; with its own statistic where it is
          conditional, and its own buffers where none are averaged. There is none where clients train what they never send
personal  each client's own model (personal, fine-tuned or conditional) on its own test samples
local     each client's model after its local training, on its own test samples; what was sent as the server reads it

Where clients have validation samples, each protocol but `server` is measured on those too; for `server` the shared model is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled
from unalike.core.tasks import Task
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.methods.attack import Attack
from unalike.methods.plan import method_of
from unalike.methods.return_checks import untouched
from unalike.metrics.columns import TEST, TRIGGERED, VALIDATION
from unalike.metrics.metrics import (
    Metrics,
    RunMetrics,
    leading_columns,
    measure,
    metric_names,
    per_client,
)
from unalike.metrics.named_metrics import ATTACK_SUCCESS
from unalike.metrics.scoring import Predict, Scores, SharedModel, score
from unalike.runtime.records.history import Row
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.stage_state import RoundResult, StageState

Models = Iterable[tuple[Sequence[int], Predict]]
"""(clients, their model) pairs."""
Splits = dict[str, str]
"""Split of a column (`TEST`, `VALIDATION`) -> the samples that are scored."""
SplitScores = dict[str, list[Scores]]
"""Split of a column -> scores of several models on these samples."""
Rows = tuple[np.ndarray, np.ndarray]
"""(sample indices [n], client ids [n])"""


class ProtocolMetrics(NamedTuple):
    """Metrics over all samples together, and of each client; None if the samples belong to no client."""

    together: Metrics
    clients: list[Metrics] | None


MeasuredSplits = dict[str, ProtocolMetrics | None]
"""Split of a column -> the metrics on these samples; None where there is no such model."""


class Split(Protocol):
    """Samples to score on, and what is measured on them."""

    x: Tensor
    y: Tensor

    def of(self, clients: Sequence[int]) -> Rows:
        """The samples of these clients."""

    def metrics(
        self, task: Task, scores: Scores, clients_shown: Sequence[int], custom: RunMetrics
    ) -> ProtocolMetrics:
        """The metrics of scores on these samples, and per client for `clients_shown`."""


class ClientSplit:
    """The clients' own test or validation samples."""

    def __init__(self, population: Population, rows: Ragged):
        self.x, self.y, self.rows = population.x, population.y, rows

    def of(self, clients: Sequence[int]) -> Rows:
        if len(clients) == len(self.rows):
            return self.rows.values, self.rows.owners
        found = np.concatenate([self.rows[k] for k in clients] or [np.zeros(0, np.int64)])
        return found, np.repeat(np.asarray(clients, np.int64), self.rows.sizes[list(clients)])

    def metrics(
        self, task: Task, scores: Scores, clients_shown: Sequence[int], custom: RunMetrics
    ) -> ProtocolMetrics:
        clients = per_client(task, _of(clients_shown, scores), len(clients_shown), custom)
        return ProtocolMetrics(measure(task, scores, custom), clients)


class TriggeredSplit(ClientSplit):
    """The clients' test samples of other classes than a backdoor's goal, with its trigger."""

    def __init__(self, population: Population, attack: Attack):
        self.goal = attack.goal
        others = Ragged.of(
            rows[population.y[rows].numpy(force=True) != self.goal] for rows in population.test
        )
        super().__init__(replace(population, x=attack.triggered(population.x)), others)

    def metrics(
        self, task: Task, scores: Scores, clients_shown: Sequence[int], custom: RunMetrics
    ) -> ProtocolMetrics:
        """The success of the backdoor over all samples together; no metric of each client."""
        taken = float((scores.predicted == self.goal).sum())
        return ProtocolMetrics(
            {ATTACK_SUCCESS.name: taken / max(1, len(scores.y))}, [{} for _ in clients_shown]
        )


class ServerSplit:
    """The server's held-out test set; the same for all models."""

    def __init__(self, test: tuple[Tensor, Tensor]):
        self.x, self.y = test

    def of(self, clients: Sequence[int]) -> Rows:
        return np.arange(len(self.y)), np.zeros(len(self.y), np.int64)

    def metrics(
        self, task: Task, scores: Scores, clients_shown: Sequence[int], custom: RunMetrics
    ) -> ProtocolMetrics:
        return ProtocolMetrics(measure(task, scores, custom), None)


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


MANY = 10_000
"""With more clients than this, only the clients of a round have a row in the history and a personal model evaluated."""


MOST_RISKS = 20_000
"""With more test samples their risks are not kept."""
RESAMPLES, RESAMPLE_SEED = 200, 0
"""Number of times that test samples are drawn again, for a variance that is known to 10 %, and the seed of these draws."""


class Evaluator:
    """Evaluates the models of a stage under the protocols asked for. The first one fills the plain columns."""

    def __init__(self, run_config: RunConfig):
        population, chain = run_config.population, run_config.options.chain
        self.population, self.protocols, self.custom = (
            population,
            run_config.options.protocols,
            run_config.metrics,
        )
        self.columns = run_config.columns
        self.prepare = None if chain is None else chain.fixed
        self.splits: dict[str, Split] = {"test": ClientSplit(population, population.test)}
        if len(population.val.values):
            self.splits["val"] = ClientSplit(population, population.val)
        if run_config.test is not None:
            self.splits["server"] = ServerSplit(run_config.test)
        attack = method_of(run_config.plan).attack
        if attack is not None and attack.goal is not None:
            self.splits[TRIGGERED] = TriggeredSplit(population, attack)
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
        clients_shown = shown(stage, result)
        nothing = dict.fromkeys(metric_names(self.population.task, self.custom), float("nan"))
        values = {
            f"{group}: {n}": t
            for group, state in stage.states.items()
            for n, t in state.params.items()
        }
        with untouched(stage.method, values):
            splits = {name: measured(name) for name in self.names(stage)}
        row: Row = {}
        table: list[Metrics] = [{} for _ in clients_shown]
        for protocol, of in splits.items():
            for split, found in of.items():
                names = self.columns.names(protocol, VALIDATION if split == VALIDATION else TEST)
                together = nothing if found is None else found.together
                row |= {names[metric]: value for metric, value in together.items()}
                if found is not None and found.clients is not None:
                    by_client = found.clients
                elif (
                    protocol == self.columns.unprefixed_protocol
                ):  # the plain columns are always there
                    by_client = [nothing] * len(clients_shown)
                else:
                    continue
                labels = [names[metric] for metric in next(iter(by_client), {})]
                for scored, metrics in zip(table, by_client, strict=True):
                    scored |= zip(labels, metrics.values(), strict=True)
        return row, self._clients(stage, result, table, clients_shown)

    def measured(
        self, protocol: str, models: ClientModels, result: RoundResult | None
    ) -> MeasuredSplits:
        """The metrics of the round's models under a protocol."""
        splits, clients_shown = self.splits_of(protocol), shown(models.state, result)
        if (
            protocol == "personal" and not clients_shown
        ):  # before training, with more than MANY clients
            return dict.fromkeys(splits)
        return self.scored(splits, MODELS[protocol](models, result), clients_shown)

    def splits_of(self, protocol: str) -> Splits:
        """The samples that a protocol is measured on."""
        test = "server" if protocol == "server" and "server" in self.splits else "test"
        further = {VALIDATION: "val", TRIGGERED: TRIGGERED if protocol != "server" else ""}
        return {TEST: test} | {
            split: name for split, name in further.items() if name in self.splits
        }

    def last(self, models: ClientModels, protocol: str, split: str) -> Scores | None:
        """The samples of a split as the last models of a run score them, which is done once; None where there is no model."""
        if (protocol, split) not in self._last:
            predicting = MODELS[protocol](models, None)
            parts = [] if predicting is None else self.scores({TEST: split}, predicting)[TEST]
            self._last[protocol, split] = Scores.join(parts) if parts else None
        return self._last[protocol, split]

    def confusion(self, models: ClientModels) -> np.ndarray | None:
        """Test samples by class (row) and predicted class (column) of the last models in use, as in `risks`.

        None for regression, and where there is no test sample or no model.
        """
        classes, split = (
            self.population.classes,
            "test" if len(self.population.test.values) else "server",
        )
        if classes is None or split not in self.splits:
            return None
        scores, size = self.last(models, self._in_use(models), split), len(classes)
        if scores is None:
            return None
        pairs = scores.y.astype(np.int64) * size + scores.predicted.astype(np.int64)
        return np.bincount(pairs, minlength=size**2).reshape(size, size)

    def resampled(self, models: ClientModels, protocol: str) -> list[Metrics] | None:
        """The metrics of the last models under a protocol, on test samples that are drawn again with replacement in each client.

        The draws are the same for all models that are scored on the same samples. None where a protocol has no model then, and
        where not every client is evaluated.
        """
        split, clients = self.splits_of(protocol)[TEST], range(len(self.population))
        if len(clients) > MANY or not len(self.splits[split].of(clients)[0]):
            return None
        if (scores := self.last(models, protocol, split)) is None:
            return None
        scores = scores.of(np.argsort(scores.client, kind="stable"))
        sizes = np.bincount(scores.client)[scores.client]
        starts, rng = (
            np.searchsorted(scores.client, scores.client),
            np.random.default_rng(RESAMPLE_SEED),
        )
        draws = (starts + (rng.random(len(sizes)) * sizes).astype(int) for _ in range(RESAMPLES))
        return [measure(self.population.task, scores.of(rows), self.custom) for rows in draws]

    def risks(self, models: ClientModels) -> Scores | None:
        """The clients' test samples as the last models in use score them: the clients' own where they have some, else the shared.

        None where there are more or fewer than two classes, more than `MOST_RISKS` samples or `MANY` clients, or no samples.
        """
        samples = len(self.population.test.values)
        if (
            not self.population.task.areas
            or not 0 < samples <= MOST_RISKS
            or len(self.population) > MANY
        ):
            return None
        return self.last(models, self._in_use(models), "test")

    def _in_use(self, models: ClientModels) -> str:
        """The protocol of the models that clients use."""
        return "personal" if models.state.is_personal else "clients"

    def scored(
        self, splits: Splits, models: Models | None, clients_shown: Sequence[int] = ()
    ) -> MeasuredSplits:
        """The metrics of models on these splits, and per client for `clients_shown`; None where there is no model."""
        return (
            dict.fromkeys(splits)
            if models is None
            else self.measures(splits, self.scores(splits, models), clients_shown)
        )

    def measures(
        self, splits: Splits, scores: SplitScores, clients_shown: Sequence[int]
    ) -> MeasuredSplits:
        """The metrics of scores on these splits, and per client for `clients_shown`."""
        task, custom = self.population.task, self.custom
        joined = {split: Scores.join(found) for split, found in scores.items()}
        return {
            s: self.splits[name].metrics(task, joined[s], clients_shown, custom)
            for s, name in splits.items()
        }

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
        done: RoundResult | None,
        table: list[Metrics],
        clients_shown: Sequence[int],
    ) -> list[Row]:
        rows = []
        places = np.asarray(clients_shown, np.int64)
        train, test = self.population.sizes[places], self.population.test.sizes[places]
        personal, front = (
            self.columns.get("personal", "accuracy"),
            [*leading_columns(next(iter(table), {}))],
        )
        for k, n_train, n_test, scored in zip(
            places.tolist(), train.tolist(), test.tolist(), table, strict=True
        ):
            row: Row = {"client": k, "n_train": n_train, "n_test": n_test} | {
                name: scored[name] for name in front
            }
            if personal is not None:
                row[personal.name] = scored.get(personal.name, float("nan"))
            row["status"] = "no training data" if not n_train else "idle"
            rows.append(row | scored)
        of = {row["client"]: row for row in rows}
        for k in done.trained if done and not stage.stage.pooled else ():
            of[k]["status"] = "malicious" if k in stage.settings.malicious else "trained"
        for k, why in done.faults.items() if done else ():
            of[k]["status"] = why
        return rows

    def score(self, predict: Predict, split: str, rows: Rows) -> Scores:
        """A model on samples of a split, prepared as in training but for what is drawn."""
        (indices, owner), samples = rows, self.splits[split]
        index = torch.from_numpy(indices)
        chosen = predict if self.prepare is None else self.prepare.before(predict)
        task, labels, kept = self.population.task, samples.y[index], bool(self.custom)
        return score(
            task, chosen, samples.x, labels, owner, logits=kept, index=index.to(samples.x.device)
        )


def shown(stage: StageState, done: RoundResult | None) -> Sequence[int]:
    """The clients with a row of their own: all clients, or only the clients of the round if there are more than `MANY`.

    Where clients do not train, as in a stage that pools their data, the clients that would have been drawn are shown.
    """
    clients = len(stage.population)
    if clients <= MANY:
        return range(clients)
    if done is None:
        return []
    if stage.stage.pooled or not stage.stage.trained:
        return stage.draw(stage.done - 1)
    return sorted({*done.trained, *done.faults})


def _of(clients_shown: Sequence[int], scores: Scores) -> Scores:
    """The scores of these clients (in ascending order), with places instead of client ids."""
    if isinstance(clients_shown, range):
        return scores
    numbers = np.asarray(clients_shown, np.int64)
    own = scores.of(np.isin(scores.client, numbers))
    return replace(own, client=np.searchsorted(numbers, own.client))


def server_models(stage: StageState) -> Models | None:
    """The shared model for all clients. Raises `UnalikeError` where clients use it in different ways."""
    if len(stage.groups) > 1 or not stage.has_shared_model:
        return None
    if not stage.predicts_the_same_for_all:
        raise UnalikeError(
            f"protocol 'server' has one model for all clients, and this run {stage.why_no_single_model}; use 'clients'"
        )
    [state] = stage.states.values()
    return [
        (
            range(len(stage.population)),
            SharedModel(stage.settings.model, state.params, state.buffers),
        )
    ]


def _clients(models: ClientModels, result: RoundResult | None) -> Models | None:
    stage = models.state
    if not stage.has_shared_model:
        return None
    model, members = stage.settings.model, stage.members
    if not stage.predicts_the_same_for_all:
        clients_shown = sorted(k for ids in members.values() for k in ids)
        return (([k], models.shared_model(k)) for k in clients_shown)
    return [
        (members[g], SharedModel(model, s.params, s.buffers))
        for g, s in stage.states.items()
        if members[g]
    ]


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
    return (([k], models.local_model(result, k)) for k in result.trained)


MODELS: dict[str, Callable[[ClientModels, RoundResult | None], Models | None]] = {
    "server": lambda models, result: server_models(models.state),
    "clients": _clients,
    "personal": _personal,
    "local": _local,
}
