"""A grid: values of options and parameters, and the arguments of a comparison at each of its points."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.registry import Registry
from unalike._utils.spec import Call, parse
from unalike.comparison.comparison_json_of_cells import method_text
from unalike.core.options import ModelOptions, WorkOptions, options_of
from unalike.core.work import Work
from unalike.data.partitioning import feature_skew, scheme
from unalike.data.partitioning.given_clients import ClientsRequest
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

    def at(self, name: str, value: Any) -> Self:
        """The same with another value of an option (`lr`), of a parameter of the partition (`alpha`) or of methods (`mu`).

        Raises `UnalikeError` for an unknown name, and for one that the partition and a method have: `dirichlet.alpha` says which.
        """
        if name in WORK:
            work = (
                self.work
                if isinstance(self.work, Mapping)
                else dict.fromkeys(self.methods, self.work)
            )
            changed = {
                label: replace(work.get(label) or Work(), **{name: value}) for label in self.methods
            }
            return replace(
                self,
                work=changed if isinstance(self.work, Mapping) else next(iter(changed.values())),
            )
        if name in TRAINING:
            return replace(self, training={**self.training, name: value})
        if name in DATA:
            kept = {**self.training["source"], name: value} if "source" in self.training else None
            training = self.training if kept is None else {**self.training, "source": kept}
            return replace(self, clients=replace(self.clients, **{name: value}), training=training)
        partition = _with_parameter(
            self.clients.partition, name, value, scheme.registry, feature_skew.registry
        )
        specs = {
            label: _with_parameter(method, name, value, parts)
            for label, method in self.methods.items()
        }
        found = {label: spec for label, spec in specs.items() if spec is not None}
        if partition is not None and found:
            raise UnalikeError(
                f"{name} is a parameter of {self.clients.partition} and of {', '.join(found)}; write as in dirichlet.alpha which"
            )
        if partition is None and not found:
            raise unknown("name to sweep", name, [*WORK, *TRAINING, *DATA])
        if partition is not None:
            return replace(self, clients=replace(self.clients, partition=partition))
        return replace(self, methods={**self.methods, **found})

    def is_data(self, name: str) -> bool:
        """Whether the name changes the clients' data, so that its values are settings of a task and no choices."""
        return name in DATA or bool(
            _takers(self.clients.partition, name, scheme.registry, feature_skew.registry)
        )

    def takes(self, label: str, name: str) -> bool:
        """Whether a method has the name: a parameter of other methods changes nothing for it."""
        takers = [one for one, method in self.methods.items() if _takers(method, name, parts)]
        return name in (*WORK, *TRAINING) or self.is_data(name) or not takers or label in takers


def label_of(method: object, names: Iterable[str]) -> str:
    """A method as text without the parameters that are swept: `fedprox` for `fedprox(mu=0.1)` if `mu` is."""
    calls = _calls(method)
    for name in (name for name in names if name not in (*WORK, *TRAINING, *DATA)):
        takers, parameter = _takers(method, name, parts), name.rpartition(".")[2]
        for call in calls:
            if call.name in takers:
                call.parameters.pop(parameter, None)
    return " + ".join(map(_written, calls)) or method_text(method)


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
            raise UnalikeError(
                f"found --sweep {text!r}; expected a name and values, such as lr=0.01,0.1"
            )
        if name in grid:
            raise UnalikeError(f"found two --sweep of {name}; give all its values at once")
        grid[name] = [
            WORK[name].read(value) if name in WORK else value for value in map(_value, items.elts)
        ]
    return grid


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _with_parameter(spec: object, name: str, value: Any, *tables: Registry) -> str | None:
    """The spec with another value of a parameter, in every call that takes it; None if none does."""
    takers, calls = _takers(spec, name, *tables), _calls(spec)
    for call in calls:
        if call.name in takers:
            call.parameters[name.rpartition(".")[2]] = value
    return " + ".join(map(_written, calls)) if takers else None


def _takers(spec: object, name: str, *tables: Registry) -> set[str]:
    """The names in a spec that take the parameter; only the part or scheme that `proximal.mu` names."""
    owner, _, parameter = name.rpartition(".")
    asked = {call.name for call in _calls(spec) if owner in ("", call.name)}
    return {
        one
        for one in asked
        if any(one in table and parameter in table.parameters(one) for table in tables)
    }


def _calls(spec: object) -> list[Call]:
    """The calls of a spec; none for an object that is no spec text."""
    try:
        return [] if spec is None else parse(method_text(spec))
    except UnalikeError:
        return []


def _written(call: Call) -> str:
    return str(call) if call.parameters else call.name
