"""The sites of the sums that were unmasked, by the model that they trained. It is kept over all runs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from unalike._utils.tensor_files import writing


class SumLedger:
    """Model (`model_digest`) -> the sites of each sum over it, in a file that only grows.

    An update follows from the model, so two sums over one model whose sites differ by one show the update of that site. An entry
    is on disk before a share leaves. A line that a power cut tore counts for nothing: no share left for it.
    """

    def __init__(self, file: Path):
        self.file = file
        self._sites: dict[str, list[tuple[str, ...]]] = {}
        lines = file.read_text().splitlines() if file.exists() else []
        for line in lines:
            try:
                model, *sites = json.loads(line)
            except ValueError:
                continue
            self._sites.setdefault(model, []).append(tuple(sites))

    def sums_over(self, model: str) -> Sequence[tuple[str, ...]]:
        """The sites of each sum over this model, in the order of time."""
        return self._sites.get(model, ())

    def add(self, model: str, sites: Sequence[str]) -> None:
        """Write down a sum, unless it is there. Raises `UnalikeError` if it cannot be written."""
        known = self._sites.setdefault(model, [])
        if tuple(sites) in known:
            return
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a", opener=_for_owner) as file:
                # a break in front: a torn line does not take the next one with it
                file.write(f"\n{json.dumps([model, *sites])}")
                file.flush()
                os.fsync(file.fileno())
        known.append(tuple(sites))


def _for_owner(path: str, flags: int) -> int:
    """Open a file that nobody else may read."""
    return os.open(path, flags, 0o600)
