"""Pools of processes that end with the process that made them."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import TypeVar

import torch

from unalike._utils.errors import UnalikeError

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


def in_forks(work: Callable[[int], None], count: int, jobs: int) -> None:
    """Call `work` with the numbers below `count`, shared out among `jobs` forks of this process with a thread of PyTorch each.

    Returns when all forks have ended; they also end with this process, however it ends. A fork that meets an error goes on with
    the next number: the caller finds what is missing. Raises `UnalikeError` where a process cannot be forked.
    """
    if not sys.platform.startswith("linux"):
        raise UnalikeError(
            f"jobs are copies of a process, which Linux makes, found {sys.platform}; start the command several times instead"
        )
    context = get_context("fork")
    begun = context.Value("q", 0)
    reader, writer = context.Pipe(duplex=False)

    def serve() -> None:
        writer.close()
        _begin(1, reader)
        # an interrupt of the terminal reaches all processes: this one ends with its parent
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warnings.simplefilter("ignore")
        while True:
            with begun.get_lock():
                number = begun.value
                begun.value += 1
            if number >= count:
                return
            with suppress(Exception):
                work(number)

    forks = [context.Process(target=serve, daemon=True) for _ in range(min(jobs, count))]
    with reader, writer:
        for fork in forks:
            fork.start()
        for fork in forks:
            fork.join()


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
