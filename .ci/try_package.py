"""Try the installed packages from outside the repository, with the Python that they are installed for.

Without arguments, `unalike` alone; with `--studies`, the commands of `unalike-studies`.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import unalike

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "--help",
    "list methods",
    "doctor",
    "compare --data digits --method fedavg --method scaffold --rounds 2 --seeds 2 --out results",
)
STUDIES = (
    "study list",
    "study run fedmix-figure4 --out studies",
    "study report fedmix-figure4 --out studies",
)
PROGRAM = Path(sys.executable).with_name("unalike")


def run(commands: tuple[str, ...], folder: str) -> None:
    """Run commands one after the other. Raise `CalledProcessError` for one that fails."""
    for command in commands:
        print(f"$ unalike {command}", flush=True)
        subprocess.run(
            [PROGRAM, *command.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )


def try_unalike() -> None:
    """Raise an `AssertionError`, or `CalledProcessError`, if something does not work."""
    home = Path(unalike.__file__).parent
    assert not home.is_relative_to(ROOT / "src"), (
        f"{home} is the source tree, not the installed package"
    )
    assert (home / "py.typed").exists(), "the package has types, but no file py.typed says so"
    assert unalike.__version__ == version("unalike")
    with TemporaryDirectory() as folder:
        run(COMMANDS, folder)
        report = (Path(folder) / "results" / "report.html").read_text()
        study = subprocess.run(
            [PROGRAM, "study", "list"], cwd=folder, capture_output=True, text=True
        )
    assert "scaffold" in report and "digits" in report
    assert study.returncode == 2 and "pip install 'unalike[studies]'" in study.stderr, study.stderr
    print(f"unalike {unalike.__version__} works from {home}")


def try_studies() -> None:
    """The same for `unalike-studies`."""
    with TemporaryDirectory() as folder:
        run(STUDIES, folder)
    print(f"unalike-studies {version('unalike-studies')} works")


if __name__ == "__main__":
    try_studies() if "--studies" in sys.argv else try_unalike()
