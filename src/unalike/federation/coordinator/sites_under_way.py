"""The sites that still train the model of an earlier round, where rounds do not wait for all updates."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.client_devices.simulated_clock import (
    UNDER_WAY,
    ShareOfWork,
    WorkOf,
    age_columns,
    share_asked_for,
)
from unalike.federation.protocol.federation_file import Federation
from unalike.methods.plan import Stage
from unalike.runtime.setup.late_updates import refuse_late_updates
from unalike.runtime.setup.run_config import RunConfig

MAX_AGE_ROUNDS = 100
"""Rounds after which the server drops a model that a site still trains: its update, which could count little, does not count."""
AGES = "ages"
"""The entry of a checkpoint with the ages of the updates of the newest round."""


class SiteUnderWay(NamedTuple):
    """A client that was asked for an update of the model that a round began with."""

    client: int
    round: int


class SitesUnderWay:
    """The sites of a stage that were asked and have not answered (an `Availability`); empty where rounds await all updates.

    A site under way is not asked for anything else. It is so until its update has counted or was refused, until it is given up,
    or until the server has made `MAX_AGE_ROUNDS` rounds meanwhile. So the coordinator keeps at most as many earlier models.
    A round asks `cohort_size` sites and ends with `awaited` updates: if that is as many, no update is late.
    """

    changes_work: ClassVar[bool] = False

    def __init__(self, cohort_size: int, awaited: float) -> None:
        self._cohort_size = cohort_size
        self._awaited = awaited
        self._round_of: dict[int, int] = {}
        """Client -> the round whose model it was sent."""
        self._ages: list[int] | None = None
        """The ages of the updates of the newest round; None where none can be late."""

    @property
    def under_way(self) -> Sequence[SiteUnderWay]:
        return [SiteUnderWay(client, round) for client, round in self._round_of.items()]

    @property
    def rounds(self) -> Mapping[int, int]:
        """Client under way -> the round whose model it was sent."""
        return self._round_of

    def late_updates_count(self, awaited: float) -> bool:
        return min(awaited, self._awaited) < self._cohort_size

    def present(self, eligible: Sequence[int]) -> Sequence[int]:
        return [client for client in eligible if client not in self._round_of]

    def some_present(
        self, eligible: Sequence[int], wanted: int, rng: np.random.Generator
    ) -> Sequence[int]:
        return self.present(eligible)

    def wait(self) -> None:
        """Time passes by itself."""

    def share_of_work(self, name: str, work_of: WorkOf) -> ShareOfWork:
        return share_asked_for(name, work_of)

    def ask(self, clients: Iterable[int], round: int) -> None:
        """These clients are under way, from the model of a round on; those that are already go on with theirs."""
        for client in clients:
            self._round_of.setdefault(client, round)

    def drop(self, clients: Collection[int]) -> None:
        """No update of these clients will count."""
        for client in clients:
            self._round_of.pop(client, None)

    def too_old(self, round: int) -> list[int]:
        """The clients whose update would be too old for this round."""
        return [k for k, begun in self._round_of.items() if round - begun > MAX_AGE_ROUNDS]

    def arrive(self, clients: Sequence[int], round: int) -> dict[int, int]:
        """The updates of these clients count in this round. Returns the round whose model each of them trained."""
        trained = {client: self._round_of.pop(client) for client in clients}
        self._ages = [round - begun for begun in trained.values()]
        return trained

    @property
    def columns(self) -> dict[str, float]:
        return {} if self._ages is None else age_columns(self._ages)

    @property
    def checkpoint(self) -> dict[str, Any]:
        return {UNDER_WAY: [*self.under_way], AGES: self._ages}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        self._round_of = dict(checkpoint[UNDER_WAY])
        self._ages = checkpoint[AGES]


def check_late_updates(stage: Stage, run_config: RunConfig, federation: Federation) -> None:
    """Raise `UnalikeError` for a stage whose rounds do not wait for all updates, and which cannot use late ones."""
    awaited = federation.updates_awaited(stage.method)
    asked = federation.cohort_size(len(run_config.population))
    if awaited >= asked:
        return
    if federation.secure_aggregation:
        raise UnalikeError(
            f"a sum of secure aggregation is over sites that are known before they train, and {stage.method!r} counts the first "
            f"{awaited:g} updates that arrive of {asked}; choose a method that awaits all of them, without `first`"
        )
    recording = run_config.recording
    reads_updates = recording is not None and recording.needs_updates
    refuse_late_updates(stage, reads_updates or "local" in run_config.options.protocols)
