"""References to compare with: training on pooled data, and training within the true clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unalike._utils.errors import UnalikeError
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
        return Centralised(
            method=repr(self._checked(sum(map(as_method, parts), start=Method.parse(self.method))))
        )

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        yield Stage(
            "train", self._checked(Method.parse(self.method)), plan_inputs.rounds, pooled=True
        )

    def _checked(self, method: Method) -> Method:
        """The method, if it consists of conditioners alone. Raises `UnalikeError`."""
        if other := [
            part
            for part in method.parts
            if part not in Method().parts and not isinstance(part, Conditioner)
        ]:
            raise UnalikeError(
                f"centralised trains on pooled data, where {other[0]!r} has no effect; expected a conditioner, "
                "as in 'centralised + conditional', or no method"
            )
        return method


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
                "(clusters, rotation, natural(cluster=...)) or Population(..., clusters=[...])"
            )
        yield Stage(
            "train", Method.parse(self.method), plan_inputs.rounds, grouped(plan_inputs.clusters)
        )
