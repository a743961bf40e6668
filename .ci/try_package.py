"""Try the installed package from outside the repository, with the Python that it is installed for."""

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
    "study run fedmix-figure4 --out studies",
    "study report fedmix-figure4 --out studies",
)


def main() -> None:
    """Raise an `AssertionError`, or `CalledProcessError`, if something does not work."""
    home = Path(unalike.__file__).parent
    assert not home.is_relative_to(ROOT / "src"), f"{home} is the source tree, not the installed package"
    assert (home / "py.typed").exists(), "the package has types, but no file py.typed says so"
    assert unalike.__version__ == version("unalike")
    with TemporaryDirectory() as folder:
        for command in COMMANDS:
            print(f"$ unalike {command}", flush=True)
            unalike_command = Path(sys.executable).with_name("unalike")
            subprocess.run([unalike_command, *command.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        report = (Path(folder) / "results" / "report.html").read_text()
    assert "scaffold" in report and "digits" in report
    print(f"unalike {unalike.__version__} works from {home}")


if __name__ == "__main__":
    main()
