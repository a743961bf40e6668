"""What clients remember between rounds, versioned by round.

An order names the round whose report of a client was accepted last. The memory made in that round is then current; what a
refused or lost report left behind is dropped, and the memory before it stands. Simulation and federation share this rule.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

import numpy as np
import torch

from unalike.core import tree
from unalike.core.checkpoint import read_tensors, write_tensors
from unalike.core.types import Drawers

Version = tuple[int, int]
"""(client, round): the memory that the client made in that round."""


class Spill:
    """Memories of equal shapes in the rows of one file, mapped into memory; the file is nobody else's and goes with its owner."""

    def __init__(self) -> None:
        self._plan: list[tuple[str, str, torch.dtype, torch.Size, int]] = []
        self._rows = np.empty((0, 0), np.uint8)
        self._file: IO[bytes] | None = None
        self._places: dict[Version, int] = {}
        self._free: list[int] = []

    def __contains__(self, version: Version) -> bool:
        return version in self._places

    def put(self, version: Version, memory: Drawers) -> None:
        """Write a memory over a row that is free. The first one says how all are laid out."""
        self._plan = self._plan or [
            (drawer, name, t.dtype, t.shape, t.numel() * t.element_size())
            for drawer, tree in memory.items()
            for name, t in tree.items()
        ]
        if not self._free:
            self._grow()
        row = self._rows[self._places.setdefault(version, self._free.pop())]
        start = 0
        for drawer, name, *_, size in self._plan:
            flat = memory[drawer][name].detach().cpu().contiguous().reshape(-1)
            row[start : start + size] = flat.view(torch.uint8).numpy()
            start += size

    def get(self, version: Version, device: torch.device) -> Drawers:
        """A copy of a memory."""
        row, start = self._rows[self._places[version]], 0
        found: Drawers = {}
        for drawer, name, dtype, shape, size in self._plan:
            t = torch.from_numpy(row[start : start + size].copy()).view(dtype).reshape(shape)
            found.setdefault(drawer, {})[name] = t.to(device)
            start += size
        return found

    def drop(self, version: Version) -> None:
        """Forget a memory; its row is free."""
        self._free.append(self._places.pop(version))

    def _grow(self) -> None:
        before, after = len(self._rows), max(64, 2 * len(self._rows))
        self._file = self._file or TemporaryFile(prefix="unalike-")  # noqa: SIM115  (it lives as long as this object)
        width = sum(size for *_, size in self._plan)
        self._file.truncate(after * width)
        self._rows = np.memmap(self._file, np.uint8, "r+", shape=(after, width))
        self._free += range(after - 1, before - 1, -1)


class ClientMemories:
    """The memories of many clients: in RAM up to `budget` bytes, beyond it in rows of a mapped file, the least used first.

    `initial` is the memory of a client that never took part; where it is empty nothing is ever kept. What `save` brings to
    `folder` are safetensors, one per client and round, in a temporary folder unless one is given.
    """

    def __init__(self, initial: Drawers, folder: Path | None = None, budget: int = 4 * 2**30):
        self._initial = initial
        self._temporary = TemporaryDirectory(prefix="unalike-") if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else Path(folder or "")
        self._budget = budget
        self._ram: OrderedDict[Version, Drawers] = OrderedDict()
        self._spill = Spill()
        self._rounds: dict[int, set[int]] = {}
        self._used = 0
        self._on_disk: set[Version] = set()
        self._standing: dict[int, int] = {}
        self._pinned: dict[int, int] = {}

    @property
    def empty(self) -> bool:
        """Whether clients remember nothing at all."""
        return not self._initial

    @property
    def device(self) -> torch.device:
        """Where memories lie that are used."""
        return next(t.device for drawer in self._initial.values() for t in drawer.values())

    def get(self, client: int, accepted: int | None) -> Drawers:
        """The client's memory as of the last accepted round; None: it never had a report accepted."""
        if accepted is None or not self._initial:
            return self._initial
        version = (client, accepted)
        if version not in self._ram and version in self._spill:
            self._keep(version, self._spill.get(version, self.device))
        elif version not in self._ram:
            found = tree.unpack(read_tensors(self._path(version))[0])
            self._keep(version, {name: tree.map(lambda t: t.to(self.device), t) for name, t in found.items()})
            self._on_disk.add(version)
        self._ram.move_to_end(version)
        return self._ram[version]

    def put(self, client: int, round: int, memory: Drawers, accepted: int | None) -> None:
        """Keep what the client made in `round`, beside the version that stands; forget every other one of it."""
        if not self._initial:
            return
        for old in self._rounds.get(client, set()) - {accepted, self._pinned.get(client)}:
            self._drop((client, old))
        self._on_disk.discard((client, round))  # a file of the same round is older
        self._keep((client, round), memory)

    def pin(self, accepted: dict[int, int]) -> None:
        """Keep these versions beside those that stand, until others are pinned."""
        self._pinned = dict(accepted)

    def save(self, accepted: dict[int, int]) -> None:
        """Bring the standing and the pinned version of every client to disk."""
        for version in (*accepted.items(), *self._pinned.items()):
            if version in self._on_disk:
                continue
            if version in self._ram:
                self._write(version, self._ram[version])
            elif version in self._spill:
                self._write(version, self._spill.get(version, self.device))

    def prune(self, accepted: dict[int, int]) -> None:
        """Delete the files of versions that neither stand now, nor stood at the last call, nor are pinned.

        Called once a checkpoint names the new ones; the one before it stays usable, should the newest turn out damaged.
        """
        if not self._on_disk:
            return
        kept = {*accepted.items(), *self._standing.items(), *self._pinned.items()}
        for version in self._on_disk - kept:
            self._path(version).unlink(missing_ok=True)
        self._on_disk &= kept
        self._standing = dict(accepted)

    def adopt(self, accepted: dict[int, int]) -> None:
        """Take over the files that an earlier process saved, and remove those of versions that do not stand."""
        self._on_disk = {
            (int(path.parent.name), int(path.stem.removeprefix("round-")))
            for path in self._folder.glob("*/round-*.safetensors")
        }
        self.prune(accepted)

    def _keep(self, version: Version, memory: Drawers) -> None:
        self._drop(version)
        self._ram[version] = memory
        self._rounds.setdefault(version[0], set()).add(version[1])
        self._used += tree.nbytes(*memory.values())
        while self._used > self._budget and len(self._ram) > 1:
            oldest = next(iter(self._ram))
            memory = self._release(oldest)
            if oldest not in self._on_disk:
                self._spill.put(oldest, memory)

    def _write(self, version: Version, memory: Drawers) -> None:
        write_tensors(self._path(version), tree.pack(memory))
        self._on_disk.add(version)

    def _release(self, version: Version) -> Drawers:
        memory = self._ram.pop(version)
        self._used -= tree.nbytes(*memory.values())
        return memory

    def _drop(self, version: Version) -> None:
        if version in self._ram:
            self._release(version)
        if version in self._spill:
            self._spill.drop(version)
        self._rounds.get(version[0], set()).discard(version[1])

    def _path(self, version: Version) -> Path:
        client, round = version
        return self._folder / f"{client:08d}" / f"round-{round:06d}.safetensors"
