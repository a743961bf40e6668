"""The runs of tasks: every method with its best learning rate, under fresh seeds; and the file that keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.system.process_pool import in_processes
from unalike._utils.tensor_files import write_bytes
from unalike.core.work import Work
from unalike.data.population import Population
from unalike.diagnosis.diagnose import diagnose_population
from unalike.metrics.columns import TEST, VALIDATION
from unalike.runtime.round_loop import execute
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.model_group import Diverged
from unalike.statistics.scores import worst_decile
from unalike_studies.recommendation.stored_runs import METHODS, StoredRuns
from unalike_studies.recommendation.stored_tasks import StoredTask
from unalike_studies.recommendation.task_features import Conditions, features

if TYPE_CHECKING:
    import pandas as pd

    from unalike.runtime.records.history import History

LEARNING_RATES = (0.03, 0.1, 0.3)
"""Local learning rates; each method gets the best of them."""
TUNING_SEED = 100
"""The seed under which learning rates are compared."""
SEEDS = (0, 1)
"""The fresh seeds of the runs that are stored."""
VALIDATION_SHARE = 0.2
"""The share of each client's training samples on which learning rates are compared."""
ROUNDS = 20
ROUNDS_BETWEEN_EVALUATIONS = 5
SCORED_EVALUATIONS = 2
"""The score is the mean of so many evaluations, the last ones."""
BATCH_SIZE = 32


def run_task(task: StoredTask) -> pd.DataFrame:
    """Diagnose the clients of a task, tune the learning rate of every method on validation samples, and run it under fresh seeds.

    Returns one row per method and seed: the fields of the task, its features, and `method spec rate validation seed accuracy
    worst_decile bytes seconds`. A run that diverged has accuracy 0.
    """
    import pandas as pd

    # The columns that all runs of the task share.
    tuning = task.population(TUNING_SEED, VALIDATION_SHARE)
    diagnosis = diagnose_population(tuning, task.name, seed=TUNING_SEED)
    work = Work(epochs=task.epochs, batch_size=BATCH_SIZE)
    conditions = Conditions(task.participation, work, task.model)
    task_columns = task.fields | features(tuning, diagnosis, conditions)

    # Test samples and seeds of the runs that count play no part in the choice of a rate.
    fresh = {seed: task.population(seed) for seed in SEEDS}
    rows = []
    for method, spec in METHODS.items():
        accuracies = {}
        for rate in LEARNING_RATES:
            scores = _score(task, spec, tuning, rate, TUNING_SEED, VALIDATION)
            accuracies[rate] = scores["accuracy"]
        best_rate = max(accuracies, key=lambda rate: accuracies[rate])
        for seed, population in fresh.items():
            run_columns = {
                "method": method,
                "spec": spec,
                "rate": best_rate,
                "validation": accuracies[best_rate],
                "seed": seed,
            }
            scores = _score(task, spec, population, best_rate, seed, TEST)
            rows.append(task_columns | run_columns | scores)
    return pd.DataFrame(rows)


def _score(
    task: StoredTask, spec: str, clients: Population, rate: float, seed: int, split: str
) -> dict[str, Any]:
    """Run a method once: its accuracy on the samples of a split, that of the worst clients, bytes and seconds."""
    run_config = configure_run(
        spec,
        clients,
        seed=seed,
        model=task.model,
        rounds=ROUNDS,
        evaluate_every=ROUNDS_BETWEEN_EVALUATIONS,
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
    rounds = history.rounds
    column = history.columns.get("personal", "accuracy", split)
    if column is None or column.name not in rounds:
        column = history.columns.get("clients", "accuracy", split)
    assert column is not None

    # Round 0 evaluates the model before training, and sends nothing.
    trained = rounds[rounds["round"] > 0]
    scored = trained[trained[column.name].notna()].tail(SCORED_EVALUATIONS)
    of_clients = history.clients[history.clients["round"].isin(scored["round"])]
    by_client = of_clients.groupby("client")[column.name].mean()
    traffic = trained["bytes_down"] + trained["bytes_up"]
    return {
        "accuracy": float(scored[column.name].mean()),
        "worst_decile": worst_decile(by_client.dropna(), column.metric),
        "bytes": float(traffic.mean()),
        "seconds": float(trained["seconds"].sum()),
    }


def collect(tasks: Iterable[StoredTask], path: Path, jobs: int = 1) -> Iterator[str]:
    """Run the tasks that a file of runs lacks, and write the file after each. Call it again to continue after an interruption.

    Yields the name of each task as it ends.
    """
    import pandas as pd

    table = pd.read_parquet(path) if path.exists() else pd.DataFrame({"task": []})
    done = set(table["task"])
    todo = [task for task in tasks if task.name not in done]
    for runs in in_processes(run_task, todo, jobs, threads=1):
        table = pd.concat([table, runs], ignore_index=True) if len(table) else runs
        write_bytes(path, table.to_parquet(compression="zstd", index=False))
        yield str(runs["task"].iloc[0])


def replace_natural(path: Path, runs: Iterable[pd.DataFrame]) -> None:
    """Put these runs in the place of the file's runs of tasks with real owners."""
    import pandas as pd

    table = pd.concat([StoredRuns.read(path).made.table, *runs], ignore_index=True)
    write_bytes(path, table.to_parquet(compression="zstd", index=False))
