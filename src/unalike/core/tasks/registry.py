"""The registry of tasks: tasks by name, and by the labels of data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar, dataclass_transform

from pydantic import AfterValidator
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry
from unalike._utils.spec import parse_one
from unalike.core.tasks.task import Task

registry = Registry("task", home="unalike.core.tasks")
"""Name -> the class of the task; every file of the folder is read at the first look-up, and the entry points `unalike.tasks`."""

TaskName = Annotated[str, AfterValidator(lambda text: find_task(text).spec)]
"""The spec of a registered task, as a field of a validated class."""

DECLARED = ("name", "label_type", "labels_in_words")
"""The class attributes of a task without a default."""

T = TypeVar("T", bound=type[Task])


@dataclass_transform(frozen_default=True)
def task(cls: T) -> T:
    """Class decorator: make a frozen dataclass of a task and register it under its `name`.

    >>> find_task("regression").metrics
    ('loss', 'rmse', 'mae', 'r2')

    Raises `UnalikeError` if another task has the name, or the class does not declare what every task has to.
    """
    missing = [name for name in DECLARED if not hasattr(cls, name)]
    if missing:
        raise UnalikeError(
            f"the task {cls.__name__} does not declare {', '.join(missing)}; expected class attributes {', '.join(DECLARED)}"
        )
    return registry.register(cls.name)(dataclass(frozen=True)(cls))


def find_task(spec: str) -> Task:
    """The task of a name, or of a name with parameters such as `discrete_survival(edges=(30, 90))`.

    Raises `UnalikeError` for an unknown name, and for parameters that the task does not take.
    """
    return registry.build(parse_one(registry.spelled(spec)))


def all_tasks() -> Iterator[Task]:
    """Every registered task, our own first."""
    return (find_task(name) for name in registry)


def names_of_tasks_with(need: str) -> list[str]:
    """The names of the tasks that have a trait."""
    return [task.name for task in all_tasks() if task.offers(need)]


def task_for(y: Tensor) -> Task:
    """The task for these labels where nobody names one: integers classification, booleans binary, floats regression.

    The first task that takes labels of this type, before others one whose labels have as many dimensions. Raises `UnalikeError`
    if none does.
    """
    of_type = [task for task in all_tasks() if task.takes(y)]
    of_shape = [task for task in of_type if task.label_dimensions == y.dim() - 1]
    for task in (*of_shape, *of_type):
        return task
    raise UnalikeError(
        f"no task takes labels of {y.dtype}; expected integers, booleans or floats, or a task by name"
    )
