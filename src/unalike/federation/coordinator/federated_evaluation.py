"""Evaluation at the sites: each sends sums and counts, which are pooled here."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from unalike._utils.profiler_regions import profiled
from unalike.federation.coordinator.round_request import SplitSums
from unalike.metrics.columns import TEST, VALIDATION
from unalike.metrics.metric_sums import MetricSums, unpooled
from unalike.metrics.metrics import metric_names
from unalike.runtime.records.history import Row
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.evaluation import (
    Evaluator,
    MeasuredSplits,
    ProtocolMetrics,
    server_models,
)
from unalike.runtime.stages.stage_state import StageState

SiteSums = Mapping[str, Mapping[int, SplitSums] | None]
"""Protocol -> client -> its evaluation; None where there is no such model."""


class FederatedEvaluator(Evaluator):
    """Evaluates models at the sites, and on the server's own test set."""

    def pooled_tables(self, stage: StageState, sums: SiteSums) -> tuple[Row, list[Row]]:
        """The metrics after the round that is pending (None: before training), and one row per client."""
        with profiled("evaluation"):
            return self.tables(
                stage, stage.pending, lambda protocol: self._of_sums(protocol, stage, sums)
            )

    def _of_sums(self, protocol: str, stage: StageState, site_sums: SiteSums) -> MeasuredSplits:
        sums = site_sums["clients" if protocol == "server" else protocol]
        splits = (TEST, VALIDATION) if "val" in self.splits else (TEST,)
        pooled = {split: self._pooled(sums, split) for split in splits}
        if protocol != "server":
            return pooled
        own = self.scored({TEST: "server"}, server_models(stage))
        return (
            pooled | own if own[TEST] is not None else dict.fromkeys(pooled)
        )  # one model for everybody, or none

    def _pooled(self, found: Mapping[int, SplitSums] | None, part: str) -> ProtocolMetrics | None:
        if found is None:
            return None
        task, custom = self.population.task, self.custom
        sums = {k: of[part] for k, of in found.items()}
        nothing = dict.fromkeys(metric_names(task, custom), float("nan"))
        clients = [
            sums[k].metrics(task, custom) if k in sums else nothing
            for k in range(len(self.population))
        ]
        pooled = reduce(lambda a, b: a.added(b, custom), sums.values(), MetricSums()).metrics(
            task, custom
        )
        return ProtocolMetrics(pooled, clients)


def pooled_first(run_config: RunConfig) -> RunConfig:
    """The same where metrics that cannot be pooled from what sites send do not lead, so that none of them decides."""
    alone = unpooled(run_config.population.task, run_config.metrics)
    metrics = {
        name: replace(m, leads=m.leads and name not in alone)
        for name, m in run_config.metrics.items()
    }
    return replace(run_config, metrics=metrics)
