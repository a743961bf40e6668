"""The models of the workloads in plain torch, for every contender that trains torch modules."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def two_nn() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


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
        self.conv1, self.norm1 = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def resnet(widths: tuple[int, ...], blocks: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, widths[0], 3, 1, 1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    before = widths[0]
    for after in widths:
        for i in range(blocks):
            layers.append(Block(before, after, 2 if i == 0 and after > widths[0] else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def resnet20() -> nn.Module:
    return resnet((16, 32, 64), 3)


class FedAvgCNN(nn.Module):
    """PFLlib's default for 28x28 images: two 5x5 convolutions and 512 units."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.hidden, self.head = nn.Linear(1024, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(F.relu(self.hidden(torch.flatten(x, 1))))


class SignalCNN(nn.Module):
    """Two convolutions over a signal of 64 values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = (
            nn.Conv1d(1, 8, 5),
            nn.Conv1d(8, 16, 5),
            nn.Linear(208, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(F.relu(self.conv1(x)), 2)
        return self.head(F.max_pool1d(F.relu(self.conv2(x)), 2).flatten(1))


class TextCNN(nn.Module):
    """Kim (2014): windows of 3, 4 and 5 of 32 words out of 1000."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 50), nn.Linear(96, 10)
        self.windows = nn.ModuleList(nn.Conv1d(50, 32, width) for width in (3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(words)).amax(2) for conv in self.windows], 1))


class CharacterLSTM(nn.Module):
    """An LSTM of 64 units over 32 out of 80 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(80, 8), nn.Linear(64, 10)
        self.lstm = nn.LSTM(8, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Transformer(nn.Module):
    """Two layers of width 32 with 2 heads over 16 out of 80 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(80, 32), nn.Linear(32, 10)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(x)).mean(1))


def resnet18_7x7() -> nn.Module:
    """ResNet-18 with the 7x7 stem for large images."""
    module = resnet((64, 128, 256, 512), 2)
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    return nn.Sequential(stem, *list(module)[3:])


OWN = {
    "FedAvgCNN": (FedAvgCNN, (1, 28, 28), 0),
    "LeNet": (lenet, (1, 28, 28), 0),
    "SimpleCNN": (cnn, (3, 32, 32), 0),
    "ResNet-20": (resnet20, (3, 32, 32), 0),
    "ResNet-18, 7x7 stem": (resnet18_7x7, (3, 64, 64), 0),
    "TextCNN": (TextCNN, (32,), 1000),
    "character LSTM": (CharacterLSTM, (32,), 80),
    "transformer": (Transformer, (16,), 80),
    "1-D CNN": (SignalCNN, (1, 64), 0),
    "2NN": (two_nn, (784,), 0),
    "logistic": (logistic, (64,), 0),
}
"""Networks that people bring: module, shape of a sample, and number of words of those that read words."""


NETWORKS = {
    "2nn": two_nn,
    "logistic": logistic,
    "lenet": lenet,
    "fedavgcnn": FedAvgCNN,
    "cnn": cnn,
    "resnet20": resnet20,
}
"""The workloads' networks."""


def network(name: str) -> nn.Module:
    """The workload's model, with the same initial weights for every contender."""
    torch.manual_seed(0)
    return NETWORKS[name]()


def moved(start: Iterable[Tensor], end: Iterable[Tensor]) -> float:
    """Euclidean distance between start and end; 0 means that nothing was trained."""
    return (
        float(
            sum(
                (b.detach().double() - a.detach().double()).square().sum()
                for a, b in zip(start, end)
            )
        )
        ** 0.5
    )


def resnet18() -> nn.Module:
    """ResNet-18 with a 3x3 stem: 11.2 M parameters."""
    return resnet((64, 128, 256, 512), 2)
