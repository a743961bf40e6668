"""The stored judgement: how good each way to choose a method was on held-out tasks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike_studies.recommendation.stored_runs import METHODS, SHARED

JUDGEMENT_FILE = Path(__file__).with_name("judgement.json")
CANDIDATES: Mapping[str, tuple[str, ...]] = {"shared": tuple(SHARED), "any": tuple(METHODS)}
"""Name -> the methods to choose from: those with one shared model, or all."""

# The policies that judgements name; `regret.py` has these and others, and judges them.
FORECAST = "forecast"
AVERAGE = "best on average"
ALWAYS_FEDAVG = "always FedAvg"
SURE = "sure gain"


@dataclass(frozen=True)
class HeldOut:
    """The tasks that are judged, and those that policies learn from.

    Attributes:
        by: Column of the tasks: all tasks with the same value are held out at a time.
        owners: Whether the tasks of real owners are judged; otherwise those that partitions made are.
        all_known: Whether policies learn from real owners' tasks too; otherwise only from tasks that partitions made.
    """

    by: str
    owners: bool = False
    all_known: bool = False


HELD_OUT = {
    "data": HeldOut("data"),
    "kind": HeldOut("kind"),
    "owners": HeldOut("data", owners=True, all_known=True),
    "owners, unknown kind": HeldOut("data", owners=True),
}
"""Name -> what is held out: whole data sets or whole kinds of heterogeneity; the data of real owners, once known to no policy."""


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
        """The policy that a recommendation should follow: for real owners of data, only gains that are sure.

        For clients that a partition made: forecasts if, on held-out data sets, their whole interval is better than the method
        that is best on average, else this.
        """
        if real_owners:
            return SURE
        return FORECAST if self.forecast_less_average["data"].high < 0 else AVERAGE


def read(objective: str, candidates: str, path: Path = JUDGEMENT_FILE) -> Judgement:
    """Read the judgement of an objective and a list of methods."""
    for row in json.loads(path.read_text()):
        if row["objective"] != objective or row["candidates"] != candidates:
            continue
        regret = {}
        for held_out, by_policy in row["regret"].items():
            regret[held_out] = _intervals(by_policy)
        return Judgement(
            objective,
            candidates,
            tasks=row["tasks"],
            owners=row["owners"],
            regret=regret,
            forecast_less_average=_intervals(row["forecast_less_average"]),
        )
    raise UnalikeError(
        f"found no judgement of {objective}, {candidates} in {path}, a file of unalike-studies; "
        "install it again"
    )


def _intervals(stored: Mapping[str, Mapping[str, float]]) -> dict[str, MeanInterval]:
    return {name: MeanInterval(**fields) for name, fields in stored.items()}
