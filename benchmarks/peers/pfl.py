"""pfl-research: FederatedAveraging on a SimulatedBackend, evaluation only in the first iteration."""

from __future__ import annotations

import sys
from importlib.metadata import version

import torch
from clock import Clock
from networks import moved, network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from workloads import LR, MOMENTUM, WORKLOADS, arrays


class Classifier(nn.Module):
    """The two methods that pfl asks of a module."""

    def __init__(self, name: str):
        super().__init__()
        self.network = network(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        self.eval() if eval else self.train()
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict[str, Weighted]:
        self.eval() if eval else self.train()
        return {"loss": Weighted(len(y) * nn.functional.cross_entropy(self(x), y).item(), len(y))}


class Laps(TrainingProcessCallback):
    """A lap after each central iteration."""

    def __init__(self, clock: Clock):
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.lap()
        return False, Metrics()


def main(name: str, rounds: int) -> None:
    work, clock = WORKLOADS[name], Clock()
    x, y = (torch.from_numpy(a) for a in arrays(name))
    users = list(range(work.clients))
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset([x[user], y[user]], user_id=str(user)),
        get_user_sampler("minimize_reuse", users),
    )
    module = Classifier(name)
    model = PyTorchModel(
        module,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, 10 * rounds, work.clients, None),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(work.batch, 1, LR),
        NNEvalHyperParams(None),
        [Laps(clock)],
        send_metrics_to_platform=False,
    )
    clock.moved = moved(network(name).parameters(), module.parameters())
    clock.report(version=version("pfl"), torch=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
