"""Evaluation at the sites: each sends sums and counts, which are pooled here."""

from collections.abc import Callable, Mapping, Sequence

from unalike._utils.profiler_regions import profiled
from unalike.federation.coordinator.bounded_losses import bounded_losses
from unalike.federation.coordinator.deciding_score import CLIENTS, means_of_sites
from unalike.federation.coordinator.round_request import SplitSums
from unalike.federation.protocol.federation_file import Federation
from unalike.metrics.columns import REPLY_SECONDS, TEST, VALIDATION
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.metrics import Metrics, metric_names
from unalike.runtime.records.history import Row
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.evaluation import (
    Evaluator,
    MeasuredSplits,
    ProtocolMetrics,
    server_models,
)
from unalike.runtime.stages.stage_state import RoundResult, StageState

SiteSums = Mapping[str, Mapping[int, SplitSums] | None]
"""Protocol -> client -> its evaluation; None where there is no such model."""


class FederatedEvaluator(Evaluator):
    """Evaluates models at the sites, and on the server's own test set.

    `report` is told of a client whose loss counts otherwise than it was sent.
    """

    def __init__(
        self, run_config: RunConfig, federation: Federation, report: Callable[[int, str], None]
    ):
        super().__init__(run_config)
        self.federation = federation
        self.report = report

    def names(self, stage: StageState) -> tuple[str, ...]:
        """The protocols to record: those asked for, and "personal" where sites have something of their own and tell its scores."""
        is_one_model = stage.predicts_the_same_for_all
        recorded = []
        for name in super().names(stage):
            if name in self.protocols or self.federation.tells_scores(name, is_one_model):
                recorded.append(name)
        return tuple(recorded)

    def pooled_tables(self, stage: StageState, sums: SiteSums) -> tuple[Row, list[Row]]:
        """The metrics after the round that is pending (None: before training), and one row per client."""
        with profiled("evaluation"):
            return self.tables(
                stage, stage.pending, lambda protocol: self._of_sums(protocol, stage, sums)
            )

    def _clients(
        self,
        stage: StageState,
        result: RoundResult | None,
        table: list[Metrics],
        clients_shown: Sequence[int],
    ) -> list[Row]:
        """One row per client, as of a simulation, and the seconds until it answered where it trained."""
        rows = super()._clients(stage, result, table, clients_shown)
        if result is None:
            return rows
        for row in rows:
            if row["client"] in result.trained and row["client"] in result.client_seconds:
                row[REPLY_SECONDS] = result.client_seconds[row["client"]]
        return rows

    def _of_sums(self, protocol: str, stage: StageState, site_sums: SiteSums) -> MeasuredSplits:
        """The metrics under one protocol: of the sites' sums, and of the server's own test set."""
        # The server's model is the one that clients evaluate as the shared one.
        sums = site_sums["clients" if protocol == "server" else protocol]
        splits = (TEST, VALIDATION) if "val" in self.splits else (TEST,)
        pooled = {split: self._pooled(sums, split) for split in splits}
        if protocol != "server":
            return pooled
        own = self.scored({TEST: "server"}, server_models(stage))
        # one model for everybody, or none
        if own[TEST] is None:
            return dict.fromkeys(pooled)
        return pooled | own

    def _pooled(
        self, site_sums: Mapping[int, SplitSums] | None, part: str
    ) -> ProtocolMetrics | None:
        """The metrics of all clients together and of each one, from the sums of one part of their samples."""
        if site_sums is None:
            return None
        task, custom = self.population.task, self.custom
        sums = {client: split_sums[part] for client, split_sums in site_sums.items()}

        nothing = dict.fromkeys(metric_names(task, custom), float("nan"))
        by_client = []
        for client in range(len(self.population)):
            has_sums = client in sums
            by_client.append(sums[client].metrics(task, custom) if has_sums else nothing)

        # Rounds are chosen and runs end by the metrics of all: one site's loss must not decide alone.
        bounded, reasons = bounded_losses(sums, custom)
        for client, why in reasons.items():
            self.report(client, why)
        total = MetricSums()
        for one in bounded.values():
            total = total.added(one, custom)
        together = total.metrics(task, custom)
        if self.federation.across == CLIENTS:
            together |= means_of_sites(by_client, list(custom))
        return ProtocolMetrics(together, by_client)
