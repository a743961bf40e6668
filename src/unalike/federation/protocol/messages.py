"""What the coordinator asks of a site, beside the tensors: plain facts, checked on arrival."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from unalike._utils.validated import validated
from unalike.federation.protocol.packing import Facts, Malformed

R = TypeVar("R", bound="AdmitRequest")


@validated
class AdmitRequest:
    """Take part in a run under these `terms` (`Federation.terms`): with how many samples?"""

    terms: str

    @property
    def facts(self) -> Facts:
        """As they travel."""
        return asdict(self)

    @classmethod
    def read(cls: type[R], facts: dict[str, Any]) -> R:
        """From a message. Raises `Malformed`."""
        try:
            return cls(**facts)
        except (TypeError, ValueError) as error:
            raise Malformed(f"no request of the kind {cls.__name__.lower()!r}: {str(error)[:500]}") from None


@validated
class StepRequest(AdmitRequest):
    """Where a plan is: its `rounds` and the `samples` of all sites, and of the steps before this one the names of their groups
    (none for a survey). `derived`: this step's model is one that the plan makes."""

    rounds: NonNegativeInt
    samples: NonNegativeInt
    outcomes: tuple[tuple[str, ...], ...]
    derived: bool


@validated
class QueryRequest(StepRequest):
    """Answer a question, about a model if one is there: `model/*`."""

    query: str


@validated
class ChooseRequest(QueryRequest):
    """Which of `groups` models, `0/*`, `1/*`, ..., has the least answer?"""

    groups: PositiveInt


@validated
class TrainRequest(StepRequest):
    """Evaluate what is received (`params/*`, `buffers/*`) under the protocols `evaluate`, then `train` it and report.

    `round` is that of the state, `accepted` the one whose memory stands (None: no report of this site in this group was ever
    accepted), `group` the number and name of the site's group of `population` clients. With `local` the model after training is
    evaluated, too. Letters are `messages.<part>/*`. What stays the same for the whole step comes once, with its digest `fixed` ever
    after ("" where there is nothing of the kind): values that are not trained together (`fixed.params/*`, `fixed.buffers/*`), and
    public samples to train on (`shared/x`, `shared/y`).
    """

    method: str
    group: NonNegativeInt
    round: NonNegativeInt
    accepted: NonNegativeInt | None
    population: PositiveInt
    lr: PositiveFloat
    train: bool
    evaluate: tuple[str, ...]
    local: bool
    fixed: str
