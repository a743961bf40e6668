"""References to compare with: training on pooled data, and training within the true clusters."""

from __future__ import annotations

from unalike._utils.errors import UnalikeError
from unalike.methods.method import Method
from unalike.methods.plan import PlanInputs, PlanSteps, Stage
from unalike.methods.plans.staged_plan import MethodText, StagedPlan, grouped, staged_plan


@staged_plan
class Centralised(StagedPlan):
    """Reference with all data in one place: one model trained on the union of the clients' data."""

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        yield Stage("train", Method(), plan_inputs.rounds, pooled=True)


@staged_plan
class ClusterOracle(StagedPlan):
    """Reference that knows the true clusters: `method` by itself in each of them (the Local Statistics paper).

    The clusters are those of the population (`clusters`, or the partition that made it). One cluster is `method`.
    """

    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        if plan_inputs.clusters is None:
            raise UnalikeError(
                "cluster_oracle needs the true clusters and the clients come without any; use a partition that has them "
                "(clusters, rotation, natural(cluster=...)) or Population(..., clusters=[...])"
            )
        yield Stage("train", Method.parse(self.method), plan_inputs.rounds, grouped(plan_inputs.clusters))
