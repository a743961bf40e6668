"""The sites of the sums that were unmasked, by the model that they trained. It is kept over all runs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unalike._utils.tensor_files import writing


class KnownSum(NamedTuple):
    """The sites of a sum, the step and round that it is of, and the factor with which the update of the ledger's owner is in it."""

    sites: tuple[str, ...]
    place: tuple[int, int]
    factor: float = 1.0


class SumLedger:
    """Model (`model_digest`) -> the sums over it, in a file that only grows.

    An update follows from the model. So two sums over one model whose sites differ by one show the update of that site, as many
    sums as sites with other factors show all, and sums of two rounds show a site that alone trains on other batches in them. An
    entry is on disk before a share leaves. A line that a power cut tore counts for nothing: no share left for it.
    """

    def __init__(self, file: Path):
        self.file = file
        self._sums: dict[str, list[KnownSum]] = {}
        lines = file.read_text().splitlines() if file.exists() else []
        for line in lines:
            try:
                model, factor, step, round, *sites = json.loads(line)
            except ValueError:
                continue
            self._sums.setdefault(model, []).append(KnownSum(tuple(sites), (step, round), factor))

    def sums_over(self, model: str) -> Sequence[KnownSum]:
        """The sums over this model, in the order of time."""
        return self._sums.get(model, ())

    def add(self, model: str, added: KnownSum) -> None:
        """Write down a sum, unless it is there. Raises `UnalikeError` if it cannot be written."""
        known = self._sums.setdefault(model, [])
        if added in known:
            return
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a", opener=_for_owner) as file:
                # a break in front: a torn line does not take the next one with it
                file.write(f"\n{json.dumps([model, added.factor, *added.place, *added.sites])}")
                file.flush()
                os.fsync(file.fileno())
        known.append(added)


def _for_owner(path: str, flags: int) -> int:
    """Open a file that nobody else may read."""
    return os.open(path, flags, 0o600)
