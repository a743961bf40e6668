"""Small clients, and a tracker that keeps everything it is told."""

from __future__ import annotations

import pytest
import torch

import unalike as ua


class Recording:
    """A tracker of a user's own: keeps the runs that it followed."""

    def __init__(self):
        self.runs, self.rows, self.ends = [], [], []

    def __repr__(self):
        return "Recording"

    def begin(self, run):
        self.runs.append(run)
        self.rows.append([])
        return f"run {len(self.runs)}" if run.known_as is None else run.known_as

    def log(self, row):
        self.rows[-1].append(row)

    def end(self, files, finished):
        self.ends.append(([file.name for file in files], finished))


@pytest.fixture
def recording():
    return Recording()


@pytest.fixture(scope="session")
def clients():
    """Three clients with eight training and eight test samples of two classes."""
    torch.manual_seed(0)
    pairs = [[(torch.randn(8, 4), torch.arange(8) % 2) for _ in range(2)] for _ in range(3)]
    return [ua.ClientData(train=train, test=test) for train, test in pairs]


@pytest.fixture
def train(clients):
    """Train a linear model for two rounds."""

    def run(**more):
        return ua.run(
            "fedavg", clients, **{"model": "linear", "rounds": 2, "progress": False} | more
        )

    return run
