"""A client's work in a round: the amount of training, the batches, the solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, TypeVar, overload

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from unalike._utils.validated import validated
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
class Work:
    """A client's local work in a round.

    Attributes:
        epochs: passes over the client's samples.
        steps: optimizer steps; None: as many as `epochs` need.
        batch_size: samples per step, None for all of them; a smaller last batch is used, too.
        lr: the local learning rate.
        momentum: momentum of SGD.
        nesterov: whether the momentum is Nesterov's.
        weight_decay: factor of the parameters in their gradients (AdamW: decoupled).
        optimizer: "sgd", "adam" or "adamw", with a fresh state in every round.
        schedule: factor of the learning rate per round: round r (from 0) uses lr * schedule**r.
        clip: largest norm of a step's gradient, after corrections; None: no limit.
        keep_optimizer_state: keep the optimizer's state from round to round.

    Raises:
        UnalikeError: a value is out of range, or two do not go together.

    >>> Work(epochs=2, batch_size=10).steps_for(25)
    6
    """

    epochs: PositiveInt = 1
    steps: PositiveInt | None = None
    batch_size: PositiveInt | None = 32
    lr: PositiveFloat = 0.01
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: NonNegativeFloat = 0.0
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    schedule: PositiveFloat = 1.0
    clip: PositiveFloat | None = None
    keep_optimizer_state: bool = False

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
