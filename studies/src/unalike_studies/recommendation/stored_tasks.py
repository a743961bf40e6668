"""The tasks whose runs recommendations are learned from: data sets, divided in ways of known kind and strength."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from unalike._utils.seeds import generator
from unalike.data.dataset import Dataset
from unalike.data.partitioning.partition import partition
from unalike.data.population import Population
from unalike.data.sources.load import load

MAX_SAMPLES = 1600
"""Most samples of a task, so that a run takes about a second."""


@dataclass(frozen=True)
class StoredTask:
    """A data set, its division among clients, and the conditions of training.

    `data` is a name of `SOURCES`, `kind` the kind of heterogeneity that the partition makes, `participation` the share of
    clients in a round, `concepts` the number of groups of clients that have labels of their own for equal inputs; 1 for none.
    `metric` is the metric of its scores.
    """

    data: str
    kind: str
    partition: str
    clients: int
    participation: float
    epochs: int
    model: str
    concepts: int = 1
    metric: str = "accuracy"

    @property
    def name(self) -> str:
        """A name that tells tasks apart; C is the share of clients in a round, E the local epochs."""
        conditions = f"{self.clients} clients, C {self.participation:g}, E {self.epochs}"
        return ", ".join((self.data, self.kind, self.partition, self.model, conditions))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields by name, and the name of the task."""
        return {"task": self.name, **asdict(self)}

    def population(self, seed: int, val: float = 0.0) -> Population:
        """The clients under a seed. Raises `UnalikeError` where the data cannot be divided in this way."""
        data = SOURCES[self.data]()
        if self.concepts > 1:
            data = with_concepts(data, self.concepts, seed)
        return partition(data, self.partition, self.clients, seed, val=val)


def with_concepts(data: Dataset, concepts: int, seed: int) -> Dataset:
    """Divide the samples at random into groups "concept"; group g has the class c + g instead of c (modulo the classes)."""
    x, y = data.merged()
    group = generator(seed, "concepts").permutation(len(y)) % concepts
    classes = data.classes or []
    moved = (y.long() + torch.from_numpy(group)) % len(classes)
    return Dataset(data.name, (x, moved.to(y.dtype)), None, classes, {"concept": group})


def _subset(data: Dataset, samples: int = MAX_SAMPLES) -> Dataset:
    """At most so many samples, drawn at random, with their groups."""
    x, y = data.merged()
    rows = np.sort(generator(0, "subset").permutation(len(y))[:samples])
    groups = {column: values[rows] for column, values in data.groups.items()}
    indices = torch.from_numpy(rows)
    return Dataset(data.name, (x[indices], y[indices]), None, data.classes, groups)


def _as_rows(data: Dataset) -> Dataset:
    """The data with samples as rows of numbers; binary labels become two classes."""
    x, y = data.merged()
    names = data.classes or ["0", "1"]
    return Dataset(data.name, (x.flatten(1), y.long()), None, names, dict(data.groups))


def _word_counts(data: Dataset, words: int) -> Dataset:
    """Texts as counts of their most frequent words: square roots, so that long texts do not dominate."""
    x, y = data.merged()
    counts = torch.zeros(len(y), int(x.max()) + 1)
    counts.scatter_add_(1, x.long(), torch.ones_like(x, dtype=torch.float32))
    # The first two tokens are padding and unknown words.
    counts[:, :2] = 0
    frequent = counts.sum(0).argsort(descending=True)[:words]
    return Dataset(data.name, (counts[:, frequent].sqrt(), y), None, data.classes)


def _table(name: str) -> Dataset:
    """A table of scikit-learn with standardized columns."""
    from sklearn import datasets

    table = getattr(datasets, f"load_{name}")()
    x = (table.data - table.data.mean(0)) / table.data.std(0)
    y = table.target.astype(np.int64)
    classes = [str(label) for label in table.target_names]
    return Dataset(name, (x.astype(np.float32), y), None, classes)


