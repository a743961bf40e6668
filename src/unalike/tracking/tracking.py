"""The trackers of one run while it goes: they begin with its first row, and one that fails is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Integral, Real
from operator import methodcaller
from pathlib import Path
from typing import Any

from unalike._utils.errors import warn
from unalike._utils.tensor_files import write_bytes
from unalike.tracking.tracker import Row, Track, TrackedRun, Tracker, trackers

TRACKING_FILE = "tracking.json"
"""File in a run's folder: tracker -> the name by which it knows the run."""


@dataclass(frozen=True)
class Trackers:
    """The trackers that follow runs, and the name of the comparison that the runs belong to."""

    listed: tuple[Tracker, ...] = ()
    group: str = ""

    @classmethod
    def of(cls, track: Track | None, group: str = "") -> Trackers:
        """The trackers that `track=` asks for. Raises `UnalikeError` if one is unknown or lacks its extra."""
        return cls(tuple(trackers(track)), group)

    def follow(self, name: str, config: dict[str, Any], folder: Path | None) -> Tracking:
        """Start to follow one run."""
        return Tracking(self.listed, TrackedRun(name, config, folder, self.group))


NO_TRACKERS = Trackers()


def group_of(out: str | Path | None) -> str:
    """The name of a comparison: that of its folder."""
    return "comparison" if out is None else Path(out).resolve().name


class Tracking:
    """The trackers of a run; without any, nothing happens."""

    def __init__(self, trackers: Sequence[Tracker], run: TrackedRun):
        self._waiting = list(trackers)
        self._trackers: list[Tracker] = []
        self._run = run
        self._logged_rows = 0

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the rows that are new. The first call begins the trackers' runs, also with the rows that a resumed run read back."""
        self._begin()
        if self._trackers:
            for row in rows[self._logged_rows :]:
                self._each(methodcaller("log", _numbers(row)))
            self._logged_rows = len(rows)

    def keep(self, files: Sequence[Path]) -> None:
        """Begin runs without rows that hold only files, and end them."""
        self._begin()
        self.finish(files)

    def finish(self, files: Sequence[Path] = ()) -> None:
        """End the trackers' runs and keep files with them. Runs without a new row have not begun, and stay as they are."""
        existing = [file for file in files if file.exists()]
        self._each(lambda tracker: tracker.end(existing, True))
        self._trackers = []

    def fail(self) -> None:
        """End the trackers' runs as those of a run that did not finish."""
        self._each(lambda tracker: tracker.end([], False))
        self._trackers = []

    def _begin(self) -> None:
        if not self._waiting:
            return
        self._trackers = self._waiting
        self._waiting = []
        # trackers that knew the run before it was interrupted go on with the same one
        names = self._stored_names()
        config = flat(self._run.config)

        def begin(tracker: Tracker) -> None:
            key = repr(tracker)
            run = replace(self._run, config=config, known_as=names.get(key))
            names[key] = tracker.begin(run)

        self._each(begin)
        if self._run.folder is not None:
            text = json.dumps(names, indent=1) + "\n"
            write_bytes(self._run.folder / TRACKING_FILE, text.encode())

    def _stored_names(self) -> dict[str, str]:
        if self._run.folder is not None:
            with suppress(OSError, ValueError):
                return dict(json.loads((self._run.folder / TRACKING_FILE).read_text("utf-8")))
        return {}

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """Act on every tracker; those that raise an exception are left out from now on."""
        for tracker in list(self._trackers):
            try:
                act(tracker)
            # whatever it is, it must not stop the run
            except Exception as error:
                self._trackers.remove(tracker)
                why = f"{type(error).__name__}: {str(error)[:300]}"
                warn(f"{tracker!r} fails and is left out, the run goes on without it ({why})")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dots in the names; lists become text, and what is not set is left out.

    >>> flat({"rounds": 5, "work": {"lr": 0.1, "clip": None}, "protocol": ["clients", "server"]})
    {'rounds': 5, 'work.lr': 0.1, 'protocol': 'clients, server'}
    """
    entries: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            entries |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            entries[prefix + name] = ", ".join(map(str, value))
        elif value is not None:
            entries[prefix + name] = value
    return entries


def _numbers(row: Mapping[str, Any]) -> Row:
    """The columns that are finite numbers; a round without an evaluation has NaN."""
    numbers: Row = {}
    for name, value in row.items():
        if isinstance(value, Real) and math.isfinite(value):
            numbers[name] = int(value) if isinstance(value, Integral) else float(value)
    return numbers
