"""Flags that say which samples the clients have: the data set, the columns of a table, and the partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from unalike._utils.errors import UnalikeError
from unalike._utils.spec import Call
from unalike.cli.options import DataDir, Val, uses_flags

if TYPE_CHECKING:
    from unalike.data.array_checks import Pair
    from unalike.data.dataset import Dataset
    from unalike.data.partitioning.given_clients import ClientsRequest
    from unalike.data.population import Population

Data = Annotated[
    str, typer.Option(help="Name of a data set (see `unalike list data`), or a file such as visits.csv or my.npz.")
]
Target = Annotated[str | None, typer.Option(help="Column of a table to predict.")]
Group = Annotated[
    list[str],
    typer.Option(
        help="Column of a table that says whose row it is, such as hospital, and is no feature; repeat for several. The first "
        "one divides the data among clients unless --partition is given.",
        show_default=False,
    ),
]
Drop = Annotated[
    list[str], typer.Option(help="Column of a table to leave out; repeat for several.", show_default=False)
]
Regression = Annotated[
    bool, typer.Option("--regression", help="Read whole numbers in the target column as numbers, not as classes.")
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="Partition of the data (see `unalike list partitions`). Unless given: by the groups of the data, or where it has "
        "none, 'dirichlet(alpha=0.1)'.",
        show_default=False,
    ),
]
Plan = Annotated[Path | None, typer.Option(help="Saved partition plan (plan.json), instead of --partition.")]
Clients = Annotated[
    int | None,
    typer.Option(help="Number of clients; 10 unless given, or as many as the data set defines.", show_default=False),
]
Split = Annotated[
    float | None,
    typer.Option(
        help="Share of each client's samples that train, 0.75 unless given; with 1 and --protocol server, clients train on the "
        "whole training set, and the published test set scores the model.",
        show_default=False,
    ),
]
Test = Annotated[
    float | None,
    typer.Option(
        help="Share of the test samples for the server (--protocol server); the whole published test set unless given.",
        show_default=False,
    ),
]
Proxy = Annotated[
    float | None,
    typer.Option(help="Share of the test samples for methods that train on the server, such as 0.02."),
]
ProxyImbalance = Annotated[
    float,
    typer.Option(help="Long tail of these samples: how many times as many the first class has as the last one."),
]


class Loaded(NamedTuple):
    """The samples of the clients, and the server's samples for training and for testing."""

    dataset: Dataset
    proxy: Pair | None
    test: Pair | None


