"""Pools of processes that end with the process that made them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(work: Callable[[Item], Result], items: Iterable[Item], jobs: int, threads: int) -> Iterator[Result]:
    """Yield `work(item)` of all items as they end, `jobs` at a time.

    See `process_pool` for errors and the end of this process.

    Args:
        work: A function that can be sent to a process, such as one of a module or a `functools.partial` of it.
        items: The items.
        jobs: The number of processes.
        threads: The number of PyTorch's threads in each of them.

    Yields:
        The results, in the order in which they end.

    Raises:
        Exception: The first exception that `work` raised.
    """
    with process_pool(jobs, threads) as pool:
        for done in as_completed([pool.submit(work, item) for item in items]):
            yield done.result()


@contextmanager
def process_pool(jobs: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes with `threads` threads of PyTorch each.

    After an error in the block, tasks that have not begun are dropped. Processes end with this one, however it ends.
    """
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (threads,)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone; a killed parent cannot end it."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
