"""Earlier reports of a comparison's folder: before a report with other settings is replaced, it is kept under a name of its own."""

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unalike._utils.errors import warn
from unalike._utils.spec import slug
from unalike.comparison.comparison_json import COMPARISON_FILE, ComparisonFacts
from unalike.comparison.joining.comparability import MACHINE
from unalike.comparison.seed_plan import AUTO, read_numbers
from unalike.core.option import written
from unalike.core.options import SimulationOptions
from unalike.runtime.records.run_directory import RunDirectory

REPORTS_FOLDER = "reports"
REPORT_FILES = (COMPARISON_FILE, "columns.json", "config.toml", "*.parquet", "*.html")
"""Files of a comparison beside its cells."""
ADDED_TO = ("method", "seeds", "within")
"""Settings of which a comparison may have more than the earlier one, and still contain it."""
MAX_NAME_LETTERS = 60
"""Most letters of the name of a folder."""


def keep_report(folder: Path, facts: ComparisonFacts) -> None:
    """Copy the report and the tables of a comparison with other settings into `reports/NAME`, with a warning.

    NAME are the settings that differ, such as `lr-0.1`. `unalike report` and `ua.open_comparison` read such a folder. A report
    that the new one contains, because only methods or seeds are added, is not kept. A folder without facts or settings is
    unfinished and has none.
    """
    settings_found = RunDirectory(folder).config
    if not (folder / COMPARISON_FILE).exists() or settings_found is None:
        return
    # An older folder lacks options that had their default.
    usual = written(SimulationOptions())
    found = usual | settings_found
    wanted = usual | tomllib.loads(facts.config)
    changed = []
    for name in {**found, **wanted}:
        if name in MACHINE or found.get(name) == wanted.get(name):
            continue
        if name in ADDED_TO and _contains(wanted, found, name):
            continue
        changed.append(name)
    if not changed:
        return

    settings = "-".join(f"{name} {found.get(name)}" for name in changed)
    place = _place(folder, slug(settings)[:MAX_NAME_LETTERS])
    if not place.exists():
        _copy(folder, place)
    warn(
        f"{folder} holds the report of a comparison with other settings ({', '.join(changed)}): it is kept in {place}",
    )


def earlier_reports(folder: Path) -> list[Path]:
    """The folders of the reports that were kept, oldest first."""
    kept = sorted(
        (folder / REPORTS_FOLDER).glob(f"*/{COMPARISON_FILE}"),
        key=lambda file: file.stat().st_mtime,
    )
    return [file.parent for file in kept]


def _copy(folder: Path, place: Path) -> None:
    """Copy the report of a folder to a place, which has all of it or does not exist."""
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for pattern in REPORT_FILES:
        for file in folder.glob(pattern):
            shutil.copy2(file, part)
    part.rename(place)


def _place(folder: Path, name: str) -> Path:
    """The folder of a name that holds this very report already, or a new one."""
    report = (folder / COMPARISON_FILE).read_bytes()
    place = folder / REPORTS_FOLDER / name
    number = 1
    while place.exists() and (place / COMPARISON_FILE).read_bytes() != report:
        number += 1
        place = folder / REPORTS_FOLDER / f"{name}-{number}"
    return place


def _contains(wanted: Mapping[str, Any], found: Mapping[str, Any], name: str) -> bool:
    """Whether the methods, with the same one first, or the seeds of the new comparison contain those of the earlier one.

    A race with another budget goes on with the same methods.
    """
    earlier, new = found.get(name, ()), wanted.get(name, ())
    if name == "within":
        return bool(earlier and new)
    if name == "method":
        return earlier[:1] == new[:1] and set(earlier) <= set(new)
    if not earlier or not new:  # one of them was a race
        return False
    return AUTO not in (earlier, new) and set(read_numbers(str(earlier))) <= set(
        read_numbers(str(new))
    )
