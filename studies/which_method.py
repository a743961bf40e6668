"""Tune methods on six divisions of data: the first table of which_method.md.

    UNALIKE_DATA=data python studies/which_method.py --out tuned

A case that has been stored is not tuned again. The extra `tune` is needed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import unalike as ua
from unalike_studies.recommendation.stored_runs import SHARED
from unalike_studies.recommendation.stored_tasks import SOURCES

METHODS = {
    name: SHARED[name]
    for name in ("FedAvg", "FedProx", "SCAFFOLD", "FedNova", "FedAvgM", "FedAdagrad", "FedDyn")
}
MODEL, CLIENTS, WORK = "mlp(hidden=(64, 64))", 10, ua.Work(epochs=2, batch_size=32, lr=0.05)
TRIALS, ROUNDS, SEEDS = 10, 20, 3
RESULTS = Path(__file__).parent / "results" / "which-method"
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "which_method.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
PARTITIONS = {
    "label skew": "dirichlet(alpha=0.1, min_size=2)",
    "quantity skew": "quantity(beta=0.5, min_size=8)",
    "feature skew": "noise(level=0.5)",
}


@dataclass(frozen=True)
class Case:
    """A data set and the kind of its division."""

    data: str
    kind: str

    @property
    def file(self) -> Path:
        """The file of its result."""
        return RESULTS / f"{self.data}-{self.kind.replace(' ', '-')}.json"


CASES = [Case(data, kind) for kind in PARTITIONS for data in ("fashion_mnist", "cifar10")]


def run(case: Case, out: Path) -> dict[str, Any]:
    """Tune the methods; their ranking before and after."""
    data, partition = SOURCES[case.data](), PARTITIONS[case.kind]
    tuning = ua.tune(
        METHODS,
        CLIENTS,
        data=data,
        partition=partition,
        trials=TRIALS,
        rounds=ROUNDS,
        seeds=SEEDS,
        model=MODEL,
        work=WORK,
        evaluate_every=2,
        out=out / case.file.stem,
        progress=False,
    )
    return {
        "data": case.data,
        "partition": partition,
        "ranking": json.loads(tuning.table.to_json(orient="records")),
        "spent": tuning.findings[-1],
    }


def table(found: dict[Case, dict[str, Any]]) -> str:
    """A Markdown table: the methods before and after tuning by case."""
    lines = [
        f"| method | {' | '.join(f'{case.data}, {case.kind}' for case in found)} |",
        "| :-- |" + " --: |" * len(found),
    ]
    for method in METHODS:
        scores = [_before_and_after(result["ranking"], method) for result in found.values()]
        lines.append(f"| {method} | {' | '.join(scores)} |")
    return "\n".join(lines)


def _before_and_after(ranking: list[dict[str, Any]], method: str) -> str:
    """The accuracy of a method in per cent, untuned and tuned."""
    row = next(row for row in ranking if row["method"] == method)
    return f"{100 * row['before']:.1f} → {100 * row['after']:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("tuned"), help="folder of the tunings")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if not case.file.exists():
            case.file.write_text(json.dumps(run(case, given.out), indent=1) + "\n")
            print(case, flush=True)
    found = {case: json.loads(case.file.read_text()) for case in CASES}
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{rest.partition(END)[2]}")
