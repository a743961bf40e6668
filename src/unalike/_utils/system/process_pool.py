"""Pools of processes that end with the process that made them."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], jobs: int, threads: int
) -> Iterator[Result]:
    """Yield `work(item)` of all items as they end, `jobs` at a time.

    See `process_pool` for errors and the end of this process.

    `work` can be sent to a process, such as a function of a module or a `functools.partial` of it; each process has `threads`
    of PyTorch. The first exception of `work` is raised here.
    """
    with process_pool(jobs, threads) as pool:
        tasks = [pool.submit(work, item) for item in items]
        for task in as_completed(tasks):
            yield task.result()


@contextmanager
def process_pool(jobs: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes with `threads` threads of PyTorch each.

    After an error in the block its processes end at once, whatever they do, and tasks that have not begun are dropped. Processes
    also end with this one, however it ends.
    """
    context = get_context("spawn")
    # when the writer is closed, with this process at the latest, the processes of the pool end
    reader, writer = context.Pipe(duplex=False)
    with reader, writer, ProcessPoolExecutor(jobs, context, _begin, (threads, reader)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            writer.close()
            raise


def _begin(threads: int, reader: Connection) -> None:
    """Prepare a process of the pool before its first task."""
    torch.set_num_threads(threads)
    Thread(target=_end_when_closed, args=(reader,), daemon=True).start()


def _end_when_closed(reader: Connection) -> None:
    """End this process when the other end of the pipe is closed."""
    # Windows raises `OSError` where others return
    with suppress(OSError):
        # nothing is ever sent, so this returns only when the other end is closed
        reader.poll(None)
    os._exit(1)
