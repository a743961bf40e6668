"""Check that this machine can run a federation: optional dependencies, and the operating system."""

from __future__ import annotations

import sys

from unalike._utils import errors
from unalike._utils.errors import UnalikeError


def require_extra(*modules: str, what: str = "a federation") -> None:
    """Raise `UnalikeError` if one of the modules (those of a federation by default) is not installed."""
    errors.require_extra("flower", *modules or ("cryptography", "flwr"), what=what)
    if not modules and sys.platform != "linux":
        raise UnalikeError(
            f"a federation needs Linux, found {sys.platform}: it supervises its processes by /proc and prctl; simulations run here"
        )
