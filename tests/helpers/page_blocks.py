"""The code blocks of documentation pages, and how each kind of block is run.

An HTML comment above a block makes an exception: `<!-- not run: reason -->`, `<!-- network -->` for a block that only the slow
network tests run, and `<!-- ends with status 2 -->` for commands that fail, as their page says.
"""

from __future__ import annotations

import doctest
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LANGUAGES = ("python", "console", "toml", "bash")
"""The languages of blocks that are run; `text` shows what something prints."""
MARK = r"network|not run: [^\n]+|ends with status \d+"
BLOCK = re.compile(
    rf"^(?:<!-- ({MARK}) -->\n+)?```({'|'.join(LANGUAGES)})\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A code block: its page, the number of its first line, its language, its text and its mark ("" for none)."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def is_run(self, network: bool) -> bool:
        """Whether the block is run, in the tests with or without a network."""
        if self.mark == "network":
            return network
        return not self.mark.startswith("not run: ")

    @property
    def status(self) -> int:
        """The exit status with which the commands end."""
        _, _, number = self.mark.partition("ends with status ")
        return int(number or 0)

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, each with its continuation lines."""
        whole_lines = self.text.replace("\\\n", " ").splitlines()
        return [line[2:] for line in whole_lines if line.startswith("$ ")]


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, from top to bottom."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start(3)), found[2], found[3], found[1] or "")
        for found in BLOCK.finditer(text)
    ]


def _read_first() -> Iterator[Path]:
    pages = [ROOT / "README.md", ROOT / "docs" / "quick_start.md"]
    for page in [*pages, *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]:
        if any(block.language == "console" for block in blocks_of(page)):
            yield page


READ_FIRST = tuple(_read_first())
"""README, quick start and tutorials with commands, which `tests/docs/test_commands.py` follows literally."""


def follow(page: Path, module: ModuleType, network: bool) -> Iterator[Block]:
    """Run the Python blocks of a page in the namespace of a module, write its files; yield the blocks with commands."""
    for block in blocks_of(page):
        if not block.is_run(network):
            continue
        if block.language == "python":
            run_python(block, module)
        elif block.language == "toml":
            first_line, _, _ = block.text.partition("\n")
            if first_line.startswith("# "):
                Path(first_line.removeprefix("# ")).write_text(block.text)
        else:
            yield block


def run_python(block: Block, module: ModuleType) -> None:
    """Execute a block, or compare what its examples print; tracebacks have the line numbers of the page."""
    if block.text.startswith(">>>"):
        example = doctest.DocTestParser().get_doctest(
            block.text, vars(module), block.page.name, str(block.page), block.line
        )
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        assert doctest.DocTestRunner(optionflags=flags).run(example, clear_globs=False).failed == 0
    else:
        exec(compile("\n" * block.line + block.text, str(block.page), "exec"), vars(module))


def run_in_shell(command: str, block: Block) -> None:
    """Run a command by bash, as a reader does, and compare its exit status with that of the page."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == block.status, (
        f"{block.page}:{block.line}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}"
    )
