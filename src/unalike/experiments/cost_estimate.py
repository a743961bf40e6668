"""What a comparison will cost, from a short calibration: a few rounds of every method, thrown away afterwards."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.progress import ProgressCallback
from unalike._utils.tensor_files import write_bytes
from unalike.core import tree
from unalike.methods.plan import Stage
from unalike.runtime.history import Row
from unalike.runtime.round_loop import execute
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stopping import Budget
from unalike.runtime.worker_loop import follow_leader
from unalike.training.client_update import initial_client_state

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 3
"""Calibrated rounds of each stage; the first, which warms up, is not counted."""
FILE = "estimate.json"


@dataclass(frozen=True)
class Cost:
    """One run of a method: its rounds, seconds of training, seconds in all, MB (10^6 bytes) to and from all clients."""

    method: str
    rounds: int
    seconds: float
    seconds_in_all: float
    mb_down: float
    mb_up: float


@dataclass(frozen=True)
class Estimate:
    """The costs of one run of each method, the number of seeds, and the peak memory of the process in MB.

    Stop rules are not foreseen: the figures are those of runs that use all their rounds or their budget.
    """

    key: str
    seeds: int
    costs: list[Cost]
    memory_mb: float

    @property
    def seconds(self) -> float:
        """Of the whole comparison, on a machine as busy as this one."""
        return self.seeds * sum(cost.seconds_in_all for cost in self.costs)

    @property
    def table(self) -> pd.DataFrame:
        """One row per method."""
        import pandas as pd

        return pd.DataFrame([asdict(cost) for cost in self.costs])

    def beside(self, spent: pd.DataFrame, memory_mb: float | None) -> list[dict[str, Any]]:
        """What was foreseen, what it took (None: not measured): `what unit estimated actual`. `spent`: `statistics.totals`."""
        rows = []
        for cost in self.costs:
            for unit, name in (("seconds of training", "seconds"), ("MB down", "mb_down"), ("MB up", "mb_up")):
                actual = spent[name].to_dict().get(cost.method)
                rows.append({"what": cost.method, "unit": unit, "estimated": getattr(cost, name), "actual": actual})
        return [
            *rows,
            {"what": "the process", "unit": "MB of memory", "estimated": self.memory_mb, "actual": memory_mb},
        ]

    def save(self, folder: Path) -> None:
        """Keep it in the comparison's folder, where the comparison will set what it really took beside it."""
        write_bytes(folder / FILE, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path, key: str) -> Estimate | None:
        """The estimate of the comparison `key` that a folder keeps, if it keeps one."""
        try:
            found = json.loads((folder / FILE).read_text())
            made = cls(**found | {"costs": [Cost(**cost) for cost in found["costs"]]})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return made if made.key == key else None


def estimated(key: str, run_configs: dict[str, RunConfig], seeds: int, watch: ProgressCallback) -> Estimate:
    """Calibrate one job of each method, by label."""
    costs, memory = [], 0.0
    follow_leader([_short(run_config) for run_config in run_configs.values()])
    for label, run_config in run_configs.items():
        costs.append(_calibrated(label, run_config, watch))
        memory = max(memory, _remembered(run_config))
    return Estimate(key, seeds, costs, peak_mb() + memory)


def peak_mb() -> float:
    """The most memory that this process has held so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def _calibrated(label: str, run_config: RunConfig, watch: ProgressCallback) -> Cost:
    full, short = _rounds(run_config), _short(run_config)
    moments = [time.perf_counter()]

    def tick(row: Row, what: str = "") -> None:
        moments.append(time.perf_counter())
        watch(row, label)

    rows = execute(short, progress=tick).history.rows
    per_stage = _per_stage(rows[1:], _rounds(short))
    once = _once(rows[1:], _rounds(short), per_stage)
    counts = _within(full, per_stage, once, rows[0], run_config.options.budget)
    spent = {name: sum(n * stage[name] for n, stage in zip(counts, per_stage)) for name in _COSTS}
    for name in ("bytes_down", "bytes_up"):
        spent[name] += rows[0][name] + sum(stage[name] for stage, count in zip(once, counts) if count)
    between = [late - early - row["seconds"] for early, late, row in zip(moments, moments[1:], rows[1:])]
    evaluation = min(between[1:] or between or [0.0])
    setup = max(0.0, between[0] - 2 * evaluation) if between else 0.0
    evaluations = 1 + math.ceil(sum(counts) / run_config.options.evaluate_every)
    return Cost(
        label,
        sum(counts),
        spent["seconds"],
        setup + spent["seconds"] + evaluations * evaluation,
        spent["bytes_down"] / 1e6,
        spent["bytes_up"] / 1e6,
    )


def _short(run_config: RunConfig) -> RunConfig:
    """The job with a few rounds of each stage."""
    options = replace(
        run_config.options,
        rounds=min(run_config.options.rounds, ROUNDS * len(_rounds(run_config))),
        evaluate_every=1,
        stop=None,
    )
    return replace(run_config, options=replace(options, budget=None, select="last"))


_COSTS = ("seconds", "bytes_down", "bytes_up")


def _rounds(run_config: RunConfig) -> list[int]:
    """The rounds of each stage of a plan."""
    return [step.rounds for step in run_config.outline if isinstance(step, Stage)]


def _per_stage(rows: Sequence[Row], lengths: Sequence[int]) -> list[dict[str, float]]:
    """What a round costs in each stage: the mean over its rounds but the first; over all rounds where it had none."""
    found, start = [], 0
    for length in lengths:
        own = rows[start : start + length]
        counted = own[1:] or own or rows
        found.append({name: sum(row[name] for row in counted) / max(1, len(counted)) for name in _COSTS})
        start += length
    return found


def _once(rows: Sequence[Row], lengths: Sequence[int], per_stage: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """What each stage sends once, at its start."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [
        {n: max(0.0, rows[i][n] - stage[n]) if i < len(rows) else 0.0 for n in ("bytes_down", "bytes_up")}
        for i, stage in zip(starts, per_stage)
    ]


def _within(
    full: Sequence[int],
    per_stage: Sequence[dict[str, float]],
    once: Sequence[dict[str, float]],
    start: Row,
    budget: str | None,
) -> list[int]:
    """The rounds of each stage that a budget pays for: a run ends where one more round, as dear as its last, would exceed it."""
    if budget is None:
        return list(full)
    total, limit = Budget(budget).limit
    used, counts = _price(start, total) if total == "bytes" else 0.0, [0] * len(full)
    for i, count in enumerate(full):
        for number in range(count):
            cost = _price(per_stage[i], total) + (_price(once[i], "bytes") if total == "bytes" and number == 0 else 0.0)
            used, counts[i] = used + cost, counts[i] + 1
            if used + cost > limit * (1 + 1e-9):
                return counts
    return counts


def _price(spent: dict[str, Any], total: str) -> float:
    return {"round": 1.0, "bytes": spent["bytes_down"] + spent["bytes_up"]}.get(total, spent.get("seconds", 0.0))


def _remembered(run_config: RunConfig) -> float:
    """MB that the memories of clients will take which the calibration has not met."""
    stages = [step for step in run_config.outline if isinstance(step, Stage)]
    size = max(
        tree.nbytes(
            *initial_client_state(s.method, replace(run_config.settings, model=s.model or run_config.model)).values()
        )
        for s in stages
    )
    clients = int((run_config.population.sizes > 0).sum())
    met = min(clients, round(run_config.options.participation * clients) * ROUNDS)
    return size * (clients - met) / 1e6
