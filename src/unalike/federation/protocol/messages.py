"""Requests of the coordinator to a site: plain facts beside the tensors, checked on arrival.

The way of a request and its answer:

1. Coordinator: `RoundRequests.request` makes the facts (one of the classes below) and the tensors.
2. `Mailbox.send` signs them as an envelope and keeps its digest; a transport carries the bytes.
3. Site: `SiteWorker.handle` verifies the signature, checks run, terms and rules, and does what is asked.
   It signs the answer, which names the request by its digest, and stores it before it is sent.
4. Coordinator: `Mailbox.receive` lets pass the first answer to a request that is open, and reports all else.
5. `Exchange` has it checked (`RoundRequests.read`) and stored, and waits for the other sites.
"""

import platform
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from unalike._utils.errors import UnalikeError
from unalike._utils.validated import validated
from unalike._utils.version import __version__
from unalike.core.codec import Facts, Malformed

R = TypeVar("R", bound="AgreedRequest")

PROTOCOL = "6"
"""Number of this protocol: coordinator and sites must have the same."""

NOTICE = "notice"
"""The kind of a request that only says something, named in the fact "what"."""
NOTICES = {
    "late": "this run began without this site, which takes no part in it; it waits for the next run",
    "next": "the run is finished; this site waits for the next run",
    "finished": "all runs are finished; unless it joined with --until-done, this site waits until the coordinator is up again",
    "stopped": "the coordinator was stopped; this site waits until it is up again",
}
"""What a coordinator can say -> the line that a site prints."""
ANSWER = "answer"
"""The kind of a reply of a site that did what was asked."""
UNABLE = "unable"
"""The kind of a reply that says by a code that the site cannot do it; it may still answer later."""

REASONS = {
    "disk": "it cannot read or write its files; is its disk full?",
    "samples": "its samples are not those that it was admitted to this run with: other data, or a changed site.toml",
    "terms": "it agreed to other terms",
    "over": "this run or round is over for it; after a backup was restored, `unalike federation rollback`",
    "clock": "by its clock the run begins in more than a day: one of the two clocks is wrong",
    "plan": "the request is not one of the plan that it agreed to",
    "version": "it speaks another protocol; install one version of unalike at all sites",
    "sum": "secure aggregation does not allow it: its journal says what was asked",
    "rules": "its own rules (site.toml) do not allow it",
    "released": "it trained this round already, and a second update would cost privacy that nobody counts",
    "spent": "another update would exceed the epsilon that its site.toml allows for all private runs",
    "error": "it failed; its terminal and journal say how",
}
"""Code of an `UNABLE` reply -> what the operator reads. Texts of errors, which may hold paths and values, stay at the site."""


class Declined(UnalikeError):
    """A request that a site does not carry out, with the code of the reason."""

    def __init__(self, code: str, why: str):
        super().__init__(why)
        self.code = code


def versions() -> dict[str, str]:
    """The versions of the protocol, unalike, torch and Python on this machine."""
    return {
        "protocol": PROTOCOL,
        "unalike": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


@validated
class AgreedRequest:
    """A request under these `terms` (`Federation.terms`)."""

    terms: str

    @property
    def facts(self) -> Facts:
        """The request's fields as a plain dict."""
        return asdict(self)

    @classmethod
    def read(cls: type[R], facts: dict[str, Any]) -> R:
        """The request in a message's facts. Raises `Malformed`."""
        try:
            return cls(**facts)
        except (TypeError, ValueError) as error:
            kind = cls.__name__.removesuffix("Request").lower()
            raise Malformed(
                f"not a valid request of the kind {kind!r}: {str(error)[:500]}"
            ) from None


@validated
class AdmitRequest(AgreedRequest):
    """Join a run; `versions` are those of the coordinator. The answer is the site's numbers of samples, and its versions."""

    versions: dict[str, str]


@validated
class StepRequest(AgreedRequest):
    """The position in the plan.

    `rounds` of the run, `samples` of all sites, and for each earlier step the names of its groups (none for a query step).
    `derived`: the model of this step is one that the plan makes.
    """

    rounds: NonNegativeInt
    samples: NonNegativeInt
    outcomes: tuple[tuple[str, ...], ...]
    derived: bool


@validated
class QueryRequest(StepRequest):
    """Answer a query, about the model in the tensors `model/*` if there are any."""

    query: str


@validated
class ChooseRequest(QueryRequest):
    """Choose one of `groups` models, `0/*`, `1/*`, ...: the one for which the answer to the query is smallest."""

    groups: PositiveInt


@validated
class TrainRequest(StepRequest):
    """Evaluate the received model (`params/*`, `buffers/*`) under the protocols `evaluate`; if `train`, train it, too.

    `round` is the round of the server state. `accepted` is the round of this site's last accepted update in this group (None: there
    was none); the client state of that round is the valid one. `share` is the share of that update's size with which it counted: 1
    unless it was scaled down. `group` is the number of the site's group. With `local` the model after training is evaluated, too.
    Part messages are `messages.<part>/*`.

    Tensors that are fixed for the whole step are sent once; later requests name them by their digest `fixed` ("" if there are
    none): values that are not trained together (`fixed.params/*`, `fixed.buffers/*`), and public samples to train on (`shared/x`,
    `shared/y`).
    """

    method: str
    group: NonNegativeInt
    round: NonNegativeInt
    accepted: NonNegativeInt | None
    share: Annotated[float, Field(ge=0, le=1)]
    lr: PositiveFloat
    train: bool
    evaluate: tuple[str, ...]
    local: bool
    fixed: str

    @property
    def facts_of_step(self) -> Facts:
        """The facts that stay the same in all requests of a step: its place in the plan, its method, its fixed tensors."""
        names = [*StepRequest.__dataclass_fields__, "method", "fixed"]
        return {name: getattr(self, name) for name in names}


@validated
class SetupRequest(AgreedRequest):
    """Make keys for `rounds` rounds of this step, from the one of the message on; later setups have larger numbers.

    With `members`: share the secrets of these keys among them, whose signed keys are in the tensors `keys` and `signatures`;
    then say whose shares can be opened, of the tensor `shares`, which has what these members sealed for this one.
    """

    setup: PositiveInt
    rounds: PositiveInt
    members: tuple[str, ...] = ()


@validated
class MaskedTrainRequest(TrainRequest):
    """As `TrainRequest`, but a site that trains answers with a masked summand of the sum over the sites `cohort`.

    `setup` has the keys, None where nobody trains; `clients` sites have training samples. `history` is the context of the sum of
    the round `accepted`, where sites keep client states; else, and before the first sum, it is empty.
    """

    OWN_FIELDS: ClassVar[frozenset[str]] = frozenset({"accepted", "evaluate"})
    """Fields that differ between the sites of a sum. All others, also those of later versions, must be the same."""

    setup: PositiveInt | None
    clients: PositiveInt
    cohort: tuple[str, ...]
    history: str

    @property
    def common_facts(self) -> Facts:
        """The facts that all sites of the sum are sent."""
        return {name: value for name, value in self.facts.items() if name not in self.OWN_FIELDS}


@validated
class UnmaskRequest(AgreedRequest):
    """Give shares of the private masks of the sites `alive`, which are in the sum, and of the mask keys of those that `dropped`.

    Both together are the cohort of this site's own masked summand.

    The tensor `shares` has what these sites sealed for this one, in this order.
    """

    setup: PositiveInt
    alive: tuple[str, ...]
    dropped: tuple[str, ...]
