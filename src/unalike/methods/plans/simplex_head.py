"""FedETF: a fixed head with class vectors at equal, largest angles."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Output
from unalike.methods.method import Method
from unalike.methods.parts.objectives import BalancedSoftmax
from unalike.methods.parts.personalizers import Fixed
from unalike.methods.plan import PlanInputs, PlanSteps, Stage
from unalike.methods.plans.staged_plan import MethodText, StagedPlan, staged_plan
from unalike.methods.search_space import LinearRange, LogRange


class SimplexModel(nn.Module):
    """beta V^T mu, mu = P z / ||P z||: z [B, D] of the encoder, P a linear layer D -> d, V [d, C] the fixed simplex."""

    def __init__(self, encoder: nn.Module, features: int, simplex: Tensor, scale: float):
        super().__init__()
        width, classes = simplex.shape
        self.encoder = encoder
        self.projecting = nn.Linear(features, width)
        self.scale = nn.Parameter(torch.tensor(scale))
        self.head = nn.Linear(width, classes, bias=False)
        self.head.weight = nn.Parameter(simplex.T.contiguous(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of `x` [B, ...]."""
        output = self.encoder(x)
        z = output.logits if isinstance(output, Output) else output
        mu = F.normalize(self.projecting(z), dim=1)
        return self.head(self.scale * mu)


@staged_plan
class Fedetf(StagedPlan):
    """FedETF (Li et al. 2023): a synthetic head that never moves, under which all clients learn the same features.

    The run's model without its head, then a linear projection to `width` numbers, normalized to length 1, and as logits
    beta times their products with V = sqrt(C / (C - 1)) U (I - 1 1^T / C), U [width, C] orthonormal: class
    vectors of length 1 and of equal, largest angles. beta, the inverse temperature, starts at `scale` and is learned with
    the rest; V is drawn from the run's seed, so it is not sent. Clients train by `method` with the loss balanced by their
    own label counts, `balanced_softmax(gamma)`, which leaves out classes that a client does not have where the authors' code counts
    them as one sample. width = None is that of the features, or C where these are fewer.

    The paper's personal models (V and the projection fine-tuned in turns) are not here: method="local_finetune" tunes the encoder,
    projection and beta instead. The start of beta is 10 or 1 in the authors' code, by the network.
    """

    name: ClassVar[str] = "fedetf"
    needs_of_task: ClassVar[str] = CLASS_LOGITS

    gamma: Annotated[NonNegativeFloat, LinearRange(0, 2)] = 1.0
    scale: Annotated[PositiveFloat, LogRange(1, 30)] = 10.0
    width: PositiveInt | None = None
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        plan_inputs.task.require(self.needs_of_task, asker=self.name)
        method = Method.parse(self.method) + BalancedSoftmax(gamma=self.gamma) + Fixed("head")
        model = self.model(plan_inputs.model, plan_inputs.seed)
        yield Stage("train", method, plan_inputs.rounds, model=model)

    def model(self, model: Model, run: int) -> Model:
        """The run's model under the simplex."""
        features, classes = model.head_size
        width = max(features, classes) if self.width is None else self.width
        if model.takes_context or not 2 <= classes <= width:
            reason = f"{classes} classes and a width of {width}"
            if model.takes_context:
                reason = "facts of its client"
            raise UnalikeError(
                f"fedetf found a model with {reason}; expected one whose only input is the samples, and 2 classes or more "
                "with at least as large a width"
            )
        # the projection and the simplex are drawn from the run's seed, so that they need not be sent
        with seeds.isolated(seeds.number(run, "fedetf")):
            module = SimplexModel(
                encoder=model.encoder(model.params, model.buffers),
                features=features,
                simplex=simplex(width, classes),
                scale=self.scale,
            )
        like = next(iter(model.params.values()))
        return Model(module.to(like))


def simplex(width: int, classes: int) -> Tensor:
    """A simplex equiangular tight frame [width, classes], turned at random: V^T V = (C I - 1 1^T) / (C - 1)."""
    basis, _ = torch.linalg.qr(torch.randn(width, classes, dtype=torch.float64))
    centred = basis - basis.mean(1, keepdim=True)
    return ((classes / (classes - 1)) ** 0.5 * centred).float()
