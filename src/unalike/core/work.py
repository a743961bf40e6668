"""A client's work in a round: the amount of training, the batches, the solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from math import inf
from typing import Any, TypeVar, overload

import numpy as np
from pydantic import ValidationInfo, field_validator, model_validator

from unalike._utils.errors import UnalikeError
from unalike._utils.functions import MissingFunction, is_text_of_function, text_of_function
from unalike._utils.spec import parse_one
from unalike._utils.validated import validated
from unalike.core.losses import Loss
from unalike.core.losses import loss as make_loss
from unalike.core.options import WorkOptions
from unalike.core.schedules import Schedule, over
from unalike.core.schedules import schedule as make_schedule
from unalike.core.solvers import Solver
from unalike.core.solvers import solver as make_solver

T = TypeVar("T")

EXAMPLES = {
    "loss": "'focal(gamma=2)'",
    "optimizer": "'adam(betas=(0.9, 0.99))'",
    "schedule": "'cosine(warmup=5)'",
}
"""Option that is a name or a function -> one of its names."""


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
        loss: loss that clients minimize in the place of the task's: "focal(gamma=2)", "cross_entropy(class_weights='balanced')",
            ..., or a function of outputs and labels that returns a scalar or a loss for each sample. Scores stay the task's.
        optimizer: local optimizer: "sgd", "adam", "adamw" or "adam(betas=(0.9, 0.99))", with a fresh state in every round; or a
            function of parameters and lr that makes an optimizer of torch, such as `torch.optim.RMSprop`.
        schedule: schedule of the learning rate over the rounds: "cosine(warmup=5)", "step(every=20)"; or the factor by which it
            changes per round: round r (from 0) uses lr * schedule**r; or a function, lr * schedule(r).
        clip: largest gradient norm of a step, after corrections; None: no limit.
        keep_optimizer_state: keep the state of the local optimizer between rounds.

    Raises:
        UnalikeError: a value is out of range, or two do not go together.

    >>> Work(epochs=2, batch_size=10).steps_for(25)
    6
    """

    @field_validator("loss", "optimizer", "schedule", mode="plain")
    @classmethod
    def _one_spelling(cls, value: Any, field: ValidationInfo) -> Any:
        """A name with options in one spelling, and a factor in text as the number that it is."""
        if field.field_name == "schedule":
            with suppress(TypeError, ValueError):
                return float(value)
        if is_text_of_function(value):
            return MissingFunction(value)
        if isinstance(value, str):
            return str(call) if (call := parse_one(value)).parameters else call.name
        if callable(value) or (value is None and field.field_name == "loss"):
            return value
        example = EXAMPLES[str(field.field_name)]
        raise UnalikeError(
            f"found {type(value).__name__}; expected a name, such as {example}, or a function"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Work:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if callable(self.optimizer) and (
            self.keep_optimizer_state or self.momentum or self.weight_decay
        ):
            raise ValueError(
                "momentum, weight_decay and keep_optimizer_state go with an optimizer by name; give options of an optimizer of "
                "torch to itself, as in functools.partial(torch.optim.SGD, momentum=0.9)"
            )
        if isinstance(self.schedule, str):
            make_schedule(self.schedule)
        if isinstance(self.schedule, float) and not 0 < self.schedule < inf:
            raise ValueError(
                f"schedule={self.schedule!r}: expected a factor above 0, or a name such as 'cosine(warmup=5)'"
            )
        _ = self.solver, self.criterion
        return self

    @cached_property
    def solver(self) -> Solver:
        """The solver for these settings."""
        given = parse_one(self.optimizer) if isinstance(self.optimizer, str) else self.optimizer
        return make_solver(given, self.momentum, self.nesterov, self.weight_decay)

    @cached_property
    def criterion(self) -> Loss | None:
        """The loss that clients minimize; None for that of the task."""
        return None if self.loss is None else make_loss(self.loss)

    @property
    def record(self) -> dict[str, Any]:
        """The settings as the record of a run holds them: of a function its name and a hash."""
        return {field.name: text_of_function(getattr(self, field.name)) for field in fields(self)}

    def over(self, rounds: int) -> Work:
        """The work of a run of so many rounds. Raises `UnalikeError` for a schedule with a learning rate that is not above 0."""
        named = self.schedule if isinstance(self.schedule, str) else ""
        work = replace(self, schedule=over(named, max(1, rounds))) if named else self
        for round in range(0 if work.schedule == 1 else rounds):
            if not 0 < (lr := work.lr_at(round)) < inf:
                raise UnalikeError(
                    f"schedule={text_of_function(work.schedule)!r} gives the learning rate {lr} in round {round}; "
                    f"expected one above 0 in each of {rounds} rounds"
                )
        return work

    def lr_at(self, round: int) -> float:
        """The local learning rate of a round, counted from 0."""
        if isinstance(self.schedule, float):
            return self.lr * self.schedule**round
        return self.lr * float(self._factor(round))

    @cached_property
    def _factor(self) -> Schedule:
        given: Any = self.schedule
        return make_schedule(given) if isinstance(given, str) else given

    def batches_per_epoch(self, samples: int) -> int:
        """Batches in a pass over this many samples, at least one."""
        return -(-samples // (self.batch_size or samples))

    def steps_for(self, samples: int) -> int:
        """Optimizer steps that a client with this many samples makes; 0 without samples."""
        return (self.steps or self.epochs * self.batches_per_epoch(samples)) if samples else 0

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

    def poisson_batches(self, rows: np.ndarray, rng: np.random.Generator) -> Batches:
        """As many batches, into each of which every row is drawn by itself, with probability 1 / `batches_per_epoch`."""
        n = len(rows)
        drawn = [
            rows[rng.random(n) * self.batches_per_epoch(n) < 1] for _ in range(self.steps_for(n))
        ]
        return Batches(np.concatenate([np.zeros(0, np.int64), *drawn]), tuple(map(len, drawn)))


@lru_cache(4096)
def _sizes(samples: int, steps: int, size: int) -> tuple[int, ...]:
    """The sizes of this many batches; the last one of each epoch has the rest of the samples."""
    if not samples:
        return ()
    epoch = [min(size, samples - start) for start in range(0, samples, size)]
    return tuple(epoch[t % len(epoch)] for t in range(steps))
