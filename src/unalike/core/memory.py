"""What clients remember between rounds, versioned by round.

An order names the round whose report of a client was accepted last. The memory made in that round is then current; what a
refused or lost report left behind is dropped, and the memory before it stands. Simulation and federation share this rule.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory

from unalike.core import tree
from unalike.core.checkpoint import read_tensors, write_tensors
from unalike.core.types import Drawers

Version = tuple[int, int]
"""(client, round): the memory that the client made in that round."""


class ClientMemories:
    """The memories of many clients: in RAM up to `budget` bytes, beyond it in files of `folder`, the least used first.

    `initial` is the memory of a client that never took part; where it is empty nothing is ever kept. Files are safetensors, one
    per client and round, in a temporary folder unless one is given.
    """

    def __init__(self, initial: Drawers, folder: Path | None = None, budget: int = 4 * 2**30):
        self._initial = initial
        self._temporary = TemporaryDirectory(prefix="unalike-") if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else Path(folder or "")
        self._budget = budget
        self._ram: OrderedDict[Version, Drawers] = OrderedDict()
        self._rounds: dict[int, set[int]] = {}
        self._used = 0
        self._on_disk: set[Version] = set()
        self._standing: dict[int, int] = {}
        self._pinned: dict[int, int] = {}

    def get(self, client: int, accepted: int | None) -> Drawers:
        """The client's memory as of the last accepted round; None: it never had a report accepted."""
        if accepted is None or not self._initial:
            return self._initial
        version = (client, accepted)
        if version not in self._ram:
            device = next(iter(next(iter(self._initial.values())).values())).device
            found = tree.unpack(read_tensors(self._path(version))[0])
            self._keep(version, {name: tree.map(lambda t: t.to(device), t) for name, t in found.items()})
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
            if version in self._ram and version not in self._on_disk:
                self._write(version)

    def prune(self, accepted: dict[int, int]) -> None:
        """Delete the files of versions that neither stand now, nor stood at the last call, nor are pinned.

        Called once a checkpoint names the new ones; the one before it stays usable, should the newest turn out damaged.
        """
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
            if oldest not in self._on_disk:
                self._write(oldest)
            self._drop(oldest)

    def _write(self, version: Version) -> None:
        write_tensors(self._path(version), tree.pack(self._ram[version]))
        self._on_disk.add(version)

    def _drop(self, version: Version) -> None:
        memory = self._ram.pop(version, None)
        if memory is not None:
            self._used -= tree.nbytes(*memory.values())
            self._rounds[version[0]].discard(version[1])

    def _path(self, version: Version) -> Path:
        client, round = version
        return self._folder / f"{client:08d}" / f"round-{round:06d}.safetensors"
