"""A practitioner's own clients and model: five sites with tables of different sizes, one network, one question.

python examples/hospitals.py
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

import unalike as ua


def sites(count: int = 5, seed: int = 0) -> list[ua.ClientData]:
    """Five hospitals that see different patients: sorted by one measurement, cut into unequal parts, shuffled inside."""
    bunch = load_breast_cancer()
    x = ((bunch.data - bunch.data.mean(0)) / bunch.data.std(0)).astype(np.float32)
    order = np.argsort(x[:, 0] + np.random.default_rng(seed).normal(scale=0.7, size=len(x)))
    cuts = (np.cumsum([0.1, 0.15, 0.2, 0.25]) * len(x)).astype(int)
    made = []
    for number, rows in enumerate(np.split(order, cuts)):
        rows = np.random.default_rng([seed, number]).permutation(rows)
        cut = int(0.7 * len(rows))
        train, test = rows[:cut], rows[cut:]
        made.append(
            ua.ClientData(
                (x[train], bunch.target[train]),
                (x[test], bunch.target[test]),
                name=f"hospital {number + 1}",
            )
        )
    return made


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


if __name__ == "__main__":
    table = ua.compare(
        ["fedavg", "fedmix(mu=0.1)", "scaffold", "ditto(lam=0.1)", "local_only"],
        sites(),
        model=network,
        rounds=20,
        seeds=5,
        work=ua.Work(lr=0.05, batch_size=8),
    )
    print(table)
    print(table.report("hospitals.html", title="Five hospitals"))
