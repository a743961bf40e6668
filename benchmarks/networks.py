"""The models of the workloads in plain torch, for every contender that trains torch modules."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def two_nn() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def logistic() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 10))


def lenet() -> nn.Module:
    """NIID-Bench's network for 28x28 images."""
    return nn.Sequential(
        *(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ),
        *(nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def cnn() -> nn.Module:
    """FedLWS's SimpleCNN for 32x32 images."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def resnet(widths: tuple[int, ...], blocks: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    before = widths[0]
    for after in widths:
        for i in range(blocks):
            layers.append(Block(before, after, 2 if i == 0 and after > widths[0] else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


NETWORKS = {
    "2nn": two_nn,
    "logistic": logistic,
    "lenet": lenet,
    "cnn": cnn,
    "resnet20": lambda: resnet((16, 32, 64), 3),
}


def network(name: str) -> nn.Module:
    """The workload's model, with the same initial weights for every contender."""
    torch.manual_seed(0)
    return NETWORKS[name]()


def moved(start: Iterable[Tensor], end: Iterable[Tensor]) -> float:
    """Euclidean distance between start and end; 0 means that nothing was trained."""
    return float(sum((b.detach().double() - a.detach().double()).square().sum() for a, b in zip(start, end))) ** 0.5


def resnet18() -> nn.Module:
    """ResNet-18 with a 3x3 stem: 11.2 M parameters."""
    return resnet((64, 128, 256, 512), 2)