@dataclass(frozen=True)
class DataFlags:
    """The flags about data, by name; `table` holds those about the columns of a table that were given."""

    data: str = "digits"
    data_dir: Path | None = None
    table: dict[str, Any] = field(default_factory=dict)
    partition: str | None = None
    plan: Path | None = None
    clients: int | None = None
    split: float | None = None
    val: float = 0.0
    test: float | None = None
    proxy: float | None = None
    proxy_imbalance: float = 1.0

    @property
    def kept(self) -> dict[str, Any]:
        """The flags with their names on the command line, as a results folder keeps them."""
        flags = {"data": self.data, "data_dir": self.data_dir and str(self.data_dir), **self.table}
        flags |= {"proxy": self.proxy, "proxy_imbalance": self._tail, "test": self.test}
        if self.plan is not None:
            return flags | {"plan": str(self.plan)}
        return flags | {
            "partition": self.partition, "clients": self.clients, "split": self.split, "val": self.val or None
        }  # fmt: skip

    @property
    def _tail(self) -> float | None:
        """The imbalance of the proxy samples, if they have one."""
        return None if self.proxy_imbalance == 1 else self.proxy_imbalance

    def resolved(self, dataset: Dataset) -> dict[str, Any]:
        """The partition and the number of clients, named where the flags leave them open; None: as many as the data defines."""
        from unalike.data.partitioning.partition import usual_clients, usual_partition

        if self.plan is not None:
            return {}
        partition = self.partition or usual_partition(dataset)
        return {"partition": partition, "clients": usual_clients(partition) if self.clients is None else self.clients}

    def load(self, protocol: Sequence[str] = ()) -> Loaded:
        """Load the data set and take the server's samples out of it."""
        from unalike.data.partitioning.hold_out import hold_out, test_apart
        from unalike.data.sources.load import load

        found, proxy, test = load(self.data, self.data_dir, **self.table), None, None
        if self.proxy is not None:
            found, proxy = hold_out(found, self.proxy, imbalance=self.proxy_imbalance)
        elif self._tail is not None:
            raise UnalikeError(
                f"found --proxy-imbalance {self._tail:g} without --proxy; give --proxy 0.02, or leave it out"
            )
        if self.test is not None:
            found, test = hold_out(found, self.test)
        elif "server" in protocol:
            found, test = test_apart(found)
        return Loaded(found, proxy, test)

    def request(self, loaded: Loaded) -> ClientsRequest:
        """The clients of a comparison: those of the plan, or the data set with its partition."""
        from unalike.data.partitioning.given_clients import ClientsRequest

        if self.plan is not None:
            return ClientsRequest(self.divide(loaded.dataset), test=loaded.test)
        return ClientsRequest(self.clients, loaded.dataset, None, self.partition, self.split, self.val, loaded.test)

    def divide(self, dataset: Dataset, seed: int = 0) -> Population:
        """Make clients of a data set, by the plan or the partition."""
        from unalike.data.partition_plan import PartitionPlan
        from unalike.data.partitioning.apply_plan import apply_plan
        from unalike.data.partitioning.partition import SPLIT, divided_already, partition

        if self.plan is None:
            split = SPLIT if self.split is None else self.split
            return partition(dataset, self.partition, self.clients, seed=seed, split=split, val=self.val)
        found = PartitionPlan.load(self.plan)
        remedy = "make the plan with it: `unalike partition --save`"
        divided_already("a plan", remedy, self.partition, self.val, self.clients, self.split)
        return apply_plan(found, dataset)


def table(target: Target = None, group: Group = [], drop: Drop = [], regression: Regression = False) -> dict[str, Any]:  # noqa: B006
    """The options of the reader of tables that flags give."""
    return {name: value for name, value in locals().items() if value}


@uses_flags(table=table)
def source(data: Data = "digits", data_dir: DataDir = None, *, table: dict[str, Any]) -> DataFlags:
    """The data set, undivided."""
    return DataFlags(data, data_dir, table)


@uses_flags(source=source)
def clients(
    *,
    source: DataFlags,
    partition: Partition = None,
    plan: Plan = None,
    clients: Clients = None,
    split: Split = None,
    val: Val = 0.0,
) -> DataFlags:
    """The data set, and its partition among clients."""
    return replace(source, partition=partition, plan=plan, clients=clients, split=split, val=val)


@uses_flags(clients=clients)
def samples(
    *, clients: DataFlags, test: Test = None, proxy: Proxy = None, proxy_imbalance: ProxyImbalance = 1.0
) -> DataFlags:
    """The data set, its partition among clients, and the server's samples."""
    return replace(clients, test=test, proxy=proxy, proxy_imbalance=proxy_imbalance)


def spec(data: str, table: dict[str, Any]) -> str:
    """A file with the options of its reader as one text for `load`."""
    return str(Call("file", {"path": data, **table})) if table else data


def check(flags: DataFlags, methods: Sequence[object], training: dict[str, Any]) -> None:
    """Check what needs no data, before it is read: methods, model, protocols, executor and partition."""
    from unalike.data.partitioning.partition import check_scheme
    from unalike.runtime.inputs.run_options import check_inputs

    check_inputs(methods, has_test=True, **training)
    if flags.partition is not None:
        check_scheme(flags.partition)


def check_scored(population: Population, protocol: Sequence[str]) -> None:
    """Raise `UnalikeError` if no sample is left to score models on."""
    if not population.is_scored(protocol):
        raise UnalikeError(
            "no client has a test sample; add --protocol server, which scores the shared model on the published test set, or "
            "lower --split"
        )
