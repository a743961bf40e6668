"""What the methods of `docs/evidence/new_methods.md` gain over FedAvg on four data sets, and what they cost.

    python benchmarks/new_methods.py FOLDER

Finished runs in the folder are read and not repeated. `UNALIKE_DATA` names the folder with `fashion_mnist.npz`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

import unalike as ua
from unalike.data.dataset import Dataset
from unalike.data.partitioning.hold_out import hold_out

METHODS = (
    *("fedavg", "local_only", "local_finetune", "fedper"),
    *("adabest", "fedacg", "mimelite", "fedsam", "fedlesam", "fedexp"),
    *("fedcurv", "fedlc", "balanced_softmax", "q_ffl", "term", "afl"),
    *("matched", "feddf", "fedbe", "creff(samples=10)"),
    *("fedrod", "fedamp", "lg_fedavg", "fedproto", "fedtgp", "fedmd", "pfedhn", "flop"),
    *("fedas", "fedah"),
)
SEEDS = 3
ROUNDS = 20
PROXY_SHARE = 0.1
"""Share of the test samples that the server has."""


@dataclass(frozen=True)
class Setting:
    """Clients, their model and rate; at most so many training samples of the data set."""

    title: str
    data: str
    partition: str | None
    clients: int
    model: str
    rate: float
    epochs: int = 2
    batch: int = 16
    samples: int | None = None

    def load(self) -> Dataset:
        """The data set, with its first `samples` training samples, and half as many test samples."""
        data = ua.load(self.data)
        if self.samples is None:
            return data
        x, y = data.train
        test_x, test_y = data.test
        tests = self.samples // 2
        return replace(
            data,
            train=(x[: self.samples], y[: self.samples]),
            test=(test_x[:tests], test_y[:tests]),
        )


SKEWED = "dirichlet(alpha=0.1)"
SETTINGS = (
    Setting(
        title="`heart_disease`",
        data="heart_disease",
        partition=None,
        clients=4,
        model="mlp(hidden=(16,))",
        rate=0.05,
    ),
    Setting(
        title="`digits`",
        data="digits",
        partition=SKEWED,
        clients=10,
        model="mlp(hidden=(32,))",
        rate=0.1,
        epochs=1,
    ),
    Setting(
        title="`fashion_mnist`",
        data="fashion_mnist",
        partition=SKEWED,
        clients=10,
        model="mlp(hidden=(32,))",
        rate=0.1,
        epochs=1,
        batch=32,
        samples=1000,
    ),
    Setting(
        title="`emnist_sample`",
        data="emnist_sample",
        partition=SKEWED,
        clients=10,
        model="mlp(hidden=(32,))",
        rate=0.1,
        epochs=1,
        batch=32,
        samples=2000,
    ),
)


def compared(setting: Setting, folder: Path) -> pd.DataFrame:
    """The scores of all methods by the models in use, a row each."""
    data, proxy = hold_out(setting.load(), PROXY_SHARE)
    comparison = ua.compare(
        METHODS,
        data=data,
        partition=setting.partition,
        clients=setting.clients,
        model=setting.model,
        rounds=ROUNDS,
        seeds=SEEDS,
        work=ua.Work(epochs=setting.epochs, lr=setting.rate, batch_size=setting.batch),
        proxy=proxy,
        out=folder / setting.data,
        progress=False,
    )
    table = comparison.summary
    return table[table["protocol"] == "used"].set_index("method")
