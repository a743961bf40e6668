"""A population so small that a round takes milliseconds, and the ways to compare two runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import unalike as ua
from unalike.metrics.columns import TIMES

MODEL = "mlp(hidden=(8,))"
WORK = ua.Work(batch_size=5, lr=0.1)
SIZES = [(20, 8), (12, 6), (1, 3), (0, 4), (16, 6), (9, 5)]
"""Training and test samples: among them a client with one sample and one with none."""


def clients_of(sizes=SIZES, seed=0, outputs=4):
    """Clients whose classes lie around different means; `outputs=None` makes a regression of them."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(4, 6)) * 2
    people = []
    for k, (n, m) in enumerate(sizes):
        y = rng.integers(0, 4, n + m)
        x = (means[y] + rng.normal(size=(n + m, 6))).astype(np.float32)
        y = y if outputs else x.sum(1).astype(np.float32)
        people.append(ua.ClientData(train=(x[:n], y[:n]), test=(x[n:], y[n:]), name=f"site{k}"))
    return people


@pytest.fixture(scope="session")
def people():
    return clients_of()


@pytest.fixture(scope="session")
def crowd():
    """Five clients with samples each."""
    return clients_of([(20, 8), (12, 6), (6, 3), (16, 6), (9, 5)])


@pytest.fixture(scope="session")
def regression():
    return clients_of(outputs=None)


@pytest.fixture
def small():
    """`run` on the tiny model."""

    def run(spec, clients, **options):
        if any(p.needs_proxy for p in getattr(ua.plan(spec), "parts", ())):
            options = {"proxy": clients[0].test} | options
        return ua.run(spec, clients, **{"model": MODEL, "rounds": 3, "work": WORK} | options)

    return run


@pytest.fixture
def alike():
    """Assert that two runs agree bitwise: tables but for seconds, shared model, every client's model."""

    def check(a, b):
        for left, right in (
            (a.history.rounds, b.history.rounds),
            (a.history.clients, b.history.clients),
        ):
            left, right = (t.drop(columns=[*TIMES], errors="ignore") for t in (left, right))
            pd.testing.assert_frame_equal(left, right, check_exact=True)
        same(a.params, b.params)
        for k in range(len(a.run_config.population)):
            same(a.personal(k), b.personal(k))

    return check


def same(a, b):
    assert list(a) == list(b)
    assert all(torch.equal(a[n], b[n]) for n in a)
