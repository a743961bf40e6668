"""Client updates on disk until their round closes: memory holds one of them, however many sites there are."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from unalike._utils.tensor_files import read_tensors, write_tensors
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.types import ClientUpdate, Tree
from unalike.training.flat_update import MESSAGES, flatten_update, restore_update
from unalike.training.server.norm_guard import message_of


class UpdateStore:
    """A file for each client update, with a checksum; nothing of it outlives the round, nor the process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.clear()

    def put(self, client: int, client_update: ClientUpdate) -> ClientUpdate:
        """Write an update to disk; returns its numbers. Raises `UnalikeError` where the disk does not take it."""
        write_tensors(self._file(client), flatten_update(client_update))
        return client_update.numbers

    def scale(self, client: int, factors: Mapping[str, float]) -> None:
        """Multiply objects of an update, named as in `Norms`, by factors of less than 1.

        Whole numbers stay. Of an encoded update the floating-point numbers are scaled: what is decoded then is smaller by the
        factor or, where two of them are multiplied, by more.
        """
        scaled = {}
        for name, t in self._tree(client).items():
            kind, _, _ = name.partition("/")
            what = kind
            if kind.startswith(MESSAGES):
                what = message_of(kind.removeprefix(MESSAGES))
            if what in factors and t.is_floating_point():
                scaled[name] = (t.double() * factors[what]).to(t.dtype)
            else:
                scaled[name] = t
        write_tensors(self._file(client), scaled)

    def row(self, client: int) -> ClientUpdate:
        """An update as it came, along a leading [1]. Raises `UnalikeError` for a file that is damaged."""
        client_update = restore_update(self._tree(client))
        return map_tensors(lambda t: t[None], client_update)

    def stacked(self, clients: Sequence[int]) -> ClientUpdate:
        """Updates along a leading [k], for methods that look at all of them at once."""
        stack: Tree = {}
        count = len(clients)
        for row, client in enumerate(clients):
            flat = self._tree(client)
            if not stack:
                stack = tree.map(lambda t: t.new_empty((count, *t.shape)), flat)
            for name, t in flat.items():
                stack[name][row] = t
        return restore_update(stack)

    def clear(self) -> None:
        """Drop all stored updates."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, client: int) -> Path:
        return self.folder / f"{client:08d}.safetensors"

    def _tree(self, client: int) -> Tree:
        return read_tensors(self._file(client))[0]
