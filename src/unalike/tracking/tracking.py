"""The trackers of one run while it goes: they begin with its first row, and one that fails is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from operator import methodcaller
from pathlib import Path
from typing import Any

from unalike._utils.errors import warn
from unalike._utils.tensor_files import write_bytes
from unalike.tracking.tracker import Row, Track, TrackedRun, Tracker, trackers

FILE = "tracking.json"
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
        self._waiting, self._trackers = list(trackers), list[Tracker]()
        self._run, self._sent = run, 0

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the rows that are new. The first call begins the trackers' runs, also with the rows that a resumed run read back."""
        self._begin()
        if self._trackers:
            for row in rows[self._sent :]:
                self._each(methodcaller("log", _numbers(row)))
            self._sent = len(rows)

    def keep(self, files: Sequence[Path]) -> None:
        """Begin runs without rows that hold only files, and end them."""
        self._begin()
        self.finish(files)

    def finish(self, files: Sequence[Path] = ()) -> None:
        """End the trackers' runs and keep files with them. Runs without a new row have not begun, and stay as they are."""
        self._each(lambda tracker: tracker.end([file for file in files if file.exists()], True))
        self._trackers = []

    def fail(self) -> None:
        """End the trackers' runs as those of a run that did not finish."""
        self._each(lambda tracker: tracker.end([], False))
        self._trackers = []

    def _begin(self) -> None:
        if not self._waiting:
            return
        names, folder = self._stored_names(), self._run.folder
        self._trackers, self._waiting = self._waiting, []

        def start(tracker: Tracker) -> None:
            key = repr(tracker)
            run = TrackedRun(
                **vars(self._run) | {"config": flat(self._run.config), "known_as": names.get(key)}
            )
            names[key] = tracker.begin(run)

        self._each(start)
        if folder is not None:
            write_bytes(folder / FILE, (json.dumps(names, indent=1) + "\n").encode())

    def _stored_names(self) -> dict[str, str]:
        if self._run.folder is not None:
            with suppress(OSError, ValueError):
                return dict(json.loads((self._run.folder / FILE).read_text("utf-8")))
        return {}

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """Act on every tracker; those that raise an exception are left out from now on."""
        for tracker in list(self._trackers):
            try:
                act(tracker)
            except Exception as error:  # whatever it is, it must not stop the run
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
    found = {k: v for k, v in row.items() if isinstance(v, Real) and math.isfinite(v)}
    return {k: int(v) if isinstance(v, Integral) else float(v) for k, v in found.items()}
