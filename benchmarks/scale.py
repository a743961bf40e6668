"""Rounds per second and memory with a small population and with a million clients.

    python benchmarks/scale.py

Every client has eight samples of a common set of 8000; the model is softmax regression. Each row is measured in a separate process,
for its peak memory. Rates are medians over the rounds; small and large populations alternate.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

import unalike as ua
from unalike.core.tasks.registry import task_for
from unalike.data import Population
from unalike.data.ragged import NumberedNames, Ragged
from unalike.methods.plan import steps_of
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalStage

SAMPLES, EACH, FEATURES, CLASSES = 8000, 8, 32, 10
ROUNDS = 40


def population(clients: int) -> Population:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, FEATURES, generator=g), torch.arange(SAMPLES) % CLASSES
    starts = np.random.default_rng(0).integers(0, SAMPLES - EACH, clients)
    train, none = Ragged.ranges(starts, np.full(clients, EACH)), Ragged.empty(clients)
    return Population(
        x,
        y,
        train,
        none,
        none,
        NumberedNames(clients),
        [str(c) for c in range(CLASSES)],
        task_for(y),
    )


def measured(method: str, clients: int, cohort: int) -> dict[str, float]:
    """Rounds per second, and the peak memory in MB above that of the imports."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    run_config = configure_run(
        method,
        population(clients),
        model="linear",
        rounds=ROUNDS,
        work=ua.Work(batch_size=EACH, lr=0.05),
        executor="batched",
        participation=cohort / clients,
    )
    runner = LocalStage(run_config, next(steps_of(run_config.plan, run_config.plan_inputs)))
    runner.start()
    setup, seconds = time.perf_counter() - started, []
    for _ in range(ROUNDS):
        done = run_round(runner)
        assert len(done.trained) == cohort
        seconds.append(done.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    late = statistics.median(seconds[ROUNDS // 2 :]) / statistics.median(seconds[2 : ROUNDS // 2])
    return {
        "rate": 1 / statistics.median(seconds[2:]),
        "setup": setup,
        "mb": (peak - before) / 1024,
        "slower": late,
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
        return
    print(
        f"{'method':10s} {'cohort':>7s} {'population':>11s} {'rounds/s':>9s} {'of small':>9s} {'set-up s':>9s} {'MB':>7s}"
    )
    for method in ("fedavg", "scaffold"):
        for cohort, small in ((50, 100), (1000, 2000)):
            found: dict[int, list[dict[str, float]]] = {small: [], 10**6: []}
            for _ in range(3):
                for clients, rows in found.items():
                    command = [sys.executable, __file__, method, str(clients), str(cohort)]
                    rows.append(
                        json.loads(
                            subprocess.run(
                                command, check=True, capture_output=True, text=True
                            ).stdout
                        )
                    )
            rates = {
                clients: statistics.median(row["rate"] for row in rows)
                for clients, rows in found.items()
            }
            for clients, rows in found.items():
                setup, mb = (statistics.median(row[key] for row in rows) for key in ("setup", "mb"))
                share = f"{rates[clients] / rates[small]:.0%}"
                print(
                    f"{method:10s} {cohort:7d} {clients:11d} {rates[clients]:9.1f} {share:>9s} {setup:9.2f} {mb:7.0f}"
                )


if __name__ == "__main__":
    main()
