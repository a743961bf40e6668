"""Flags that say which samples the clients have: the data set, the columns of a table, and the partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unalike._utils.errors import UnalikeError
from unalike._utils.spec import Call
from unalike.cli.flags import uses_flags
from unalike.core.option import options_of, written
from unalike.core.options import (
    PartitionOptions,
    ServerSampleOptions,
    SourceOptions,
    TableOptions,
    ValidationOptions,
)

if TYPE_CHECKING:
    from unalike.data.array_checks import Pair
    from unalike.data.dataset import Dataset
    from unalike.data.partitioning.given_clients import ClientsRequest
    from unalike.data.population import Population
    from unalike.runtime.setup.run_options import NamedPlan, RunOptions


class Loaded(NamedTuple):
    """The samples of the clients, and the server's samples for training and for testing."""

    dataset: Dataset
    proxy: Pair | None
    test: Pair | None


@dataclass(frozen=True)
class DataFlags(
    ServerSampleOptions, ValidationOptions, PartitionOptions, TableOptions, SourceOptions
):
    """The flags about data."""

    @property
    def table(self) -> dict[str, Any]:
        """The options of the reader of tables that were given."""
        names = options_of(TableOptions)
        return {name: value for name, value in self.flag_values.items() if name in names}

    @property
    def flag_values(self) -> dict[str, Any]:
        """The flags with their names on the command line, as a results folder keeps them."""
        return {"data": self.data} | written(self, changed=True)

    def resolved_partition(self, dataset: Dataset) -> dict[str, Any]:
        """The partition and the number of clients, named where the flags leave them open; None: as many as the data defines."""
        from unalike.data.partitioning.partition import usual_clients, usual_partition

        if self.plan is not None:
            return {}
        partition = self.partition or usual_partition(dataset)
        clients = usual_clients(partition) if self.clients is None else self.clients
        return {"partition": partition, "clients": clients}

    def load(self, protocol: Sequence[str] = (), **options: Any) -> Loaded:
        """Load the data set, with more `options` of its reader, and take the server's samples out of it."""
        from unalike.data.partitioning.hold_out import hold_out, hold_out_tests, take_test_set
        from unalike.data.sources.load import load
        from unalike.data.time_order import LATER

        proxy = None
        test = None
        dataset = load(self.data, self.data_dir, **self.table, **options)
        if self.limit is not None:
            dataset = dataset.subset(self.limit)
        if self.split == LATER:
            dataset = dataset.in_order()
        # the server's samples are taken out before the clients', so that no client has one of them
        if self.proxy is not None:
            dataset, proxy = hold_out(dataset, self.proxy, imbalance=self.proxy_imbalance)
        elif self.proxy_imbalance != 1:
            raise UnalikeError(
                f"found --proxy-imbalance {self.proxy_imbalance:g} without --proxy; "
                "give --proxy 0.02, or leave it out"
            )
        if self.test is not None:
            dataset, test = hold_out_tests(dataset, self.test)
        elif "server" in protocol:
            dataset, test = take_test_set(dataset)
        return Loaded(dataset, proxy, test)

    def population_and_title(self, seed: int) -> tuple[Population, str]:
        """The clients, and the data with its division in words: `digits, dirichlet(alpha=0.1)`, or `visits.csv by hospital`."""
        self.check_partition()
        dataset = self.load().dataset
        if self.group and self.partition is None and self.plan is None:
            title = f"{self._short_name} by {self.group[0]}"
        else:
            division = self.resolved_partition(dataset).get("partition") or f"plan {self.plan}"
            title = f"{self._short_name}, {division}"
        return self.divide(dataset, seed), title

    @property
    def _short_name(self) -> str:
        """The data as a headline names it: a file without its folders."""
        return self.data if "(" in self.data else Path(self.data).name

    def command(self, name: str, options: dict[str, Any], work: Any = None) -> str:
        """A command line on this data, with the options of local training that differ from their defaults."""
        from unalike.comparison.command_line import command_line

        training = {} if work is None else written(work, changed=True)
        return command_line(name, self.flag_values | options | training)

    def check_partition(self) -> None:
        """Check the partition before data is read."""
        from unalike.data.partitioning.partition import check_scheme

        if self.partition is not None:
            check_scheme(self.partition)

    def request(self, loaded: Loaded) -> ClientsRequest:
        """The clients of a comparison: those of the plan, or the data set with its partition."""
        from unalike.data.partitioning.given_clients import ClientsRequest

        if self.plan is not None:
            return ClientsRequest(self.divide(loaded.dataset), test=loaded.test)
        return ClientsRequest(
            self.clients,
            data=loaded.dataset,
            data_dir=self.data_dir,
            partition=self.partition,
            split=self.split,
            val=self.val,
            test=loaded.test,
            folds=self.folds,
        )

    def divide(self, dataset: Dataset, seed: int = 0) -> Population:
        """Make clients of a data set, by the plan or the partition."""
        from unalike.data.partition_plan import PartitionPlan
        from unalike.data.partitioning.apply_plan import apply_plan
        from unalike.data.partitioning.partition import partition, refuse_new_partition

        if self.plan is None:
            return partition(
                dataset,
                self.partition,
                self.clients,
                seed,
                split=self.split,
                val=self.val,
                folds=self.folds,
            )
        plan = PartitionPlan.load(self.plan)
        refuse_new_partition(
            "a plan",
            "make the plan with it: `unalike partition --save`",
            partition=self.partition,
            val=self.val,
            clients=self.clients,
            split=self.split,
            folds=self.folds,
        )
        return apply_plan(plan, dataset)


@uses_flags(TableOptions)
def table(**values: Any) -> dict[str, Any]:
    """The options of the reader of tables that flags give."""
    return DataFlags(**values).table


def _flags_of(*declared: type) -> Callable[..., DataFlags]:
    """The group of the flags of options about data."""
    return uses_flags(*declared)(lambda **values: DataFlags(**values))


source = _flags_of(SourceOptions, TableOptions)
"""The data set, undivided."""
training_clients = _flags_of(SourceOptions, TableOptions, PartitionOptions)
"""The data set, and its partition among clients whose training samples alone are read."""
clients = _flags_of(SourceOptions, TableOptions, PartitionOptions, ValidationOptions)
"""The data set, and its partition among clients."""
samples = _flags_of(
    SourceOptions, TableOptions, PartitionOptions, ValidationOptions, ServerSampleOptions
)
"""The data set, its partition among clients, and the server's samples."""


def spec(data: str, table: dict[str, Any]) -> str:
    """A file with the options of its reader as one text for `load`."""
    if not table:
        return data
    return str(Call("file", {"path": data, **table}))


def check(flags: DataFlags, plans: Sequence[NamedPlan], training: dict[str, Any]) -> RunOptions:
    """Check what needs no data, before it is read: model, protocols, executor and partition."""
    from unalike.runtime.setup.run_options import check_inputs

    options = check_inputs(plans, has_test=True, **training)
    flags.check_partition()
    return options
