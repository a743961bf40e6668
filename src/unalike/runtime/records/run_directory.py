"""The run directory: one layout for simulations and federations.

config.toml  plan.json or names.json  encoding.json  rounds.parquet  clients.parquet  events.jsonl  model.safetensors
risks.parquet  columns.json  checkpoints/  kept/  states/  report.html
"""

import hashlib
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from unalike._utils.errors import DamagedRun, UnalikeError, warn
from unalike._utils.system.locks import locked
from unalike._utils.tensor_files import (
    read_tensors,
    round_file,
    rounds_of,
    sweep_files,
    write_bytes,
    write_tensors,
)
from unalike.core.option import options_of
from unalike.core.options import SimulationOptions, WorkOptions
from unalike.core.types import Tree
from unalike.methods.plan import is_same_spec
from unalike.runtime.records.history import DIVERGED
from unalike.training.client.client_states import group_folder, state_file

Config = dict[str, Any]

KEPT_FOLDER = "kept"
"""The folder of checkpoints that are kept, each named after the round whose models it holds."""
ENDS = ("stop", "budget")
"""Settings that end a run before its last round."""
MAY_DIFFER = ("rounds", *ENDS, "executor", "device")
"""Settings that a resumed run may change. A change of any other setting makes it a different run."""

OTHER_WEIGHTS = (
    "The initial weights differ: a module keeps the weights that it was made with, which torch draws anew in every process. To go "
    "on with a run, give a function that makes the module (model=Net instead of model=Net()), so that each seed draws weights of "
    "its own; or start=FILE, or torch.manual_seed(0) before the module is made. Or choose another folder"
)
"""Cause and remedy where a run differs from that of a folder in the initial weights alone."""


