"""A grid: values of options and parameters, and the arguments of a comparison at each of its points."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.registry import Registry
from unalike._utils.spec import Call, parse
from unalike.comparison.comparison_json_of_cells import method_text
from unalike.core.option import options_of
from unalike.core.options import (
    ModelOptions,
    PartitionOptions,
    ValidationOptions,
    WorkOptions,
)
from unalike.core.work import Work
from unalike.data.partitioning import feature_skew, scheme
from unalike.data.partitioning.given_clients import ClientsRequest
from unalike.methods.part import registry as parts

Grid = Mapping[str, Sequence[Any]]
"""Name of an option or a parameter -> its values."""

WORK = options_of(WorkOptions)
TRAINING = (*options_of(ModelOptions), "participation", "precision", "buffers", "transform")
DATA = ("data", "partition", "clients", "split", "val")
OF_ANY_DATA = (*options_of(PartitionOptions, ValidationOptions), "data", "data_dir")
"""The flags about data that mean the same for each data set."""


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
        change = {name: value}
        if name in WORK:
            return replace(self, work=self._work_with(change))
        if name in TRAINING:
            return replace(self, training={**self.training, **change})
        if name in DATA:
            if name == "data":
                self._check_free_data()
            # The flags in the report's command have the value, too.
            training = dict(self.training)
            if "source" in training:
                training["source"] = {**training["source"], **change}
            return replace(self, clients=replace(self.clients, **change), training=training)

        # No option has the name: it is a parameter of the partition or of methods.
        partition = _with_parameter(
            self.clients.partition, name, value, scheme.registry, feature_skew.registry
        )
        changed = {}
        for label, method in self.methods.items():
            spec = _with_parameter(method, name, value, parts)
            if spec is not None:
                changed[label] = spec
        if partition is not None and changed:
            raise UnalikeError(
                f"{name} is a parameter of {self.clients.partition} and of {', '.join(changed)}; write as in dirichlet.alpha which"
            )
        if partition is None and not changed:
            raise unknown("name to sweep", name, [*WORK, *TRAINING, *DATA])
        if partition is not None:
            return replace(self, clients=replace(self.clients, partition=partition))
        return replace(self, methods={**self.methods, **changed})

    def _check_free_data(self) -> None:
        """Raise `UnalikeError` for what belongs to one data set: options of its reader, and samples of the server."""
        given = {**self.training.get("source", {})}
        given["test"] = self.clients.test
        given["proxy"] = self.training.get("proxy")
        for name, value in given.items():
            if name not in OF_ANY_DATA and value is not None:
                raise UnalikeError(
                    f"found {name} beside a sweep of data: it belongs to one data set; leave it out, and write the options of a "
                    "table with its name, as in \"file(path='visits.csv', target='outcome')\""
                )

    def _work_with(self, change: Mapping[str, Any]) -> Work | dict[str, Work]:
        """The local training with another value of an option, of each method where each has its own."""
        if not isinstance(self.work, Mapping):
            return replace(self.work or Work(), **change)
        works = {}
        for label in self.methods:
            works[label] = replace(self.work.get(label) or Work(), **change)
        return works

    def is_data(self, name: str) -> bool:
        """Whether the name changes the clients' data, so that its values are settings of a task and no choices."""
        if name in DATA:
            return True
        partition = self.clients.partition
        return bool(_takers(partition, name, scheme.registry, feature_skew.registry))

    def takes(self, label: str, name: str) -> bool:
        """Whether a method has the name: a parameter of other methods changes nothing for it."""
        takers = [one for one, method in self.methods.items() if _takers(method, name, parts)]
        return name in (*WORK, *TRAINING) or self.is_data(name) or not takers or label in takers


def label_of(method: object, names: Iterable[str]) -> str:
    """A method as text without the parameters that are swept: `fedprox` for `fedprox(mu=0.1)` if `mu` is."""
    calls = _calls(method)
    parameters = [name for name in names if name not in (*WORK, *TRAINING, *DATA)]
    for name in parameters:
        takers = _takers(method, name, parts)
        parameter = name.rpartition(".")[2]
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
        grid[name] = [_value(item) for item in items.elts]
        if name in WORK:
            grid[name] = [WORK[name].read(value) for value in grid[name]]
    return grid


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _with_parameter(spec: object, name: str, value: Any, *tables: Registry) -> str | None:
    """The spec with another value of a parameter, in every call that takes it; None if none does."""
    takers = _takers(spec, name, *tables)
    if not takers:
        return None
    parameter = name.rpartition(".")[2]
    calls = _calls(spec)
    for call in calls:
        if call.name in takers:
            call.parameters[parameter] = value
    return " + ".join(map(_written, calls))


def _takers(spec: object, name: str, *tables: Registry) -> set[str]:
    """The names in a spec that take the parameter; only the part or scheme that `proximal.mu` names."""
    owner, _, parameter = name.rpartition(".")
    takers = set()
    for call in _calls(spec):
        if owner not in ("", call.name):
            continue
        for table in tables:
            if call.name in table and parameter in table.parameters(call.name):
                takers.add(call.name)
    return takers


def _calls(spec: object) -> list[Call]:
    """The calls of a spec; none for an object that is no spec text."""
    try:
        return [] if spec is None else parse(method_text(spec))
    except UnalikeError:
        return []


def _written(call: Call) -> str:
    return str(call) if call.parameters else call.name
