"""Estimate the cost of a comparison from a calibration: a few rounds of every method, with results discarded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.progress import ProgressCallback
from unalike._utils.system.machine import peak_memory_mb
from unalike._utils.tensor_files import write_bytes
from unalike.core import tree
from unalike.core.options import cohort_size
from unalike.methods.plan import Stage
from unalike.runtime.processes.launch import follow_leader
from unalike.runtime.records.history import Row
from unalike.runtime.round_loop import execute
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.setup.stopping import Budget
from unalike.training.client.client_update import initial_client_state

if TYPE_CHECKING:
    import pandas as pd

CALIBRATION_ROUNDS = 3
"""Rounds of each stage that the calibration trains. The first one warms up and is not counted."""
ESTIMATE_FILE = "estimate.json"
BYTES = ("bytes_down", "bytes_up")
COSTS = ("seconds", *BYTES)
"""Columns of a history that are costs."""


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a method: rounds, seconds of training, total seconds, MB (10^6 bytes) to and from all clients."""

    method: str
    rounds: int
    seconds: float
    seconds_in_all: float
    mb_down: float
    mb_up: float


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a comparison, as `ua.estimate` returns it.

    Stop rules are not taken into account: every run is assumed to use all its rounds or its budget.

    Attributes:
        key: hash of everything that decides the result of the comparison.
        seeds: number of seeds.
        costs: the cost of one run of each method.
        memory_mb: peak memory of the process, in MB.

    Example:
        >>> clients = ua.partition(ua.load("digits"), "iid", clients=3)  # doctest: +SKIP
        >>> ua.estimate(["fedavg", "scaffold"], clients, rounds=100).seconds  # doctest: +SKIP
    """

    key: str
    seeds: int
    costs: list[Cost]
    memory_mb: float

    @property
    def seconds(self) -> float:
        """Seconds that the whole comparison takes on this machine under its present load."""
        return self.seeds * sum(cost.seconds_in_all for cost in self.costs)

    @property
    def table(self) -> pd.DataFrame:
        """One row per method."""
        import pandas as pd

        return pd.DataFrame([asdict(cost) for cost in self.costs])

    def beside_actual(self, spent: pd.DataFrame, memory_mb: float | None) -> list[dict[str, Any]]:
        """Rows of `what unit estimated actual` (None: not measured). `spent`: the result of `statistics.costs.totals`."""
        rows = []
        for cost in self.costs:
            for unit, name in (
                ("seconds of training", "seconds"),
                ("MB down", "mb_down"),
                ("MB up", "mb_up"),
            ):
                actual = spent[name].to_dict().get(cost.method)
                rows.append(
                    {
                        "what": cost.method,
                        "unit": unit,
                        "estimated": getattr(cost, name),
                        "actual": actual,
                    }
                )
        return [
            *rows,
            {
                "what": "the process",
                "unit": "MB of memory",
                "estimated": self.memory_mb,
                "actual": memory_mb,
            },
        ]

    def save(self, folder: Path) -> None:
        """Write the estimate into the comparison's folder; the comparison later shows it beside the actual cost."""
        write_bytes(folder / ESTIMATE_FILE, (self.to_json() + "\n").encode())

    def to_json(self) -> str:
        """All numbers as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def load(cls, folder: Path, key: str) -> Estimate | None:
        """Read the estimate of the comparison `key` from a folder; None if the folder has none."""
        try:
            found = json.loads((folder / ESTIMATE_FILE).read_text("utf-8"))
            made = cls(**found | {"costs": [Cost(**cost) for cost in found["costs"]]})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return made if made.key == key else None


def calibrate(
    key: str, run_configs: dict[str, RunConfig], seeds: int, progress: ProgressCallback
) -> Estimate:
    """Estimate the cost of one run of each method by training a few rounds. `run_configs`: label -> run config."""
    costs, memory = [], 0.0
    follow_leader([_shortened(run_config) for run_config in run_configs.values()])
    for label, run_config in run_configs.items():
        costs.append(_cost(label, run_config, progress))
        memory = max(memory, _client_states_mb(run_config))
    return Estimate(key, seeds, costs, peak_memory_mb() + memory)


def _cost(label: str, run_config: RunConfig, progress: ProgressCallback) -> Cost:
    """Train a few rounds of each stage and extrapolate to the whole run."""
    full, short = _stage_rounds(run_config), _shortened(run_config)
    moments = [time.perf_counter()]

    def record_time(row: Row, what: str = "") -> None:
        moments.append(time.perf_counter())
        progress(row, label)

    rows = execute(short, progress=record_time).history.rows
    per_round = _cost_per_round(rows[1:], _stage_rounds(short))
    at_start = _bytes_at_start(rows[1:], _stage_rounds(short), per_round)
    counts = _rounds_within_budget(full, per_round, at_start, rows[0], run_config.options.budget)
    spent = {}
    for name in COSTS:
        spent[name] = sum(count * cost[name] for count, cost in zip(counts, per_round))
    for name in BYTES:
        begun_stages = [sent[name] for sent, count in zip(at_start, counts) if count]
        spent[name] += rows[0][name] + sum(begun_stages)

    # What takes time besides training: the set-up once, and every evaluation.
    setup, evaluation = _overheads(moments, rows[1:])
    evaluations = 1 + math.ceil(sum(counts) / run_config.options.evaluate_every)
    return Cost(
        label,
        rounds=sum(counts),
        seconds=spent["seconds"],
        seconds_in_all=setup + spent["seconds"] + evaluations * evaluation,
        mb_down=spent["bytes_down"] / 1e6,
        mb_up=spent["bytes_up"] / 1e6,
    )


def _overheads(moments: Sequence[float], rows: Sequence[Row]) -> tuple[float, float]:
    """Seconds for the set-up and for one evaluation: the time between rounds that is not training."""
    between = [
        late - early - row["seconds"] for early, late, row in zip(moments, moments[1:], rows)
    ]
    if not between:
        return 0.0, 0.0
    evaluation = min(between[1:] or between)
    return max(0.0, between[0] - 2 * evaluation), evaluation


def _shortened(run_config: RunConfig) -> RunConfig:
    """The run config with a few rounds of each stage, without stop rule, budget and selection."""
    rounds = min(run_config.options.rounds, CALIBRATION_ROUNDS * len(_stage_rounds(run_config)))
    options = replace(
        run_config.options, rounds=rounds, evaluate_every=1, stop=None, budget=None, select="last"
    )
    return replace(run_config, options=options)


def _stage_rounds(run_config: RunConfig) -> list[int]:
    """The number of rounds of each stage of a plan."""
    return [step.rounds for step in run_config.outline if isinstance(step, Stage)]


def _cost_per_round(rows: Sequence[Row], lengths: Sequence[int]) -> list[dict[str, float]]:
    """The mean cost of a round of each stage, without the stage's first round unless it is the only one."""
    costs = []
    start = 0
    for length in lengths:
        of_stage = rows[start : start + length]
        counted = of_stage[1:] or of_stage or rows
        means = {}
        for name in COSTS:
            means[name] = sum(row[name] for row in counted) / max(1, len(counted))
        costs.append(means)
        start += length
    return costs


