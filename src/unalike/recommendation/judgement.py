"""The judgement that the package ships with its stored runs: how good each way to choose a method was on held-out tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike.recommendation.regret import AVERAGE, FORECAST, HELD_OUT, POLICIES, SURE, means, regrets
from unalike.recommendation.stored_runs import OBJECTIVES, StoredRuns
from unalike.recommendation.task_runs import METHODS, SHARED

FILE = Path(__file__).with_name("judgement.json")
CANDIDATES: Mapping[str, tuple[str, ...]] = {"shared": tuple(SHARED), "any": tuple(METHODS)}
"""Name -> the methods to choose from: those with one shared model, or all."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean over held-out tasks with its 95 % interval over their groups."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Judgement:
    """The regret of each policy on held-out tasks, for one objective and one list of methods.

    `candidates` is a name of `CANDIDATES`, `tasks` the number of stored tasks whose clients a partition made, `owners` that of
    those with real owners. `regret`: name of `HELD_OUT` -> policy -> mean regret; `forecast_less_average`: the same -> regret of
    the forecasts less that of the method that is best on average.
    """

    objective: str
    candidates: str
    tasks: int
    owners: int
    regret: Mapping[str, Mapping[str, MeanInterval]]
    forecast_less_average: Mapping[str, MeanInterval]

    def policy(self, real_owners: bool) -> str:
        """The policy that recommendations follow: for real owners of data, only gains that are sure.

        For clients that a partition made: forecasts if, on held-out data sets, their whole interval is better than the method
        that is best on average, else this.
        """
        if real_owners:
            return SURE
        return FORECAST if self.forecast_less_average["data"].high < 0 else AVERAGE


def judge(runs: StoredRuns, objective: str, candidates: str) -> Judgement:
    """Judge all policies on all tasks that `HELD_OUT` names; `candidates` is a name of `CANDIDATES`."""
    regret, less = {}, {}
    for name, held_out in HELD_OUT.items():
        tasks = (runs.natural if held_out.owners else runs.made).tasks
        regret_of_tasks, groups = (
            regrets(runs, objective, CANDIDATES[candidates], held_out),
            tasks[held_out.by].to_numpy(),
        )
        rows, paired = means(regret_of_tasks, groups), means(regret_of_tasks, groups, AVERAGE)
        regret[name] = {policy: MeanInterval(*map(float, rows.loc[policy])) for policy in POLICIES}
        less[name] = MeanInterval(*map(float, paired.loc[FORECAST]))
    return Judgement(objective, candidates, len(runs.made.tasks), len(runs.natural.tasks), regret, less)


def write(runs: StoredRuns, path: Path = FILE) -> list[Judgement]:
    """Judge every objective and list of methods, and write the judgements."""
    judgements = [judge(runs, objective, candidates) for objective in OBJECTIVES for candidates in CANDIDATES]
    path.write_text(json.dumps([asdict(one) for one in judgements], indent=1) + "\n")
    return judgements


def read(objective: str, candidates: str, path: Path = FILE) -> Judgement:
    """Read the judgement of an objective and a list of methods."""
    for row in json.loads(path.read_text()):
        if (row["objective"], row["candidates"]) == (objective, candidates):
            regret = {
                by: {p: MeanInterval(**e) for p, e in means_of_policies.items()}
                for by, means_of_policies in row["regret"].items()
            }
            less = {by: MeanInterval(**e) for by, e in row["forecast_less_average"].items()}
            return Judgement(objective, candidates, row["tasks"], row["owners"], regret, less)
    raise UnalikeError(
        f"found no judgement of {objective}, {candidates} in {path}, a file of unalike; install unalike again"
    )
