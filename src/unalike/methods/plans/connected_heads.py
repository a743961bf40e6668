"""Floco: a head mixed of several endpoints."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unalike._utils import seeds
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Output
from unalike.methods.method import Method
from unalike.methods.parts.connected_modes import ConnectedModes
from unalike.methods.plan import PlanInputs, PlanSteps, Stage
from unalike.methods.plans.staged_plan import (
    MethodText,
    StagedPlan,
    of_samples_alone,
    staged_plan,
)
from unalike.methods.search_space import LinearRange, OneOf


class MixedHead(nn.Module):
    """W z + b with W = sum_m a_m theta_m: endpoints theta [M, C, D], frozen weights a [M], z [B, D]."""

    def __init__(self, features: int, classes: int, endpoints: int):
        super().__init__()
        drawn = [nn.init.xavier_normal_(torch.empty(classes, features)) for _ in range(endpoints)]
        self.endpoints = nn.Parameter(torch.stack(drawn))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.mixture = nn.Parameter(torch.full((endpoints,), 1 / endpoints), requires_grad=False)

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(z, torch.tensordot(self.mixture, self.endpoints, 1), self.bias)


class ConnectedModel(nn.Module):
    """The mixed head over the features of an encoder."""

    def __init__(self, encoder: nn.Module, head: MixedHead):
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of `x` [B, ...]."""
        output = self.encoder(x)
        return self.head(output.logits if isinstance(output, Output) else output)


@staged_plan
class Floco(StagedPlan):
    """Floco (Grinwald et al. 2024): clients train M heads and all between them, and then each its own region of these.

    The run's model, whose head has the weights sum_m a_m theta_m, `endpoints` = M, and one bias. Clients train by `method`; in the
    first `share` of the rounds they draw a on the whole simplex, then within `radius` of their own centers: see
    `connected_modes`. The theta_m are drawn from the run's seed. With one endpoint it is `method`.

    The authors take M = 10, half of the rounds, and a radius of 0.1 or 0.3. An endpoint moves by a_m times the head's gradient, so
    that the head moves by about 2 / (M + 1) of a step. Floco+, which trains personal models beside it, is not here.
    """

    name: ClassVar[str] = "floco"
    needs_of_task: ClassVar[str] = CLASS_LOGITS

    endpoints: Annotated[PositiveInt, OneOf(3, 10)] = 10
    radius: Annotated[float, LinearRange(0, 0.5)] = Field(default=0.3, ge=0, lt=1)
    share: Annotated[float, LinearRange(0.2, 0.8)] = Field(default=0.5, gt=0, le=1)
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        plan_inputs.task.require(self.needs_of_task, asker=self.name)
        after = max(1, round(self.share * plan_inputs.rounds))
        method = Method.parse(self.method) + ConnectedModes(after=after, radius=self.radius)
        model = self.model(plan_inputs.model, plan_inputs.seed)
        yield Stage("train", method, plan_inputs.rounds, model=model)

    def model(self, model: Model, run: int) -> Model:
        """The run's model under the mixed head."""
        of_samples_alone(self, model)
        # the endpoints are drawn from the run's seed, as they are at all sites
        with seeds.isolated(seeds.number(run, self.name)):
            head = MixedHead(*model.head_size, endpoints=self.endpoints)
        encoder = model.encoder(model.params, model.buffers)
        return Model(ConnectedModel(encoder, head).to(next(iter(model.params.values()))))
