"""Client updates on disk until their round closes: memory holds one of them, however many sites there are."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from unalike._utils.tensor_files import read_tensors, write_tensors
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.types import ClientUpdate, Tree
from unalike.training.validation import flat, nested


class UpdateStore:
    """A file for each client update, with a checksum; nothing of it outlives the round, nor the process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.clear()

    def put(self, client: int, client_update: ClientUpdate) -> ClientUpdate:
        """Write an update to disk; returns its numbers. Raises `UnalikeError` where the disk does not take it."""
        write_tensors(self._file(client), flat(client_update))
        return client_update._replace(update={}, buffers={}, messages={})

    def row(self, client: int) -> ClientUpdate:
        """An update as it came, along a leading [1]. Raises `UnalikeError` for a file that is damaged."""
        return map_tensors(lambda t: t[None], nested(self._tree(client)))

    def stacked(self, clients: Sequence[int]) -> ClientUpdate:
        """Updates along a leading [k], for methods that look at all of them at once."""
        stack: Tree = {}
        for i, client in enumerate(clients):
            one = self._tree(client)
            stack = stack or tree.map(lambda t: t.new_empty((len(clients), *t.shape)), one)
            for name, t in one.items():
                stack[name][i] = t
        return nested(stack)

    def clear(self) -> None:
        """Drop all stored updates."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, client: int) -> Path:
        return self.folder / f"{client:08d}.safetensors"

    def _tree(self, client: int) -> Tree:
        return read_tensors(self._file(client))[0]
