"""The contenders of each workload, and how each is started."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from workloads import WORKLOADS

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WORKERS = f"distributed(workers={CORES})"
DENSE = ("2nn", "logistic")
ALONE = ("lenet", "resnet20")
"""Workloads that are compared with the bare loop only."""
PEERS = {"pfl": "pfl-research", "fedjax": "FedJAX", "fluke": "fluke"}
PFLLIB = "PFLlib"
FLOWER = {"default": "Flower's simulation", "1": "Flower's simulation, one core a client"}
"""By cores per client: Flower's default (two), and one, which is fastest for small models."""


@dataclass(frozen=True)
class Contender:
    """A process to measure. `peer`: the peer's environment that it needs, None for ours; `cores`: its limit, None for all."""

    name: str
    script: Path
    arguments: tuple[str, ...] = ()
    peer: str | None = None
    rounds: int = 6
    cores: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


def ours(
    executor: str, rounds: int, precision: str = "float32", cores: int | None = None
) -> Contender:
    name = (
        f"ours, {executor}"
        + ("" if precision == "float32" else f", {precision}")
        + (", one core" if cores else "")
    )
    return Contender(name, HERE / "ours.py", (executor, precision), rounds=rounds, cores=cores)


def bare(threads: int, rounds: int, loader: bool = False) -> Contender:
    name = f"bare loop{' with DataLoader' if loader else ''}, t{threads}"
    return Contender(
        name, HERE / "bare.py", (str(threads), *(["loader"] if loader else [])), rounds=rounds
    )


def peer(name: str, workload: str) -> Contender:
    # torch's threads help convolutions and slow small dense models down: each peer gets the faster setting
    threads = {"OMP_NUM_THREADS": "1"} if workload in DENSE and name in ("pfl", "fluke") else {}
    return Contender(PEERS[name], HERE / "peers" / f"{name}.py", (), name, 3, None, threads)


def pfllib(threads: int) -> Contender:
    script, environment = HERE / "peers" / "pfllib.py", {"OMP_NUM_THREADS": str(threads)}
    return Contender(f"{PFLLIB}, t{threads}", script, (), "pfllib", 3, None, environment)


def flower(cores: str) -> Contender:
    return Contender(FLOWER[cores], HERE / "peers" / "flower.py", (cores,), "flower", 3)


def contenders(workload: str) -> list[Contender]:
    """The contenders of a workload, in the order in which each repetition measures them."""
    if workload in DENSE:
        # a dozen quick rounds would end before the process has warmed up
        rounds, many = {"2nn": (5, 20), "logistic": (12, 200)}[workload]
        found = [ours(WORKERS, many), ours("batched", many), ours("auto", many)]
    else:
        rounds, many = 3, 8
        found = [
            ours(WORKERS, many),
            ours(WORKERS, many, "bf16"),
            ours("loop", many, cores=1),
            ours("auto", many),
        ]
    found += [bare(1, rounds), bare(CORES, rounds), bare(1, rounds, loader=True)]
    peers = [*map(flower, FLOWER), *(peer(name, workload) for name in PEERS)]
    if workload == "fedavgcnn":  # PFLlib's own default
        peers = [pfllib(1), pfllib(CORES)]
    return found + (peers if workload not in ALONE else [])


assert set(DENSE) < set(WORKLOADS)
