"""One of several comparisons to be joined: its settings, and whether it may be combined with another."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from unalike.comparison.comparison import Comparison
from unalike.core.option import written
from unalike.core.options import TrainingOptions
from unalike.metrics.columns import TIMES
from unalike.runtime.records.run_directory import plain

if TYPE_CHECKING:
    import pandas as pd

Settings = dict[str, Any]

CLIENT_NAMES = ("data", "partition", "clients", "federation")
"""Settings that name the clients. Of a federation's sites only the sample counts are known: its name identifies the clients."""
DATA = (*CLIENT_NAMES, "data_dir", "plan", "fingerprint", "sizes")
"""Settings that make another partition of the same study; a difference in any other setting makes another study."""
CELLS = (
    "method",
    "baseline",
    "seeds",
    "seed",
    "min_seeds",
    "max_seeds",
    "within",
    "smallest_effect",
    "across",
)
"""Settings that select the cells of a comparison, or the rules by which they are judged."""
MACHINE = ("executor", "device")
"""Settings that change only speed and rounding."""


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison that was given to `join`: its letter in the report, the folder as typed, and its content."""

    letter: str
    given: str
    comparison: Comparison

    @cached_property
    def config(self) -> Settings:
        """Its settings as flags; those that came after the folder was written had their default."""
        return plain(written(TrainingOptions())) | tomllib.loads(self.comparison.facts.config)

    @cached_property
    def data(self) -> Settings:
        """The clients' names and the fingerprint of their data under the first seed."""
        facts = self.comparison.facts
        named = {key: facts.partition.get(key, self.config.get(key)) for key in CLIENT_NAMES}
        return named | {"fingerprint": str(facts.partition.get("hash", "not said"))[:12]}

    @cached_property
    def training(self) -> Settings:
        """The settings that must agree before results are pooled: model, rounds, work, protocol, metric, version."""
        columns = self.comparison.columns
        others = (*DATA, *CELLS, *MACHINE)
        settings = {name: value for name, value in self.config.items() if name not in others}
        scored = {"metric": columns.metric.name, "protocol": columns.unprefixed_protocol}
        return settings | scored | {"unalike": self.comparison.facts.versions.get("unalike")}

    @cached_property
    def client_sizes(self) -> dict[int, list[tuple[Any, ...]]]:
        """Seed -> (seed, client, training samples, test samples) of its clients.

        Two partitions with the same name may still differ in these numbers.
        """
        columns = ["seed", "client", "n_train", "n_test"]
        table = self.comparison.clients[columns].drop_duplicates(["seed", "client"])
        sizes = {}
        for seed in table["seed"].unique().tolist():
            of_seed = table[table["seed"] == seed]
            sizes[seed] = list(of_seed.itertuples(index=False, name=None))
        return sizes

    @property
    def all_settings(self) -> Settings:
        """Every setting that the report compares between folders."""
        versions = dict(self.comparison.facts.versions)
        versions.pop("unalike", None)
        machine = {name: self.config.get(name) for name in MACHINE}
        cells = {"baseline": self.comparison.facts.baseline, "seeds": sorted(self.client_sizes)}
        return self.data | cells | self.training | machine | versions

    def same_training(self, other: ComparisonFolder) -> bool:
        """Whether both are finished and were trained under the same settings."""
        finished = not (self.comparison.facts.unfinished or other.comparison.facts.unfinished)
        return finished and self.training == other.training

    def same_data(self, other: ComparisonFolder) -> bool:
        """Whether both have the same clients under every shared seed, judged by names, sample counts and labels."""
        if any(self.data[key] != other.data[key] for key in CLIENT_NAMES):
            return False
        same_seed = self.comparison.facts.seed == other.comparison.facts.seed
        if same_seed and not self._same_first_seed(other):
            return False
        shared_seeds = {*self.client_sizes} & {*other.client_sizes}
        return all(self.client_sizes[seed] == other.client_sizes[seed] for seed in shared_seeds)

    def _same_first_seed(self, other: ComparisonFolder) -> bool:
        """Whether fingerprint and labels of the first seed agree; a run without a plan records no labels."""
        counts = self.comparison.facts.label_counts
        other_counts = other.comparison.facts.label_counts
        same_labels = counts is None or other_counts is None or counts == other_counts
        return bool(self.data["fingerprint"] == other.data["fingerprint"]) and same_labels

    def combines_with(self, other: ComparisonFolder) -> bool:
        """Whether the two may be one comparison."""
        return (
            self.same_training(other)
            and self.same_data(other)
            and not self.conflicting_method(other)
        )

    def conflicting_method(self, other: ComparisonFolder) -> str:
        """The first label that both hold with another spec, or with another result under the same seed; empty if none."""
        specs, other_specs = self._specs, other._specs
        for label in specs.keys() & other_specs.keys():
            if specs[label] != other_specs[label]:
                return label
            cells = self._cells(label)
            other_cells = other._cells(label)
            shared_seeds = cells.keys() & other_cells.keys()
            if any(not cells[seed].equals(other_cells[seed]) for seed in shared_seeds):
                return label
        return ""

    @property
    def _specs(self) -> dict[str, str]:
        """Label -> spec with every field."""
        return {method["label"]: method["spec"] for method in self.comparison.facts.methods}

    def _cells(self, label: str) -> dict[int, pd.DataFrame]:
        """Seed -> the history of a method without its times."""
        rounds = self.comparison.rounds
        table = rounds[rounds["method"] == label].drop(columns=[*TIMES], errors="ignore")
        seeds = table["seed"].unique().tolist()
        return {seed: _normalized(table[table["seed"] == seed]) for seed in seeds}


def _normalized(cell: pd.DataFrame) -> pd.DataFrame:
    """A cell's history without the traces of other cells in its table: empty columns, their order and their types."""
    filled = cell.dropna(axis=1, how="all").sort_index(axis=1)
    return filled.convert_dtypes().reset_index(drop=True)
