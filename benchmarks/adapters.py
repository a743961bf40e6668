"""Accuracy where adapters, the head or all parameters of a small transformer are trained, and with adapters of several ranks.

    python benchmarks/adapters.py FOLDER

Prints the tables of `docs/how_to/own_models.md`: means over three seeds, each with a partition of its own, and 95 % intervals by
Student's t. Finished runs in the folder are read and not repeated. Pretraining and data are those of `examples/lora.py`.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
from scipy import stats
from torch import nn

import unalike as ua

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from lora import LAYERS, digits, head_alone, kilobytes, pretrained

ROUNDS = 10
SEEDS = 3
LEVEL = 0.95
RANKS = (4, 8, 16)


def adapted(source: nn.Module, rank: int, *, frozen: bool) -> nn.Module:
    """A copy of the transformer with adapters of this rank."""
    return ua.low_rank(deepcopy(source), layers=LAYERS, rank=rank, frozen=frozen)


def accuracy(method: str, model: nn.Module | dict[str, nn.Module], folder: Path) -> str:
    """The accuracy of a method after its last rounds, in per cent, with its interval."""
    comparison = ua.compare(
        [method],
        data=digits(5),
        partition="dirichlet(alpha=0.3)",
        clients=5,
        model=model,
        rounds=ROUNDS,
        seeds=SEEDS,
        work=ua.Work(lr=0.1, batch_size=16, epochs=2),
        out=folder,
        progress=False,
    )
    rounds = comparison.rounds
    late = rounds[rounds["round"] >= ROUNDS - ROUNDS // 3]
    means = 100 * late.groupby("seed")["accuracy"].mean().to_numpy()
    half = stats.t.ppf((1 + LEVEL) / 2, SEEDS - 1) * means.std(ddof=1) / np.sqrt(SEEDS)
    return f"{means.mean():.1f} ({means.mean() - half:.1f} to {means.mean() + half:.1f})"


def print_trained(source: nn.Module, folder: Path) -> None:
    """The table of what is trained."""
    print("| trained | kB by FedAvg | FedAvg, % | kB by SCAFFOLD | SCAFFOLD, % |")
    print("| :-- | --: | --: | --: | --: |")
    models = {
        "all": source,
        "adapters and head": adapted(source, 4, frozen=True),
        "head": head_alone(deepcopy(source)),
    }
    for trained, model in models.items():
        cells = [trained]
        for method in ("fedavg", "scaffold"):
            cells.append(f"{kilobytes(method, model):.1f}")
            cells.append(accuracy(method, model, folder / f"{trained} {method}"))
        print(f"| {' | '.join(cells)} |", flush=True)


def print_ranks(source: nn.Module, folder: Path) -> None:
    """The table of ranks, and of clients whose ranks differ."""
    print("\n| rank | FedAvg, % | FLoRA, % |\n| :-- | --: | --: |")
    for rank in RANKS:
        plain = accuracy("fedavg", adapted(source, rank, frozen=True), folder / f"fedavg {rank}")
        merged = accuracy("flora", adapted(source, rank, frozen=False), folder / f"flora {rank}")
        print(f"| {rank} | {plain} | {merged} |", flush=True)
    networks = {f"rank{rank}": adapted(source, rank, frozen=False) for rank in RANKS}
    listed = ", ".join(map(str, RANKS))
    print(f"| {listed} | - | {accuracy('flora', networks, folder / 'flora unequal')} |")


if __name__ == "__main__":
    of_runs = Path(sys.argv[1])
    before = pretrained()
    print_trained(before, of_runs)
    print_ranks(before, of_runs)
