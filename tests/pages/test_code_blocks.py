"""The code of the documentation runs: all Python blocks of a page and all `$ unalike` commands, in the order of the page.

A TOML block that begins with `# file name` becomes that file.
A page runs in an empty folder and in one namespace. Two HTML comments above a block make exceptions, and `NOT_RUN` lists them all:
`<!-- not run: reason -->`, and `<!-- network -->` for a block that only the slow network test runs. A command that is not run is
still parsed, so its options exist.
"""

from __future__ import annotations

import doctest
import re
import shlex
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer

from unalike.cli import app, main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (network|not run: [^\n]+) -->\n+)?```(python|console|toml)\n(.*?)^```$",
    re.DOTALL | re.MULTILINE,
)

SLOW = {
    "README.md",
    "docs/questions/learning_rate.md",
    "docs/questions/seeds.md",
    "docs/quick_start.md",
    "docs/how_to/stored_folders.md",
    "docs/how_to/track.md",
    "docs/tutorials/compare_methods.md",
    "docs/tutorials/own_table.md",
    "docs/tutorials/write_your_own_method.md",
}
"""Pages that take more than ten seconds."""

NOT_RUN = {
    "README.md": ["takes minutes", "network", "needs several machines"],
    "docs/federation/coordinator.md": [
        "network",
        "serves until the sites have trained",
        "needs the federation to be up",
        "needs the federation of above",
        "needs the federation of above",
        "needs the federation of above",
        "needs the federation to be up",
    ],
    "docs/federation/secure_aggregation.md": ["makes a federation"],
    "docs/federation/site.md": [
        "needs a bundle and the coordinator's machine",
        "needs a site's folder",
    ],
    "docs/how_to/choose_method.md": ["takes minutes"],
    "docs/how_to/diagnose.md": ["network"],
    "docs/how_to/own_models.md": ["needs published weights", "needs peft"],
    "docs/how_to/processes.md": ["needs four GPUs"],
    "docs/how_to/recording.md": ["the run above once more"],
    "docs/questions/nan.md": ["ends with an error"],
    "docs/studies.md": ["takes minutes to hours, in a copy of the repository"],
    "docs/tutorials/federation.md": [
        "network",
        "serves until the sites have trained",
        "connects to the coordinator's machine",
        "serves a page until Ctrl-C",
        "needs the federation to be up",
    ],
    "docs/how_to/from_other_benchmarks.md": [
        "needs a folder that PFLlib has made",
        "needs a file that FL-bench has made",
    ],
}
"""Page -> the reasons of the blocks that are not run, in the order of the page; `network` blocks run in the network test."""


@dataclass(frozen=True)
class Block:
    """A code block: its page, the number of its first line, its language, its text and its mark ("" for none)."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def commands(self) -> list[list[str]]:
        """The `$ unalike` commands of a console block as lists of words."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [
            shlex.split(line[2:], comments=True)[1:]
            for line in lines
            if line.startswith("$ unalike ")
        ]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start(3)), found[2], found[3], found[1] or "")
        for found in BLOCK.finditer(text)
    ]


FILES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCKS = {str(page.relative_to(ROOT)): blocks for page in FILES if (blocks := blocks_of(page))}
PAGES = [
    pytest.param(name, id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name in BLOCKS
]


@pytest.fixture
def run_page(monkeypatch, tmp_path, capsys, prepared):
    """Function that executes the blocks of a page in an empty folder; tracebacks have the line numbers of the page."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, network: bool = False) -> None:
        module = ModuleType(f"page_{Path(name).stem}")  # a class is found by the name of its module
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if name in prepared:
            prepared[name](vars(module))
        for block in BLOCKS[name]:
            if block.mark and not (network and block.mark == "network"):
                continue
            if block.language == "python":
                run_python(block, module)
            elif block.language == "toml" and block.text.startswith("# "):
                Path(block.text.splitlines()[0][2:]).write_text(block.text)
            for words in block.commands if block.language == "console" else ():
                run_command(words, block)

    def run_command(words: list[str], block: Block) -> None:
        monkeypatch.setattr(sys, "argv", ["unalike", *words])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as exit:
            main()
        said = capsys.readouterr()
        assert not exit.value.code, (
            f"{block.page}:{block.line}: unalike {shlex.join(words)}: {said.err}{said.out}"
        )

    return run


def run_python(block: Block, module: ModuleType) -> None:
    if block.text.startswith(">>>"):
        example = doctest.DocTestParser().get_doctest(
            block.text, vars(module), block.page.name, str(block.page), block.line
        )
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        assert doctest.DocTestRunner(optionflags=flags).run(example, clear_globs=False).failed == 0
    else:
        exec(compile("\n" * block.line + block.text, str(block.page), "exec"), vars(module))


@pytest.mark.parametrize("name", PAGES)
def test_code_of_page_runs(name, run_page):
    run_page(name)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    "name", [name for name, blocks in BLOCKS.items() if any(b.mark == "network" for b in blocks)]
)
def test_network_code_of_page_runs(name, run_page):
    run_page(name, network=True)


def test_blocks_that_do_not_run_are_listed():
    marked = {
        name: [b.mark.removeprefix("not run: ") for b in blocks if b.mark]
        for name, blocks in BLOCKS.items()
    }
    assert {name: marks for name, marks in marked.items() if marks} == NOT_RUN


def test_commands_that_do_not_run_have_options_that_exist():
    for block in (
        b for blocks in BLOCKS.values() for b in blocks if b.mark and b.language == "console"
    ):
        for words in block.commands:
            parse(typer.main.get_command(app), "unalike", words)


def parse(command: click.Command, name: str, words: list[str]) -> None:
    """Parse the words of a command without running it. Raises `click.UsageError` for an unknown command or option."""
    if isinstance(command, click.Group):
        inner, rest = words[0], words[1:]
        assert inner in command.commands, f"unalike has no command {name} {inner}"
        return parse(command.commands[inner], f"{name} {inner}", rest)
    parser = command.make_parser(click.Context(command, info_name=name))
    parser.parse_args(args=list(words))


def test_every_fence_names_a_language_that_the_tests_know():
    for page in FILES:
        fences = re.findall(r"^ *```(.*)$", page.read_text(), re.MULTILINE)
        assert {*fences[::2]} <= {"python", "console", "toml", "text", "bash"}, (
            f"{page}: an unknown language"
        )
