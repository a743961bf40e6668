"""A grid: values of options and parameters, and the arguments of a comparison at each of its points."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.registry import Registry
from unalike._utils.spec import Call, parse
from unalike.core.options import ModelOptions, WorkOptions, options_of
from unalike.core.work import Work
from unalike.data.partitioning import feature_skew, scheme
from unalike.data.partitioning.given_clients import ClientsRequest
from unalike.experiments.experiment_facts import method_text
from unalike.methods.part import registry as parts

Grid = Mapping[str, Sequence[Any]]
"""Name of an option or a parameter -> its values."""

WORK = options_of(WorkOptions)
TRAINING = (*options_of(ModelOptions), "participation", "precision", "buffers", "transform")
DATA = ("partition", "clients", "split", "val")


@dataclass(frozen=True)
class Arguments:
    """The arguments of a comparison that a grid may change: methods by label, clients, local training, and others."""

    methods: Mapping[str, object]
    clients: ClientsRequest
    work: Work | Mapping[str, Work] | None
    training: Mapping[str, Any]

    def at(self, name: str, value: Any) -> Arguments:
        """The same with another value of an option (`lr`), of a parameter of the partition (`alpha`) or of methods (`mu`).

        Raises `UnalikeError` for an unknown name, and for one that the partition and a method have: `dirichlet.alpha` says which.
        """
        if name in WORK:
            work = self.work if isinstance(self.work, Mapping) else dict.fromkeys(self.methods, self.work)
            changed = {label: replace(work.get(label) or Work(), **{name: value}) for label in self.methods}
            return replace(self, work=changed if isinstance(self.work, Mapping) else next(iter(changed.values())))
        if name in TRAINING:
            return replace(self, training={**self.training, name: value})
        if name in DATA:
            kept = {**self.training["source"], name: value} if "source" in self.training else None
            training = self.training if kept is None else {**self.training, "source": kept}
            return replace(self, clients=replace(self.clients, **{name: value}), training=training)
        partition = _with_parameter(self.clients.partition, name, value, scheme.registry, feature_skew.registry)
        specs = {label: _with_parameter(method, name, value, parts) for label, method in self.methods.items()}
        found = {label: spec for label, spec in specs.items() if spec is not None}
        if partition is not None and found:
            raise UnalikeError(
                f"{name} is a parameter of {self.clients.partition} and of {', '.join(found)}; write as in dirichlet.alpha which"
            )
        if partition is None and not found:
            raise unknown("name to sweep", name, [*WORK, *TRAINING, *DATA, *self._parameters])
        if partition is not None:
            return replace(self, clients=replace(self.clients, partition=partition))
        return replace(self, methods={**self.methods, **found})

    def is_data(self, name: str) -> bool:
        """Whether the name changes the clients' data, so that its values are settings of a task and no choices."""
        return name in DATA or bool(_takers(self.clients.partition, name, scheme.registry, feature_skew.registry))

    @property
    def _parameters(self) -> list[str]:
        """The parameters of the partition and of the methods."""
        calls = [
            (c, table) for c in _calls(self.clients.partition) for table in (scheme.registry, feature_skew.registry)
        ]
        calls += [(c, parts) for method in self.methods.values() for c in _calls(method)]
        return [f"{c.name}.{name}" for c, table in calls if c.name in table for name in table.parameters(c.name)]


def labels_of(methods: Iterable[object], names: Iterable[str]) -> list[str]:
    """The methods as text without the parameters that are swept: `fedprox` for `fedprox(mu=0.1)` if `mu` is."""
    swept = [name for name in names if name not in (*WORK, *TRAINING, *DATA)]
    return [_label(method, swept) for method in methods]


def _label(method: object, swept: Sequence[str]) -> str:
    calls = _calls(method)
    dropped = [{n.rpartition(".")[2] for n in swept if c in _takers(method, n, parts)} for c in calls]
    kept = [Call(c.name, {n: v for n, v in c.parameters.items() if n not in d}) for c, d in zip(calls, dropped)]
    return " + ".join(map(_written, kept)) or method_text(method)


def read_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Read `lr=.01,.1` and the like: numbers, texts, and specs such as `model=mlp,cnn(channels=(8, 16))`.

    Raises `UnalikeError` for another form and for a name that is given twice.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, found, values = text.partition("=")
        name = name.strip().replace("-", "_")
        try:
            items = ast.parse(f"({values},)", mode="eval").body
        except SyntaxError:
            items = None
        if not (found and values.strip() and isinstance(items, ast.Tuple)):
            raise UnalikeError(f"found --sweep {text!r}; expected a name and values, such as lr=0.01,0.1")
        if name in grid:
            raise UnalikeError(f"found two --sweep of {name}; give all its values at once")
        grid[name] = [WORK[name].read(value) if name in WORK else value for value in map(_value, items.elts)]
    return grid


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _with_parameter(spec: object, name: str, value: Any, *tables: Registry) -> str | None:
    """The spec with another value of a parameter, in every call that takes it; None if none does."""
    takers, parameter = _takers(spec, name, *tables), name.rpartition(".")[2]
    if not takers:
        return None
    calls = (Call(c.name, {**c.parameters, parameter: value}) if c in takers else c for c in _calls(spec))
    return " + ".join(map(_written, calls))


def _takers(spec: object, name: str, *tables: Registry) -> list[Call]:
    """The calls of a spec that take the parameter; of the part or scheme alone that `proximal.mu` names."""
    owner, _, parameter = name.rpartition(".")
    asked = [call for call in _calls(spec) if owner in ("", call.name)]
    return [c for c in asked if any(c.name in table and parameter in table.parameters(c.name) for table in tables)]


def _calls(spec: object) -> list[Call]:
    """The calls of a spec; none for an object that is no spec text."""
    try:
        return [] if spec is None else parse(method_text(spec))
    except UnalikeError:
        return []


def _written(call: Call) -> str:
    return str(call) if call.parameters else call.name
