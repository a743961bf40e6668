"""Commands of other packages: entry points of the group `unalike.commands`, each a Typer app or a function as Typer takes it."""

from importlib.metadata import entry_points
from typing import Any

import typer

from unalike._utils.errors import UnalikeError

ENTRY_POINT_GROUP = "unalike.commands"
OWN_PLUGINS = {"study": ("studies", "Published tables and figures as experiments")}
"""Our commands in other distributions: name -> the extra that installs it (its folder in a checkout, too), and the summary."""

ACCEPT_ANY_ARGUMENTS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def add_plugins(app: typer.Typer) -> None:
    """Add the commands of installed packages whose names are free.

    A command that cannot be imported, or one of ours that is not installed, says so when it is called.
    """
    our_names = {command.name for command in app.registered_commands}
    our_names |= {group.name for group in app.registered_groups}
    points = {
        point.name: point
        for point in entry_points(group=ENTRY_POINT_GROUP)
        if point.name not in our_names
    }
    for _, point in sorted(points.items()):
        try:
            command: Any = point.load()
        except Exception as error:
            # whatever the package raises, the other commands work
            why = (
                f"`unalike {point.name}` cannot be imported from {point.value}: "
                f"{type(error).__name__}: {error}"
            )
            _add_error(app, point.name, "(cannot be imported)", why)
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name)(command)
    for name, (extra, summary) in OWN_PLUGINS.items():
        if name in points:
            continue
        message = (
            f"`unalike {name}` is not installed: pip install 'unalike[{extra}]', "
            f"or in a checkout: pip install -e ./{extra}"
        )
        _add_error(app, name, f"{summary} (not installed).", message)


def _add_error(app: typer.Typer, name: str, summary: str, message: str) -> None:
    """Add a command that raises `UnalikeError`, whatever its arguments are."""

    @app.command(name, help=summary, context_settings=ACCEPT_ANY_ARGUMENTS)
    def fail(context: typer.Context) -> None:
        raise UnalikeError(message)
