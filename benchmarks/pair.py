"""What two processes that share nothing but the machine lose to each other: `python pair.py WORKLOAD ROUNDS`.

Each makes the steps of a round in plain torch on one thread, first alone, then both at once: memory, caches and the clock of the
cores set this limit to two workers' efficiency.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch
from clock import Clock
from overhead import steps


def work(name: str, rounds: int, start: Barrier, found: Queue[float]) -> None:
    """The seconds of a round, whose starts the barrier makes common."""
    torch.set_num_threads(1)
    call, times = steps(name), list[float]()
    for _ in range(rounds + 1):
        start.wait()
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    found.put(statistics.median(times[1:]))


def seconds(name: str, rounds: int, processes: int) -> float:
    """A round of the slowest of so many processes."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(processes), context.Queue()
    worker_pool = [context.Process(target=work, args=(name, rounds, start, found)) for _ in range(processes)]
    for process in worker_pool:
        process.start()
    times = [found.get() for _ in worker_pool]
    for process in worker_pool:
        process.join()
    return max(times)


if __name__ == "__main__":
    name, rounds = sys.argv[1], int(sys.argv[2])
    Clock().report(alone=seconds(name, rounds, 1), both=seconds(name, rounds, 2))
