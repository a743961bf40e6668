"""Search spaces: the values of a hyperparameter that tuning tries, declared in the annotation of its field.

    mu: Annotated[NonNegativeFloat, LogRange(1e-4, 1)] = 0.001

A field without a search space is not tuned.
"""

from dataclasses import dataclass

Value = float | int | str | bool


@dataclass(frozen=True)
class LinearRange:
    """Numbers from `low` to `high`."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class LogRange(LinearRange):
    """Numbers from `low` to `high`, each factor of ten as likely as the others."""


@dataclass(frozen=True, init=False)
class OneOf:
    """One of a few values."""

    values: tuple[Value, ...]

    def __init__(self, *values: Value):
        object.__setattr__(self, "values", values)

    def __contains__(self, value: object) -> bool:
        return value in self.values


SearchSpace = LinearRange | OneOf


def search_spaces(owner: object) -> dict[str, SearchSpace]:
    """Field -> search space, for the fields of a part, a plan or a class of these that declare one."""
    spaces: dict[str, SearchSpace] = {}
    for name, field in getattr(owner, "__pydantic_fields__", {}).items():
        for annotation in field.metadata:
            if isinstance(annotation, SearchSpace):
                spaces[name] = annotation
    return spaces
