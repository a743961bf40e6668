"""The state that the dashboard shows, read from the files of a run directory, of a federation's folder or of a comparison."""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.system.locks import is_locked
from unalike.comparison.standings import (
    FILE,
    PlannedCell,
    Standing,
    Standings,
    planned,
    stamp_of,
    standings,
    stored_table,
)
from unalike.federation.coordinator.operator_commands import NoAnswer, Starting, command
from unalike.metrics.columns import FILE as COLUMNS_FILE
from unalike.metrics.columns import NO_COLUMNS, TEST, Column, Columns
from unalike.metrics.named_metrics import KNOWN, MISSING, Metric, significant
from unalike.reporting.charts.palette import looks
from unalike.reporting.table import rows as rows_of
from unalike.runtime.records.history import DIVERGED
from unalike.runtime.records.run_directory import RunDirectory

State = dict[str, Any]

FOLLOWED = ("config.toml", "rounds.parquet", "clients.parquet", "events.jsonl", "roster.json")
LAST_EVENTS = 200
LAST_BYTES = 1 << 20
"""Bytes at the end of the event log that are read."""
COLUMNS = 60
"""Most rounds in the table of sites; the newest are shown."""


class Followed:
    """A folder to follow: a run directory, or a federation's folder, which contains its run directory."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not self.path.is_dir():
            raise UnalikeError(
                f"{self.path} is not a folder; give one that `unalike run --out` or `unalike federation init` wrote"
            )
        self.federation = self.path / "federation.toml"
        if not self.federation.exists() and not (self.path / "config.toml").exists():
            raise UnalikeError(
                f"{self.path} holds neither a run nor a federation; give a folder that holds one"
            )

    def run(self, live: dict[str, Any]) -> Path:
        """The run directory; of a federation that of the run that its coordinator names, else of the newest one."""
        if not self.federation.exists():
            return self.path
        named = live.get("folder", "")
        runs = [self.path / "run", *self.path.glob("runs/*"), self.path / "runs" / named]
        return max(runs, key=lambda run: (run.name == named, stamp_of(run / "config.toml")))

    @property
    def stamp(self) -> tuple[Any, ...]:
        """A value that changes whenever something that is shown changes."""
        run = self.run(live := self._live())
        stamps = [stamp_of(file) for file in (self.federation, *(run / name for name in FOLLOWED))]
        return (*stamps, is_locked(run), json.dumps(live, sort_keys=True))

    def state(self) -> State:
        """Everything that the page shows, as JSON values."""
        run, terms = self.run(live := self._live()), _toml(self.federation)
        directory, config = RunDirectory(run), _toml(run / "config.toml")
        events, names = directory.last_events(LAST_BYTES), _names(directory, terms)
        rounds, clients = (table_rows(run / f"{name}.parquet") for name in ("rounds", "clients"))
        columns = stored_columns(run)
        score = columns.shown(rounds[-1]) if rounds else None
        done = int(rounds[-1]["round"]) if rounds else 0
        return {
            "title": terms.get("name") or self.path.resolve().name,
            "kind": "federation" if terms else "simulation",
            "method": live.get("method")
            or _method(directory.method_text, config)
            or terms.get("method", ""),
            "model": terms.get("model") or config.get("model", {}).get("name", ""),
            "done": done,
            "rounds": terms.get("rounds") or config.get("rounds", 0),
            "epsilon": f"epsilon {significant(rounds[-1]['epsilon'])}"
            if rounds and "epsilon" in rounds[-1]
            else "",
            "state": _state(events, live, bool(terms), is_locked(run)),
            "running": _running(events, terms, names)
            if live and live["state"] != "waiting"
            else None,
            "metric": "" if score is None else score.label,
            "curves": _curves(rounds, columns),
            "sites": _sites(terms, names, live, clients, events),
            "table": _by_round(clients, names, _of_clients(clients, columns, score)),
            "refused": [
                _event_row(e, names) for e in events if e["event"] in ("refused", "absent", "late")
            ][-LAST_EVENTS:],
            "log": [_event_row(e, names) for e in events][-LAST_EVENTS:],
        }

    def _live(self) -> dict[str, Any]:
        """The status that a running coordinator reports; empty if none runs."""
        try:
            return command(self.path / "control", "status") if self.federation.exists() else {}
        except Starting:
            return {"state": "starting or ending"}
        except NoAnswer:
            return {"state": "up, but slow to answer"}
        except (UnalikeError, OSError, ValueError):
            return {}


def _names(directory: RunDirectory, terms: dict[str, Any]) -> list[str]:
    """The names of the clients; none where they have numbers."""
    if terms:
        return [str(site["name"]) for site in terms.get("sites", [])]
    try:
        return [
            str(n)
            for n in json.loads((directory.path / "comparison.json").read_text("utf-8"))["clients"]
        ]
    except (OSError, ValueError, KeyError):
        return directory.names or []


def _method(asked: str, config: dict[str, Any]) -> str:
    """The method as the user wrote it, and with every field."""
    spec = str(config.get("method", ""))
    return spec if asked == spec else f"{asked}: {spec}"


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def table_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table; none if the file does not exist yet."""
    table = stored_table(path)
    return [] if table is None else rows_of(table)


