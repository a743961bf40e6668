"""Commands of other packages, from the entry-point group `unalike.commands`."""

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from unalike import UnalikeError
from unalike.cli import plugins


def greet(name: str) -> None:
    """Greet somebody."""
    print(f"hello {name}")


group = typer.Typer()
group.command()(greet)
group.command("wave")(greet)


@pytest.fixture
def invoke(monkeypatch):
    """Run a command of a program with one command of its own, `own`, and those of the entry points: standard output."""

    def run(points, *words):
        found = [
            EntryPoint(name, value, plugins.ENTRY_POINT_GROUP) for name, value in points.items()
        ]
        monkeypatch.setattr(
            plugins,
            "entry_points",
            lambda group: found if group == plugins.ENTRY_POINT_GROUP else [],
        )
        app = typer.Typer()
        app.command("own")(lambda: print("ours"))
        plugins.add_plugins(app)
        return CliRunner().invoke(app, words, catch_exceptions=False).stdout

    return run


def test_function_and_app_of_another_package_are_commands(invoke, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "outside", sys.modules[__name__])
    points = {"greet": "outside:greet", "group": "outside:group"}
    assert invoke(points, "greet", "you") == "hello you\n"
    assert invoke(points, "group", "wave", "you") == "hello you\n"


def test_command_of_ours_is_not_replaced(invoke):
    assert invoke({"own": "nowhere:command"}, "own") == "ours\n"


def test_package_that_cannot_be_imported_says_so_and_leaves_the_others(invoke):
    points = {"broken": "no_such_package:command"}
    assert invoke(points, "own") == "ours\n"
    message = (
        "`unalike broken` cannot be imported from no_such_package:command: ModuleNotFoundError"
    )
    with pytest.raises(UnalikeError, match=message):
        invoke(points, "broken", "--flag", "word")


def test_study_that_is_not_installed_says_how_to_install_it(invoke):
    with pytest.raises(
        UnalikeError,
        match=r"`unalike study` is not installed: pip install 'unalike\[studies\]'.* -e ./studies",
    ):
        invoke({}, "study", "run", "fedmix-quadratic", "--scale", "small", "--help")


def test_help_lists_the_study_that_is_not_installed(invoke):
    assert "(not installed)" in invoke({}, "--help")
