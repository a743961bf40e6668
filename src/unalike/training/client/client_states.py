"""Client states between rounds, versioned by round.

A broadcast names, for each client, the last round in which its update was accepted. The state made in that round is current; the
state of a refused or lost update is dropped, and the state before it stays. Simulation and federation share this rule.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors, round_file, rounds_of, write_tensors
from unalike.core import tree
from unalike.core.types import PartTrees, Tree
from unalike.training.client.state_table import NO_ROUND, RowIndex, StateTable

FILES_AT_A_TIME = 8
"""Files that are written at once: a disk takes long for one small file, and no longer for several."""

Kind = tuple[torch.Size, torch.dtype]
"""Shape and type of one tensor of a client state."""

Version = tuple[int, int]
"""(client, round): the state that the client made in that round."""


class ClientStateStore(Protocol):
    """Client states as executors and model groups use them: of one process (`ClientStates`), or of several (`SharedClientStates`).

    `accepted` is the round of a client's last accepted update, or those of all clients that have one.
    """

    @property
    def empty(self) -> bool:
        """Whether clients have no state at all."""

    @property
    def device(self) -> torch.device:
        """The device of the states, if there are any."""

    def get(self, client: int, accepted: int | None) -> PartTrees:
        """The client's state as of its last accepted round."""

    def put(self, client: int, round: int, client_state: PartTrees, accepted: int | None) -> None:
        """Keep the client's state of `round` beside the accepted version."""

    def stacked(self, clients: Sequence[int], accepted: Mapping[int, int]) -> PartTrees:
        """The states of clients that this process trains, along a leading [K]."""

    def put_stacked(
        self,
        clients: Sequence[int],
        round: int,
        client_state: PartTrees,
        accepted: Mapping[int, int],
    ) -> None:
        """`put` of clients that this process trains, with their states stacked along a leading [K]."""

    def pin_versions(self, accepted: dict[int, int]) -> None:
        """Keep these versions beside those that stand, until others are pinned."""

    def save(self, accepted: dict[int, int]) -> None:
        """Write the accepted and the pinned version of every client to disk."""

    def drop_other_versions(self, accepted: dict[int, int]) -> None:
        """Delete the files of versions that are not needed any more."""

    def use_versions(self, accepted: dict[int, int]) -> None:
        """Take over the files that an earlier process saved."""


