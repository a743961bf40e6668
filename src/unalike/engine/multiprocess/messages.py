"""The messages with which the leader of a run tells its worker processes what to do: one class for each.

An `Announcement` is for all of them. A `Question` is for some, about a stage, and each of these answers it. The channel carries
dictionaries of plain values and tensors; `as_dict` and `read_message` convert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree


@dataclass(frozen=True, kw_only=True)
class _Message:
    word: ClassVar[str]
    """Its name in the dictionary that is sent."""

    def as_dict(self) -> dict[str, Any]:
        return {"do": self.word} | {field.name: getattr(self, field.name) for field in fields(self)}


class Announcement(_Message):
    """Something that every worker process must know."""


@dataclass(frozen=True, kw_only=True)
class BeginStage(Announcement):
    """The next step of the plan is a stage; `folder` keeps the clients' states, None: memory does."""

    word = "stage"
    folder: str | None


@dataclass(frozen=True, kw_only=True)
class UseExecutor(Announcement):
    """The executor of the stage, which the leader has chosen."""

    word = "executor"
    executor: str


@dataclass(frozen=True, kw_only=True)
class EndStage(Announcement):
    """A stage has ended after so many rounds with these server states, by group and field."""

    word = "stage ended"
    states: dict[str, dict[str, Any]]
    rounds: int


@dataclass(frozen=True, kw_only=True)
class EndQuery(Announcement):
    """Clients have answered a query: their numbers, and the answers, stacked along a leading [K]."""

    word = "query ended"
    clients: list[int]
    answers: Tree


@dataclass(frozen=True, kw_only=True)
class EndRun(Announcement):
    """The run is over: the process exits."""

    word = "end"


@dataclass(frozen=True, kw_only=True)
class Question(_Message):
    """A question about a stage: of this number, or the newest one."""

    stage: int | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreSamples(Question):
    """Score your part of the samples of these clients with a shared model. `splits`: name of the scores -> split."""

    word = "score"
    splits: dict[str, str]
    clients: Tensor
    params: Tree
    buffers: Tree


@dataclass(frozen=True, kw_only=True)
class ClientsQuestion(Question):
    """A question about clients of a group, each of which is answered by the process that has its state.

    `ids` are the clients of each worker process, `accepted` pairs [n, 2] of a client and the newest round in which its update was
    accepted; None where clients keep no state.
    """

    group: int
    ids: Sequence[Sequence[int]]
    broadcast: dict[str, Any] | None
    accepted: Tensor | None


@dataclass(frozen=True, kw_only=True)
class ScoreOwnModels(ClientsQuestion):
    """Score the own models of your clients, where the group has this server state."""

    word = "score own"
    splits: dict[str, str]
    state: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Feed(ClientsQuestion):
    """Train your clients, and send their updates (`weights` is None), or their sums with these weights."""

    word = "feed"
    weights: list[Any] | None


@dataclass(frozen=True, kw_only=True)
class Finetune(ClientsQuestion):
    """Fine-tune the model of your client."""

    word = "finetune"


@dataclass(frozen=True, kw_only=True)
class GetClientState(Question):
    """Send the state of a client as of the newest round in which its update was accepted."""

    word = "client state"
    group: int
    client: int
    accepted: int


@dataclass(frozen=True, kw_only=True)
class KeepClientStates(Question):
    """Pin, save, prune or adopt the states of your clients; `accepted` as in `ClientsQuestion`."""

    word = "keep client states"
    group: int
    action: str
    accepted: Tensor


MESSAGES: Mapping[str, type[Announcement] | type[Question]] = {
    kind.word: kind
    for kind in (
        BeginStage,
        UseExecutor,
        EndStage,
        EndQuery,
        EndRun,
        ScoreSamples,
        ScoreOwnModels,
        Feed,
        Finetune,
        GetClientState,
        KeepClientStates,
    )
}
"""Word in a dictionary -> the message that it stands for."""


def read_message(received: Mapping[str, Any]) -> Announcement | Question:
    """The message of a dictionary that the leader sent. Raises `UnalikeError` for one that is none, or has other fields."""
    values = {name: value for name, value in received.items() if name not in ("do", "asked")}
    try:
        return MESSAGES[received["do"]](**values)
    except (KeyError, TypeError) as error:
        raise UnalikeError(f"the leader sent a message that is none: {error}") from None
