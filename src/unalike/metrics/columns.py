"""The columns of a history that hold scores. Each knows what it measures: models, samples, metric, and by it direction and unit.

They are made where scores are computed, and stored beside the tables as `columns.json`. Nobody reads the meaning of a column off
its name or its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.metrics.named_metrics import Metric

PROTOCOLS = ("server", "clients", "personal", "local")
"""Evaluation protocols: the shared model on the server's test set or on the clients' test data, each client's personal model, each
client's model after local training."""
IN_USE = "used"
"""The protocol that scores the model in use: a client's personal model where the method trains one, else the shared model."""
TEST, VALIDATION = "test", "val"
"""The samples that are scored."""
TRIGGERED = "triggered"
"""Test samples with the trigger of a backdoor, which count for its success alone."""
COLUMNS_FILE = "columns.json"
TIMES = ("seconds", "evaluation_seconds")
"""Columns of a history that a clock fills: they differ between repetitions of a run."""

SIMULATED_SECONDS = "simulated_seconds"
"""The column of a history that holds the simulated time since the run began, where devices are simulated."""
RUNNING_TOTALS = ("epsilon", SIMULATED_SECONDS)
"""Columns of a history that say what the rounds until now cost; only runs to which they apply have them."""
MEAN_AGE, MAX_AGE = "age_mean", "age_max"
"""Columns of a history with the ages of the updates of each round, where late ones count."""
REPLY_SECONDS = "reply_seconds"
"""The column of the table of clients of a federation with the seconds from a request to train until the site's answer came."""

_HISTORY = (
    "round stage seconds evaluation_seconds participants train_loss bytes bytes_down bytes_up client n_train n_test "
    "n_positive status chosen method seed headline"
)
_SUMMARY = (
    "partition protocol baseline seeds pairs accuracy_sd rmse_sd difference shrunken ci_low ci_high boot_low boot_high "
    "p p_holm p_exact better won role verdict probability_best client_sd worst_decile mb_down mb_up"
)
COLUMNS_WITHOUT_SCORES = frozenset(
    [*f"{_HISTORY} {_SUMMARY}".split(), *RUNNING_TOTALS, MEAN_AGE, MAX_AGE, REPLY_SECONDS]
)
"""Columns of a history and of a comparison's summary that hold no score."""
_RESERVED = ("val", *PROTOCOLS, IN_USE, "min", "max", "mean", "std")


@dataclass(frozen=True)
class Column:
    """One column of scores.

    `protocol` is one of `PROTOCOLS`, or `IN_USE`, `split` is `TEST`, or `VALIDATION` samples of the clients. `unprefixed`: the
    protocol is the first of the run, whose columns carry no protocol in their names.
    """

    protocol: str
    split: str
    metric: Metric
    unprefixed: bool

    @property
    def name(self) -> str:
        """Its name in the tables: `accuracy`, `val_accuracy`, `personal_val_accuracy`."""
        split = "val_" if self.split == VALIDATION else ""
        return f"{self._prefix}{split}{self.metric.name}"

    @property
    def selected(self) -> str:
        """The column that marks the round which was selected for this protocol."""
        return f"{self._prefix}selected"

    @property
    def label(self) -> str:
        """Its name in a sentence: `accuracy`, `personal validation accuracy`."""
        words = [] if self.unprefixed else [self.protocol]
        if self.split == VALIDATION:
            words.append("validation")
        return " ".join([*words, self.metric.word])

    @property
    def spellings(self) -> set[str]:
        """The names that a user may write for it: the protocol may be left out if it is the first, `val_` always."""
        protocols = ("", f"{self.protocol}_") if self.unprefixed else (self._prefix,)
        splits = ("", "val_") if self.split == VALIDATION else ("",)
        return {
            f"{protocol}{split}{self.metric.name}" for protocol in protocols for split in splits
        }

    @property
    def _prefix(self) -> str:
        return "" if self.unprefixed else f"{self.protocol}_"

    def value(self, row: Mapping[str, Any]) -> float:
        """The score in a row; NaN where there is none."""
        value = row.get(self.name)
        return math.nan if value is None else float(value)

    def text(self, row: Mapping[str, Any]) -> str:
        """The score in a row with its name, as progress lines show it: `accuracy 34.1 %`."""
        return f"{self.label} {self.metric.text(self.value(row))}"


