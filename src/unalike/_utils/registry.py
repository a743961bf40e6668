"""Registries: names that users write (methods and parts, partitions, models, data) -> builders."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

from pydantic import ValidationError

from unalike._utils.errors import InvalidValue, UnalikeError, unknown
from unalike._utils.keywords import hint
from unalike._utils.option_types import check_kinds
from unalike._utils.spec import Call
from unalike._utils.validated import explain_errors

_NAMES = re.compile(r"\b[A-Za-z_]\w*(?=\s*(?:[(+]|$))")
"""The names of a spec text."""


class Registry:
    """Name -> the function or class that builds the thing; upper and lower case of a name do not matter.

    `home` names the modules that register our own names, or their package, imported at the first look-up; other packages add theirs
    through the entry-point group `group` (`unalike.parts`, `unalike.models`, ...), read at the first look-up too.
    """

    def __init__(self, kind: str, home: str | Sequence[str], group: str | None = None):
        self.kind = kind
        self._home = (home,) if isinstance(home, str) else tuple(home)
        self._group = group or f"unalike.{kind}s"
        self._loaded = False
        self._builders: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[Any], Any]:
        """Decorator: make `name` stand for the decorated builder.

        Defined once more (a cell of a notebook that runs again), a builder takes its own place. Raises `UnalikeError` if the name
        is taken by another.
        """

        def add(builder: Any) -> Any:
            if _origin(self._builders.get(name, builder)) != _origin(builder):
                raise UnalikeError(
                    f"the {self.kind} name {name!r} is taken by {self._builders[name]!r}; choose another"
                )
            self._builders[name] = builder
            return builder

        return add

    def build(self, call: Call, **context: Any) -> Any:
        """Call the builder of `call.name` with its parameters; `context` fills in what the person does not write.

        Raises `UnalikeError` for parameters that the builder does not take, of the wrong kind and out of range.
        """
        builder = self[call.name]
        self._check(call, context)
        try:
            return builder(**context, **call.parameters)
        except InvalidValue as error:
            raise InvalidValue(f"{call}: {error}; it takes {self.usage(call.name)}") from None
        except ValidationError as error:
            raise UnalikeError(
                f"{call}: {explain_errors(error)}; it takes {self.usage(call.name)}"
            ) from None

    def check(self, call: Call) -> None:
        """Raise `UnalikeError` for parameters that the builder does not take, lacks, or that are of the wrong kind."""
        written, parameters = (
            self.parameters(call.name),
            inspect.signature(self[call.name]).parameters,
        )
        self._check(call, dict.fromkeys(parameters.keys() - written.keys()))

    def _check(self, call: Call, context: dict[str, Any]) -> None:
        builder = self[call.name]
        try:
            inspect.signature(builder).bind(**context, **call.parameters)
            check_kinds(builder, call.parameters)
        except TypeError as error:
            strange = next(
                (n for n in call.parameters if n not in inspect.signature(builder).parameters), ""
            )
            meant = hint(strange, self.parameters(call.name), builder).rstrip("?")
            raise UnalikeError(
                f"{call}: {error}; {meant}{'; ' if meant else ''}it takes {self.usage(call.name)}"
            ) from None
        except InvalidValue as error:
            raise InvalidValue(f"{call}: {error}; it takes {self.usage(call.name)}") from None

    def usage(self, name: str) -> str:
        """`proximal(mu=0.001)`: the name with the parameters a person may write and their defaults."""
        written = self.parameters(name).values()
        return f"{name}({', '.join(p.name if p.default is p.empty else f'{p.name}={p.default!r}' for p in written)})"

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters that a person may write."""
        parameters = inspect.signature(self[name]).parameters
        # builders that also take what the person does not write (labels, shapes) mark what they may write as keyword-only
        named = {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
        return named or {n: p for n, p in parameters.items() if p.default is not p.empty}

    def summary(self, name: str) -> str:
        """The first line of the builder's docstring."""
        return (inspect.getdoc(self[name]) or "").split("\n")[0]

    def spelled(self, text: str) -> str:
        """Spec text with the registered spelling of every name: `FedProx(mu=1) + LWS` is `fedprox(mu=1) + lws`."""
        return _NAMES.sub(lambda found: self._key(found[0]), text)

    def _key(self, name: str) -> str:
        """The registered name that differs from this one in upper and lower case alone, else the name as it is."""
        self._load()
        return name if name in self._builders else self._in_lower_case.get(name.lower(), name)

    @property
    def _in_lower_case(self) -> dict[str, str]:
        return {name.lower(): name for name in reversed(self._builders)}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        key = self._key(name)
        if key not in self._builders:
            own = f"your own are known once their module is imported, on the command line by the entry-point group {self._group!r}"
            raise unknown(
                self.kind, name, self._builders, f"`unalike list` shows those that are known; {own}"
            )
        return self._builders[key]

    def __contains__(self, name: str) -> bool:
        """Whether the name is registered as it is spelled here: records have that spelling, and a user's class may have another."""
        self._load()
        return name in self._builders

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._builders)

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for module in self._home:
            import_with_modules(module)
        for point in entry_points(group=self._group):
            point.load()


def import_with_modules(name: str) -> None:
    """Import a module; of a package all its modules, too, in alphabetical order, so that each registers what it defines."""
    module = import_module(name)
    for part in iter_modules(getattr(module, "__path__", ())):
        import_module(f"{name}.{part.name}")


def documentation(builder: Callable[..., Any]) -> str:
    """The docstring; after that of a class, those of the classes of the same file that it extends."""
    classes = inspect.getmro(builder) if inspect.isclass(builder) else (builder,)
    own = (c for c in classes if c.__module__ == builder.__module__)
    return "\n\n".join(text for c in own if (text := inspect.cleandoc(c.__doc__ or "")))


def _origin(builder: Any) -> tuple[str, Any]:
    """Module and name of a builder's definition; a builder without a name is compared by itself."""
    return builder.__module__, getattr(builder, "__qualname__", builder)


figures = Registry("figure", home="unalike.reporting.figures")
"""Name -> a function that draws what a run, a history or clients show of themselves; `reporting` is imported at the first one."""
