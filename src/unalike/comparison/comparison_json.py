"""The file `comparison.json`: what a report shows beside its tables, such as settings, partition, traffic and notes."""

from __future__ import annotations

import json
import platform
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import explain_errors
from unalike._utils.version import __version__
from unalike.statistics.seed_draws import SharedDetails

if TYPE_CHECKING:
    pass

COMPARISON_FILE = "comparison.json"
ENTRIES = {
    "methods": {"label", "spec", "protocols"},
    "ends": {"method", "seed", "rounds", "why", "selected"},
    "wire": {"method", "direction", "what", "bytes"},
    "confusions": {"method", "classes", "counts"},
}
"""Keys that each entry of a list of facts must have."""


@dataclass(frozen=True, kw_only=True)
class ComparisonFacts(SharedDetails):
    """Facts about a comparison: how its data differs, what crosses the wire, how to repeat it.

    Attributes:
        methods: one entry per method: its label, its spec with every field, the protocols that scored it, (`untuned`)
            what of it ran with default settings, and (`work`) how its local training differs from the baseline's.
        label_counts: client -> class -> training samples; None for regression.
        wire: what each method sends, as rows of `method direction what bytes`.
        notes: warnings to show above the results.
        clients: names of the clients.
    """

    methods: list[dict[str, Any]]
    label_counts: dict[str, dict[str, int]] | None = None
    wire: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write `comparison.json` into a folder."""
        write_bytes(folder / COMPARISON_FILE, json.dumps(asdict(self), indent=1).encode())


def read_facts(folder: Path) -> ComparisonFacts:
    """Read `comparison.json` from a folder. Raises `ValueError` if its content is not valid."""
    return facts_from((folder / COMPARISON_FILE).read_bytes(), COMPARISON_FILE)


def facts_from(content: str | bytes, file: str) -> ComparisonFacts:
    """The facts in JSON. Raises `ValueError`, with the name of the file, if its content is not valid."""
    from pydantic import TypeAdapter, ValidationError

    try:
        facts: ComparisonFacts = TypeAdapter(ComparisonFacts).validate_json(content)
        tomllib.loads(facts.config)
    except ValidationError as error:
        raise ValueError(f"{file}: {explain_errors(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: config: {error}") from None
    for name, needed in ENTRIES.items():
        for entry in getattr(facts, name):
            if missing := sorted(needed - entry.keys()):
                raise ValueError(f"{file}: an entry of {name} lacks {', '.join(missing)}")
    if not facts.methods:
        raise ValueError(f"{file}: no methods")
    return facts


def versions() -> dict[str, str]:
    """Versions of the software that a result depends on."""
    import numpy as np
    import torch

    return {
        "unalike": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
