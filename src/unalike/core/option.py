"""An option as a field of a dataclass with its help; how its values are read, written, and left out at their default.

All options that more than one place knows are declared in `core/options.py`.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from unalike._utils.functions import text_of_function


@dataclass(frozen=True)
class Help:
    """The meaning of an option.

    `text` are sentences for the command line and config files; the first words, up to a comma, stand in docstrings, too. `none`
    is the word for None on the command line, empty if leaving the option out does. `agreed`: a site of a federation agrees to
    it, because it decides what the site computes or sends.
    """

    text: str
    none: str = ""
    agreed: bool = False


@dataclass(frozen=True)
class Option:
    """One option: its name, the annotation of its field without the help, its default, and its help."""

    name: str
    kind: Any
    default: Any
    help: Help

    @property
    def repeated(self) -> bool:
        """Whether it takes several values."""
        return any(get_origin(plain_type(kind)) is tuple for kind in _members(self.kind))

    @property
    def optional(self) -> bool:
        """Whether None is one of its values."""
        return type(None) in _members(self.kind)

    @property
    def takes_number_or_text(self) -> bool:
        """Whether a number and a text are among its values, such as 0.8 and "later"."""
        kinds = [plain_type(kind) for kind in _members(self.kind)]
        return float in kinds and str in kinds

    @property
    def flag_type(self) -> type:
        """The type of one value on the command line."""
        kinds = [plain_type(kind) for kind in _members(self.kind)]
        # a word for None, or a text among the values: any value is read as text
        if self.help.none or str in kinds:
            return str
        for kind in (bool, float, int, Path):
            if kind in kinds:
                return kind
        return str

    def written(self, value: Any) -> Any:
        """A value as it is given on the command line and in config files; None where the option is left out."""
        if self.repeated:
            values = [value] if isinstance(value, str) else list(value)
            return values or None
        if value is None:
            return self.help.none or None
        if isinstance(value, Path) or self.help.none:
            return str(value)
        return text_of_function(value)

    def read(self, value: Any) -> Any:
        """The value that was given on the command line."""
        if self.repeated:
            return tuple(value)
        if self.help.none and value == self.help.none:
            return None
        if self.takes_number_or_text and value is not None:
            with suppress(ValueError):
                return float(value)
        return value


def plain_type(kind: Any) -> Any:
    """A type without its annotations."""
    if get_origin(kind) is not Annotated:
        return kind
    return get_args(kind)[0]


def _members(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    inner = plain_type(kind)
    is_union = get_origin(inner) not in (None, tuple, Literal)
    if not is_union:
        return (inner,)
    return get_args(inner)


@cache
def options_of(*kinds: type) -> dict[str, Option]:
    """The options that the fields of these dataclasses declare, by name."""
    options = {}
    for kind in kinds:
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            hint = hints[field.name]
            meaning = _help_of(hint)
            # a field without help is no option
            if meaning is None:
                continue
            options[field.name] = Option(
                name=field.name, kind=hint, default=default_of(field), help=meaning
            )
    return options


def _help_of(hint: Any) -> Help | None:
    for annotation in getattr(hint, "__metadata__", ()):
        if isinstance(annotation, Help):
            return annotation
    return None


def default_of(field: Field[Any]) -> Any:
    """The default of a field; `MISSING` if it has none."""
    if field.default_factory is MISSING:
        return field.default
    return field.default_factory()


def without_defaults(value: Any) -> Any:
    """A dataclass as plain values, without the fields that have their default; so are dataclasses in its fields.

    Digests are made of this form: an option that comes later leaves those of all that do not use it as they were.
    """
    if isinstance(value, list | tuple):
        return [without_defaults(item) for item in value]
    if not is_dataclass(value):
        return value
    changed = {}
    for field in fields(value):
        current = without_defaults(getattr(value, field.name))
        default = without_defaults(default_of(field))
        # 1 and 1.0 may mean different things: so many sites, or the share of all
        if type(current) is not type(default) or current != default:
            changed[field.name] = current
    return changed


def written(settings: Any, *, changed: bool = False) -> dict[str, Any]:
    """The options of a dataclass as they are given on the command line, by name.

    `changed`: those that have their default are left out. None for an option that no flag has to be given for.
    """
    values = {}
    for name, option in options_of(settings.__class__).items():
        value = option.written(getattr(settings, name))
        if changed and value == option.written(option.default):
            continue
        values[name] = value
    return values


def written_config(config: Mapping[str, Any], *kinds: type) -> dict[str, Any]:
    """The options in the TOML file of a run, as they are given on the command line, by name.

    TOML has no None: an option that is missing in the file was None, or it is newer than the file and had its default.
    """
    values = {}
    for name, option in options_of(*kinds).items():
        where_missing = None if option.optional else option.default
        values[name] = option.written(config.get(name, where_missing))
    return values


def read_values(values: Mapping[str, Any], *kinds: type) -> dict[str, Any]:
    """The values of options that were given on the command line."""
    options = options_of(*kinds)
    read = dict(values)
    for name, value in values.items():
        # values of no declared option are as they were given
        if name in options:
            read[name] = options[name].read(value)
    return read
