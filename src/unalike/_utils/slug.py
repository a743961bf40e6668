"""Names of files and folders that are made from labels."""

from __future__ import annotations

import re


def slug(text: str) -> str:
    """The text in lower case with a hyphen for anything but letters, digits and dots: `fedprox(mu=0.1)` is `fedprox-mu-0.1`."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
