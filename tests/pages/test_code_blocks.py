"""The code of the documentation runs: all Python blocks of a page and all commands, in the order of the page.

A TOML block that begins with `# file name` becomes that file. A page runs in an empty folder and in one namespace, and its
`unalike` commands in this process; `tests/docs/test_commands.py` follows README, quick start and tutorials by a shell. `NOT_RUN`
lists every block that is not run, with the reason that stands above it. Its commands are still parsed, so their options exist.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer
from page_blocks import (
    FILES,
    LANGUAGES,
    READ_FIRST,
    ROOT,
    Block,
    blocks_of,
    follow,
    run_in_shell,
)

from unalike.cli import app, main

pytestmark = pytest.mark.slow

NOT_RUN = {
    "README.md": [
        "installs everything",
        "takes minutes",
        "installs packages",
        "network",
        "needs several machines",
        "installs packages",
    ],
    "docs/federation/coordinator.md": [
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
    "docs/how_to/processes.md": ["needs Slurm", "needs four GPUs", "needs Slurm"],
    "docs/how_to/tasks.md": ["the tables are yours"],
    "docs/how_to/track.md": ["installs packages"],
    "docs/quick_start.md": ["installs packages"],
    "docs/studies.md": ["takes minutes to hours, in a copy of the repository"],
    "docs/tutorials/federation.md": [
        "network",
        "serves until the sites have trained",
        "connects to the coordinator's machine",
        "serves a page until Ctrl-C",
        "needs the federation to be up",
    ],
    "docs/tutorials/masks_and_texts.md": ["the file is not in the package"],
    "docs/how_to/from_other_benchmarks.md": [
        "needs a folder that PFLlib has made",
        "needs a file that FL-bench has made",
    ],
}
"""Page -> the reasons of the blocks that are not run, in the order of the page; `network` blocks run in the network test."""


BLOCKS = {str(page.relative_to(ROOT)): blocks for page in FILES if (blocks := blocks_of(page))}
PAGES = [name for name in BLOCKS if ROOT / name not in READ_FIRST]


@pytest.fixture
def run_page(monkeypatch, tmp_path, capsys, prepared):
    """Function that executes the blocks of a page in an empty folder; tracebacks have the line numbers of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)

    def run(name: str, network: bool = False) -> None:
        module = ModuleType(f"page_{Path(name).stem}")  # a class is found by the name of its module
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if name in prepared:
            prepared[name](vars(module))
        for block in follow(ROOT / name, module, network):
            for command in block.commands:
                program, *words = shlex.split(command, comments=True)
                if program == "unalike":
                    run_command(words, block)
                else:
                    run_in_shell(command, block)

    def run_command(words: list[str], block: Block) -> None:
        monkeypatch.setattr(sys, "argv", ["unalike", *words])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as exit:
            main()
        said = capsys.readouterr()
        assert (exit.value.code or 0) == block.status, (
            f"{block.page}:{block.line}: unalike {shlex.join(words)}: {said.err}{said.out}"
        )

    return run


@pytest.mark.parametrize("name", PAGES)
def test_code_of_page_runs(name, run_page):
    run_page(name)


@pytest.mark.network
@pytest.mark.parametrize(
    "name", [name for name in PAGES if any(block.mark == "network" for block in BLOCKS[name])]
)
def test_network_code_of_page_runs(name, run_page):
    run_page(name, network=True)


def test_blocks_that_do_not_run_are_listed():
    marked = {
        name: [b.mark.removeprefix("not run: ") for b in blocks if not b.is_run(network=False)]
        for name, blocks in BLOCKS.items()
    }
    assert {name: marks for name, marks in marked.items() if marks} == NOT_RUN


def test_commands_that_do_not_run_have_options_that_exist():
    for block in (
        b for blocks in BLOCKS.values() for b in blocks if b.mark and b.language == "console"
    ):
        for command in block.commands:
            program, *words = shlex.split(command, comments=True)
            if program == "unalike":
                parse(typer.main.get_command(app), program, words)


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
        assert {*fences[::2]} <= {*LANGUAGES, "text"}, f"{page}: an unknown language"
