"""`unalike federation revoke`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "revoke"


def command(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
    sites: Annotated[list[str], typer.Argument(help="The sites that are to take no part any more.")],
) -> None:
    """Revoke sites: their keys open nothing any more.

    From the next `unalike federation up` on, the rounds do without them.

    \b
    unalike federation stop hospitals
    unalike federation revoke hospitals north
    unalike federation up hospitals

    What a site did before stays in the model. `unalike federation renew hospitals --site north` enrols it again, with new keys.
    """
    from unalike.federation.operations.extras import require_extra

    require_extra()
    from unalike.federation.operations.federation_folder import FederationFolder

    found = FederationFolder(folder)
    with found.held():
        for name in sites:
            found.revoke(name)
    left = [site.name for site in found.federation.sites if not site.revoked]
    print(f"left: {', '.join(left) or 'nobody'}; then `unalike federation up {folder}`")