class RunDirectory:
    """A folder that holds one run. Every file is written atomically; a checkpoint is whole or absent."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    @property
    def _is_a_file(self) -> UnalikeError:
        """The error for a path that is a file, or lies in one."""
        above = [*reversed(self.path.parents), self.path]
        file = next((path for path in above if path.is_file()), self.path)
        return UnalikeError(f"{file} is a file; expected a folder for the run")

    @property
    def config(self) -> Config | None:
        """The configuration of the run that the folder holds; None for a new folder."""
        file = self.path / "config.toml"
        try:
            return tomllib.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise self._is_a_file from None
        except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError, RecursionError) as error:
            raise UnalikeError(
                f"cannot read {file}: {error}; mend it or choose another folder"
            ) from error

    def claim(self, config: Config, resume: bool) -> bool:
        """Take the folder for this run. True if it holds the beginning of the same run, which is to be resumed.

        Raises `UnalikeError` if it holds a run of another configuration, or one that is not to be resumed.
        """
        found = self.config
        if found is None:
            self.write_config(config)
            return False
        if (self.path / "cells").exists():
            raise UnalikeError(
                f"{self.path} holds a comparison; choose another folder for a single run"
            )
        # Another run would be mixed up with the one that is here.
        different = differences(found, config)
        if different:
            advice = "Choose another folder for this one"
            if self.began_elsewhere(config):
                advice = OTHER_WEIGHTS
            raise UnalikeError(f"{self.path} holds another run: {'; '.join(different)}. {advice}")
        if found["method"] != config["method"]:
            warn(
                f"the run in {self.path} began before its method had all fields: {found['method']!r} there goes on as "
                f"{config['method']!r}, with defaults for what is missing",
            )
        if not resume:
            raise UnalikeError(
                f"{self.path} already holds this run; allow it to be resumed or choose another folder"
            )
        # Rounds that were trained cannot be taken back.
        if self.round > config.get("rounds", self.round):
            raise UnalikeError(
                f"{self.path} holds {self.round} rounds of this run and {config['rounds']} were asked for; ask for {self.round} or "
                "more, or choose another folder"
            )
        return True

    def rounds_of(self, config: Config) -> int | None:
        """The rounds that the run in the folder was asked for, if only they differ from this configuration; None otherwise."""
        found = self.config
        if found is None or differences(found, config):
            return None
        # what ends a run early may differ in a resumed run, but then it is not the beginning of the other
        if any(found.get(name) != config.get(name) for name in ENDS):
            return None
        return int(found["rounds"])

    def began_elsewhere(self, config: Config) -> bool:
        """Whether the folder holds a run that differs from this one in the initial weights alone."""
        found = self.config
        different = [] if found is None else differences(found, config)
        return len(different) == 1 and different[0].startswith("model.fingerprint ")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run against other writers, which would remove its checkpoints. Raises `UnalikeError` if one has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise self._is_a_file from None
        except OSError as error:
            raise UnalikeError(
                f"cannot write {self.path}: {error.strerror}; choose another folder"
            ) from None
        busy = f"another process is writing the run in {self.path}; wait until it ends, or choose another folder"
        with locked(self.path, busy):
            sweep_files(self.path)
            yield

    def write_config(self, config: Config) -> None:
        write_bytes(self.path / "config.toml", tomli_w.dumps(plain(config)).encode())

    def write_names(self, names: Iterable[str]) -> None:
        """Keep the names of clients that no plan names."""
        write_bytes(self.path / "names.json", json.dumps(list(names)).encode())

    @property
    def names(self) -> list[str] | None:
        """The names that were kept; None where there are none."""
        file = self.path / "names.json"
        return json.loads(file.read_text("utf-8")) if file.exists() else None

    def event(self, kind: str, **facts: Any) -> None:
        """Append a line to `events.jsonl`."""
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **facts})
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with open(self.path / "events.jsonl", "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise UnalikeError(
                f"cannot write {self.path / 'events.jsonl'}: {error.strerror}"
            ) from error

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of `events.jsonl`, oldest first; none where there is no such file."""
        return self.last_events(sys.maxsize)

    def last_events(self, size: int) -> list[dict[str, Any]]:
        """The events in the last `size` bytes of the log, without a line that was cut."""
        try:
            with open(self.path / "events.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                lines = file.read().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                found.append(event)
        return found

    @property
    def notes(self) -> list[str]:
        """The distinct warnings since the run last began or was resumed, and those of its rounds before."""
        events = self.events
        begun = max((i for i, event in enumerate(events) if event["event"] == "begun"), default=0)
        texts = []
        for i, event in enumerate(events):
            if event["event"] == "warning" and (i >= begun or "round" in event):
                texts.append(event["text"])
        return list(dict.fromkeys(texts))

    @property
    def method_text(self) -> str:
        """The method as last typed; with every field if that was not recorded."""
        texts = [event.get("method") for event in self.events if event["event"] == "begun"]
        for text in reversed(texts):
            if text:
                return str(text)
        return str((self.config or {}).get("method", ""))

    @property
    def round(self) -> int:
        """The newest round that a checkpoint holds; 0 where there is none."""
        return max(rounds_of(self._checkpoints()).values(), default=0)

    @property
    def finished(self) -> bool:
        """Whether the run has finished and was not continued or rolled back since."""
        kinds = ("resumed", "rolled back", "finished")
        return [e["event"] for e in self.events if e["event"] in kinds][-1:] == ["finished"]

    @property
    def diverged(self) -> str:
        """The message of a run that diverged: why no round came after the last one; empty for other runs."""
        kinds = ("begun", "resumed", "finished", DIVERGED)
        last = [e for e in self.events if e["event"] in kinds][-1:]
        return "".join(str(e.get("why", "")) for e in last if e["event"] == DIVERGED)

    def save_checkpoint(self, round: int, tensors: Tree, facts: dict[str, Any]) -> None:
        """Write the checkpoint of a round, then remove all but the newest two."""
        write_tensors(round_file(self.path / "checkpoints", round), tensors, facts)
        for old in self._checkpoints()[:-2]:
            old.unlink(missing_ok=True)

    def drop_later(self, step: int, done: int) -> None:
        """Remove the checkpoints of later places in the plan than `done` rounds of its `step`, which counts from 1."""
        for file in reversed(self._checkpoints()):
            stages = read_tensors(file)[1]["stages"]
            if (len(stages), stages[-1][0]["done"]) <= (step, done):
                return
            file.unlink()

    def keep(self, round: int) -> None:
        """Keep the newest checkpoint, which holds the models after this round, whatever comes."""
        write_bytes(
            round_file(self.path / KEPT_FOLDER, round), self._checkpoints()[-1].read_bytes()
        )

    def return_to(self, round: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Go back to the checkpoint that was kept of a round, with a `change` of its facts; later ones are removed.

        Raises `UnalikeError` if none was kept.
        """
        kept = {
            number: file
            for file, number in rounds_of(
                (self.path / KEPT_FOLDER).glob("round-*.safetensors")
            ).items()
        }
        if round not in kept:
            found = ", ".join(map(str, sorted(kept))) or "none"
            raise UnalikeError(
                f"no checkpoint of round {round} is kept in {self.path}; expected one of {found}"
            )
        tensors, facts = read_tensors(kept[round])
        change(facts)
        later = [file for number, file in kept.items() if number > round]
        for file in (*self._checkpoints(), *later):
            file.unlink()
        write_tensors(round_file(self.path / "checkpoints", round), tensors, facts)

    def load_checkpoint(self) -> tuple[Tree, dict[str, Any]] | None:
        """The newest good checkpoint, None if there never was one.

        A damaged one is put aside as `*.damaged`, never overwritten, and an event says so. Raises `UnalikeError`, with everything
        left as it is, when no checkpoint can be read or the clients' states of the last good one are gone.
        """
        damaged: list[tuple[Path, UnalikeError]] = []
        for file in reversed(self._checkpoints()):
            try:
                tensors, facts = read_tensors(file)
            except UnalikeError as error:
                damaged.append((file, error))
                continue
            # Client states are versioned by checkpoint: an older one is of use only while its versions are there.
            missing = self._missing_state(facts) if damaged else None
            if missing is not None:
                raise UnalikeError(
                    f"{damaged[0][1]}; the one before it, {file.name}, cannot stand in for it: {missing} is gone. "
                    "Restore one of them, or start in another folder"
                )
            for bad, why in damaged:
                bad.rename(bad.with_name(bad.name + ".damaged"))
                self.event("damaged", checkpoint=bad.name, why=str(why), instead=file.name)
            return tensors, facts
        if damaged:
            raise DamagedRun(f"{damaged[0][1]}; restore it, or start in another folder")
        return None

    def _checkpoints(self) -> list[Path]:
        """The files of checkpoints, oldest first; copies made by hand do not count."""
        found = rounds_of((self.path / "checkpoints").glob("round-*.safetensors"))
        return sorted(found, key=found.__getitem__)

    def _missing_state(self, facts: dict[str, Any]) -> Path | None:
        """The first missing file among the client states that a checkpoint needs."""
        stages = [*enumerate(facts["stages"])]
        if "best" in facts:
            stages.append((facts["best"]["stage"], facts["best"]["groups"]))
        for stage, groups in stages:
            for number, group in enumerate(groups):
                folder = group_folder(self.client_states, stage, number)
                if not folder.exists():
                    continue
                for client, accepted in group["accepted"]:
                    file = state_file(folder, client, accepted)
                    if not file.exists():
                        return file
        return None

    @property
    def client_states(self) -> Path:
        """The folder of the clients' states."""
        return self.path / "states"


def plain(config: Config) -> Config:
    """The configuration without None, which TOML cannot express, and with lists for tuples."""
    found: Config = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found[name] = plain(value)
        elif isinstance(value, tuple):
            found[name] = list(value)
        elif value is not None:
            found[name] = value
    return found


def differences(found: Config, wanted: Config) -> list[str]:
    """The differences between two configurations, one sentence each.

    Options that came after the file of `found` was written had their default, and so had fields that its method lacks.
    """
    return _differences(_complete(plain(found)), _complete(plain(wanted)), "", MAY_DIFFER)


def _differences(
    found: Config, wanted: Config, where: str, may_differ: Sequence[str] = ()
) -> list[str]:
    """The differences of two tables; `where` is the path to them."""
    sentences = []
    for name in sorted({*found, *wanted}.difference(may_differ)):
        there = found.get(name)
        here = wanted.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            sentences += _differences(there, here, f"{where}{name}.")
            continue
        if there == here or (where + name == "method" and is_same_spec(there, here)):
            continue
        sentences.append(f"{where}{name} is {there!r} there and {here!r} here")
    return sentences


def _complete(config: Config) -> Config:
    """A configuration with the defaults of options that it lacks. TOML has no None: an option that may be None was None."""
    options = _defaults(SimulationOptions) | config
    return options | {"work": _defaults(WorkOptions) | config.get("work", {})}


def _defaults(kind: type) -> Config:
    options = options_of(kind).items()
    return plain({name: option.default for name, option in options if not option.optional})


def digest(config: Config) -> str:
    """A short hash of a configuration."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def fingerprint(tensors: Tree) -> str:
    """A short hash of named tensors: names, shapes, types and values."""
    found = hashlib.blake2b(digest_size=8)
    for name, values in tensors.items():
        found.update(f"{name}{tuple(values.shape)}{values.dtype}".encode())
        found.update(values.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
