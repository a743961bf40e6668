"""What the methods of `docs/evidence/new_methods.md` gain over FedAvg on four data sets, and what they cost.

    python benchmarks/new_methods.py FOLDER

Prints the table of that page. Finished runs in the folder are read and not repeated. `UNALIKE_DATA` names the folder with
`fashion_mnist.npz`.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from torch import nn

import unalike as ua
from unalike.core.model import Model
from unalike.data.dataset import Dataset
from unalike.data.partitioning.hold_out import hold_out
from unalike.methods.plan import PlanInputs, plan, steps_of

METHODS = (
    *("fedavg", "local_only", "local_finetune", "fedper"),
    *("adabest", "fedacg", "mimelite", "fedsam", "fedlesam", "fedexp"),
    *("fedcurv", "fedlc", "q_ffl", "term", "afl"),
    *("matched", "feddf", "fedbe"),
    *("fedrod", "fedamp", "lg_fedavg", "fedproto", "fedtgp", "fedmd", "pfedhn"),
    *("fedas", "fedah", "pfedfda", "pfedla", "creff", "floco"),
)
SEEDS = 3
PROXY_SHARE = 0.1
"""Share of the test samples that the server has."""


@dataclass(frozen=True)
class Setting:
    """Clients, their model and rate; at most so many training and test samples of the data set."""

    title: str
    data: str
    partition: str | None
    clients: int
    model: str
    rate: float
    rounds: int = 20
    epochs: int = 2
    batch: int = 16
    samples: int | None = None
    tests: int | None = None

    def load(self) -> Dataset:
        """The data set, with its first `samples` training samples and `tests` test samples."""
        data = ua.load(self.data)
        x, y = data.train
        test_x, test_y = data.test
        return replace(
            data,
            train=(x[: self.samples], y[: self.samples]),
            test=(test_x[: self.tests], test_y[: self.tests]),
        )


SKEWED = "dirichlet(alpha=0.1)"
SETTINGS = (
    Setting(
        title="`heart_disease`",
        data="heart_disease",
        partition=None,
        clients=4,
        model="mlp(hidden=(16,))",
        rate=0.05,
    ),
    Setting(
        title="`digits`",
        data="digits",
        partition=SKEWED,
        clients=10,
        model="mlp(hidden=(32,))",
        rate=0.1,
        rounds=10,
        epochs=1,
        batch=32,
    ),
    Setting(
        title="`fashion_mnist`",
        data="fashion_mnist",
        partition=SKEWED,
        clients=10,
        model="mlp(hidden=(32,))",
        rate=0.1,
        rounds=10,
        epochs=1,
        batch=32,
        samples=1000,
        tests=500,
    ),
    Setting(
        title="`emnist_sample`",
        data="emnist_sample",
        partition=SKEWED,
        clients=10,
        model="mlp(hidden=(32,))",
        rate=0.1,
        rounds=10,
        epochs=1,
        batch=32,
        samples=500,
    ),
)


def compared(setting: Setting, folder: Path) -> pd.DataFrame:
    """The scores of all methods by the models in use, a row each."""
    data, proxy = hold_out(setting.load(), PROXY_SHARE)
    comparison = ua.compare(
        METHODS,
        data=data,
        partition=setting.partition,
        clients=setting.clients,
        model=setting.model,
        rounds=setting.rounds,
        seeds=SEEDS,
        work=ua.Work(epochs=setting.epochs, lr=setting.rate, batch_size=setting.batch),
        proxy=proxy,
        out=folder / setting.data,
        progress=False,
    )
    table = comparison.summary
    return table[table["protocol"] == "used"].set_index("method")


BASELINE = "fedavg"
SMALL = PlanInputs(clients=1, rounds=1, model=Model(nn.Sequential(nn.Flatten(), nn.Linear(2, 2))))


def classes(method: str) -> set[type]:
    """The classes of the method, or plan, and of the parts that it trains with."""
    found = plan(method)
    stage = next(steps_of(found, SMALL))
    return {type(found), *map(type, stage.method.parts)}


def lines(method: str) -> int:
    """Lines of the classes that FedAvg lacks."""
    own = classes(method) - classes(BASELINE)
    return sum(len(inspect.getsource(of_method).splitlines()) for of_method in own)


def gain(row: pd.Series) -> str:
    """The gain over FedAvg in points, with its interval; bold where this excludes 0."""
    difference, low, high = (100 * row[name] for name in ("difference", "ci_low", "ci_high"))
    text = f"{difference:+.1f} ({low:.1f} to {high:.1f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def print_table(tables: list[pd.DataFrame]) -> None:
    """A row for each method, the largest mean gain first."""
    gains = sum(table["difference"] for table in tables) / len(tables)
    seconds = sum(table["seconds"] for table in tables)
    times = seconds / seconds[BASELINE]
    titles = " | ".join(setting.title for setting in SETTINGS)
    levels = " | ".join(f"{100 * table.loc[BASELINE, 'accuracy']:.1f} %" for table in tables)
    print(f"| method | {titles} | mean | time | lines |")
    print("| :-- |" + " --: |" * (len(SETTINGS) + 3))
    print(f"| FedAvg | {levels} | | 1 | |")
    for method in gains.drop(BASELINE).sort_values(ascending=False).index:
        cells = [f"`{method}`"]
        cells += [gain(table.loc[method]) for table in tables]
        time = times[method]
        digits = 1 if time < 10 else 0
        cells += [f"{100 * gains[method]:+.1f}", f"{time:.{digits}f}", str(lines(method))]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    print_table([compared(setting, Path(sys.argv[1])) for setting in SETTINGS])
