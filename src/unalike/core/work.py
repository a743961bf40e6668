"""What a client does in a round: how much it trains, in which batches, with which solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, overload

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from unalike._utils.validated import validated
from unalike.core.solvers import SGD, Adam, AdamW, Solver


class Batches(Sequence[np.ndarray]):
    """Row numbers in the order of training, cut into batches of these `sizes`; `batches[t]` is a view."""

    __slots__ = ("rows", "sizes")

    def __init__(self, rows: np.ndarray, sizes: tuple[int, ...]):
        self.rows, self.sizes = rows, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, t: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, t: slice) -> list[np.ndarray]: ...
    def __getitem__(self, t: int | slice) -> np.ndarray | list[np.ndarray]:
        return [*self][t]

    def __iter__(self) -> Iterator[np.ndarray]:
        start = 0
        for size in self.sizes:
            yield self.rows[start : start + size]
            start += size


@validated
class Work:
    """A round of local work.

    epochs: passes over the client's data; steps: optimizer steps instead (None: epochs decide).
    batch_size: samples per step, None for the full batch; the last partial batch is used.
    lr: local learning rate; schedule: its factor per round, so round r (from 0) uses lr * schedule**r.
    momentum, nesterov, weight_decay, optimizer ("sgd", "adam", "adamw"): the solver, fresh in every round unless
    keep_optimiser_state. clip: largest norm of a step's gradient (after corrections), None for no limit.

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
        """The solver these settings describe."""
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
        """The sizes of the batches of a round of so many samples."""
        return _sizes(samples, self.steps_for(samples), self.batch_size or samples)

    def batches(self, rows: int | np.ndarray, rng: np.random.Generator) -> Batches:
        """The batch order of one round of these rows, or of 0..rows-1; each epoch is one permutation, cut into batches."""
        samples = rows if isinstance(rows, int) else len(rows)
        sizes = self.sizes_for(samples)
        used = sum(sizes)
        epochs = [rng.permutation(rows) for _ in range(0, used, samples or 1)]
        order = epochs[0] if len(epochs) == 1 else np.concatenate([*epochs, np.zeros(0, np.int64)])
        return Batches(order[:used], sizes)


@lru_cache(4096)
def _sizes(samples: int, steps: int, size: int) -> tuple[int, ...]:
    """The sizes of so many batches, every epoch's last one with what is left."""
    if not samples:
        return ()
    epoch = [min(size, samples - start) for start in range(0, samples, size)]
    return tuple(epoch[t % len(epoch)] for t in range(steps))
