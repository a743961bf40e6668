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
    CELLS_FILE,
    PlannedCell,
    Standing,
    Standings,
    planned,
    stamp_of,
    standings,
    stored_table,
)
from unalike.federation.coordinator.operator_commands import NoAnswer, Starting, command
from unalike.metrics.columns import (
    COLUMNS_FILE,
    NO_COLUMNS,
    SIMULATED_SECONDS,
    TEST,
    Column,
    Columns,
)
from unalike.metrics.named_metrics import KNOWN, MISSING, Metric, significant
from unalike.reporting.charts.palette import looks
from unalike.reporting.charts.report_charts import FATE_LOOKS
from unalike.reporting.table import rows as rows_of
from unalike.reporting.wording import megabytes
from unalike.runtime.records.history import (
    CLIENTS_FILE,
    DIVERGED,
    ROUNDS_FILE,
    TIMELINE_FILE,
)
from unalike.runtime.records.run_directory import RunDirectory

State = dict[str, Any]

WATCHED_FILES = ("config.toml", ROUNDS_FILE, CLIENTS_FILE, "events.jsonl", "roster.json")
MAX_EVENTS = 200
"""Most events on the page; the newest are shown."""
EVENT_LOG_BYTES = 1 << 20
"""Bytes at the end of the event log that are read."""
MAX_TURNS = 500
"""Most bars of the timeline; the newest are shown."""
MAX_CLIENTS_OF_TIMELINE = 50
"""Most clients of the timeline; those with the lowest numbers are shown."""
MAX_ROUNDS = 60
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
        current = live.get("folder", "")
        runs = [self.path / "run", *self.path.glob("runs/*"), self.path / "runs" / current]
        return max(runs, key=lambda run: (run.name == current, stamp_of(run / "config.toml")))

    @property
    def stamp(self) -> tuple[Any, ...]:
        """A value that changes whenever something that is shown changes."""
        live = self._live()
        run = self.run(live)
        stamps = [stamp_of(self.federation), *(stamp_of(run / name) for name in WATCHED_FILES)]
        return (*stamps, is_locked(run), json.dumps(live, sort_keys=True))

    def state(self) -> State:
        """Everything that the page shows, as JSON values."""
        live = self._live()
        run = self.run(live)
        terms = _toml(self.federation)
        config = _toml(run / "config.toml")
        directory = RunDirectory(run)
        names = _names(directory, terms)
        events = directory.last_events(EVENT_LOG_BYTES)
        rounds = table_rows(run / ROUNDS_FILE)
        clients = table_rows(run / CLIENTS_FILE)
        turns = table_rows(run / TIMELINE_FILE)

        # what the last round says
        columns = stored_columns(run)
        last = rounds[-1] if rounds else {}
        score = columns.shown(last) if rounds else None
        epsilon = f"epsilon {significant(last['epsilon'])}" if "epsilon" in last else ""

        # where a coordinator runs, it knows best
        method = (
            live.get("method") or _method(directory.method_text, config) or terms.get("method", "")
        )
        running = None
        if live and live["state"] != "waiting":
            running = _running(events, terms, names)
        absences = [event for event in events if event["event"] in ("refused", "absent", "late")]
        return {
            "title": terms.get("name") or self.path.resolve().name,
            "kind": "federation" if terms else "simulation",
            "method": method,
            "model": terms.get("model") or config.get("model", {}).get("name", ""),
            "done": int(last.get("round", 0)),
            "rounds": terms.get("rounds") or config.get("rounds", 0),
            "epsilon": epsilon,
            "state": _state(events, live, bool(terms), is_locked(run)),
            "running": running,
            "metric": "" if score is None else score.label,
            "curves": _curves(rounds, columns),
            "timeline": _timeline(
                turns=turns,
                names=names,
                is_simulated=SIMULATED_SECONDS in last,
            ),
            "sites": _sites(terms, names, live, clients, events, turns),
            "table": _by_round(clients, names, _of_clients(clients, columns, score)),
            "refused": [_event_row(event, names) for event in absences[-MAX_EVENTS:]],
            "log": [_event_row(event, names) for event in events[-MAX_EVENTS:]],
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
        comparison = json.loads((directory.path / "comparison.json").read_text("utf-8"))
        return [str(name) for name in comparison["clients"]]
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


def _has_numbers(rows: list[dict[str, Any]], column: Column) -> bool:
    return any(number(row.get(column.name)) is not None for row in rows)


def _of_clients(
    clients: list[dict[str, Any]], columns: Columns, score: Column | None
) -> Column | None:
    """The column of the clients' table for the score of the rounds: that of another protocol where it is empty (`server`)."""
    if score is None or score.protocol == "personal":
        return score
    metric = score.metric.name
    of_metric = [c for c in columns.all if c.split == TEST and c.metric.name == metric]
    with_numbers = [column for column in (score, *of_metric) if _has_numbers(clients, column)]
    return with_numbers[0] if with_numbers else score


def _curves(rows: list[dict[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    """The curves of the score of the shared model and of personal models, of the loss, and of the training loss."""
    if not rows:
        return []
    rounds = [int(row["round"]) for row in rows]
    curves = []
    for column in (
        columns.get(columns.unprefixed_protocol),
        columns.get("personal"),
        columns.get(columns.unprefixed_protocol, "loss"),
    ):
        if column is not None and _has_numbers(rows, column):
            values = [row.get(column.name) for row in rows]
            curves.append(curve(column.label, column.metric, zip(rounds, values)))
    training_losses = [row.get("train_loss") for row in rows]
    training = curve("training loss", KNOWN["loss"], zip(rounds, training_losses))
    if training["points"]:
        curves.append(training)
    return curves


def _timeline(
    turns: list[dict[str, Any]], names: list[str], is_simulated: bool
) -> dict[str, Any] | None:
    """The newest bars of the timeline of devices or sites, a row for each client, and the fates in it; None without a bar."""
    if not turns:
        return None
    clients = sorted({turn["client"] for turn in turns})
    shown = clients[:MAX_CLIENTS_OF_TIMELINE]
    followed = [turn for turn in turns if turn["client"] in shown][-MAX_TURNS:]
    bars = []
    for turn in followed:
        bar = {
            "row": shown.index(turn["client"]),
            "begun": number(turn["begun"]),
            "ended": number(turn["ended"]),
            "round": turn["round"],
            "fate": turn["fate"],
        }
        bars.append(bar)
    seen = Counter(turn["fate"] for turn in followed)
    fates = [
        {"name": fate, "color": look.color, "count": seen[fate]}
        for fate, look in FATE_LOOKS.items()
        if fate in seen
    ]
    return {
        "clients": [_name(client, names) for client in shown],
        "asked": len(clients),
        "simulated": is_simulated,
        "bars": bars,
        "fates": fates,
    }


def curve(name: str, metric: Metric, points: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    """A curve as the page draws it, without the rounds that have no number, and its ends as text; without a look of its own."""
    known: list[list[Any]] = []
    for round, value in points:
        amount = number(value)
        if amount is not None:
            known.append([round, amount])
    ends = []
    if known:
        ends = [metric.text(value) for _, value in (known[0], known[-1])]
    return {
        "name": name,
        "points": known,
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
    deciding = [e for e in events if e["event"] in ("asked", "finished", "interrupted")]
    if not deciding or deciding[-1]["event"] != "asked":
        return None
    request = deciding[-1]
    return {
        "round": request.get("round"),
        "asked": [_name(client, names) for client in request.get("train", [])],
        "quorum": request.get("quorum"),
        "since": request.get("time"),
        "deadline": terms.get("deadline"),
    }


def _sites(
    terms: dict[str, Any],
    names: list[str],
    live: dict[str, Any],
    clients: list[dict[str, Any]],
    events: list[dict[str, Any]],
    turns: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Each site or client with its state, its numbers of samples, its traffic, and how often it was refused."""
    received: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    for turn in turns:
        received[turn["client"]] += turn.get("bytes_down", 0)
        sent[turn["client"]] += turn.get("bytes_up", 0)
    last: dict[Any, dict[str, Any]] = {row["client"]: row for row in clients}
    keys = list(range(len(names))) if names else sorted(last)
    connected = {site["name"]: site["connected"] for site in live.get("sites", [])}
    revoked = {str(site["name"]) for site in terms.get("sites", []) if site.get("revoked")}
    refused = [event for event in events if event["event"] == "refused"]
    refusals = Counter(_name(event.get("client"), names) for event in refused)
    sites = []
    for key in keys:
        name = _name(key, names)
        row = last.get(key, {})
        if name in revoked:
            state = "revoked"
        elif connected:
            state = "connected" if connected.get(name) else "away"
        else:
            state = str(row.get("status", "not admitted" if terms else ""))
        site = {
            "name": name,
            "state": state,
            "train": row.get("n_train"),
            "test": row.get("n_test"),
            "received": megabytes(received[key] / 1e6) if turns else MISSING,
            "sent": megabytes(sent[key] / 1e6) if turns else MISSING,
            "refused": refusals[name],
        }
        sites.append(site)
    return sites


def _by_round(
    clients: list[dict[str, Any]], names: list[str], score: Column | None
) -> dict[str, Any]:
    """For each site its score in each round, newest first, with its status and as text; None if there is no number."""
    rounds = sorted({int(row["round"]) for row in clients}, reverse=True)[:MAX_ROUNDS]
    cells_by_site: dict[str, dict[int, Any]] = {}
    for row in clients:
        value = None if score is None else number(row.get(score.name))
        text = MISSING if score is None or value is None else score.metric.text(value)
        cells = cells_by_site.setdefault(_name(row["client"], names), {})
        cells[int(row["round"])] = [value, str(row.get("status", "")), text]
    rows = []
    for name, cells in cells_by_site.items():
        shown = [cells.get(round, [None, "absent", MISSING]) for round in rounds]
        rows.append({"name": name, "cells": shown})
    return {"metric": "score" if score is None else score.label, "rounds": rounds, "rows": rows}


def _name(client: Any, names: list[str]) -> str:
    """The name of a client that is given by its number or by its name."""
    if isinstance(client, int) and not isinstance(client, bool):
        return names[client] if 0 <= client < len(names) else f"client {client}"
    return str(client)


def _event_row(event: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """An event as time, event, site, round, and its other fields as text."""
    more = []
    for name, value in event.items():
        if name in ("time", "event", "client", "round", "why"):
            continue
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        elif isinstance(value, dict):
            value = ", ".join(f"{key} {_short(one)}" for key, one in value.items())
        if value not in (None, "", {}):
            more.append(f"{name} {value}")
    text = "; ".join(filter(None, [str(event.get("why", "")), ", ".join(more)]))
    client = event.get("client")
    return {
        "time": event.get("time"),
        "event": event["event"],
        "client": "" if client is None else _name(client, names),
        "round": event.get("round"),
        "text": text[:500],
    }


def _short(value: Any) -> str:
    """A value of an event as text; of a number three digits."""
    return significant(value) if isinstance(value, float) else str(value)


class FollowedComparison:
    """A comparison to follow. Raises `UnalikeError` if none has begun in the folder."""

    def __init__(self, path: Path):
        self.path = path
        standings(path)

    @property
    def stamp(self) -> tuple[Any, ...]:
        """A value that changes whenever something that is shown changes."""
        _, cells, _ = planned(self.path)
        folders = [self.path / cell.folder for cell in cells]
        files = [self.path / CELLS_FILE]
        for folder in folders:
            files += [folder / "events.jsonl", folder / ROUNDS_FILE]
        return (*map(stamp_of, files), *map(is_locked, folders))

    def state(self) -> State:
        """Everything that the page shows, as JSON values."""
        baseline, cells, _ = planned(self.path)
        table = standings(self.path)
        configs = [RunDirectory(self.path / cell.folder).config for cell in cells]
        models = [str(config["model"]["name"]) for config in configs if config]
        return {
            "title": self.path.resolve().name,
            "kind": "comparison",
            "method": f"{len(table.methods)} methods compared with {baseline}",
            "baseline": baseline,
            "model": models[0] if models else "",
            "state": self._state(cells, table),
            "done": sum(row.rounds_done for row in table.methods),
            "rounds": sum(row.rounds for row in table.methods),
            "left": number(table.seconds_left),
            "standings": list(map(_standing, table.methods)),
            "curves": self._curves(cells, table),
        }

    def _state(self, cells: Sequence[PlannedCell], table: Standings) -> str:
        if all(row.seeds_done == row.seeds for row in table.methods):
            return "finished"
        locks = [is_locked(self.path / cell.folder) for cell in cells]
        # one cell that runs is enough
        if True in locks:
            return UNFINISHED[True]
        return UNFINISHED[None if None in locks else False]

    def _curves(self, cells: Sequence[PlannedCell], table: Standings) -> list[dict[str, Any]]:
        """For each method the mean of its score over its seeds, by round."""
        in_use = {
            row.method: row.column.protocol for row in table.methods if row.column is not None
        }
        scores: dict[str, Column] = {}
        values: dict[str, dict[int, list[float]]] = {}
        for cell in cells:
            folder = self.path / cell.folder
            rows = table_rows(folder / ROUNDS_FILE)
            # the score of a method is that of its first cell with rows
            if rows and cell.method not in scores:
                columns = stored_columns(folder)
                protocol = in_use.get(cell.method)
                shown = columns.shown(rows[-1]) if protocol is None else columns.get(protocol)
                if shown is not None:
                    scores[cell.method] = shown
            if cell.method not in scores:
                continue
            for row in rows:
                value = number(row.get(scores[cell.method].name))
                if value is not None:
                    by_round = values.setdefault(cell.method, {})
                    by_round.setdefault(int(row["round"]), []).append(value)
        styles = looks(list(dict.fromkeys(cell.method for cell in cells)))
        curves = []
        for method, by_round in values.items():
            score = scores[method]
            mean_curve = curve(f"{score.label} of {method}", score.metric, _means(by_round))
            mean_curve["color"] = styles[method].color
            mean_curve["strokes"] = styles[method].strokes
            curves.append(mean_curve)
        return curves


def _means(by_round: dict[int, list[float]]) -> list[tuple[int, float]]:
    return [(r, sum(values) / len(values)) for r, values in sorted(by_round.items())]


def _standing(row: Standing) -> dict[str, Any]:
    """A method's standing as JSON values, with its score and its difference as text."""
    values = {
        name: number(value) if isinstance(value, float) else value
        for name, value in vars(row).items()
        if name != "column"
    }
    values["epsilon_text"] = row.epsilon_text
    if row.column is None:
        return values | {"metric": "", "score_text": MISSING, "difference_text": MISSING}
    values["metric"] = row.column.label
    values["score_text"] = row.column.metric.text(row.score)
    values["difference_text"] = row.column.metric.difference(row.difference)
    return values