def number(value: Any) -> float | None:
    """The value if it is a finite number, which JSON can represent; otherwise None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def stored_columns(run: Path) -> Columns:
    """The columns of scores of a run; none before it has written its first round."""
    return Columns.load(run) if (run / COLUMNS_FILE).exists() else NO_COLUMNS


def _any(rows: list[dict[str, Any]], column: Column) -> bool:
    return any(number(row.get(column.name)) is not None for row in rows)


def _of_clients(
    clients: list[dict[str, Any]], columns: Columns, score: Column | None
) -> Column | None:
    """The column of the clients' table for the score of the rounds: that of another protocol where it is empty (`server`)."""
    if score is None or score.protocol == "personal":
        return score
    metric = score.metric.name
    candidates = [score, *(c for c in columns.all if c.split == TEST and c.metric.name == metric)]
    return next((column for column in candidates if _any(clients, column)), score)


def _curves(rows: list[dict[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    """The curves of the score of the shared model and of personal models, of the loss, and of the training loss."""
    shown = (
        [columns.get(columns.plain), columns.get("personal"), columns.get(columns.plain, "loss")]
        if rows
        else []
    )
    curves = [
        curve(column.label, column.metric, [(int(r["round"]), r.get(column.name)) for r in rows])
        for column in shown
        if column is not None and _any(rows, column)
    ]
    trained = curve(
        "training loss", KNOWN["loss"], [(int(r["round"]), r.get("train_loss")) for r in rows]
    )
    return [*curves, *([trained] if trained["points"] else [])]


def curve(name: str, metric: Metric, points: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    """A curve as the page draws it, without the rounds that have no number, and its ends as text; without a look of its own."""
    drawn = [[r, value] for r, v in points if (value := number(v)) is not None]
    ends = [metric.text(value) for _, value in (drawn[0], drawn[-1])] if drawn else []
    return {
        "name": name,
        "points": drawn,
        "ends": ends,
        "scale": metric.scale,
        "color": "",
        "strokes": "",
    }


def _state(
    events: list[dict[str, Any]], live: dict[str, Any], federated: bool, written: bool | None
) -> str:
    """The run's state as text. `written`: whether a process writes to its folder; None if unknown."""
    if live:
        why = f": {live['why']}" if live.get("why") else ""
        return f"{live['state']}{why}"
    last = next((e["event"] for e in reversed(events)), "")
    if last in ("finished", DIVERGED):
        return last
    if not events:
        return "not started"
    return "down: not finished" if federated else UNFINISHED[written]


UNFINISHED = {
    None: "running, or interrupted",
    True: "running",
    False: "not finished, and no process continues it",
}
"""Whether a process writes to the folder of a run that has not ended -> the state of the run."""


def _running(
    events: list[dict[str, Any]], terms: dict[str, Any], names: list[str]
) -> dict[str, Any] | None:
    """The round in progress: the sites that were asked, since when, and the deadline."""
    asked = next(
        (e for e in reversed(events) if e["event"] in ("asked", "finished", "interrupted")), None
    )
    if asked is None or asked["event"] != "asked":
        return None
    return {
        "round": asked.get("round"),
        "asked": [_name(c, names) for c in asked.get("train", [])],
        "quorum": asked.get("quorum"),
        "since": asked.get("time"),
        "deadline": terms.get("deadline"),
    }


def _sites(
    terms: dict[str, Any],
    names: list[str],
    live: dict[str, Any],
    clients: list[dict[str, Any]],
    events: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    last: dict[Any, dict[str, Any]] = {row["client"]: row for row in clients}
    keys = list(range(len(names))) if names else sorted(last)
    connected = {s["name"]: s["connected"] for s in live.get("sites", [])}
    revoked = {str(s["name"]) for s in terms.get("sites", []) if s.get("revoked")}
    refusals = Counter(
        _name(event.get("client"), names) for event in events if event["event"] == "refused"
    )
    sites = []
    for key in keys:
        name, row = _name(key, names), last.get(key, {})
        if name in revoked:
            state = "revoked"
        elif connected:
            state = "connected" if connected.get(name) else "away"
        else:
            state = str(row.get("status", "not admitted" if terms else ""))
        counts = {"train": row.get("n_train"), "test": row.get("n_test"), "refused": refusals[name]}
        sites.append({"name": name, "state": state} | counts)
    return sites


def _by_round(
    clients: list[dict[str, Any]], names: list[str], score: Column | None
) -> dict[str, Any]:
    """For each site its score in each round, newest first, with its status and as text; None if there is no number."""
    rounds = sorted({int(row["round"]) for row in clients}, reverse=True)[:COLUMNS]
    rows: dict[str, dict[int, Any]] = {}
    for row in clients:
        value = None if score is None else number(row.get(score.name))
        text = MISSING if score is None or value is None else score.metric.text(value)
        rows.setdefault(_name(row["client"], names), {})[int(row["round"])] = [
            value,
            str(row.get("status", "")),
            text,
        ]
    cells = {
        name: [of_site.get(r, [None, "absent", MISSING]) for r in rounds]
        for name, of_site in rows.items()
    }
    rows_shown = [{"name": n, "cells": c} for n, c in cells.items()]
    return {
        "metric": "score" if score is None else score.label,
        "rounds": rounds,
        "rows": rows_shown,
    }


def _name(client: Any, names: list[str]) -> str:
    if isinstance(client, int) and not isinstance(client, bool):
        return names[client] if 0 <= client < len(names) else f"client {client}"
    return str(client)


def _event_row(event: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """An event as time, event, site, round, and its other fields as text."""
    rest = {k: v for k, v in event.items() if k not in ("time", "event", "client", "round", "why")}
    said = {k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in rest.items()}
    more = [f"{k} {v}" for k, v in said.items() if v not in (None, "", {})]
    text = "; ".join(filter(None, [str(event.get("why", "")), ", ".join(more)]))
    client = event.get("client")
    return {
        "time": event.get("time"),
        "event": event["event"],
        "client": "" if client is None else _name(client, names),
        "round": event.get("round"),
        "text": text[:500],
    }


class FollowedComparison:
    """A comparison to follow. Raises `UnalikeError` if none has begun in the folder."""

    def __init__(self, path: Path):
        self.path = path
        standings(path)

    @property
    def stamp(self) -> tuple[Any, ...]:
        cells = planned(self.path)[1]
        folders = [self.path / cell.folder for cell in cells]
        files = [folder / name for folder in folders for name in ("events.jsonl", "rounds.parquet")]
        return (*map(stamp_of, [self.path / FILE, *files]), *map(is_locked, folders))

    def state(self) -> State:
        (baseline, cells, _), table = planned(self.path), standings(self.path)
        done, rounds = (
            sum(getattr(row, name) for row in table.methods) for name in ("rounds_done", "rounds")
        )
        configs = [RunDirectory(self.path / cell.folder).config for cell in cells]
        model = next((str(c["model"]["name"]) for c in configs if c), "")
        return {
            "title": self.path.resolve().name,
            "kind": "comparison",
            "method": f"{len(table.methods)} methods compared with {baseline}",
            "baseline": baseline,
            "model": model,
            "state": self._state(cells, table),
            "done": done,
            "rounds": rounds,
            "left": number(table.seconds_left),
            "standings": list(map(_standing, table.methods)),
            "curves": self._curves(cells, table),
        }

    def _state(self, cells: Sequence[PlannedCell], table: Standings) -> str:
        if all(row.seeds_done == row.seeds for row in table.methods):
            return "finished"
        locks = [is_locked(self.path / cell.folder) for cell in cells]
        return UNFINISHED[next((lock for lock in (True, None) if lock in locks), False)]

    def _curves(self, cells: Sequence[PlannedCell], table: Standings) -> list[dict[str, Any]]:
        """For each method the mean of its score over its seeds, by round."""
        in_use = {
            row.method: row.column.protocol for row in table.methods if row.column is not None
        }
        scores: dict[str, Column] = {}
        values: dict[str, dict[int, list[float]]] = {}
        for cell in cells:
            folder = self.path / cell.folder
            rows = table_rows(folder / "rounds.parquet")
            if rows and cell.method not in scores:
                columns, protocol = stored_columns(folder), in_use.get(cell.method)
                shown = columns.shown(rows[-1]) if protocol is None else columns.get(protocol)
                scores |= {} if shown is None else {cell.method: shown}
            for row in rows if cell.method in scores else ():
                if (value := number(row.get(scores[cell.method].name))) is not None:
                    values.setdefault(cell.method, {}).setdefault(int(row["round"]), []).append(
                        value
                    )
        styles = looks(list(dict.fromkeys(cell.method for cell in cells)))
        return [
            curve(f"{scores[method].label} of {method}", scores[method].metric, _means(by_round))
            | {"color": styles[method].color, "strokes": styles[method].strokes}
            for method, by_round in values.items()
        ]


def _means(by_round: dict[int, list[float]]) -> list[tuple[int, float]]:
    return [(r, sum(values) / len(values)) for r, values in sorted(by_round.items())]


def _standing(row: Standing) -> dict[str, Any]:
    """A method's standing as JSON values, with its score and its difference as text."""
    values = {
        k: number(v) if isinstance(v, float) else v for k, v in vars(row).items() if k != "column"
    }
    values |= {"epsilon_text": row.epsilon_text}
    if row.column is None:
        return values | {"metric": "", "score_text": MISSING, "difference_text": MISSING}
    texts = {
        "score_text": row.column.metric.text(row.score),
        "difference_text": row.column.metric.difference(row.difference),
    }
    return values | {"metric": row.column.label} | texts
