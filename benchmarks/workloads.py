"""The workloads: arrays, batch sizes, momentum and learning rate, the same for every contender. Imports only NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MOMENTUM = 0.9
LR = 0.01


@dataclass(frozen=True)
class Workload:
    """`clients` x `samples` of `shape`, one local epoch in batches of `batch` per round."""

    title: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    batch: int
    classes: int = 10

    @property
    def text(self) -> str:
        """Description in one line."""
        return f"{self.title}, {self.clients} clients x {self.samples}, batch {self.batch}"


WORKLOADS = {
    "2nn": Workload("2NN 784-200-200-10", 100, 100, (784,), 10),
    "logistic": Workload("logistic 64-10", 300, 100, (64,), 10),
    "lenet": Workload("LeNet 28x28x1", 20, 300, (1, 28, 28), 10),
    "fedavgcnn": Workload("FedAvgCNN 28x28x1", 20, 600, (1, 28, 28), 10),
    "cnn": Workload("SimpleCNN 32x32x3", 20, 250, (3, 32, 32), 50),
    "resnet20": Workload("ResNet-20 32x32x3", 10, 200, (3, 32, 32), 50),
}


@lru_cache(maxsize=1)
def arrays(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images or rows x [clients, samples, ...] as float32, labels y [clients, samples] as int64."""
    work = WORKLOADS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((work.clients, work.samples, *work.shape), dtype=np.float32)
    return x, rng.integers(0, work.classes, (work.clients, work.samples))
