"""A method with its local training, and the hyperparameters that tuning may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unalike._utils.spec import parse_one
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.plan import Plan, method_of
from unalike.methods.search_space import LogRange, SearchSpace, Value, search_spaces

Values = dict[str, Value]
"""Hyperparameter (`lr`, `proximal.mu`) -> value."""

LOCAL_RATE = "lr"
LEARNING_RATES: dict[str, SearchSpace] = {
    "sgd": LogRange(1e-3, 1),
    "adam": LogRange(1e-5, 0.1),
    "adamw": LogRange(1e-5, 0.1),
}
"""Local optimizer -> search space of the local learning rate, which is tuned for every method."""


@dataclass(frozen=True)
class Tunable:
    """A plan and the local training of its clients."""

    plan: Plan
    work: Work

    @property
    def spaces(self) -> dict[str, SearchSpace]:
        """Hyperparameter -> search space: the local learning rate, then what the parts declare."""
        spaces = {LOCAL_RATE: _learning_rates(self.work)}
        for owner in _owners(self.plan):
            for field, space in search_spaces(owner).items():
                spaces[f"{owner.name}.{field}"] = space
        return spaces

    @property
    def values(self) -> Values:
        """The hyperparameters as they are now."""
        owners = {owner.name: owner for owner in _owners(self.plan)}
        values: Values = {LOCAL_RATE: self.work.lr}
        for name in self.spaces:
            if name != LOCAL_RATE:
                owner, field = name.split(".")
                values[name] = getattr(owners[owner], field)
        return values

    def with_values(self, values: Mapping[str, Value]) -> Tunable:
        """The same with other values of some hyperparameters. Raises `UnalikeError` for a value out of range."""
        by_owner: dict[str, Values] = {}
        for name, value in values.items():
            owner, _, field = name.rpartition(".")
            by_owner.setdefault(owner, {})[field] = value
        work = replace(self.work, lr=float(values.get(LOCAL_RATE, self.work.lr)))
        return Tunable(_changed(self.plan, by_owner), work)


def _learning_rates(work: Work) -> SearchSpace:
    if isinstance(work.optimizer, str):
        return LEARNING_RATES[parse_one(work.optimizer).name]
    return LogRange(1e-5, 1)


def _owners(plan: Plan) -> list[Any]:
    """The parts of a method; of a plan with stages the plan itself, and the parts of the method of its stages."""
    if isinstance(plan, Method):
        return list(plan.parts)
    if hasattr(plan, "method"):
        return [plan, *method_of(plan).parts]
    return [plan]


def _changed(plan: Plan, by_owner: Mapping[str, Values]) -> Plan:
    """The plan with other fields of its parts, by the names of their owners."""
    if isinstance(plan, Method):
        parts = []
        for part in plan.parts:
            fields = by_owner.get(part.name)
            parts.append(replace(part, **fields) if fields else part)  # type: ignore[type-var]
        return Method(*parts)
    changes: dict[str, Any] = dict(by_owner.get(getattr(plan, "name", ""), {}))
    if hasattr(plan, "method"):
        changes["method"] = repr(_changed(method_of(plan), by_owner))
    return replace(plan, **changes) if changes else plan  # type: ignore[type-var]
