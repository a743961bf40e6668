"""Clients and a data set so small that a comparison takes less than a second."""

from __future__ import annotations

import numpy as np
import pytest

import unalike as ua
import unalike.comparison.compare
import unalike.runtime.run_recorder

MODEL = "mlp(hidden=(8,))"


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return (np.random.default_rng(9).normal(size=(4, 6))[y] * 2 + rng.normal(size=(n, 6))).astype(
        np.float32
    ), y


@pytest.fixture(scope="session")
def people():
    sizes = [(20, 8), (12, 6), (1, 3), (16, 6), (9, 5)]
    made = [rows(n + m, seed=k) for k, (n, m) in enumerate(sizes)]
    return [
        ua.ClientData(train=(x[:n], y[:n]), test=(x[n:], y[n:]), name=f"site{k}")
        for k, ((x, y), (n, _)) in enumerate(zip(made, sizes))
    ]


@pytest.fixture(scope="session")
def dataset():
    return ua.Dataset("blobs", rows(200), rows(40, seed=1))


@pytest.fixture
def small():
    """`compare` on the tiny model."""

    def compare(methods, clients=None, **options):
        defaults = {"model": MODEL, "rounds": 3, "seeds": 2, "work": ua.Work(batch_size=5, lr=0.1)}
        return ua.compare(methods, clients, **defaults | options)

    return compare


@pytest.fixture
def trained(monkeypatch):
    """(method, round) of every round that was trained."""
    from unalike.runtime import round_loop

    seen: list[tuple[str, int]] = []
    original = round_loop.run_round

    def spied(clients, updates=None):
        seen.append((repr(clients.state.method), clients.state.done))
        return original(clients, updates)

    monkeypatch.setattr(round_loop, "run_round", spied)
    return seen
