"""Commands that refuse an empty path, with help pages that cut no summary and have the text of every positional argument.

They name no class of click: newer releases of Typer bring their own copy of it.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from unalike._utils.errors import refuse_empty_path

MAX_SUMMARY_LENGTH = 10_000
"""A limit in characters that no summary reaches."""


class DocumentedGroup(TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command. Typer's error names the nearest ones; newer releases of click would name them once more."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if hasattr(error, "possibilities"):
                error.possibilities = None
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the whole first sentence about each command."""
        rows = []
        for name, command in self.commands.items():
            rows.append((name, command.get_short_help_str(MAX_SUMMARY_LENGTH)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class DocumentedCommand(TyperCommand):
    """A command, none of whose paths is an empty text.

    Typer 0.20 sets the help of a positional argument before click 8.5 sets it to None, so it is set again here.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        if self.callback is None:
            return
        declared = inspect.signature(self.callback, eval_str=True).parameters
        # their classes differ from release to release
        parameters: list[Any] = [p for p in self.params if p.name in declared]
        for parameter in parameters:
            annotation = declared[parameter.name].annotation
            if _is_path(annotation):
                parameter.process_value = _of_written(parameter)
            if parameter.param_type_name == "argument":
                _, *metadata = get_args(annotation)
                texts = [info.help for info in metadata if hasattr(info, "help")]
                parameter.help = texts[0] if texts else None

    def invoke(self, ctx: Any) -> Any:
        """Call the command, and leave its values in the context's object, where who called the app reads them."""
        if ctx.obj is not None:
            ctx.obj.update(ctx.params)
        return super().invoke(ctx)

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Write nothing: Typer writes arguments in front of options."""


def _is_path(annotation: Any) -> bool:
    """Whether a value of this type is a path, or has paths in it."""
    return annotation is Path or any(map(_is_path, get_args(annotation)))


def _of_written(parameter: Any) -> Callable[[Any, Any], Any]:
    """The conversion of texts into paths. It raises `UnalikeError` for an empty one, which would be the current folder."""
    convert = parameter.process_value

    def converted(context: Any, value: Any) -> Any:
        texts = value if isinstance(value, list | tuple) else [value]
        for text in texts:
            refuse_empty_path(parameter.opts[0], text)
        return convert(context, value)

    return converted


class CommandApp(typer.Typer):
    """A program of commands with such help pages."""

    def __init__(self, **options: Any):
        super().__init__(
            cls=DocumentedGroup, no_args_is_help=True, rich_markup_mode=None, **options
        )

    def command(self, *args: Any, **options: Any) -> Any:
        """Decorator: add a command, as `typer.Typer.command` does."""
        return super().command(*args, cls=DocumentedCommand, **options)