def _bytes_at_start(
    rows: Sequence[Row], lengths: Sequence[int], per_round: Sequence[dict[str, float]]
) -> list[dict[str, float]]:
    """The bytes that each stage sends once, in its first round."""
    at_start = []
    start = 0
    for length, cost in zip(lengths, per_round):
        extra = dict.fromkeys(BYTES, 0.0)
        if start < len(rows):
            first_row = rows[start]
            extra = {name: max(0.0, first_row[name] - cost[name]) for name in BYTES}
        at_start.append(extra)
        start += length
    return at_start


def _rounds_within_budget(
    full: Sequence[int],
    per_round: Sequence[dict[str, float]],
    at_start: Sequence[dict[str, float]],
    before: Row,
    budget: str | None,
) -> list[int]:
    """The rounds of each stage that a budget allows.

    A run ends when one more round, at the cost of its last one, would exceed the budget. `before` is the row before the first
    round, whose bytes count as well.
    """
    if budget is None:
        return list(full)
    unit, limit = Budget(budget).limit
    used, counts = _amount(before, unit) if unit == "bytes" else 0.0, [0] * len(full)
    for i, count in enumerate(full):
        for number in range(count):
            cost = _amount(per_round[i], unit)
            if unit == "bytes" and number == 0:
                cost += _amount(at_start[i], unit)
            used, counts[i] = used + cost, counts[i] + 1
            if used + cost > limit * (1 + 1e-9):
                return counts
    return counts


def _amount(spent: dict[str, Any], unit: str) -> float:
    """The cost of a round in the unit of a budget: rounds, bytes or seconds; 0 for epsilon, which a few rounds do not tell."""
    if unit == "round":
        return 1.0
    if unit == "bytes":
        return float(spent["bytes_down"] + spent["bytes_up"])
    return float(spent.get(unit, 0.0))


def _client_states_mb(run_config: RunConfig) -> float:
    """The MB that client states will take, of the clients that did not take part in the calibration."""
    stages = [step for step in run_config.outline if isinstance(step, Stage)]
    sizes = []
    for stage in stages:
        settings = replace(run_config.settings, model=stage.model or run_config.model)
        state = initial_client_state(stage.method, settings)
        sizes.append(tree.nbytes(*state.values()))
    size = max(sizes)
    clients = int((run_config.population.sizes > 0).sum())
    trained = min(
        clients, cohort_size(run_config.options.participation, clients) * CALIBRATION_ROUNDS
    )
    return size * (clients - trained) / 1e6
