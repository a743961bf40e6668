"""Slowdown of two independent processes on one machine: `python pair.py WORKLOAD ROUNDS`.

Each makes the steps of a round in plain torch on one thread, first alone, then both at once. They share memory
bandwidth, caches and the clock of the cores, which limits the efficiency of two workers.
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
    """Put the median seconds of a round into `found`; the barrier makes all processes start each round together."""
    torch.set_num_threads(1)
    call, times = steps(name), list[float]()
    for _ in range(rounds + 1):
        start.wait()
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    found.put(statistics.median(times[1:]))


def seconds(name: str, rounds: int, processes: int) -> float:
    """Seconds of a round, for the slowest of the processes."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=work, args=(name, rounds, start, found)) for _ in range(processes)
    ]
    for process in workers:
        process.start()
    times = [found.get() for _ in workers]
    for process in workers:
        process.join()
    return max(times)


if __name__ == "__main__":
    name, rounds = sys.argv[1], int(sys.argv[2])
    Clock().report(alone=seconds(name, rounds, 1), both=seconds(name, rounds, 2))
