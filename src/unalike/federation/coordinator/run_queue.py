"""The runs of a federation: that of its first method and seed, then those that `unalike federation run --method` has added.

runs.json (the name and the digest of the terms of each added run)  runs/<name>/ (its run directory, with its pages)
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from unalike._utils.errors import UnalikeError
from unalike._utils.spec import slug
from unalike._utils.tensor_files import write_bytes
from unalike.federation.protocol.federation_file import Federation
from unalike.runtime.records.run_directory import RunDirectory


@dataclass(frozen=True)
class QueuedRun:
    """One run: the federation with its method and seed, its run directory, and the folder of its pages."""

    federation: Federation
    path: Path
    pages: Path

    @property
    def title(self) -> str:
        """Its method and seed, with its number unless it is their first run: `fedavg, seed 0, run 2`."""
        title = f"{self.federation.method}, seed {self.federation.seed}"
        _, _, number = self.path.name.partition(f"{self.federation.terms[:8]}-")
        return f"{title}, run {number}" if number else title

    @property
    def page(self) -> Path:
        """The page that is written last: the report, or without rounds that of a diagnosis."""
        return self.pages / ("report.html" if self.federation.rounds else "diagnosis.html")

    @property
    def is_over(self) -> bool:
        """Whether the run and its page are complete."""
        directory = RunDirectory(self.path)
        if not self.page.exists() or not directory.finished:
            return False
        # a finished run goes on when the federation file gets more rounds
        config = directory.config or {}
        return config.get("rounds") == self.federation.rounds


def queued_runs(folder: Path, federation: Federation) -> list[QueuedRun]:
    """The runs of a coordinator's folder in their order."""
    runs = [QueuedRun(federation, path=folder / "run", pages=folder)]
    variants = federation.variants
    for row in _rows(folder):
        path = folder / "runs" / row["name"]
        if row["terms"] in variants:
            runs.append(QueuedRun(variants[row["terms"]], path=path, pages=path))
    return runs


def add_runs(
    folder: Path, first: Federation, methods: Sequence[str], seeds: int, again: bool = False
) -> list[str]:
    """Add a run of each method (none: the first) under each of so many seeds, unless there is one; returns their names.

    `again`: also where there is one. Raises `UnalikeError` for a method or a number of seeds that is not agreed on.
    """
    agreed = list(dict.fromkeys((first.method, *first.also)))
    strangers = [method for method in methods if method not in agreed]
    if strangers:
        raise UnalikeError(
            f"the sites have not agreed to {strangers[0]!r}, but to {', '.join(agreed)}; further methods are agreed on when a "
            f"federation is made: `unalike federation init --also {quote(strangers[0])}`"
        )
    if seeds > first.seeds:
        raise UnalikeError(f"{seeds} seeds; the sites agreed to {first.seeds}")
    wanted = methods or agreed[:1]
    rows = _rows(folder)
    added = []
    for terms, variant in first.variants.items():
        if variant.method not in wanted or variant.seed >= first.seed + seeds:
            continue
        # the federation's first run is queued without a row
        earlier = sum(row["terms"] == terms for row in rows) + (terms == first.terms)
        if earlier and not again:
            continue
        name = f"{slug(variant.method)[:40]}-seed{variant.seed}-{terms[:8]}"
        if earlier:
            name = f"{name}-{earlier + 1}"
        added.append(name)
        rows.append({"name": name, "terms": terms})
    write_bytes(folder / "runs.json", json.dumps(rows, indent=1).encode())
    return added


def _rows(folder: Path) -> list[dict[str, str]]:
    """The added runs, as `runs.json` has them."""
    file = folder / "runs.json"
    return json.loads(file.read_text()) if file.exists() else []
