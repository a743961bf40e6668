"""Data sharing: all clients also train on a small public data set."""

import numpy as np
import torch
from pydantic import Field

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core.inputs import take_rows
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
        method = Method.parse(self.method)
        yield Stage("train", method, plan_inputs.rounds, shared=self._public_set(plan_inputs))

    def _public_set(self, plan_inputs: PlanInputs) -> Batch | None:
        """G, from the server's samples; None if it is empty."""
        count = round(self.fraction * plan_inputs.samples)
        if not count:
            return None
        proxy = plan_inputs.proxy
        available = 0 if proxy is None else len(proxy.y)
        if proxy is None or available < count:
            raise UnalikeError(
                f"data_sharing(fraction={self.fraction}) shares {count} public samples ({self.fraction:g} of the clients' "
                f"{plan_inputs.samples}) and the server has {available}; pass proxy=(x, y) with as many, or a smaller fraction"
            )
        rng = seeds.generator(plan_inputs.seed, "data_sharing")
        rows = torch.from_numpy(balanced(proxy.y.cpu().numpy(), count, rng))
        return Batch(take_rows(proxy.x, rows), proxy.y[rows])


def balanced(y: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of `count` samples, from each class in turn until it has none left. Other labels than classes are one class."""
    order = rng.permutation(len(y))
    if y.dtype.kind == "f" or y.ndim > 1:
        return np.sort(order[:count])
    turn = np.zeros(len(y), np.int64)
    for c in np.unique(y):
        of_class = order[y[order] == c]
        turn[of_class] = np.arange(len(of_class))
    by_turn = order[np.argsort(turn[order], kind="stable")]
    return np.sort(by_turn[:count])
