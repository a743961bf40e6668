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
        for done in as_completed([pool.submit(work, item) for item in items]):
            yield done.result()


@contextmanager
def process_pool(jobs: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes with `threads` threads of PyTorch each.

    After an error in the block its processes end at once, whatever they do, and tasks that have not begun are dropped. Processes
    also end with this one, however it ends.
    """
    context = get_context("spawn")
    reader, writer = context.Pipe(
        duplex=False
    )  # closed, with this process at the latest: the processes end
    with reader, writer, ProcessPoolExecutor(jobs, context, _begin, (threads, reader)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            writer.close()
            raise


def _begin(threads: int, reader: Connection) -> None:
    torch.set_num_threads(threads)
    Thread(target=_end_when_closed, args=(reader,), daemon=True).start()


def _end_when_closed(reader: Connection) -> None:
    with suppress(OSError):  # Windows raises it where others return
        reader.poll(None)  # nothing is ever sent: it returns when the other end is closed
    os._exit(1)
