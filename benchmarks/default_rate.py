"""Measures which local learning rate serves as the default, with every other option at its default, on the embedded data.

python benchmarks/default_rate.py            # prints the tables behind docs/decisions.md
"""

from __future__ import annotations

import unalike as ua

RATES = (0.01, 0.05, 0.1, 0.2, 0.5)
ROUNDS, CLIENTS, SEEDS = 20, 10, (0, 1)
DIGITS, GLYPHS = "digits", "glyphs(train=3000, test=600)"
SKEWED = "dirichlet(alpha=0.1)"
Task = tuple[str, str | None, str]
"""Data, partition (None: its own clients) and model."""
TASKS: tuple[Task, ...] = (
    (DIGITS, "iid", "linear"),
    (DIGITS, "iid", "mlp"),
    (DIGITS, SKEWED, "linear"),
    (DIGITS, SKEWED, "mlp"),
    (DIGITS, SKEWED, "cnn"),
    (GLYPHS, "iid", "mlp"),
    (GLYPHS, SKEWED, "linear"),
    (GLYPHS, SKEWED, "mlp"),
    (GLYPHS, SKEWED, "cnn"),
    (GLYPHS, SKEWED, "lenet"),
    ("fcube", None, "mlp"),
    ("synthetic", None, "linear"),
    ("synthetic", None, "mlp"),
    ("logistic_clusters", None, "linear"),
)
FEW: tuple[Task, ...] = (
    (DIGITS, SKEWED, "mlp"),
    (GLYPHS, SKEWED, "mlp"),
    ("synthetic", None, "mlp"),
)
OTHERS = (
    ("fedavg", {"epochs": 5}),
    ("fedavg", {"momentum": 0.9}),
    ("fedprox(mu=0.1)", {}),
    ("scaffold", {}),
    ("fedavgm", {}),
    ("feddyn", {}),
)
"""Methods, and their local training beside the rate."""


def accuracy(method: str, task: Task, rate: float, **work: float) -> float:
    """The mean accuracy over seeds after the last round; 0 if a run diverged."""
    data, partition, model = task
    scores = []
    for seed in SEEDS:
        try:
            run = ua.run(
                method,
                None if partition is None else CLIENTS,
                data=data,
                partition=partition,
                model=model,
                rounds=ROUNDS,
                seed=seed,
                work=ua.Work(lr=rate, **work),
                evaluate_every=ROUNDS,
                progress=False,
            )
        except ua.UnalikeError:
            return 0.0
        scores.append(float(run.history.last["accuracy"]))
    return sum(scores) / len(scores)


def table(title: str, rows: dict[str, tuple[str, Task, dict[str, float]]]) -> None:
    """Print a Markdown table with one row a task, and the mean loss to the best rate of each row."""
    print(f"\n| {title} |", " | ".join(f"{rate:g}" for rate in RATES), "|")
    print("| :-- |", " | ".join("--:" for _ in RATES), "|")
    losses = dict.fromkeys(RATES, 0.0)
    for name, (method, task, work) in rows.items():
        scores = {rate: accuracy(method, task, rate, **work) for rate in RATES}
        for rate, score in scores.items():
            losses[rate] += (max(scores.values()) - score) / len(rows)
        print(
            f"| {name} |",
            " | ".join(f"{100 * score:.1f}" for score in scores.values()),
            "|",
            flush=True,
        )
    print(
        "| mean loss to the best rate |",
        " | ".join(f"{100 * loss:.1f}" for loss in losses.values()),
        "|",
    )


def main() -> None:
    """Print both tables."""
    table("FedAvg", {f"{d}, {p or 'its own'}, {m}": ("fedavg", (d, p, m), {}) for d, p, m in TASKS})
    others = {
        f"{method}, {', '.join(f'{k}={v}' for k, v in work.items()) or 'as usual'}, {task[0]}": (
            method,
            task,
            work,
        )
        for method, work in OTHERS
        for task in FEW
    }
    table("Other methods and local training", others)


if __name__ == "__main__":
    main()
