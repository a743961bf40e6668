"""Evaluation at the sites: their sums and counts, pooled."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from unalike.federation.coordinator.remote_stage import RemoteStage
from unalike.federation.coordinator.round_request import SplitSums
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.metrics import metric_names
from unalike.runtime.evaluation import PROTOCOLS, Evaluator, ProtocolMetrics

PARTS = {"": "test", "val_": "val"}
"""What is put before the names of metrics -> the samples."""


class FederatedEvaluator(Evaluator):
    """An assessor whose samples lie on the sites, but for the server's own test set."""

    def measured(self, protocol: str, runner: Any, done: Any) -> dict[str, ProtocolMetrics | None]:
        remote: RemoteStage = runner
        examined = remote.examined(self.names(remote), done)
        infixes = [infix for infix in PARTS if not infix or "val" in self.splits]
        found = {
            infix: self._pooled(examined["clients" if protocol == "server" else protocol], infix) for infix in infixes
        }
        if protocol != "server":
            return found
        own = self.scored({"": "server"}, PROTOCOLS["server"](runner, done))
        return found | own if own[""] is not None else dict.fromkeys(found)  # one model for everybody, or none

    def _pooled(self, found: dict[int, SplitSums] | None, infix: str) -> ProtocolMetrics | None:
        if found is None:
            return None
        task = self.population.task
        tallies = {k: t[PARTS[infix]] for k, t in found.items()}
        nothing = dict.fromkeys(metric_names(task), float("nan"))
        clients = [tallies[k].metrics(task) if k in tallies else nothing for k in range(len(self.population))]
        return ProtocolMetrics(reduce(add, tallies.values(), MetricSums()).metrics(task), clients)