SOURCES: Mapping[str, Callable[[], Dataset]] = {
    "digits": cache(lambda: load("digits")),
    "mnist": cache(lambda: _subset(load("mnist"))),
    "fashion_mnist": cache(lambda: _subset(load("fashion_mnist"))),
    "cifar10": cache(lambda: _subset(load("cifar10"))),
    "glyphs": cache(lambda: _subset(load("glyphs(train=4000, test=1000)"), 3 * MAX_SAMPLES)),
    "ag_news": cache(lambda: _word_counts(_subset(load("ag_news")), 500)),
    "amazon_reviews": cache(lambda: _as_rows(_subset(load("amazon_reviews(features=500)")))),
    "breast_cancer": cache(lambda: _table("breast_cancer")),
    "synthetic": cache(lambda: _subset(load("synthetic(alpha=1.0, beta=1.0, clients=20)"))),
}
"""Name -> the data, which is made once in a process. All but `digits`, `glyphs`, `breast_cancer` and `synthetic` are read from
files."""
IMAGES = ("digits", "mnist", "fashion_mnist", "cifar10", "glyphs")
DOMAINS = {"amazon_reviews": "domains(column='domain')", "synthetic": "natural(column='client')"}
"""Data sets with clients or domains of their own."""

LABEL_SKEW = (
    "dirichlet(alpha=1.0)",
    "dirichlet(alpha=0.3)",
    "dirichlet(alpha=0.1, min_size=2)",
    "classes(k=1)",
    "classes(k=2)",
)
KINDS: Mapping[str, tuple[str, ...]] = {
    "none": ("iid",),
    "label skew": LABEL_SKEW,
    "quantity skew": ("quantity(beta=0.5, min_size=4)",),
    "feature skew": ("noise(level=0.5)", "rotation(degrees=90)"),
    "label and feature skew": ("dirichlet(alpha=0.3) + noise(level=0.5)",),
    "clusters": ("clusters(groups=2)",),
    "concept shift": ("domains(column='concept')",),
}
"""Kind of heterogeneity -> partitions that make it."""
CLIENTS = (5, 10, 20)
PARTICIPATION = (1.0, 0.4)
EPOCHS = (1, 5)
MODELS = ("linear", "mlp(hidden=(64, 64))")
CNN = {"digits": "cnn(channels=(16, 32), hidden=64)", "fashion_mnist": "lenet", "mnist": "lenet"}
"""Data set -> the convolutional network that some of its tasks train."""
DRAWS = 2
"""Number of tasks with the same data set and partition."""


def grid() -> list[StoredTask]:
    """All tasks: every data set under every partition that suits it; the other conditions are drawn from fixed seeds.

    The order is drawn as well, so that the first tasks are of all kinds.
    """
    drawn = [task for draw in range(DRAWS) for task in _each_once(draw)]
    distinct = list(dict.fromkeys(drawn))
    order = generator(0, "order").permutation(len(distinct))
    return [distinct[place] for place in order]


def _each_once(draw: int) -> Iterator[StoredTask]:
    """One task for each data set and each partition that suits it."""
    for data in SOURCES:
        for kind, specs in KINDS.items():
            for spec in specs:
                if _suits(data, spec):
                    yield _draw_task(data, kind, spec, draw)
        if data in DOMAINS:
            task = _draw_task(data, "feature skew", DOMAINS[data], draw)
            yield replace(task, clients=20)


def _suits(data: str, spec: str) -> bool:
    """Whether a partition can divide a data set as it is meant to."""
    if "rotation" in spec:
        return data in IMAGES
    # It has 62 classes: more than twenty clients with one or two each can hold.
    if data == "glyphs":
        return "classes" not in spec
    # They have two classes, too few for these partitions.
    if data in ("amazon_reviews", "breast_cancer"):
        return spec not in ("classes(k=2)", "clusters(groups=2)")
    # Its clients differ by themselves.
    return data != "synthetic" or "iid" not in spec


def _draw_task(data: str, kind: str, spec: str, draw: int) -> StoredTask:
    """A task with this division, and other conditions that are drawn."""
    rng = generator(0, f"task {data} {spec}", draw)
    models = (*MODELS, CNN[data]) if data in CNN else MODELS
    return StoredTask(
        data,
        kind,
        spec,
        clients=_one_of(rng, _clients(data, spec)),
        participation=_one_of(rng, PARTICIPATION),
        epochs=_one_of(rng, EPOCHS),
        model=_one_of(rng, models),
        concepts=2 if kind == "concept shift" else 1,
    )


def _clients(data: str, spec: str) -> tuple[int, ...]:
    """The numbers of clients to draw from: few for small data, many where each client has only some of many classes."""
    if "classes" in spec and data not in ("amazon_reviews", "breast_cancer"):
        return CLIENTS[1:]
    few = data == "breast_cancer" or (data == "amazon_reviews" and "alpha=0.1" in spec)
    return CLIENTS[:2] if few else CLIENTS


def _one_of(rng: np.random.Generator, values: tuple[Any, ...]) -> Any:
    return values[int(rng.integers(len(values)))]
