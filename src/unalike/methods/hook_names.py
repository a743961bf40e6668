"""Hooks in the class of a part that could not be called: misspelt names, and other arguments than those of the role."""

import difflib
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from unalike._utils.errors import UnalikeError

LEAST_LIKENESS = 0.8
"""Likeness of two names (`difflib`), of 0 to 1, from which on one may be a misspelling of the other."""


def check_hook_names(cls: type, base: type) -> None:
    """Raise `UnalikeError` for a name in a class below `base` that is nearly that of a hook, or a hook of a role it lacks.

    Names of the class that its own code reads are no mistake, nor are its fields.
    """
    classes = own_classes(cls, base)
    roles = [c for c in cls.__mro__ if c not in classes]
    known = {name for role in roles for name in (*vars(role), *_annotated(role))}
    read = {name for c in classes for name in names_read(c)}
    suspects = []
    for c in classes:
        fields = {name for name, kind in _annotated(c).items() if "ClassVar" not in str(kind)}
        allowed = known | read | fields
        suspects += [name for name in vars(c) if not name.startswith("_") and name not in allowed]
    if not suspects:
        return

    # A hook that a role asks for and the class lacks is refused where it is used, with its own advice.
    hooks = _hooks_of_roles(base)
    offered = [name for name in known if name in hooks and not _is_lacking(cls, name)]
    for name in suspects:
        if name in hooks and callable(getattr(cls, name)):
            role = hooks[name]
            raise UnalikeError(
                f"{cls.__name__} has `{name}`, a hook of the role {role}, which the class does not have, so that nobody calls it; "
                f"write class {cls.__name__}({role}, ...), or give the method another name"
            )
        similar = [hook for hook in offered if _plain(hook) == _plain(name)]
        similar += difflib.get_close_matches(name, offered, n=1, cutoff=LEAST_LIKENESS)
        if similar:
            raise UnalikeError(
                f"{cls.__name__} has `{name}`, which nobody reads; did you mean `{similar[0]}`? Begin the name with an "
                "underscore if it is a function of your own"
            )


def check_hook_arguments(cls: type, base: type) -> None:
    """Raise `UnalikeError` for a hook in a class below `base` that cannot take the arguments with which it is called."""
    classes = own_classes(cls, base)
    for name, own in ((name, own) for c in classes for name, own in vars(c).items()):
        roles = (c for c in cls.__mro__ if c not in classes and name in vars(c))
        declared = vars(next(roles, object)).get(name)
        if name.startswith("_") or not inspect.isfunction(own) or not inspect.isfunction(declared):
            continue
        expected = [*inspect.signature(declared).parameters]
        try:
            inspect.signature(own).bind(*expected)
        except TypeError:
            raise UnalikeError(
                f"{cls.__name__} has {name}({', '.join(inspect.signature(own).parameters)}), which is called with other arguments; "
                f"write def {name}({', '.join(expected)})"
            ) from None


def own_classes(cls: type, base: type) -> list[type]:
    """The class and the user's own classes above it that have no name in spec text."""
    return [c for c in cls.__mro__ if c is cls or _is_own_base(c, base)]


def _is_own_base(cls: type, base: type) -> bool:
    """Whether a class is a user's own one below `base`, without a name in spec text."""
    is_ours = cls.__module__.startswith("unalike.")
    return issubclass(cls, base) and not is_ours and "name" not in vars(cls)


def _plain(name: str) -> str:
    """A name without what other styles of writing change: `clientInit` is `client_init`."""
    return name.replace("_", "").casefold()


def _is_lacking(cls: type, hook: str) -> bool:
    return getattr(getattr(cls, hook, None), "__isabstractmethod__", False)


def _annotated(cls: type) -> dict[str, Any]:
    return vars(cls).get("__annotations__", {})


def _hooks_of_roles(base: type) -> dict[str, str]:
    """Hook or flag -> the role that declares it; of several the first."""
    hooks: dict[str, str] = {}
    for role in _roles(base):
        for name in (*vars(role), *_annotated(role)):
            if not name.startswith("_"):
                hooks.setdefault(name, role.__name__)
    return hooks


def _roles(base: type) -> Iterator[type]:
    """`base` and the classes below it that are roles: those of this library that are no parts, nor bases of parts."""
    yield base
    subclasses: list[type] = base.__subclasses__()
    for role in subclasses:
        module = role.__module__
        if module.startswith("unalike.methods.") and not module.startswith(
            "unalike.methods.parts."
        ):
            yield from _roles(role)


def names_read(cls: type, argument: str = "") -> Iterator[str]:
    """The names that the code of a class reads, each function apart from its own name; with `argument` those with it only."""
    for name, value in vars(cls).items():
        for function in _functions(value):
            code = inspect.unwrap(function).__code__
            if not argument or argument in code.co_varnames[: code.co_argcount]:
                yield from (read for read in _names_in(code) if read != name)


def _functions(value: Any) -> Iterable[Any]:
    """The Python functions behind an attribute of a class."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    candidates = [value]
    if isinstance(value, property):
        candidates = [value.fget, value.fset]
    candidates += [getattr(value, "func", None)]  # a cached property
    return [f for f in candidates if inspect.isfunction(f)]


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
