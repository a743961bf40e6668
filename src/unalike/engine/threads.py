"""How many threads a run computes with, within torch's operations or over clients, and what becomes of the memory it frees."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from unalike._utils.compiled_loops import crew_of
from unalike.core.model import Model


@contextmanager
def threads_for(model: Model, alone: bool = True) -> Iterator[None]:
    """Within operations one thread for models without convolutions, else torch's own number, which is put back afterwards;
    over clients (`share_out`) as many as torch had. Each of several processes has one.

    A dense model's products are too small for several threads to pay, and when anything else runs on the machine they wait for
    each other: rounds become ten times and more slower. Threads that train clients of their own wait once.
    """
    before = torch.get_num_threads()
    keep_freed_client_state()
    torch.set_num_threads(before if model.convolutional and alone else 1)
    try:
        with crew_of(before if alone else 1):
            yield
    finally:
        torch.set_num_threads(before)


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""The C library's numbers of these settings."""
KEPT = 2**25
"""Bytes below which a tensor's memory is kept; the library allows no more."""


@cache
def keep_freed_client_state() -> None:
    """Let the process keep what it frees, up to 1 GiB, for its next tensors: stacked gradients come and go in every step.

    Given back to the system, their pages have to be cleared anew each time, which costs a fifth of a stacked step. Only glibc has
    this setting; elsewhere nothing happens.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None:
        set_option(MMAP_THRESHOLD, KEPT)
        set_option(TRIM_THRESHOLD, 2**30)
