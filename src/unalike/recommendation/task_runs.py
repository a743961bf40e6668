"""The runs of one task: every method with its best learning rate, under fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unalike.core.work import Work
from unalike.data.population import Population
from unalike.diagnosis.diagnose import diagnose_population
from unalike.metrics.columns import TEST, VALIDATION
from unalike.metrics.statistics import worst_decile
from unalike.recommendation.stored_tasks import StoredTask
from unalike.recommendation.task_features import Conditions, features
from unalike.runtime.model_group import Diverged
from unalike.runtime.round_loop import execute
from unalike.runtime.run_config import prepare_run

if TYPE_CHECKING:
    import pandas as pd

    from unalike.runtime.records.history import History

SHARED: Mapping[str, str] = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox(mu=0.1)",
    "SCAFFOLD": "scaffold",
    "FedNova": "fednova",
    "FedAvgM": "fedavgm",
    "FedAdagrad": "fedadagrad",
    "FedDyn": "feddyn(alpha=0.1)",
    "FedLWS": "fedlws",
    "FedPake": "fedpake",
}
"""Label -> method whose clients all get the same model."""
PERSONAL: Mapping[str, str] = {
    "local only": "local_only",
    "fine-tuning": "local_finetune",
    "Ditto": "ditto(lam=0.1)",
    "IFCA": "ifca(clusters=2)",
}
"""Label -> method whose clients get models of their own, or one for each cluster. All train every model, a linear one as well."""
METHODS: Mapping[str, str] = {**SHARED, **PERSONAL}
BASELINE = "FedAvg"

RATES = (0.03, 0.1, 0.3)
"""Local learning rates; each method gets the best of them."""
TUNING_SEED, SEEDS = 100, (0, 1)
VALIDATION_SHARE = 0.2
"""The share of each client's training samples on which learning rates are compared."""
ROUNDS, EVERY, LAST = 20, 5, 2
"""Rounds of a run, rounds between evaluations, and evaluations whose mean is the score."""
BATCH_SIZE = 32


def run_task(task: StoredTask) -> pd.DataFrame:
    """Diagnose the clients of a task, tune the learning rate of every method on validation samples, and run it under fresh seeds.

    Returns one row per method and seed: the fields of the task, its features, and `method spec rate validation seed accuracy
    worst_decile bytes seconds`. A run that diverged has accuracy 0.
    """
    import pandas as pd

    tuning = task.population(TUNING_SEED, VALIDATION_SHARE)
    diagnosis = diagnose_population(tuning, task.name, seed=TUNING_SEED)
    work = Work(epochs=task.epochs, batch_size=BATCH_SIZE)
    conditions = Conditions(task.participation, work, task.model)
    task_columns = task.fields | features(tuning, diagnosis, conditions)
    fresh = {seed: task.population(seed) for seed in SEEDS}
    rows = []
    for method, spec in METHODS.items():
        scores = {rate: _score(task, spec, tuning, rate, TUNING_SEED, VALIDATION) for rate in RATES}
        rate = max(scores, key=lambda r: scores[r]["accuracy"])
        chosen = {"method": method, "spec": spec, "rate": rate, "validation": scores[rate]["accuracy"]}
        rows += [
            task_columns | chosen | {"seed": seed} | _score(task, spec, population, rate, seed, TEST)
            for seed, population in fresh.items()
        ]
    return pd.DataFrame(rows)


def _score(task: StoredTask, spec: str, clients: Population, rate: float, seed: int, split: str) -> dict[str, Any]:
    """Run a method once: its accuracy on the samples of a split, that of the worst clients, bytes and seconds."""
    run_config = prepare_run(
        spec,
        clients,
        seed=seed,
        model=task.model,
        rounds=ROUNDS,
        evaluate_every=EVERY,
        participation=task.participation,
        work=Work(epochs=task.epochs, batch_size=BATCH_SIZE, lr=rate),
        executor="distributed(workers=1)",
    )
    try:
        return _results_of(execute(run_config).history, split)
    except Diverged:
        return {"accuracy": 0.0, "worst_decile": 0.0, "bytes": math.nan, "seconds": math.nan}


def _results_of(history: History, split: str) -> dict[str, Any]:
    """Means over the last evaluations, of the model that each client would use: its own one where the method makes one."""
    rounds, clients, columns = history.rounds, history.clients, history.columns
    own, shared = columns.get("personal", "accuracy", split), columns.get("clients", "accuracy", split)
    score = own if own is not None and own.name in rounds else shared
    assert score is not None
    used = score.name
    counted = rounds[rounds[used].notna() & (rounds["round"] > 0)].tail(LAST)
    by_client = clients[clients["round"].isin(counted["round"])].groupby("client")[used].mean()
    trained = rounds[rounds["round"] > 0]
    return {
        "accuracy": float(counted[used].mean()),
        "worst_decile": worst_decile(by_client.dropna(), score.metric),
        "bytes": float((trained["bytes_down"] + trained["bytes_up"]).mean()),
        "seconds": float(trained["seconds"].sum()),
    }
