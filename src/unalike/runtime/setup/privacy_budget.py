"""The budget of epsilon of a stage. The round loop asks it, and never whether a method is private."""

import math
from collections.abc import Iterable, Mapping

from unalike._utils.errors import UnalikeError
from unalike.core.views import ServerState, StageSettings
from unalike.methods.method import Method
from unalike.methods.plan import Plan, method_of
from unalike.methods.privacy import Privacy
from unalike.runtime.setup.stopping import Budget, reader_of

States = Mapping[str, ServerState]
"""Group -> server state of its model."""


class PrivacyBudget:
    """The epsilon that the rounds of a private method spend, and the limit that they keep.

    `limit` is the smaller one of the method's own epsilon and the budget of the run; infinite where there is neither.
    """

    allows_training_ahead = False
    """Whether a round may be trained before it is known whether it counts: its updates would spend what no row accounts for."""

    def __init__(self, part: Privacy, settings: StageSettings, limit: float):
        self._part = part
        self._settings = settings
        self.limit = limit if part.epsilon is None else min(limit, part.epsilon)

    def spent(self, states: States, rounds: int) -> float:
        """The epsilon of so many rounds, with the noise that the stage began with."""
        [state] = states.values()
        noise_multipliers = state.part_states[self._part.name]["noise_multiplier"]
        return self._part.spent(self._settings, noise_multipliers, rounds)

    def columns(self, states: States, rounds: int) -> dict[str, float]:
        """The columns that the history has of the budget."""
        return {"epsilon": self.spent(states, rounds)}

    def forbids(self, states: States, rounds: int) -> str:
        """The reason why there may not be so many rounds; empty if there may."""
        if self.limit == math.inf or self.spent(states, rounds) <= self.limit:
            return ""
        return f"budget of epsilon={self.limit:g} spent"


class NoPrivacyBudget:
    """The budget of a method without privacy: nothing is spent, and nothing forbidden."""

    allows_training_ahead = True

    def columns(self, states: States, rounds: int) -> dict[str, float]:
        return {}

    def forbids(self, states: States, rounds: int) -> str:
        return ""


def privacy_budget(
    method: Method, settings: StageSettings, budget: str | None
) -> PrivacyBudget | NoPrivacyBudget:
    """The budget of a stage with this method; `budget` is the option of the run."""
    if method.privacy is None:
        return NoPrivacyBudget()
    return PrivacyBudget(method.privacy, settings, epsilon_limit(budget))


def epsilon_limit(budget: str | None) -> float:
    """The epsilon of the option `budget`; infinite where it is about something else."""
    if budget is None:
        return math.inf
    total, limit = Budget(budget).limit
    return limit if total == "epsilon" else math.inf


def check_readers(
    plans: Iterable[tuple[str, Plan]], *, budget: str | None, stop: str | None
) -> None:
    """Raise `UnalikeError` where the run is to end by its epsilon, and one of the plans, each with its text, has none."""
    reader = reader_of("epsilon", budget=budget, stop=stop)
    if not reader:
        return
    for text, plan in plans:
        if method_of(plan).privacy is None:
            option = reader.partition("=")[0]
            raise UnalikeError(
                f"found {reader}, and {text} has no epsilon; expected a private method such as dp_sgd. "
                f"Give another {option}, or leave the method out"
            )
