"""Randomness is a function of (seed, round, client, purpose) and of nothing else; no global generator is touched."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock

import numpy as np
import torch

_LOCK = RLock()
"""Torch's default generators belong to the whole process: one thread at a time may swap them."""


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """The NumPy generator of one purpose, `path` being for example (round, client)."""
    # what `default_rng` makes, without its checks of arguments
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *path)))


def number(seed: int, purpose: str, *path: int) -> int:
    """A 63-bit seed for a library that wants a number, such as `torch.Generator`."""
    state = _sequence(seed, purpose, *path).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


@contextmanager
def isolated(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's default generators (initialization, dropout) for a block, and restore them after it."""
    with borrowed_generators(device) as start:
        start(seed)
        yield


@contextmanager
def borrowed_generators(device: torch.device | str = "cpu") -> Iterator[Callable[[int], None]]:
    """Restore torch's default generators after a block; inside it, call the yielded function to start from a seed."""
    device = torch.device(device)
    with _LOCK:
        # an accelerator has a generator of its own beside that of the CPU
        accelerator = None if device.type == "cpu" else torch.get_device_module(device)
        cpu_state = torch.get_rng_state()
        accelerator_state = accelerator and accelerator.get_rng_state(device)

        def start(seed: int) -> None:
            torch.default_generator.manual_seed(seed)
            if accelerator:
                seeded = torch.Generator(device).manual_seed(seed)
                accelerator.set_rng_state(seeded.get_state(), device)

        try:
            yield start
        finally:
            torch.set_rng_state(cpu_state)
            if accelerator:
                accelerator.set_rng_state(accelerator_state, device)


def _sequence(seed: int, purpose: str, *path: int) -> np.random.SeedSequence:
    """`SeedSequence([seed, purpose as a number, *path])`, with a faster conversion of numbers to words."""
    return np.random.SeedSequence(np.array(entropy(seed, purpose, *path), np.uint32))


def entropy(seed: int, purpose: str, *path: int) -> list[int]:
    """The entropy given to `SeedSequence`, in words of 32 bits."""
    path_words = [word for number in path for word in _words(number)]
    return _first_words(seed, purpose) + path_words


@lru_cache(1024)
def _first_words(seed: int, purpose: str) -> list[int]:
    """The words of seed and purpose, which all paths share: nobody may change the list."""
    return [*_words(seed), *_words(int.from_bytes(purpose.encode()))]


def _words(number: int) -> list[int]:
    """A number that is not negative in words of 32 bits, the lowest first."""
    number = int(number)
    if number < 2**32:
        return [number]
    return [number % 2**32, *_words(number // 2**32)]
