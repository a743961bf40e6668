"""References to compare with: training on pooled data, and training within the true clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike.methods.method import Method, as_method
from unalike.methods.plan import PlanInputs, PlanSteps, Stage
from unalike.methods.plans.staged_plan import MethodText, StagedPlan, grouped, staged_plan
from unalike.methods.roles import Conditioner


@staged_plan
class Centralised(StagedPlan):
    """Reference with all data in one place: one model trained on the union of the clients' data.

    With a conditioner, `centralised + conditional`, each sample comes with the statistic of the client that it belongs to (the
    Local Statistics paper). `method` may have nothing else that changes training.
    """

    method: MethodText = "fedavg"

    def with_parts(self, parts: Sequence[object]) -> Centralised:
        """The reference with conditioners: `centralised + conditional`."""
        method = Method.parse(self.method)
        for part in parts:
            method = method + as_method(part)
        _check_effect(method)
        return Centralised(method=repr(method))

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        method = Method.parse(self.method)
        _check_effect(method)
        yield Stage("train", method, plan_inputs.rounds, pooled=True)


def _check_effect(method: Method) -> None:
    """Raise `UnalikeError` for a part that has no effect on one client with all data: for others than conditioners."""
    for part in method.parts:
        if part not in Method().parts and not isinstance(part, Conditioner):
            raise UnalikeError(
                f"centralised trains on pooled data, where {part.name} has no effect; expected a conditioner, "
                "as in 'centralised + conditional', or no method"
            )


@staged_plan
class ClusterOracle(StagedPlan):
    """Reference that knows the true clusters: `method` by itself in each of them (the Local Statistics paper).

    The clusters are those of the population (`clusters`, or the partition that made it). One cluster is `method`.
    """

    divides: ClassVar[bool] = True
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        if plan_inputs.clusters is None:
            raise UnalikeError(
                "cluster_oracle needs the true clusters and the clients come without any; use a partition that has them "
                "(clusters, rotation, natural(cluster=...)) or Population(..., clusters=[...]); in a federation nobody knows them "
                f"({Limit.FEDERATION})"
            )
        method = Method.parse(self.method)
        yield Stage("train", method, plan_inputs.rounds, grouped(plan_inputs.clusters))
