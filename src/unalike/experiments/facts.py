"""The facts that a report shows beside its tables, the file `comparison.json` with them, and the command that repeats a result."""

from __future__ import annotations

import platform
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unalike._utils.validated import explain_errors
from unalike._utils.version import __version__
from unalike.core.options import TuningOptions, options_of
from unalike.metrics.sampling import UNSAID, Sampling

FILE = "comparison.json"
ENTRIES = {
    "methods": {"label", "spec", "protocols"},
    "ends": {"method", "seed", "rounds", "why", "selected"},
    "wire": {"method", "direction", "what", "bytes"},
    "confusions": {"method", "classes", "counts"},
}
"""Keys that each entry of a list of facts must have."""
FIRST = ("data", "partition", "clients", "method", "baseline", "model", "rounds", "seeds", "seed")
"""Flags that come first, in this order; the others keep the order of the configuration."""
ON = [name for name, option in options_of(TuningOptions).items() if option.default is True]
"""Options that are on unless a flag turns them off."""


@dataclass(frozen=True)
class ComparisonFacts:
    """Facts about a comparison: how its data differs, what crosses the wire, how to repeat it.

    Attributes:
        methods: one entry per method: its label, its spec with every field, the protocols that scored it, (`untuned`)
            what of it ran with default settings, and (`work`) how its local training differs from the baseline's.
        baseline: label of the method that the others are compared with.
        config: the configuration as TOML; `unalike compare --config` reads it.
        command: the command line that repeats the comparison, or a comment that says how to repeat it.
        partition: numbers that describe how the clients' data differs.
        label_counts: client -> class -> training samples; None for regression.
        wire: what each method sends, as rows of `method direction what bytes`.
        notes: warnings to show above the results.
        versions: versions of the software that produced the numbers.
        seed: the first seed; `partition` and `label_counts` describe its clients.
        clients: names of the clients.
        ends: one entry per run: its rounds, why it ended, and the selected round (None if the last rounds count).
        estimate: the cost estimate beside the actual cost: rows of `what unit estimated actual`.
        smallest_effect: the smallest difference of interest; None for the default of the metric.
        across: the score of all clients that decides, one of `metrics.client_scores.ACROSS`.
        looks: (fewest, most) seeds, if seeds were added until the decision stood; None for a fixed number.
        confusions: one entry per method with a model and classes: `method`, `classes`, and `counts`, test samples of all seeds by
            class and predicted class after the last round.
        sampling: what each seed draws anew, and so what intervals are about; folders of older versions do not say it.
        unfinished: progress of a run that has not ended (`2 of 3 rounds`), otherwise empty. Such a run is shown but never
            joined with others.
    """

    methods: list[dict[str, Any]]
    baseline: str
    config: str
    command: str
    partition: dict[str, Any] = field(default_factory=dict)
    label_counts: dict[str, dict[str, int]] | None = None
    wire: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    clients: list[str] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)
    estimate: list[dict[str, Any]] = field(default_factory=list)
    smallest_effect: float | None = None
    across: str = "pooled"
    looks: tuple[int, int] | None = None
    confusions: list[dict[str, Any]] = field(default_factory=list)
    unfinished: str = ""
    sampling: Sampling = UNSAID


def read_facts(folder: Path) -> ComparisonFacts:
    """Read `comparison.json` from a folder. Raises `ValueError` if its content is not valid."""
    from pydantic import TypeAdapter, ValidationError

    try:
        facts: ComparisonFacts = TypeAdapter(ComparisonFacts).validate_json((folder / FILE).read_bytes())
        tomllib.loads(facts.config)
    except ValidationError as error:
        raise ValueError(f"{FILE}: {explain_errors(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{FILE}: config: {error}") from None
    for name, needed in ENTRIES.items():
        for entry in getattr(facts, name):
            if missing := sorted(needed - entry.keys()):
                raise ValueError(f"{FILE}: an entry of {name} lacks {', '.join(missing)}")
    if not facts.methods:
        raise ValueError(f"{FILE}: no methods")
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


def command_line(command: str, config: dict[str, Any]) -> str:
    """The command line for a configuration with flags as keys; a list repeats its flag.

    Without `data` the clients came from a program, and no shell command can repeat the run. The result is then a comment
    that says how to repeat it.
    """
    if "data" not in config:
        return f"# the clients came from a program: call ua.{command}(...) there with the configuration below"
    known = [k for k in FIRST if k in config]
    words = ["unalike", command]
    for key in [*known, *(k for k in config if k not in known)]:
        values = config[key] if isinstance(config[key], list | tuple) else [config[key]]
        for value in values:
            words += flag(key, value)
    return shlex.join(words)


def flag(key: str, value: Any) -> list[str]:
    """The words of one flag. None is no flag; True is a flag without a value, and False one with `no` if True is the default."""
    name = key.replace("_", "-")
    if value is None or (value is False and key not in ON):
        return []
    return [f"--{name}"] if value is True else [f"--no-{name}"] if value is False else [f"--{name}", str(value)]
