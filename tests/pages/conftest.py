"""Files and names that a page takes for granted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from unalike.core.tasks.registry import registry as tasks
from unalike.data.partitioning.scheme import registry as partitions
from unalike.data.sources.registry import registry as data_sets
from unalike.methods.part import registry as methods
from unalike.metrics.named_metrics import registry as metrics
from unalike.models.registry import registry as models_by_name

REGISTRIES = (methods, models_by_name, partitions, data_sets, metrics, tasks)


def data(names: dict[str, Any]) -> None:
    """A table of patients, reviews as JSON lines, and arrays for a folder of `.npy` files."""
    rows = [
        f"{i},{30 + i % 50},{20 + i % 7},{'ill' if i % 3 else 'well'},{'north' if i % 2 else 'south'}"
        for i in range(80)
    ]
    Path("patients.csv").write_text("\n".join(["id,age,bmi,outcome,hospital", *rows]) + "\n")
    Path("others.csv").write_text(
        "\n".join(["age,bmi,outcome", *(f"{40 + i},{22},ill" for i in range(9)), "50,20,well"])
    )
    texts = [
        f'{{"review": "a {"good" if i % 2 else "bad"} book number {i % 5}", "stars": {1 + i % 2}}}'
        for i in range(40)
    ]
    Path("reviews.jsonl").write_text("\n".join(texts) + "\n")
    Path("big").mkdir()
    rng = np.random.default_rng(0)
    names |= {"numpy": np, "x": rng.normal(size=(50, 3)).astype(np.float32), "y": np.arange(50) % 2}


def coordinator(names: dict[str, Any]) -> None:
    """A file that `unalike federation init --like` takes the shape of samples from, and the tables of two sites."""
    rows = [f"{40 + i},{'ab'[i % 2]},{('ill', 'well')[i // 2 % 2]}" for i in range(40)]
    for name in ("north.csv", "south.csv"):
        Path(name).write_text("\n".join(["age,ward,outcome", *rows]) + "\n")
    np.savez(
        "sample.npz",
        x=np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32),
        y=np.arange(20) % 2,
    )


def survival(names: dict[str, Any]) -> None:
    """Made tables with the columns of FLamby's Fed-TCGA-BRCA: 39 columns, events and times, and a published split by region."""
    rng = np.random.default_rng(0)
    count = 240
    columns = rng.integers(0, 2, (count, 39))
    columns[:, 0] = rng.integers(30, 90, count)
    table = pd.DataFrame(columns, columns=[f"column {k}" for k in range(39)])
    table.insert(0, "pid", [f"patient {k}" for k in range(count)])
    table["E"] = rng.integers(0, 2, count).astype(float)
    table["T"] = rng.exponential(1000, count).round()
    table.to_csv("brca.csv", index=False)
    folds = ["test" if k % 4 == 0 else "train" for k in range(count)]
    regions = [f"{fold}_{k % 6}" for k, fold in enumerate(folds)]
    split = pd.DataFrame({"pid": table["pid"], "fold": folds, "fold2": regions})
    split.to_csv("train_test_split.csv", index=False)


def trackers(names: dict[str, Any]) -> None:
    """Skip the page where the libraries of its trackers are not installed."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")


@pytest.fixture
def prepared() -> dict[str, Callable[[dict[str, Any]], None]]:
    """Page -> function that makes its files in the current folder and its names in a dictionary."""
    return {
        "docs/data.md": data,
        "docs/federation/coordinator.md": coordinator,
        "docs/how_to/track.md": trackers,
        "docs/tutorials/survival.md": survival,
    }


@pytest.fixture(autouse=True)
def names_of_a_page_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each page what it registers."""
    for registry in REGISTRIES:
        list(registry)  # loads the names of the library
        monkeypatch.setattr(registry, "_builders", dict(registry._builders))
