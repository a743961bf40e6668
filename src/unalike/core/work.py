"""A client's work in a round: the amount of training, the batches, the solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeVar, overload

import numpy as np
from pydantic import model_validator

from unalike._utils.validated import validated
from unalike.core.options import WorkOptions
from unalike.core.solvers import SGD, Adam, AdamW, Solver

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence that makes its items while it is iterated over; a subclass defines `__iter__` and `__len__`."""

    __slots__ = ()

    @overload
    def __getitem__(self, t: int) -> T: ...
    @overload
    def __getitem__(self, t: slice) -> list[T]: ...
    def __getitem__(self, t: int | slice) -> T | list[T]:
        return [*self][t]


class Batches(LazySequence[np.ndarray]):
    """Sample indices in the order of training, cut into batches of these `sizes`; `batches[t]` is a view."""

    __slots__ = ("rows", "sizes")

    def __init__(self, rows: np.ndarray, sizes: tuple[int, ...]):
        self.rows, self.sizes = rows, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[np.ndarray]:
        start = 0
        for size in self.sizes:
            yield self.rows[start : start + size]
            start += size


@validated
class Work(WorkOptions):
    """A client's local work in a round.

    Attributes:
        epochs: epochs of local training per round: passes over the client's samples.
        steps: local optimizer steps per round; None: as many as `epochs` need.
        batch_size: samples per step, None for all of them; a smaller last batch is used, too.
        lr: local learning rate.
        momentum: momentum of the local optimizer, which has to be SGD.
        nesterov: Nesterov momentum, instead of the usual one.
        weight_decay: weight decay of the local optimizer: factor of the parameters in their gradients (AdamW: decoupled).
        optimizer: local optimizer: "sgd", "adam" or "adamw", with a fresh state in every round.
        schedule: factor by which the learning rate changes per round: round r (from 0) uses lr * schedule**r.
        clip: largest gradient norm of a step, after corrections; None: no limit.
        keep_optimizer_state: keep the state of the local optimizer between rounds.

    Raises:
        UnalikeError: a value is out of range, or two do not go together.

    >>> Work(epochs=2, batch_size=10).steps_for(25)
    6
    """

    @model_validator(mode="after")
    def _consistent(self) -> Work:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum={self.momentum} goes with optimizer='sgd', found {self.optimizer!r}")
        return self

    @property
    def solver(self) -> Solver:
        """The solver for these settings."""
        match self.optimizer:
            case "sgd":
                return SGD(self.momentum, self.nesterov, self.weight_decay)
            case "adam":
                return Adam(self.weight_decay)
            case "adamw":
                return AdamW(self.weight_decay)

    def lr_at(self, round: int) -> float:
        """The local learning rate of a round, counted from 0."""
        return self.lr * self.schedule**round

    def steps_for(self, samples: int) -> int:
        """Optimizer steps that a client with this many samples makes; 0 without samples."""
        if not samples:
            return 0
        return self.steps or self.epochs * -(-samples // (self.batch_size or samples))

    def sizes_for(self, samples: int) -> tuple[int, ...]:
        """The batch sizes of a client with this many samples in a round."""
        return _sizes(samples, self.steps_for(samples), self.batch_size or samples)

    def batches(self, rows: int | np.ndarray, rng: np.random.Generator) -> Batches:
        """The batches of a round of these rows (n stands for 0..n-1): each epoch is one permutation, cut into batches."""
        samples = rows if isinstance(rows, int) else len(rows)
        sizes = self.sizes_for(samples)
        used = sum(sizes)
        epochs = [rng.permutation(rows) for _ in range(0, used, samples or 1)]
        order = epochs[0] if len(epochs) == 1 else np.concatenate([*epochs, np.zeros(0, np.int64)])
        return Batches(order[:used], sizes)


@lru_cache(4096)
def _sizes(samples: int, steps: int, size: int) -> tuple[int, ...]:
    """The sizes of this many batches; the last one of each epoch has the rest of the samples."""
    if not samples:
        return ()
    epoch = [min(size, samples - start) for start in range(0, samples, size)]
    return tuple(epoch[t % len(epoch)] for t in range(steps))
