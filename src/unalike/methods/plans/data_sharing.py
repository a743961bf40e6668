"""Data sharing: all clients also train on a small public data set."""

import numpy as np
import torch
from pydantic import Field

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core.types import Batch
from unalike.methods.method import Method
from unalike.methods.plan import PlanInputs, PlanSteps, Stage
from unalike.methods.plans.staged_plan import MethodText, StagedPlan, staged_plan


@staged_plan
class DataSharing(StagedPlan):
    """Every client trains on its own samples and on a small public set G, the same for all (Zhao et al. 2018, section 4).

    |G| = `fraction` of the clients' training samples, drawn once from the server's `proxy` with equal shares of the classes,
    as far as these go, and sent once. Then `method`; a client counts with |D_k| + |G| samples. fraction = 0 is `method`. The
    paper also starts from a model trained on G, and may give each client a part of G: neither is done here.
    """

    fraction: float = Field(default=0.05, ge=0, le=1)
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        wanted = round(self.fraction * plan_inputs.samples)
        yield Stage(
            "train",
            Method.parse(self.method),
            plan_inputs.rounds,
            shared=self._drawn(plan_inputs, wanted) if wanted else None,
        )

    def _drawn(self, plan_inputs: PlanInputs, wanted: int) -> Batch:
        found = 0 if plan_inputs.proxy is None else len(plan_inputs.proxy.y)
        if plan_inputs.proxy is None or found < wanted:
            raise UnalikeError(
                f"data_sharing(fraction={self.fraction}) shares {wanted} public samples ({self.fraction:g} of the clients' "
                f"{plan_inputs.samples}) and the server has {found}; pass proxy=(x, y) with as many, or a smaller fraction"
            )
        rows = torch.from_numpy(
            balanced(
                plan_inputs.proxy.y.cpu().numpy(),
                wanted,
                seeds.generator(plan_inputs.seed, "data_sharing"),
            )
        )
        return Batch(plan_inputs.proxy.x[rows], plan_inputs.proxy.y[rows])


def balanced(y: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of `wanted` samples, from each class in turn until it has none left. Other labels than classes are one class."""
    order = rng.permutation(len(y))
    if y.dtype.kind == "f":
        return np.sort(order[:wanted])
    turn = np.zeros(len(y), np.int64)
    for c in np.unique(y):
        mine = order[y[order] == c]
        turn[mine] = np.arange(len(mine))
    return np.sort(order[np.argsort(turn[order], kind="stable")][:wanted])
