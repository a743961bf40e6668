"""A comparison with plausible numbers, simulated from a fixed seed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from derived_columns import derived

from unalike.reporting import MethodResult, ReportContent

GAINS = {
    "fedavg": 0.0,
    "fedprox(mu=0.1)": 0.004,
    "fedavg + lws": 0.031,
    "fedmix": 0.024,
    "scaffold": -0.035,
    "ditto": 0.002,
}
PERSONAL = {"ditto": 0.14, "local_only": 0.09}
ROUNDS = [
    "method",
    "seed",
    "round",
    "seconds",
    "participants",
    "accuracy",
    "personal_accuracy",
    "bytes_down",
    "bytes_up",
]
CLIENTS = [
    "method",
    "seed",
    "client",
    "n_train",
    "n_test",
    "accuracy",
    "personal_accuracy",
    "status",
]


def simulation(
    methods=6, clients=10, seeds=3, rounds=50, every=1, classes=10, regression=False, hostile=""
):
    """Content of any size; `hostile` is appended to the names of a client, a class and a method."""
    generator = np.random.default_rng(0)
    gains = dict(list(GAINS.items())[:methods]) | ({"local_only": None} if methods > 6 else {})
    gains |= {
        f"method {i} with a rather long name + lws": generator.normal(0, 0.02)
        for i in range(7, methods)
    }
    counts = pd.DataFrame(
        np.floor(1200 * generator.dirichlet([0.2] * clients, classes).T).astype(int),
        index=[f"clinic {k + 1}" for k in range(clients - 1)] + [f"clinic {clients}{hostile}"],
        columns=[*(str(c) for c in range(classes - 1)), f"{classes - 1}{hostile}"],
    )
    names = [*list(gains)[:-1], list(gains)[-1] + hostile]
    gains = dict(zip(names, gains.values()))
    sizes = counts.sum(axis=1)
    tables = [
        _finish(_rounds(generator, gains, seeds, rounds, every), regression),
        _finish(_clients(generator, gains, seeds, sizes), regression),
    ]
    return ReportContent(
        title="Handwritten digits over ten clinics",
        methods=[MethodResult(name, f"{name}(every='field', lr=1.0)") for name in names],
        baseline=names[0],
        rounds=tables[0],
        clients=tables[1],
        columns=derived([*tables[0], *tables[1]]),
        label_counts=None if regression else counts,
        partition={
            "spec": "dirichlet(alpha=0.1)",
            "clients": clients,
            "hash": "9f2c61aa",
            "mean label divergence": 0.6134,
        },
        config='data = "digits"\nmodel = "mlp"\nrounds = 50\n\n[work]\nepochs = 1\nbatch_size = 32\nlr = 0.05\n',
        command="unalike compare --data digits --partition 'dirichlet(alpha=0.1)' --clients 10 --method fedavg "
        "--method 'fedprox(mu=0.1)' --method 'fedavg + lws' --model mlp --rounds 50 --seeds 3 --lr 0.05 --out out",
        versions={"unalike": "0.1.0", "torch": "2.9.0", "numpy": "2.3.0", "python": "3.12.3"},
        wire=pd.DataFrame(
            [
                (n, d, w, b)
                for n in names
                for d, w, b in (("down", "parameters", 2e5), ("up", "update", 2e5))
            ],
            columns=["method", "direction", "what", "bytes"],
        ),
        warnings=["Client clinic 3 holds 4 test samples: its accuracy moves in steps of 25 %."],
    )


def _rounds(generator, gains, seeds, rounds, every):
    rows = []
    for method, gain in gains.items():
        for seed in range(seeds):
            luck = np.random.default_rng(seed).normal(0, 0.02) + generator.normal(0, 0.006)
            for r in sorted({*range(0, rounds + 1, every), rounds}):
                rise = 1 - np.exp(-6 * r / rounds)
                shared = (
                    np.nan
                    if gain is None
                    else 0.1 + (0.66 + gain + luck) * rise + generator.normal(0, 0.008)
                )
                bonus = PERSONAL.get(method.split("<")[0])
                own = (
                    np.nan
                    if bonus is None
                    else 0.1 + (0.66 + bonus + luck) * rise + generator.normal(0, 0.006)
                )
                bytes_ = 0 if r == 0 or gain is None else 2e6 * (2 if method == "scaffold" else 1)
                rows.append(
                    (
                        method,
                        seed,
                        r,
                        0.9 + generator.random() / 5 if r else 0.0,
                        10,
                        shared,
                        own,
                        bytes_,
                        bytes_,
                    )
                )
    table = pd.DataFrame(rows, columns=ROUNDS)
    table["macro_f1"], table["personal_macro_f1"] = (
        table["accuracy"] - 0.03,
        table["personal_accuracy"] - 0.03,
    )
    table["loss"], table["personal_loss"] = (
        2.4 * (1 - table["accuracy"]),
        2.4 * (1 - table["personal_accuracy"]),
    )
    return table.assign(train_loss=table["loss"] * 0.8)


def _clients(generator, gains, seeds, sizes):
    rows = []
    for method, gain in gains.items():
        for seed in range(seeds):
            base = np.random.default_rng(seed).beta(8, 3, len(sizes))
            for k, (client, size) in enumerate(sizes.items()):
                score = (
                    np.nan
                    if gain is None
                    else np.clip(base[k] + gain + generator.normal(0, 0.03), 0, 1)
                )
                bonus = PERSONAL.get(method.split("<")[0])
                own = (
                    np.nan
                    if bonus is None
                    else np.clip(base[k] + bonus + generator.normal(0, 0.03), 0, 1)
                )
                rows.append((method, seed, client, int(size), int(size) // 4, score, own, "ok"))
    table = pd.DataFrame(rows, columns=CLIENTS)
    return table.assign(loss=1 - table["accuracy"], macro_f1=table["accuracy"] - 0.03)


def _finish(table, regression):
    if not regression:
        return table
    names = {"accuracy": "rmse", "personal_accuracy": "personal_rmse"}
    table = table.drop(columns=["macro_f1", "personal_macro_f1"], errors="ignore").rename(
        columns=names
    )
    return table.assign(
        rmse=4 * (1 - table["rmse"]), personal_rmse=4 * (1 - table["personal_rmse"])
    )


@pytest.fixture(scope="session")
def simulate():
    return simulation


@pytest.fixture(scope="session")
def content():
    return simulation(methods=7)
