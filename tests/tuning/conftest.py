"""A data set so small that a tuning takes a few seconds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import unalike as ua

pytest.importorskip("optuna")


def blobs(n, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return (np.random.default_rng(9).normal(size=(3, 5))[y] * 2 + rng.normal(size=(n, 5))).astype(
        np.float32
    ), y


@pytest.fixture(scope="session")
def samples():
    """A function that makes n samples of three classes, as (x, y)."""
    return blobs


@pytest.fixture(scope="session")
def dataset():
    return ua.Dataset("blobs", blobs(150))


@pytest.fixture
def tune(dataset):
    """`ua.tune` on the tiny data set, with the sequence of methods, the budget and the model of these tests."""

    def run(methods=("fedavg", "fedprox"), **options):
        usual = {
            "data": dataset,
            "partition": "iid",
            "clients": 3,
            "model": "linear",
            "trials": 3,
            "rounds": 4,
        }
        usual |= {"seeds": 2, "work": ua.Work(lr=0.01, batch_size=10), "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ua.tune(list(methods), **{**usual, **options})

    return run
