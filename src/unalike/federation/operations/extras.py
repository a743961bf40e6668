"""Check that optional dependencies are installed."""

from __future__ import annotations

from importlib.util import find_spec

from unalike._utils.errors import UnalikeError


def require_extra(*modules: str, what: str = "a federation") -> None:
    """Raise `UnalikeError` if one of the modules (those of a federation by default) is not installed."""
    missing = [name for name in modules or ("cryptography", "flwr") if find_spec(name) is None]
    if missing:
        raise UnalikeError(f"{what} needs {' and '.join(missing)}; install the extra: pip install 'unalike[flower]'")
