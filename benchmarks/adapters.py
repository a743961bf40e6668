"""The rules for low-rank adapters, by rank: their accuracy against plain averages of A and B, and their bytes.

    python benchmarks/adapters.py FOLDER

Prints the table of `docs/evidence/new_methods.md`. The transformer of `examples/lora.py`, pretrained on the digits 0 to 4,
learns 5 to 9. Finished runs in the folder are read and not repeated.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import pandas as pd
from scipy import stats
from torch import nn

import unalike as ua

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from lora import LAYERS, digits, head_alone, kilobytes, pretrained

RANKS = (4, 8, 16)
FROZEN = {
    "fedavg": True,
    "ffa_lora": True,
    "fedex_lora": False,
    "flora": False,
    "fedsa_lora": True,
}
"""Method -> whether the weights beneath its adapters are frozen."""
ROUNDS = 10
SEEDS = 3


def adapted(source: nn.Module, method: str, rank: int) -> nn.Module:
    """A copy of the transformer with adapters of this rank."""
    return ua.low_rank(deepcopy(source), layers=LAYERS, rank=rank, frozen=FROZEN[method])


def scores(method: str, model: nn.Module | dict[str, nn.Module], folder: Path) -> pd.Series:
    """The accuracy of the models in use, in per cent, by seed: the mean over the last third of the rounds."""
    comparison = ua.compare(
        [method],
        data=digits(5),
        partition="dirichlet(alpha=0.3)",
        clients=5,
        model=model,
        rounds=ROUNDS,
        seeds=SEEDS,
        work=ua.Work(lr=0.1, batch_size=32, epochs=2),
        out=folder,
        progress=False,
    )
    rounds = comparison.rounds
    late = rounds[rounds["round"] > ROUNDS - ROUNDS // 3].set_index("seed")
    personal = late.get("personal_accuracy", late["accuracy"])
    return 100 * personal.fillna(late["accuracy"]).groupby("seed").mean()


def cell(own: pd.Series, plain: pd.Series) -> str:
    """The mean gain over plain averages in points, with its interval."""
    gains = own - plain
    interval = stats.ttest_1samp(gains, 0).confidence_interval()
    return f"{gains.mean():+.1f} ({interval.low:.1f} to {interval.high:.1f})"


def print_table(source: nn.Module, folder: Path) -> None:
    """A row for each method, a column for each rank, and one for clients whose ranks differ."""
    plain = {}
    for rank in RANKS:
        plain[rank] = scores("fedavg", adapted(source, "fedavg", rank), folder / f"fedavg {rank}")
    ranks = ", ".join(map(str, RANKS))
    print(f"| method | kB | {' | '.join(f'rank {rank}' for rank in RANKS)} | {ranks} |")
    print("| :-- |" + " --: |" * (len(RANKS) + 2))
    for method in FROZEN:
        models = {rank: adapted(source, method, rank) for rank in RANKS}
        cells = [f"`{method}`", ", ".join(f"{kilobytes(method, models[r]):.0f}" for r in RANKS)]
        for rank, model in models.items():
            own = scores(method, model, folder / f"{method} {rank}")
            cells.append(f"{own.mean():.1f} %" if method == "fedavg" else cell(own, plain[rank]))
        unequal = "-"
        if method == "flora":
            networks = {f"rank{rank}": model for rank, model in models.items()}
            unequal = f"{scores(method, networks, folder / 'flora unequal').mean():.1f} %"
        cells.append(unequal)
        print(f"| {' | '.join(cells)} |", flush=True)


def print_others(source: nn.Module, folder: Path) -> None:
    """Their accuracy where all parameters are trained, and the head alone."""
    for trained, model in {"all": source, "head": head_alone(deepcopy(source))}.items():
        own = scores("fedavg", model, folder / trained)
        print(f"{trained}: {own.mean():.1f} %, {kilobytes('fedavg', model):.0f} kB", flush=True)


if __name__ == "__main__":
    of_runs = Path(sys.argv[1])
    transformer = pretrained()
    print_others(transformer, of_runs)
    print_table(transformer, of_runs)
