"""The samples that a run is scored on: those of the clients, those with the trigger of a backdoor, the server's test set."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from unalike.core.inputs import Inputs
from unalike.core.tasks.task import Task
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.methods.attack import Attack
from unalike.methods.plan import method_of
from unalike.metrics.columns import TRIGGERED
from unalike.metrics.metrics import Metrics, RunMetrics, measure, per_client
from unalike.metrics.named_metrics import ATTACK_SUCCESS
from unalike.metrics.scoring import Scores
from unalike.runtime.setup.run_config import RunConfig

Rows = tuple[np.ndarray, np.ndarray]
"""(sample indices [n], client ids [n])"""


class ProtocolMetrics(NamedTuple):
    """Metrics over all samples together, and of each client; None if the samples belong to no client."""

    together: Metrics
    clients: list[Metrics] | None


class Split(Protocol):
    """Samples to score on, and what is measured on them."""

    x: Inputs
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
        self.x = population.x
        self.y = population.y
        self.rows = rows

    def of(self, clients: Sequence[int]) -> Rows:
        if len(clients) == len(self.rows):
            return self.rows.values, self.rows.owners
        rows = [self.rows[client] for client in clients]
        indices = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        owners = np.repeat(np.asarray(clients, np.int64), self.rows.sizes[list(clients)])
        return indices, owners

    def metrics(
        self, task: Task, scores: Scores, clients_shown: Sequence[int], custom: RunMetrics
    ) -> ProtocolMetrics:
        clients = per_client(task, _of(clients_shown, scores), len(clients_shown), custom)
        return ProtocolMetrics(measure(task, scores, custom), clients)


class TriggeredSplit(ClientSplit):
    """The clients' test samples of other classes than a backdoor's goal, with its trigger."""

    def __init__(self, population: Population, attack: Attack):
        self.goal = attack.goal
        rows_of_others = []
        for rows in population.test:
            labels = population.y[rows].numpy(force=True)
            rows_of_others.append(rows[labels != self.goal])
        triggered = replace(population, x=attack.triggered(population.x))
        super().__init__(triggered, Ragged.of(rows_of_others))

    def metrics(
        self, task: Task, scores: Scores, clients_shown: Sequence[int], custom: RunMetrics
    ) -> ProtocolMetrics:
        """The success of the backdoor over all samples together; no metric of each client."""
        predicted_as_goal = float((scores.predicted == self.goal).sum())
        success = predicted_as_goal / max(1, len(scores.y))
        return ProtocolMetrics({ATTACK_SUCCESS.name: success}, [{} for _ in clients_shown])


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


def splits_of(run_config: RunConfig) -> dict[str, Split]:
    """The samples of a run by their name: "test" of the clients, and "val", "server" and `TRIGGERED` where there are such."""
    population = run_config.population
    splits: dict[str, Split] = {"test": ClientSplit(population, population.test)}
    if len(population.val.values):
        splits["val"] = ClientSplit(population, population.val)
    if run_config.test is not None:
        splits["server"] = ServerSplit(run_config.test)
    attack = method_of(run_config.plan).attack
    if attack is not None and attack.goal is not None:
        splits[TRIGGERED] = TriggeredSplit(population, attack)
    return splits


def _of(clients_shown: Sequence[int], scores: Scores) -> Scores:
    """The scores of these clients (in ascending order), with places instead of client ids."""
    if isinstance(clients_shown, range):
        return scores
    clients = np.asarray(clients_shown, np.int64)
    chosen = scores.of(np.isin(scores.client, clients))
    return replace(chosen, client=np.searchsorted(clients, chosen.client))
