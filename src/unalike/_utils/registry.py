"""Registries: names that users write (methods and parts, partitions, models, data) -> builders."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from threading import local
from typing import Any

from pydantic import ValidationError

from unalike._utils.errors import InvalidValue, UnalikeError, unknown
from unalike._utils.keywords import hint
from unalike._utils.option_types import check_kinds
from unalike._utils.spec import MAX_TEXT_LETTERS, Call
from unalike._utils.validated import explain_errors

_NAME_PATTERN = re.compile(r"\b[A-Za-z_]\w*(?=\s*(?:[(+]|$))")
"""Finds the names of a spec text."""


class Registry:
    """Name -> the function or class that builds the thing; upper and lower case of a name do not matter.

    `home` names the modules that register our own names, or their package, imported at the first look-up; other packages add theirs
    through the entry-point group `group` (`unalike.parts`, `unalike.models`, ...), read at the first look-up too.
    """

    def __init__(self, kind: str, home: str | Sequence[str], group: str | None = None):
        self.kind = kind
        self._home = (home,) if isinstance(home, str) else tuple(home)
        self._group = group or f"unalike.{kind}s"
        self._home_is_loaded = False
        self._plugins_are_loaded = False
        self._here = local()
        self._builders: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[Any], Any]:
        """Decorator: make `name` stand for the decorated builder.

        Defined once more (a cell of a notebook that runs again), a builder takes its own place. Raises `UnalikeError` if the name
        is taken by another.
        """

        def add(builder: Any) -> Any:
            # our own names first: another builder of such a name is refused here, not our own when it is imported later
            if builder.__module__.partition(".")[0] != self._package:
                self._load_home()
            registered = self._builders.get(name, builder)
            if _origin(registered) != _origin(builder):
                raise UnalikeError(
                    f"the {self.kind} name {name!r} is taken by {registered!r}; choose another"
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
        all_parameters = inspect.signature(self[call.name]).parameters
        # what a person does not write is there when the builder is called
        from_context = all_parameters.keys() - self.parameters(call.name).keys()
        self._check(call, dict.fromkeys(from_context))

    def _check(self, call: Call, context: dict[str, Any]) -> None:
        builder = self[call.name]
        signature = inspect.signature(builder)
        try:
            signature.bind(**context, **call.parameters)
            check_kinds(builder, call.parameters)
        except TypeError as error:
            # the first parameter that the builder does not take is probably misspelt
            unknown_names = [name for name in call.parameters if name not in signature.parameters]
            misspelt = unknown_names[0] if unknown_names else ""
            advice = f"it takes {self.usage(call.name)}"
            suggestion = hint(misspelt, self.parameters(call.name), builder).rstrip("?")
            if suggestion:
                advice = f"{suggestion}; {advice}"
            raise UnalikeError(f"{call}: {error}; {advice}") from None
        except InvalidValue as error:
            raise InvalidValue(f"{call}: {error}; it takes {self.usage(call.name)}") from None

    def usage(self, name: str) -> str:
        """`proximal(mu=0.001)`: the name with the parameters a person may write and their defaults."""
        written = []
        for parameter in self.parameters(name).values():
            has_default = parameter.default is not parameter.empty
            default = f"={parameter.default!r}" if has_default else ""
            written.append(f"{parameter.name}{default}")
        return f"{name}({', '.join(written)})"

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters that a person may write."""
        parameters = inspect.signature(self[name]).parameters
        # builders that also take what the person does not write (labels, shapes) mark what they may write as keyword-only
        keyword_only = {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
        with_default = {n: p for n, p in parameters.items() if p.default is not p.empty}
        return keyword_only or with_default

    def summary(self, name: str) -> str:
        """The first line of the builder's docstring."""
        text = inspect.getdoc(self[name]) or ""
        return text.split("\n")[0]

    def spelled(self, text: str) -> str:
        """Spec text with the registered spelling of every name: `FedProx(mu=1) + LWS` is `fedprox(mu=1) + lws`."""
        # `parse` refuses it, and to spell its names takes long
        if len(text) > MAX_TEXT_LETTERS:
            return text
        return _NAME_PATTERN.sub(lambda match: self._key(match[0]), text)

    def _key(self, name: str) -> str:
        """The registered name that differs from this one in upper and lower case alone, else the name as it is."""
        self._load()
        if name in self._builders:
            return name
        return self._registered_spellings().get(name.lower(), name)

    def _registered_spellings(self) -> dict[str, str]:
        """Name in lower case -> the name as it is registered; the first of several that differ in case alone."""
        return {name.lower(): name for name in reversed(self._builders)}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        key = self._key(name)
        if key not in self._builders:
            elsewhere = (
                "`unalike list` shows those that are known; your own are known once their module is "
                f"imported, on the command line by the entry-point group {self._group!r}"
            )
            raise unknown(self.kind, name, self._builders, elsewhere)
        return self._builders[key]

    def __contains__(self, name: str) -> bool:
        """Whether the name is registered as it is spelled here: records have that spelling, and a user's class may have another."""
        self._load()
        return name in self._builders

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._builders)

    @property
    def _package(self) -> str:
        """The package of our own names."""
        return self._home[0].partition(".")[0]

    def _load(self) -> None:
        if self._plugins_are_loaded or self._is_loading:
            return
        self._load_home()
        with self._loading():
            for point in entry_points(group=self._group):
                point.load()
        self._plugins_are_loaded = True

    def _load_home(self) -> None:
        if self._home_is_loaded or self._is_loading:
            return
        with self._loading():
            for module in self._home:
                import_with_modules(module)
        self._home_is_loaded = True

    @property
    def _is_loading(self) -> bool:
        """Whether this thread is loading: the modules look up names while they are imported."""
        return getattr(self._here, "is_loading", False)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        # Of each thread by itself: another thread that comes meanwhile imports the same modules, so it waits for them by
        # Python's own locks, which a lock of ours could block for ever.
        self._here.is_loading = True
        try:
            yield
        finally:
            self._here.is_loading = False


def import_with_modules(name: str) -> None:
    """Import a module; of a package all its modules, too, in alphabetical order, so that each registers what it defines."""
    module = import_module(name)
    for part in iter_modules(getattr(module, "__path__", ())):
        import_module(f"{name}.{part.name}")


def documentation(builder: Callable[..., Any]) -> str:
    """The docstring; after that of a class, those of the classes of the same file that it extends."""
    classes = inspect.getmro(builder) if inspect.isclass(builder) else (builder,)
    texts = []
    for definition in classes:
        text = inspect.cleandoc(definition.__doc__ or "")
        if text and definition.__module__ == builder.__module__:
            texts.append(text)
    return "\n\n".join(texts)


def _origin(builder: Any) -> tuple[str, Any]:
    """Module and name of a builder's definition; a builder without a name is compared by itself."""
    return builder.__module__, getattr(builder, "__qualname__", builder)


figures = Registry("figure", home="unalike.reporting.figures")
"""Name -> a function that draws what a run, a history or clients show of themselves; `reporting` is imported at the first one."""
