"""Client states between rounds, versioned by round.

A broadcast names, for each client, the last round in which its update was accepted. The state made in that round is current; the
state of a refused or lost update is dropped, and the state before it stays. Simulation and federation share this rule.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors, round_file, rounds_of, write_tensors
from unalike.core import tree
from unalike.core.types import PartTrees, Tree
from unalike.training.client.state_table import NEVER, RowIndex, StateTable

WRITERS = 8
"""Files that are written at a time."""

Kind = tuple[torch.Size, torch.dtype]
"""Shape and type of one tensor of a client state."""

Version = tuple[int, int]
"""(client, round): the state that the client made in that round."""


class ClientStates:
    """The states of many clients, in rows of one table: beside the model up to `budget` bytes, beyond it in mapped files.

    `initial` is the state of a client that never took part; if it is empty, nothing is ever kept. All others have its
    names and shapes. What is handed out are copies. What `save` brings to `folder` are safetensors, one per client and round;
    without a folder nothing is brought to disk.
    """

    def __init__(self, initial: PartTrees, folder: Path | None = None, budget: int = 4 * 2**30):
        self._initial = initial
        self._folder = folder
        self._kinds = {name: (t.shape, t.dtype) for name, t in tree.pack(initial).items()}
        self._table, self._index = StateTable(tree.pack(initial), budget), RowIndex()
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
        return next(t.device for held in self._initial.values() for t in held.values())

    def get(self, client: int, accepted: int | None) -> PartTrees:
        """The client's state as of its last accepted round; None if none of its updates was accepted."""
        if accepted is None:
            return self._initial
        return {
            name: tree.row(t, 0) for name, t in self.stacked([client], {client: accepted}).items()
        }

    def put(self, client: int, round: int, client_state: PartTrees, accepted: int | None) -> None:
        """Keep the client's state of `round` beside the accepted version; drop all other versions."""
        stacked = {
            name: tree.map(lambda t: t.unsqueeze(0), held) for name, held in client_state.items()
        }
        self.put_stacked([client], round, stacked, {} if accepted is None else {client: accepted})

    def stacked(self, clients: Sequence[int], accepted: Mapping[int, int]) -> PartTrees:
        """The states of many clients along a leading [K]; `accepted` holds the last accepted round of each client that has one."""
        if self.empty:
            return {}
        numbers, rounds = np.array(clients), _rounds(clients, accepted)
        rows = self._index.find(numbers, rounds)
        for i in np.flatnonzero((rows == 0) & (rounds != NEVER)).tolist():
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
        if (found := {name: (t.shape[1:], t.dtype) for name, t in packed.items()}) != self._kinds:
            raise _unlike(self._kinds, found)
        if self.empty:
            return
        numbers, stand = (
            np.array(clients),
            np.stack([_rounds(clients, given) for given in (accepted, self._pinned)]),
        )
        self._on_disk -= {
            (client, round) for client in clients
        }  # a file of the same round is older
        self._index.keep(numbers, np.where(stand == round, NEVER, stand))
        self._add(numbers, round, packed)

    def pin_versions(self, accepted: dict[int, int]) -> None:
        """Keep these versions beside those that stand, until others are pinned."""
        self._pinned = dict(accepted)

    def save(self, accepted: dict[int, int]) -> None:
        """Write the accepted and the pinned version of every client to disk."""
        if self._folder is None:
            return
        versions = [*accepted.items(), *self._pinned.items()]
        rows = self._index.find(*np.array(versions, np.int64).reshape(-1, 2).T)
        found = dict(zip(versions, rows.tolist(), strict=True))
        due = [version for version, row in found.items() if row and version not in self._on_disk]
        with ThreadPoolExecutor(
            WRITERS
        ) as writers:  # a disk takes long for one small file, and no longer for several
            for first in range(0, len(due), WRITERS):
                some = due[first : first + WRITERS]
                held = tree.map(
                    lambda t: t.cpu(),
                    self._table.read(np.array([found[version] for version in some])),
                )
                paths, client_states = (
                    map(self._path, some),
                    (tree.row(held, i) for i in range(len(some))),
                )
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
        """Take over the files that an earlier process saved, and `prune` them."""
        if self._folder is None:
            return
        self._on_disk = {
            (int(path.parent.name), round)
            for path, round in rounds_of(self._folder.glob("*/round-*.safetensors")).items()
            if path.parent.name.isdecimal()
        }
        self.drop_other_versions(accepted)

    def _load(self, client: int, round: int) -> int:
        """The row of a state that a file holds."""
        found, _ = read_tensors(self._path((client, round)))
        self._on_disk.add((client, round))
        return int(
            self._add(np.array([client]), round, tree.map(lambda t: t.unsqueeze(0), found))[0]
        )

    def _add(self, clients: np.ndarray, round: int, client_state: Tree) -> np.ndarray:
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
    """The round of each client; `NEVER` of one that has none."""
    return np.array([accepted.get(client, NEVER) for client in clients], np.int32)


def _unlike(initial: Mapping[str, Kind], made: Mapping[str, Kind]) -> UnalikeError:
    """The error for a client state that differs from the initial one in names, shapes or types."""
    name = next(n for n in {**initial, **made} if initial.get(n) != made.get(n))
    part, _, what = name.partition("/")
    begins, keeps = (_words(kinds.get(name)) for kinds in (initial, made))
    return UnalikeError(
        f"{part} gives clients {begins} as {what} before their first round and {keeps} after it; "
        "what finish or encode keeps must have the names, shapes and types that client_init gives"
    )


def _words(kind: Kind | None) -> str:
    return "nothing" if kind is None else f"{kind[1]} {list(kind[0])}".removeprefix("torch.")
