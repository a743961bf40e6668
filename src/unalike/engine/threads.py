"""Number of threads of a run, within torch's operations and over clients, and the handling of freed memory."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch

from unalike.core.model import Model
from unalike.loops.crew import crew_of


@contextmanager
def threads_for(model: Model, alone: bool = True) -> Iterator[None]:
    """Set the number of threads; torch's own number is restored afterwards.

    Within torch's operations: one thread for models without convolutions, else torch's own number. Over clients (`share_out`): as
    many as torch had. With `alone=False`, for one of several worker processes or beside other programs: one thread.

    The products of dense models are too small for several threads to pay, and threads within an operation wait for each other
    as soon as anything else runs on the machine: rounds take ten times as long and more. Threads over clients wait once a chunk.
    """
    before = torch.get_num_threads()
    keep_freed_memory()
    let_forks_train()
    torch.set_num_threads(before if model.convolutional and alone else 1)
    try:
        with crew_of(before if alone else 1):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def let_forks_train() -> None:
    """Let processes that are forked from this one train, with one thread each.

    A fork has none of its parent's threads, and an operation that waits for them never ends: torch hangs in each fork of a process
    that has computed with several. With one thread nothing is waited for. A pool of processes that are spawned has no such limit.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


MMAP_THRESHOLD = -3
TRIM_THRESHOLD = -1
"""Numbers of these settings in the C library."""
TRIM_BYTES = 2**30
"""Bytes of freed memory that the process keeps."""
MAX_KEPT_BYTES = 2**25
"""Bytes of the largest tensor whose memory is kept; the library allows no more."""


@cache
def keep_freed_memory() -> None:
    """Let the process keep freed memory, up to 1 GiB, for its next tensors.

    Stacked gradients come and go in every step. If their pages were returned to the system, it would clear them again each time,
    which costs a fifth of a stacked step. Only glibc has this setting; elsewhere nothing happens.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None:
        set_option(MMAP_THRESHOLD, MAX_KEPT_BYTES)
        set_option(TRIM_THRESHOLD, TRIM_BYTES)
