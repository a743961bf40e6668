"""fluke: its CentralizedFL (FedAvg) with in-memory messages and its own data loaders, without evaluation.

By default its clients keep their momentum from round to round, which is a little less work than a fresh start.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import torch
from clock import Clock

# torchvision from the registry is built for CUDA and has no operators for a CPU torch; fluke only needs to import it
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
if not hasattr(torch.ops.torchvision, "nms"):
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402
from networks import moved, network  # noqa: E402
from workloads import LR, MOMENTUM, WORKLOADS, arrays  # noqa: E402


class Laps(FederationObserver):
    """A lap after each round."""

    def __init__(self, clock: Clock):
        self.clock = clock

    def end_round(self, round: int) -> None:
        self.clock.lap()


def main(name: str, rounds: int) -> None:
    work, clock = WORKLOADS[name], Clock()
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(locals=False, server=False, pre_fit=False, post_fit=False)
    x, y = (torch.from_numpy(a) for a in arrays(name))
    loaders = [
        FastDataLoader(x[k], y[k], num_labels=work.classes, batch_size=work.batch, shuffle=True)
        for k in range(work.clients)
    ]
    data = DataSplitter(DummyDataContainer(loaders, [None] * work.clients, None, work.classes))
    algorithm = FedAVG(
        work.clients,
        data,
        DDict(
            client=DDict(
                batch_size=work.batch,
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=LR, momentum=MOMENTUM),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
            ),
            server=DDict(weighted=True),
            model=network(name),
        ),
    )
    algorithm.set_callbacks([Laps(clock)])
    algorithm.run(rounds, 1.0, finalize=False)
    clock.moved = moved(network(name).parameters(), algorithm.server.model.parameters())
    clock.report(version=version("fluke-fl"), torch=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