@dataclass(frozen=True)
class Columns:
    """The columns of scores that a history may have, in order; which of them have numbers depends on the methods.

    Those of the first protocol come first. Within a protocol, the metrics that were chosen by name stand in front.
    """

    all: tuple[Column, ...] = ()

    @classmethod
    def of(
        cls, protocols: Iterable[str], metrics: Iterable[Metric], validated: bool = False
    ) -> Columns:
        """The columns of a run: every metric under every protocol, on validation samples too if there are any."""
        splits = (TEST, VALIDATION) if validated else (TEST,)
        metrics = tuple(metrics)
        for metric in metrics:
            check_name(metric.name)
        columns = []
        for i, protocol in enumerate(dict.fromkeys(protocols)):
            for split in splits:
                columns += [Column(protocol, split, metric, i == 0) for metric in metrics]
        return cls(tuple(columns))

    @cached_property
    def _by_meaning(self) -> dict[tuple[str, str, str], Column]:
        return {(column.protocol, column.split, column.metric.name): column for column in self.all}

    def get(self, protocol: str, metric: str | None = None, split: str = TEST) -> Column | None:
        """The column of a metric (None: the one that decides) under a protocol; None if there is none."""
        return self._by_meaning.get((protocol, split, metric or self.metric.name))

    def names(self, protocol: str, split: str) -> dict[str, str]:
        """Metric -> name of its column under a protocol, on the samples of a split."""
        return {
            c.metric.name: c.name for c in self.all if (c.protocol, c.split) == (protocol, split)
        }

    def named(self, name: str) -> Column | None:
        """The column of this name; None if it holds no score, or is none."""
        return next((column for column in self.all if column.name == name), None)

    @cached_property
    def protocols(self) -> tuple[str, ...]:
        """The protocols, the first one first."""
        return tuple(dict.fromkeys(column.protocol for column in self.all))

    @property
    def unprefixed_protocol(self) -> str:
        """The protocol whose columns carry no protocol in their names."""
        return next((column.protocol for column in self.all if column.unprefixed), "")

    @property
    def validated(self) -> bool:
        """Whether there are scores of validation samples."""
        return any(column.split == VALIDATION for column in self.all)

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics in order, each once."""
        return tuple({column.metric.name: column.metric for column in self.all}.values())

    @cached_property
    def metric(self) -> Metric:
        """The metric that decides: the first one with a direction besides the loss. Raises `UnalikeError` if there is none."""
        for metric in self.metrics:
            if metric.sign and metric.name != "loss":
                return metric
        listed = ", ".join(metric.name for metric in self.metrics) or "no metric"
        raise UnalikeError(
            f"no metric decides: found {listed}; expected one such as 'accuracy' or 'rmse'"
        )

    @property
    def further(self) -> tuple[Metric, ...]:
        """The metrics besides the one that decides and the loss."""
        return tuple(
            metric for metric in self.metrics if metric.name not in (self.metric.name, "loss")
        )

    @property
    def scores(self) -> list[Column]:
        """The deciding metric on test samples under each protocol."""
        return [column for protocol in self.protocols if (column := self.get(protocol)) is not None]

    def shown(self, row: Mapping[str, Any]) -> Column | None:
        """The column that stands for a row: the first with a number, of the loss only if no other has one."""
        tested = [column for column in self.all if column.split == TEST]
        loss_last = sorted(tested, key=lambda column: column.metric.name == "loss")
        return next((column for column in loss_last if not math.isnan(column.value(row))), None)

    def text(self, row: Mapping[str, Any]) -> str:
        """The score of a row with its name: `accuracy 34.1 %`; empty where there is none."""
        column = self.shown(row)
        return "" if column is None else column.text(row)

    def with_models_in_use(self) -> Columns:
        """The same with columns of the models in use beside those of personal models."""
        personal = [column for column in self.all if column.protocol == "personal"]
        in_use = [replace(column, protocol=IN_USE, unprefixed=False) for column in personal]
        return self | Columns(tuple(in_use))

    def led_by(self, metrics: Collection[str]) -> Columns:
        """The same with these metrics in front of the others of their protocol and samples."""
        sections = list(dict.fromkeys((column.protocol, column.split) for column in self.all))

        def place(column: Column) -> tuple[int, bool]:
            section = sections.index((column.protocol, column.split))
            return section, column.metric.name not in metrics

        return Columns(tuple(sorted(self.all, key=place)))

    def __or__(self, other: Columns) -> Columns:
        """The columns of both, each once."""
        return Columns(tuple({column.name: column for column in (*self.all, *other.all)}.values()))

    def save(self, folder: Path) -> None:
        """Write `columns.json` into a folder, beside its tables."""
        content = {
            "plain": self.unprefixed_protocol,
            "metrics": [metric.stored_fields for metric in self.metrics],
            "columns": [
                {"name": c.name, "protocol": c.protocol, "split": c.split, "metric": c.metric.name}
                for c in self.all
            ],
        }
        write_bytes(folder / COLUMNS_FILE, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Columns:
        """The columns that a folder stores. Raises `UnalikeError` if `columns.json` is missing or damaged."""
        file = folder / COLUMNS_FILE
        try:
            content = json.loads(file.read_text("utf-8"))
            metrics = {entry["column"]: Metric.from_stored(entry) for entry in content["metrics"]}
            entries = [
                (e["protocol"], e["split"], metrics[e["metric"]]) for e in content["columns"]
            ]
            return cls(
                tuple(Column(p, s, metric, p == content["plain"]) for p, s, metric in entries)
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnalikeError(
                f"cannot read {file}: {error!r}; restore it, or start in another folder"
            ) from None


NO_COLUMNS = Columns()


def check_name(name: str, taken: frozenset[str] = frozenset()) -> None:
    """Raise `UnalikeError` for a metric whose columns could be taken for others; `taken`: further names that are in use."""
    fits = (
        name.isidentifier()
        and not name.endswith("selected")
        and name.split("_")[0] not in _RESERVED
    )
    if not fits or name in taken | COLUMNS_WITHOUT_SCORES:
        raise UnalikeError(
            f"metrics: found the name {name!r}; expected a name of letters, digits and underscores that does not begin with "
            f"{', '.join(_RESERVED)}, does not end in selected and is none of {', '.join(sorted(taken | COLUMNS_WITHOUT_SCORES))}"
        )
