"""The obstacles of executors: which way of training cannot train a method with this work, and why.

Every way asks this table before it looks at the model and the samples, which it knows better itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from unalike.core.solvers import SGD
from unalike.core.work import Work
from unalike.methods.method import Method

Way = Literal["stacked", "recorded", "compiled"]
"""Clients stacked by `torch.vmap`, steps recorded as CUDA graphs, or all steps of a client in compiled loops."""


@dataclass(frozen=True)
class Obstacle:
    """Something that a method or its work asks for, and what each way of training says to it; empty where it can do it."""

    is_there: Callable[[Method, Work], bool]
    stacked: str = ""
    recorded: str = ""
    compiled: str = ""


def _has_local_gradient(method: Method, work: Work) -> bool:
    return method.local_gradient is not None


def _has_loss(method: Method, work: Work) -> bool:
    return work.loss is not None


def _keeps_optimizer_state(method: Method, work: Work) -> bool:
    return work.keep_optimizer_state


def _has_function_as_optimizer(method: Method, work: Work) -> bool:
    return callable(work.optimizer)


def _has_other_solver_than_sgd(method: Method, work: Work) -> bool:
    return not all(isinstance(phase.work(work).solver, SGD) for phase in method.phases)


OBSTACLES = (
    Obstacle(
        _has_local_gradient,
        recorded="private steps draw numbers for each batch",
        compiled="they have no gradient of a single sample",
    ),
    Obstacle(
        _has_loss,
        compiled="they have no loss but the task's",
    ),
    Obstacle(
        _keeps_optimizer_state,
        compiled="they keep no state of an optimizer",
    ),
    Obstacle(
        _has_function_as_optimizer,
        stacked="its optimizer is a function of a program, which steps one client after another",
        recorded="its optimizer is a function of a program",
    ),
    Obstacle(
        _has_other_solver_than_sgd,
        compiled="they have no optimizer but SGD",
    ),
)
"""In the order in which they are told: where there are several, the first one counts."""


def obstacles(way: Way, method: Method, work: Work) -> Iterator[str]:
    """The reasons why clients cannot be trained in this way, the most telling one first; none if they can.

    `work` is that of the round; the phases of the method make their own of it.
    """
    for obstacle in OBSTACLES:
        reason = getattr(obstacle, way)
        if reason and obstacle.is_there(method, work):
            yield reason
