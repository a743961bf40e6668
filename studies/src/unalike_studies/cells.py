"""The cell of a study: one method in one setting under one seed, with everything that decides its result."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError, unknown
from unalike.core.work import Work
from unalike.data.array_checks import Pair
from unalike.data.dataset import Dataset
from unalike.data.partitioning.hold_out import hold_out
from unalike.data.partitioning.partition import partition as divide
from unalike.data.partitioning.partition import usual_clients
from unalike.data.sources.load import load
from unalike.metrics.metrics import Custom
from unalike.runtime.records.recording import Recording
from unalike.runtime.records.run_directory import digest, plain
from unalike.runtime.setup.run_config import RunConfig, configure_run
from unalike_studies import flamby_heart_rows
from unalike_studies.pretraining import pretrain

DATA_SET_MODULES = (flamby_heart_rows,)
"""The modules of studies that register data sets when they are imported."""

Options = Mapping[str, Any]

PARTITION_OPTIONS = ("clients", "split", "merge", "val", "min_test")
"""Options of `ua.partition`."""
RUN_OPTIONS = (
    "model",
    "rounds",
    "participation",
    "sampling",
    "devices",
    "executor",
    "device",
    "precision",
    "evaluate_every",
    "metric",
    "protocol",
    "buffers",
    "transform",
    "stop",
    "select",
    "record",
)
"""Options of `ua.run`."""
OPTIONS = (
    "data",
    "server_data",
    "proxy",
    "proxy_imbalance",
    "pretrain",
    "partition",
    "work",
    "client_curves",
    "class_accuracy",
    "histogram",
    "transport",
    *PARTITION_OPTIONS,
    *RUN_OPTIONS,
)
"""Options of a cell. `work` is a mapping of the arguments of `ua.Work`; `{seed}` in `data` and `server_data` stands for the seed;
`server_data` is the data set whose test samples the server has, unless they are those of `data`; `proxy` is the share of the test
samples that the server learns from, or "test": those that also test, and `proxy_imbalance` their long tail; `pretrain` has the
arguments of `pretrain`; with `client_curves`, a result keeps this column of every client for all evaluated rounds; with
`class_accuracy`, the accuracy on each class is measured; with `histogram`, a result keeps one of the final parameters (`limit`,
`bins`); with `transport`, the cost of optimal transport between every two clients (`samples`, the number that counts of each
client); with `record`, the recorded numbers (`recorded_numbers.py`), not the clients' parameters."""

CLASS_ACCURACY = "accuracy_of_"
"""Prefix of the columns with the accuracy on one class."""


@dataclass(frozen=True)
class StudyCell:
    """One method in one setting under one seed."""

    method: str
    setting: str
    seed: int
    spec: str
    options: Options

    @cached_property
    def digest(self) -> str:
        """The hash of everything that decides the result. Labels, the executor and the device do not count."""
        deciding = {
            name: value
            for name, value in self.options.items()
            if name not in ("executor", "device")
        }
        return digest(plain({"spec": self.spec, "seed": self.seed, **deciding}))

    @property
    def kind(self) -> str:
        """The cell without its seed: cells of a kind take about the same time."""
        return f"{self.method}, {self.setting}"

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}"

    def prepare(self, data_dir: str | Path | None = None) -> RunConfig:
        """Load the data, divide it and check the run. Raises `UnalikeError`."""
        options = self.options
        # Loading takes long, so a recording that no result can keep is refused before it.
        recording = Recording.of(options.get("record"))
        if recording is not None and recording.layers is not None:
            record = options["record"]
            raise UnalikeError(
                f"record={record!r}: a study keeps numbers, no parameters; leave out clients(...)"
            )

        # Samples that the server learns from, or that the start is trained on, leave the data
        # before it is divided: no client may own them.
        data = self._load("data", data_dir)
        data, proxy = _server_samples(data, options, self.seed)
        work = Work(**options.get("work", {}))
        run_options = {name: options[name] for name in RUN_OPTIONS if name in options}
        if "pretrain" in options:
            data, run_options["model"] = pretrain(
                data,
                run_options["model"],
                work,
                run_options.get("transform"),
                self.seed,
                **options["pretrain"],
            )
        division = {name: options[name] for name in PARTITION_OPTIONS if name in options}
        division.setdefault("clients", usual_clients(options["partition"]))
        population = divide(data, options["partition"], seed=self.seed, **division)

        # The server may test on samples of another data set than the clients train on.
        server_data = data
        if "server_data" in options:
            server_data = self._load("server_data", data_dir)
        test = None
        if "server" in options.get("protocol", ()):
            test = server_data.test
        metrics = None
        if options.get("class_accuracy"):
            metrics = _class_accuracies(data.classes or [])
        return configure_run(
            self.spec,
            population,
            seed=self.seed,
            work=work,
            test=test,
            proxy=proxy,
            metrics=metrics,
            **run_options,
        )

    def _load(self, option: str, data_dir: str | Path | None) -> Dataset:
        """The data set that an option names."""
        name = str(self.options[option]).replace("{seed}", str(self.seed))
        return _load(name, data_dir)


def merge_options(*layers: Options) -> dict[str, Any]:
    """Merge the options of layers, of which later ones override earlier ones; `work` is merged entry by entry.

    Raises `UnalikeError` for an option that no cell has.
    """
    options: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in OPTIONS:
                raise unknown("option of a study", name, OPTIONS)
            if name == "work":
                options[name] = options.get("work", {}) | dict(value)
            else:
                options[name] = value
    return options


@cache
def _load(name: str, data_dir: str | Path | None) -> Dataset:
    return load(name, data_dir)


def _server_samples(data: Dataset, options: Options, seed: int) -> tuple[Dataset, Pair | None]:
    """The data without the samples that the server learns from, and these; with "test" they are the test samples themselves."""
    share = options.get("proxy")
    if share is None:
        return data, None
    if share == "test":
        return data, data.test
    return hold_out(data, share, seed, options.get("proxy_imbalance", 1.0))


def _class_accuracies(classes: Sequence[str]) -> Custom:
    """The share of right predictions among the samples of each class; NaN without such samples."""

    def accuracy_on(label: int) -> Callable[[np.ndarray, np.ndarray, np.ndarray], float]:
        def accuracy(y: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
            of_class = y == label
            if not of_class.any():
                return math.nan
            return float((predicted[of_class] == label).mean())

        return accuracy

    return {CLASS_ACCURACY + name: accuracy_on(label) for label, name in enumerate(classes)}
