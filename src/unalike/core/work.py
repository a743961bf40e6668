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

EXAMPLE_NAMES = {
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
        self.rows = rows
        self.sizes = sizes

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
        drop_last: leave out the last batch of an epoch if it is smaller than the others. A client with fewer samples than a batch
            trains on all of them.
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
        # the record of a run holds a function's name and hash, from which no function can be made again
        if is_text_of_function(value):
            return MissingFunction(value)
        if isinstance(value, str):
            call = parse_one(value)
            return str(call) if call.parameters else call.name
        if callable(value) or (value is None and field.field_name == "loss"):
            return value
        example = EXAMPLE_NAMES[str(field.field_name)]
        raise UnalikeError(
            f"found {type(value).__name__}; expected a name, such as {example}, or a function"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Work:
        """The work, if its options go together."""
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        # an optimizer of torch keeps its options and its state itself
        has_solver_options = self.keep_optimizer_state or self.momentum or self.weight_decay
        if callable(self.optimizer) and has_solver_options:
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
        # made once here, so that unknown names and options are refused at once
        _ = self.solver
        _ = self.criterion
        return self

    @cached_property
    def solver(self) -> Solver:
        """The solver for these settings."""
        optimizer = self.optimizer
        return make_solver(
            optimizer=parse_one(optimizer) if isinstance(optimizer, str) else optimizer,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )

    @cached_property
    def criterion(self) -> Loss | None:
        """The loss that clients minimize; None for that of the task."""
        if self.loss is None:
            return None
        return make_loss(self.loss)

    @property
    def record(self) -> dict[str, Any]:
        """The settings as the record of a run holds them: of a function its name and a hash."""
        return {field.name: text_of_function(getattr(self, field.name)) for field in fields(self)}

    def over(self, rounds: int) -> Work:
        """The work of a run of so many rounds. Raises `UnalikeError` for a schedule with a learning rate that is not above 0."""
        work = self
        if isinstance(self.schedule, str) and self.schedule:
            work = replace(self, schedule=over(self.schedule, max(1, rounds)))
        if work.schedule == 1:
            return work

        # a schedule may be any function, so every round is tried before the first one begins
        for round in range(rounds):
            lr = work.lr_at(round)
            if not 0 < lr < inf:
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
        """The schedule of a name or a function. A number has none: `lr_at` takes its powers."""
        schedule: Any = self.schedule
        if isinstance(schedule, str):
            return make_schedule(schedule)
        return schedule

    def batches_per_epoch(self, samples: int) -> int:
        """Batches in a pass over this many samples, at least one."""
        size = self.batch_size or samples
        whole = samples // size
        return whole if self.drop_last and whole else -(-samples // size)

    def steps_for(self, samples: int) -> int:
        """Optimizer steps that a client with this many samples makes; 0 without samples."""
        if not samples:
            return 0
        return self.steps or self.epochs * self.batches_per_epoch(samples)

    def sizes_for(self, samples: int) -> tuple[int, ...]:
        """The batch sizes of a client with this many samples in a round."""
        return self._sizes(samples, self.steps_for(samples))

    def _sizes(self, samples: int, steps: int) -> tuple[int, ...]:
        return _batch_sizes(samples, steps, self.batch_size or samples, self.drop_last)

    def batches(self, rows: int | np.ndarray, rng: np.random.Generator) -> Batches:
        """The batches of a round of these rows (n stands for 0..n-1): each epoch is one permutation, cut into batches."""
        samples = rows if isinstance(rows, int) else len(rows)
        sizes = self.sizes_for(samples)
        used = sum(sizes)
        # as many permutations as the batches need; of the last one a part may stay unused, of each one a dropped batch
        of_epoch = samples
        if self.drop_last and samples:
            of_epoch = sum(self._sizes(samples, self.batches_per_epoch(samples)))
        epochs = [rng.permutation(rows)[:of_epoch] for _ in range(0, used, of_epoch or 1)]
        if len(epochs) == 1:
            order = epochs[0]
        else:
            # a client without samples has no epochs, but an empty order
            order = np.concatenate([*epochs, np.zeros(0, np.int64)])
        return Batches(order[:used], sizes)

    def poisson_batches(self, rows: np.ndarray, rng: np.random.Generator) -> Batches:
        """As many batches, into each of which every row is drawn by itself, with probability 1 / `batches_per_epoch`."""
        samples = len(rows)
        batches = []
        for _ in range(self.steps_for(samples)):
            takes_part = rng.random(samples) * self.batches_per_epoch(samples) < 1
            batches.append(rows[takes_part])
        sizes = tuple(len(batch) for batch in batches)
        # the empty array is for a client without samples, which has no batches
        order = np.concatenate([np.zeros(0, np.int64), *batches])
        return Batches(order, sizes)


def share_of_steps(steps: int, share: float) -> int:
    """A share of so many steps, rounded down, and at least one where there is any."""
    return min(steps, max(1, int(share * steps + ROUNDING)))


ROUNDING = 1e-9
"""Added before steps are rounded down: a share of 2 / 3 of 3 steps is 2."""


@lru_cache(4096)
def _batch_sizes(samples: int, steps: int, size: int, drop_last: bool) -> tuple[int, ...]:
    """The sizes of this many batches; the last one of each epoch has the rest of the samples, unless it is dropped."""
    if not samples:
        return ()
    sizes_of_epoch = [min(size, samples - start) for start in range(0, samples, size)]
    if drop_last and len(sizes_of_epoch) > 1 and sizes_of_epoch[-1] < size:
        sizes_of_epoch.pop()
    return tuple(sizes_of_epoch[t % len(sizes_of_epoch)] for t in range(steps))
