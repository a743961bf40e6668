"""What a federation needs beyond the plain installation."""

from __future__ import annotations

from importlib.util import find_spec

from unalike.core.errors import UnalikeError


def require() -> None:
    """Raise `UnalikeError` where the extra `flower` is not installed."""
    missing = [name for name in ("cryptography", "flwr") if find_spec(name) is None]
    if missing:
        raise UnalikeError(
            f"a federation needs {' and '.join(missing)}; install the extra: pip install 'unalike[flower]'"
        )
