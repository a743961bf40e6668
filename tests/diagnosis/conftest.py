"""Clients with planted heterogeneity."""

from __future__ import annotations

import numpy as np
import pytest

import unalike as ua

MEANS = np.random.default_rng(9).normal(size=(4, 6)) * 2


def blobs(sizes, labels_of=None, move=None, seed=0):
    """Clients with samples of four classes around `MEANS`, and 12 samples of each class for a size of 48.

    Args:
        sizes: the samples of each client.
        labels_of: client -> the classes in the order in which they label the four blobs; `concept` shift if they differ.
        move: client -> offset of its features.
        seed: seed of the samples.
    """
    rng = np.random.default_rng(seed)
    clients = []
    for k, size in enumerate(sizes):
        blob = rng.permutation(np.arange(size) % 4)
        x = MEANS[blob] + rng.normal(size=(size, 6)) + (0 if move is None else move(k))
        y = blob if labels_of is None else np.asarray(labels_of(k))[blob]
        clients.append(ua.ClientData(train=(x.astype(np.float32), y), name=f"clinic {k}"))
    return clients


@pytest.fixture(scope="session")
def plant():
    """The function that makes clients with planted heterogeneity."""
    return blobs


@pytest.fixture(scope="session")
def trained():
    """A diagnosis with rounds: digits at eight clients, two rounds of a linear model."""
    clients = ua.partition(ua.load("digits"), "dirichlet(alpha=0.3)", clients=8, seed=1)
    return ua.diagnose(clients, rounds=2, model="linear", progress=False)
