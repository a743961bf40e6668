"""Randomness is a function of (seed, round, client, purpose) and of nothing else; no global generator is touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock
from typing import Any

import numpy as np
import torch

_LOCK = RLock()
"""Torch's default generators belong to the whole process: one thread at a time may swap them."""


MANY = 32
"""From how many generators on their seeds are found together."""


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """The NumPy generator of one purpose, `path` being for example (round, client)."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *path)))  # `default_rng`, without its tests


def generators(seed: int, purpose: str, *path: int, last: Sequence[int]) -> Iterator[np.random.Generator]:
    """`generator(seed, purpose, *path, n)` for each n of `last`; for many of them each costs a fifth of the time."""
    if len(last) < MANY:
        yield from (generator(seed, purpose, *path, n) for n in last)
        return
    for state in _states([*_entropy(seed, purpose, *path), np.array(last)]):
        yield np.random.Generator(np.random.PCG64(_Seeded(state)))  # type: ignore[arg-type]  # numpy's stubs know no ISeedSequence here


def number(seed: int, purpose: str, *path: int) -> int:
    """A 63-bit seed for a library that wants a number, such as `torch.Generator`."""
    return int(_sequence(seed, purpose, *path).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def isolated(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block whose code draws from torch's default generators (initialisation, dropout) from `seed`; restore them after."""
    device = torch.device(device)
    with _LOCK:
        yield from _swapped(seed, device)


def _swapped(seed: int, device: torch.device) -> Iterator[None]:
    state, there = torch.get_rng_state(), None if device.type == "cpu" else torch.get_device_module(device)
    own = there and there.get_rng_state(device)
    try:
        torch.default_generator.manual_seed(seed)
        if there:
            there.set_rng_state(torch.Generator(device).manual_seed(seed).get_state(), device)
        yield
    finally:
        torch.set_rng_state(state)
        if there:
            there.set_rng_state(own, device)


def _sequence(seed: int, purpose: str, *path: int) -> np.random.SeedSequence:
    """`SeedSequence([seed, purpose as a number, *path])`, whose own conversion of numbers to words takes longer than the rest."""
    return np.random.SeedSequence(np.array(_entropy(seed, purpose, *path), np.uint32))


def _entropy(seed: int, purpose: str, *path: int) -> list[int]:
    return [*_head(seed, purpose), *(word for number in path for word in _words(number))]


class _Seeded(np.random.bit_generator.ISeedSequence):
    """What a bit generator asks a `SeedSequence` for, found before."""

    def __init__(self, state: np.ndarray):
        self.state = state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self.state


class _Hash:
    """The hash function of `SeedSequence`, which changes with every use (O'Neill's seed_seq_fe)."""

    def __init__(self, constant: int, factor: int):
        self.constant, self.factor = constant, factor

    def __call__(self, value: np.ndarray) -> np.ndarray:
        value = value ^ np.uint32(self.constant)
        self.constant = self.constant * self.factor % 2**32
        value *= np.uint32(self.constant)
        return value ^ value >> np.uint32(16)


def _states(words: Sequence[Any]) -> np.ndarray:
    """`SeedSequence(words).generate_state(4, np.uint64)` for every entry of those words that are arrays, [K, 4]."""
    given = [np.atleast_1d(np.asarray(word, np.uint32)) for word in words]
    stir = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [stir(word) for word in (given + [np.zeros(1, np.uint32)] * 4)[:4]]
    for source in range(4):
        for place in range(4):
            if place != source:
                pool[place] = _mixed(pool[place], stir(pool[source]))
    for word in given[4:]:
        pool = [_mixed(value, stir(word)) for value in pool]
    draw = _Hash(0x8B51F9DD, 0x58F38DED)
    drawn = np.stack(np.broadcast_arrays(*(draw(pool[i % 4]) for i in range(8))), 1)
    return np.ascontiguousarray(drawn.astype("<u4")).view("<u8").astype(np.uint64)


def _mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    value: np.ndarray = np.uint32(0xCA01F9DD) * x - np.uint32(0x4973F715) * y
    return value ^ value >> np.uint32(16)


@lru_cache(1024)
def _head(seed: int, purpose: str) -> list[int]:
    return [*_words(seed), *_words(int.from_bytes(purpose.encode()))]


def _words(number: int) -> list[int]:
    """A number that is not negative in words of 32 bits, the lowest first."""
    number = int(number)
    if number < 2**32:
        return [number]
    return [number % 2**32, *_words(number // 2**32)]
