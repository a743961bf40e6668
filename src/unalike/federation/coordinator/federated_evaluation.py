"""Evaluation at the sites: each sends sums and counts, which are pooled here."""

from __future__ import annotations

from functools import reduce
from operator import add

from unalike._utils.profiler_regions import profiled
from unalike.federation.coordinator.remote_stage import RemoteStage
from unalike.federation.coordinator.round_request import SplitSums
from unalike.metrics.metric_sums import MetricSums, unpooled
from unalike.metrics.metrics import Metrics, metric_names
from unalike.runtime.evaluation import Evaluator, MeasuredSplits, ProtocolMetrics, Row, server_models
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stage_state import RoundResult, StageState

PARTS = {"": "test", "val_": "val"}
"""Prefix of metric names -> the samples."""


class FederatedEvaluator:
    """Evaluates models at the sites, and on the server's own test set."""

    def __init__(self, run_config: RunConfig):
        self.population = run_config.population
        self._here = Evaluator(run_config)  # lays out the tables
        alone = unpooled(run_config.population.task, run_config.metrics)
        self._last = [name for name in alone if name in run_config.metrics]

    def __call__(self, remote: RemoteStage, result: RoundResult | None, *, train_next: bool) -> tuple[Row, list[Row]]:
        """The metrics of a round (None: before training), and one row per client; with `train_next` sites train the next round."""
        with profiled("evaluation"):
            found = remote.evaluate_sites(self._here.names(remote.state), result, train_next=train_next)
            return self._here.tables(remote.state, result, lambda name: self._measured(name, remote.state, found))

    def _measured(
        self, protocol: str, stage: StageState, found: dict[str, dict[int, SplitSums] | None]
    ) -> MeasuredSplits:
        sums = found["clients" if protocol == "server" else protocol]
        infixes = [infix for infix in PARTS if not infix or "val" in self._here.splits]
        pooled = {infix: self._pooled(sums, PARTS[infix]) for infix in infixes}
        if protocol != "server":
            return pooled
        own = self._here.scored({"": "server"}, server_models(stage))
        return pooled | own if own[""] is not None else dict.fromkeys(pooled)  # one model for everybody, or none

    def _pooled(self, found: dict[int, SplitSums] | None, part: str) -> ProtocolMetrics | None:
        if found is None:
            return None
        task, custom = self.population.task, self._here.custom
        sums = {k: of[part] for k, of in found.items()}
        nothing = dict.fromkeys(metric_names(task, custom), float("nan"))
        clients = [sums[k].metrics(task, custom) if k in sums else nothing for k in range(len(self.population))]
        pooled = reduce(add, sums.values(), MetricSums()).metrics(task, custom)
        return ProtocolMetrics(self._ordered(pooled), [self._ordered(metrics) for metrics in clients])

    def _ordered(self, metrics: Metrics) -> Metrics:
        """The metrics with those last that were chosen but cannot be pooled: the first column decides."""
        first = {name: value for name, value in metrics.items() if name not in self._last}
        return first | {name: metrics[name] for name in self._last}
