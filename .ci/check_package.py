"""Check the distributions in a folder: a wheel has every file of its package, and the tree and the sdist build the same wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
PROJECTS = {"unalike": ROOT, "unalike_studies": ROOT / "studies"}
"""Package -> the folder of its pyproject.toml; the package is in `src` below it."""


def checksums(folder: Path, package: str) -> dict[str, int]:
    """File in the package's only wheel -> CRC of its contents."""
    (wheel,) = folder.glob(f"{package}-*.whl")
    return {entry.filename: entry.CRC for entry in ZipFile(wheel).infolist()}


def check(folder: Path, package: str) -> None:
    """Raise an `AssertionError` that lists the files that are missing or differ."""
    packed, project = checksums(folder, package), PROJECTS[package]
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=project, capture_output=True, text=True, check=True
    ).stdout
    expected = {line.removeprefix("src/") for line in tracked.splitlines()}
    found = {name for name in packed if ".dist-info/" not in name}
    assert found == expected, f"in the wheel or in src/{package} only: {sorted(found ^ expected)}"
    with TemporaryDirectory() as other:
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", other, str(project)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        direct = checksums(Path(other), package)
    different = [name for name in {**packed, **direct} if packed.get(name) != direct.get(name)]
    assert not different, (
        f"differ between the wheel of the sdist and the one of the tree: {different}"
    )
    print(f"{package}: {len(found)} files; the sdist and the tree build the same wheel")


if __name__ == "__main__":
    for name in PROJECTS:
        check(Path(sys.argv[1]), name)