class ClientStates:
    """The states of many clients, in rows of one table: beside the model up to `budget` bytes, beyond it in mapped files.

    `initial` is the state of a client that never took part; if it is empty, nothing is ever kept. All others have its
    names and shapes. What is handed out are copies. What `save` brings to `folder` are safetensors, one per client and round;
    without a folder nothing is brought to disk.
    """

    def __init__(self, initial: PartTrees, folder: Path | None = None, budget: int = 4 * 2**30):
        packed = tree.pack(initial)
        self._initial = initial
        self._folder = folder
        self._kinds = {name: (t.shape, t.dtype) for name, t in packed.items()}
        self._table = StateTable(packed, budget)
        self._index = RowIndex()
        # versions by what keeps them: a file, the last checkpoint, a pin, a late broadcast
        self._on_disk: set[Version] = set()
        self._standing: dict[int, int] = {}
        self._pinned: dict[int, int] = {}
        self._kept_from = sys.maxsize

    @property
    def empty(self) -> bool:
        """Whether clients have no state at all."""
        return not self._initial

    @property
    def device(self) -> torch.device:
        return next(t.device for values in self._initial.values() for t in values.values())

    def get(self, client: int, accepted: int | None) -> PartTrees:
        """The client's state as of its last accepted round; None if none of its updates was accepted."""
        if accepted is None:
            return self._initial
        stacked = self.stacked([client], {client: accepted})
        return {name: tree.row(values, 0) for name, values in stacked.items()}

    def put(self, client: int, round: int, client_state: PartTrees, accepted: int | None) -> None:
        """Keep the client's state of `round` beside the accepted version; drop all other versions."""
        stacked = {
            name: tree.map(lambda t: t.unsqueeze(0), values)
            for name, values in client_state.items()
        }
        accepted_rounds = {} if accepted is None else {client: accepted}
        self.put_stacked([client], round, stacked, accepted_rounds)

    def stacked(self, clients: Sequence[int], accepted: Mapping[int, int]) -> PartTrees:
        """The states of many clients along a leading [K]; `accepted` holds the last accepted round of each client that has one."""
        if self.empty:
            return {}
        rounds = _rounds(clients, accepted)
        rows = self._index.find(np.array(clients), rounds)
        # row 0 is the initial state: that of a client with an accepted round is in a file
        for i in np.flatnonzero((rows == 0) & (rounds != NO_ROUND)).tolist():
            rows[i] = self._load(clients[i], int(rounds[i]))
        return tree.unpack(self._table.read(rows))

    def put_stacked(
        self,
        clients: Sequence[int],
        round: int,
        client_state: PartTrees,
        accepted: Mapping[int, int],
    ) -> None:
        """`put` of many clients, with their states stacked along a leading [K].

        Raises `UnalikeError` for states with other names, shapes or types than the initial one.
        """
        if not clients:
            return
        packed = tree.pack(client_state)
        kinds = {name: (t.shape[1:], t.dtype) for name, t in packed.items()}
        if kinds != self._kinds:
            raise _unlike(self._kinds, kinds)
        if self.empty:
            return
        # a file of the same round is older
        self._on_disk -= {(client, round) for client in clients}
        # the accepted and the pinned version stay, unless they are of this round
        numbers = np.array(clients)
        kept = np.stack([_rounds(clients, accepted), _rounds(clients, self._pinned)])
        self._index.keep(numbers, np.where(kept == round, NO_ROUND, kept))
        self._add(numbers, round, packed)

    def pin_versions(self, accepted: dict[int, int]) -> None:
        """Keep these versions beside those that stand, until others are pinned."""
        self._pinned = dict(accepted)

    def save(self, accepted: dict[int, int]) -> None:
        """Write the accepted and the pinned version of every client to disk."""
        if self._folder is None:
            return
        versions = [*accepted.items(), *self._pinned.items()]
        clients, rounds = np.array(versions, np.int64).reshape(-1, 2).T
        rows = dict(zip(versions, self._index.find(clients, rounds).tolist(), strict=True))
        # a version without a row is in a file already, or has never been
        due = [version for version, row in rows.items() if row and version not in self._on_disk]
        with ThreadPoolExecutor(FILES_AT_A_TIME) as writers:
            for first in range(0, len(due), FILES_AT_A_TIME):
                some = due[first : first + FILES_AT_A_TIME]
                table_rows = np.array([rows[version] for version in some])
                values = tree.map(lambda t: t.cpu(), self._table.read(table_rows))
                paths = [self._path(version) for version in some]
                client_states = [tree.row(values, i) for i in range(len(some))]
                list(writers.map(write_tensors, paths, client_states))
                self._on_disk.update(some)

    def keep_rounds_from(self, round: int) -> None:
        """Keep the files of this `round` and of later ones: a broadcast of this round may arrive after later ones."""
        self._kept_from = round

    def drop_other_versions(self, accepted: dict[int, int]) -> None:
        """Delete the files of versions that neither stand now, nor stood at the last call, nor are pinned.

        Called once a checkpoint names the new ones; the one before it stays usable, should the newest turn out damaged.
        """
        if not self._on_disk:
            return
        kept = {*accepted.items(), *self._standing.items(), *self._pinned.items()}
        kept |= {version for version in self._on_disk if version[1] >= self._kept_from}
        for version in self._on_disk - kept:
            self._path(version).unlink(missing_ok=True)
        self._on_disk &= kept
        self._standing = dict(accepted)

    def use_versions(self, accepted: dict[int, int]) -> None:
        """Take over the files that an earlier process saved, and drop those of other versions."""
        if self._folder is None:
            return
        files = rounds_of(self._folder.glob("*/round-*.safetensors"))
        self._on_disk = {
            (int(path.parent.name), round)
            for path, round in files.items()
            if path.parent.name.isdecimal()
        }
        self.drop_other_versions(accepted)

    def _load(self, client: int, round: int) -> int:
        """The row of a state that a file holds."""
        values, _ = read_tensors(self._path((client, round)))
        self._on_disk.add((client, round))
        stacked = tree.map(lambda t: t.unsqueeze(0), values)
        [row] = self._add(np.array([client]), round, stacked)
        return int(row)

    def _add(self, clients: np.ndarray, round: int, client_state: Tree) -> np.ndarray:
        """The rows of these states, stacked along a leading [K], once they are written."""
        rows = self._index.free(len(clients))
        self._table.write(rows, client_state)
        self._index.add(clients, round, rows)
        return rows

    def _path(self, version: Version) -> Path:
        assert self._folder is not None, "only states of a folder are files"
        return state_file(self._folder, *version)


def group_folder(folder: Path, stage: int, group: int) -> Path:
    """The folder of the client states of a group, below the one of a run's client states."""
    return folder / f"stage-{stage}" / f"group-{group:04d}"


def state_file(folder: Path, client: int, round: int) -> Path:
    """The file of the state that a client made in a round, in the folder of its group."""
    return round_file(folder / f"{client:08d}", round)


def _rounds(clients: Iterable[int], accepted: Mapping[int, int]) -> np.ndarray:
    """The round of each client; `NO_ROUND` of one that has none."""
    return np.array([accepted.get(client, NO_ROUND) for client in clients], np.int32)


def _unlike(initial: Mapping[str, Kind], made: Mapping[str, Kind]) -> UnalikeError:
    """The error for a client state that differs from the initial one in names, shapes or types."""
    name = next(n for n in {**initial, **made} if initial.get(n) != made.get(n))
    part, _, what = name.partition("/")
    before = _words(initial.get(name))
    after = _words(made.get(name))
    return UnalikeError(
        f"{part} gives clients {before} as {what} before their first round and {after} after it; "
        "what finish or encode keeps must have the names, shapes and types that client_init gives"
    )


def _words(kind: Kind | None) -> str:
    return "nothing" if kind is None else f"{kind[1]} {list(kind[0])}".removeprefix("torch.")
