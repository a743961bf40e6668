"""The protocol of trackers, and those that `track=` can name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry

Row = dict[str, float]

registry = Registry("tracker", home="unalike.tracking.services")


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker sees it when it begins.

    Attributes:
        name: the method and the seed.
        config: everything that decides the run's numbers, flat: `work.lr`, `data.clients`, ...
        folder: the folder that keeps the run; None without one.
        group: the name of the comparison that the run belongs to; empty for a single run.
        known_as: what `begin` returned when the run began; None for a new run. The tracker continues the same run.
    """

    name: str
    config: dict[str, Any]
    folder: Path | None = None
    group: str = ""
    known_as: str | None = None


@runtime_checkable
class Tracker(Protocol):
    """Follows one run after another. A program may pass an object of its own as `track=`.

    An exception ends the tracking of the run with a warning, and the run goes on.
    """

    def begin(self, run: TrackedRun) -> str:
        """Begin or continue a run. Returns a name by which a resumed run finds it again."""

    def log(self, row: Row) -> None:
        """Take the numbers of a round, `round` among them. A resumed run logs all its rounds again, from the first one."""

    def end(self, files: Sequence[Path], finished: bool) -> None:
        """Keep files of the run, and end it; not `finished` if an error or an interruption ended it."""


Track = str | Tracker | Sequence[str | Tracker]


def trackers(track: Track | None) -> list[Tracker]:
    """Make the trackers that `track=` asks for.

    `track` is spec texts such as "tensorboard" or "mlflow(uri='sqlite:///runs.db')", trackers, or a list of them. Raises
    `UnalikeError` for an unknown tracker, and one whose extra is not installed.
    """
    if track is None:
        return []
    if isinstance(track, str | Tracker):
        return [_tracker(track)]
    return [_tracker(item) for item in track]


def _tracker(item: object) -> Tracker:
    if isinstance(item, str):
        return registry.build(spec.parse_one(item))
    if isinstance(item, Tracker):
        return item
    raise UnalikeError(
        f"track: found {item!r}, expected text such as 'tensorboard', or an object with the methods begin, log and end"
    )
